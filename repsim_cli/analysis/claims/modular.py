"""Models 0, E and L of Gao et al. 2024 among those of a run, and claims on the metrics that they were saved with."""

from collections.abc import Callable, Iterable, Mapping

from repsim_cli.analysis.claims.finding import Finding, exact, untestable

Metrics = Mapping[str, float]


def of_letter(letter: str, labels: Iterable[str]) -> str | None:
    """The first model with this letter as a part of its label.

    >>> of_letter("l", ["modsum_e", "modsum_tiny_l", "modsum_l_published"])
    'modsum_tiny_l'
    """
    return next((label for label in labels if letter in label.split("_")), None)


def all_models_reach_full_accuracy(models: Mapping[str, Metrics]) -> Finding:
    """Gao et al. 2024, section 5.1: Models 0, E and L reach 100 % validation accuracy."""
    statistic, threshold = "lowest validation accuracy over models and their stages", 1.0
    found = {
        f"{name.removesuffix('_accuracy')} of {label}": value
        for label, metrics in models.items()
        for name, value in metrics.items()
        if name.endswith("_accuracy")
    }
    if not found:
        return untestable(statistic, threshold, "no model was saved with an accuracy")
    worst = min(found, key=lambda name: found[name])
    holds = found[worst] >= threshold
    return exact(statistic, threshold, holds, found[worst], "" if holds else f"lowest: {worst}")


MODULAR_CLAIMS: dict[str, Callable[[Mapping[str, Metrics]], Finding]] = {
    function.__name__: function for function in (all_models_reach_full_accuracy,)
}
