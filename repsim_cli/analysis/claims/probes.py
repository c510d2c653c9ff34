"""Claims on what probes of the models of modular sums find; Models E and L are known by their labels."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from repsim_cli.analysis.claims.finding import Finding, record, untestable
from repsim_cli.analysis.claims.modular import of_letter

Errors = Mapping[tuple[str, str], float]  # the lowest error over layers, by model and target
FAILS = 0.1  # from this error on a target counts as not told (published: 0.52 and 0.93)


def linear_probes_find_all_sums_in_model_l(lowest: Errors, perfect: float) -> Finding:
    """Gao et al. 2024, table 4: in Model L a linear probe tells c1, c2 and c perfectly."""
    return _all_found("highest error over targets of the best layer of Model L", lowest, "l", perfect)


def linear_probes_miss_inner_sums_in_model_e(lowest: Errors, perfect: float) -> Finding:
    """Gao et al. 2024, table 4: in Model E no layer tells c1 (0.522) or c2 (0.93) linearly."""
    statistic = "lowest error over layers and targets before the last, Model E"
    inner = [value for _, value in _of(lowest, "e")[:-1]]
    if not inner:
        return untestable(statistic, FAILS, "needs a Model E and two targets")
    return Finding(statistic, FAILS, min(inner) >= FAILS, min(inner))


def linear_probes_find_the_last_sum_in_model_e(lowest: Errors, perfect: float) -> Finding:
    """Gao et al. 2024, table 4: in Model E a linear probe tells c perfectly."""
    statistic = "error of the last target at the best layer of Model E"
    if not (found := _of(lowest, "e")):
        return untestable(statistic, perfect, "needs a Model E")
    return Finding(statistic, perfect, found[-1][1] <= perfect, found[-1][1])


def mlp_probes_find_all_sums_in_model_e(lowest: Errors, perfect: float) -> Finding:
    """Gao et al. 2024, table 4: in Model E a 2-layer MLP tells c1, c2 and c perfectly."""
    return _all_found("highest error over targets of the best layer of Model E", lowest, "e", perfect)


def _of(lowest: Errors, letter: str) -> list[tuple[str, float]]:
    """Of the first model of this letter, the lowest error of each target in order."""
    model = of_letter(letter, (model for model, _ in lowest))
    return [(target, value) for (other, target), value in lowest.items() if other == model]


def _all_found(statistic: str, lowest: Errors, letter: str, perfect: float) -> Finding:
    if not (found := _of(lowest, letter)):
        return untestable(statistic, perfect, f"needs a Model {letter.upper()}")
    target, worst = max(found, key=lambda one: one[1])
    return Finding(statistic, perfect, worst <= perfect, worst, "" if worst <= perfect else f"highest: {target}")


PROBE_CLAIMS: dict[str, Callable[[Errors, float], Finding]] = {
    function.__name__: function
    for function in (
        linear_probes_find_all_sums_in_model_l,
        linear_probes_miss_inner_sums_in_model_e,
        linear_probes_find_the_last_sum_in_model_e,
        mlp_probes_find_all_sums_in_model_e,
    )
}


def probe_verdicts(
    names: Sequence[str], lowest: Mapping[tuple[str, str, str], float], perfect: float
) -> list[dict[str, Any]]:
    """Each claim on each probe of its kind (linear, MLP). lowest: by model, target and probe. perfect: no error."""
    found = []
    for name in names:
        for probe in dict.fromkeys(probe for *_, probe in lowest):
            if probe.split("_")[0] == name.split("_")[0]:
                own = {(model, target): value for (model, target, other), value in lowest.items() if other == probe}
                found.append(record(PROBE_CLAIMS[name], probe, PROBE_CLAIMS[name](own, perfect)))
    return found
