"""Claims on the shapes of models."""

from collections.abc import Callable, Mapping

from repsim_cli.analysis.claims.finding import Finding, exact, untestable


def pythia_2_8b_has_a_small_head(ratios: Mapping[str, float | None], factor: float) -> Finding:
    """Brown et al. 2023, table 1: 2.8b has an unexpectedly small attention head."""
    statistic, threshold = "d_head of 2.8b over the median of its neighbours in size", round(1 / factor, 4)
    value = next((ratio for label, ratio in ratios.items() if label.startswith("pythia_2_8b")), None)
    if value is None:
        return untestable(statistic, threshold, "needs pythia_2_8b and two neighbours")
    return exact(statistic, threshold, value < threshold, value)


SHAPE_CLAIMS: dict[str, Callable[[Mapping[str, float | None], float], Finding]] = {
    function.__name__: function for function in (pythia_2_8b_has_a_small_head,)
}
