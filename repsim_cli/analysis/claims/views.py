"""Claims on the views of rows: how distances shift between blocks, which neighbours stay, what couplings look like."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from repsim_cli.analysis.claims.finding import Finding, record, untestable
from repsim_cli.analysis.couplings import Plan

Shifts = Mapping[str, Sequence[float]]  # by model, KL(block || the block before), from the second block on
PUBLISHED = 0.11  # the largest KL between consecutive blocks of the pre-trained BERT
HALF = 0.33  # the Jaccard similarity of two sets that share half of their members


def base_distances_stay(shifts: Shifts, base: str | None) -> Finding:
    """Gao et al. 2024, appendix F: before fine-tuning, KL between consecutive blocks is at most 0.11."""
    statistic = "largest KL divergence between consecutive blocks of the base, nats"
    if base is None or not shifts[base]:
        return untestable(statistic, PUBLISHED, NO_BASE)
    value = max(shifts[base])
    return Finding(statistic, PUBLISHED, value <= PUBLISHED, value)


def fine_tuning_shifts_distances(shifts: Shifts, base: str | None) -> Finding:
    """Gao et al. 2024, appendix F: fine-tuned models show larger KL between consecutive blocks (1.58 against 0.11)."""
    statistic, threshold = "largest KL divergence between consecutive blocks: mean of fine-tuned models minus base", 0.0
    others = [max(own) for label, own in shifts.items() if label != base and own]
    if base is None or not shifts[base] or not others:
        return untestable(statistic, threshold, f"{NO_BASE}, and another model")
    value = float(np.mean(others)) - max(shifts[base])
    return Finding(statistic, threshold, value > threshold, value)


def distances_shift_late(shifts: Shifts, base: str | None) -> Finding:
    """Gao et al. 2024, appendix F: in fine-tuned models KL is large in later layers (the ninth block of 12)."""
    statistic = "mean over models (but the base) of the relative depth of the block with the largest KL divergence"
    threshold = 0.66
    others = [own for label, own in shifts.items() if label != base and len(own) >= 3]
    if not others:
        return untestable(statistic, threshold, "needs a model of four blocks that is not the base")
    value = float(np.mean([(np.argmax(own) + 1) / len(own) for own in others]))
    return Finding(statistic, threshold, value >= threshold, value)


def neighbours_change(overlaps: Sequence[Sequence[float]]) -> Finding:
    """Gao et al. 2024, table 5: the five nearest rows change across blocks (overlaps of 0.22, 0.20, 0.20)."""
    statistic = "mean over models, chosen rows and layers (without the first) of the overlap with the first layer's"
    value = float(np.mean([one for own in overlaps for one in own]))
    return Finding(statistic, HALF, value < HALF, value)


def couplings_are_permutations(plans: Sequence[Plan]) -> Finding:
    """Gao et al. 2024, figure 10: the transport plan is a permutation rather than a distributed plan."""
    value = float(np.mean([plan.is_permutation for plan in plans]))
    return Finding("share of the pairs of layers whose coupling is a permutation", 1.0, value >= 1.0, value)


def couplings_are_not_the_identity(plans: Sequence[Plan]) -> Finding:
    """Gao et al. 2024, figure 10: the transport plan does not conform to the identity."""
    value = max(plan.diagonal for plan in plans)
    return Finding("largest mass on the diagonal of any pair of layers", 1.0, value < 1.0 - 1e-9, value)


NO_BASE = "needs a base of two blocks"
SHIFT_CLAIMS: dict[str, Callable[[Shifts, str | None], Finding]] = {
    function.__name__: function
    for function in (base_distances_stay, fine_tuning_shifts_distances, distances_shift_late)
}
OVERLAP_CLAIMS: dict[str, Callable[[Sequence[Sequence[float]]], Finding]] = {
    function.__name__: function for function in (neighbours_change,)
}
PLAN_CLAIMS: dict[str, Callable[[Sequence[Plan]], Finding]] = {
    function.__name__: function for function in (couplings_are_permutations, couplings_are_not_the_identity)
}
# the view that each claim is about
VIEW_CLAIMS: dict[str, str] = {
    **dict.fromkeys(SHIFT_CLAIMS, "histograms"),
    **dict.fromkeys(OVERLAP_CLAIMS, "neighbours"),
    **dict.fromkeys(PLAN_CLAIMS, "couplings"),
}


def shift_verdicts(names: Sequence[str], shifts: Shifts, base: str | None) -> list[dict[str, Any]]:
    asked = [SHIFT_CLAIMS[name] for name in names if name in SHIFT_CLAIMS]
    return [record(claim, "histograms of distances", claim(shifts, base)) for claim in asked]


def overlap_verdicts(names: Sequence[str], overlaps: Mapping[str, Sequence[Sequence[float]]]) -> list[dict[str, Any]]:
    """overlaps: by space, of every model the mean over the chosen rows at each layer but the first."""
    asked = [OVERLAP_CLAIMS[name] for name in names if name in OVERLAP_CLAIMS]
    return [record(claim, f"neighbours, {space}", claim(own)) for claim in asked for space, own in overlaps.items()]


def plan_verdicts(names: Sequence[str], plans: Mapping[str, Sequence[Plan]]) -> list[dict[str, Any]]:
    """plans: by the starts that they are the best of."""
    asked = [PLAN_CLAIMS[name] for name in names if name in PLAN_CLAIMS]
    return [record(claim, f"gromov_wasserstein, {way}", claim(own)) for claim in asked for way, own in plans.items()]
