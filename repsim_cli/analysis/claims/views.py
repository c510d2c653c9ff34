"""Claims on the views of rows: how distances shift between blocks, which neighbours stay, what couplings look like."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from repsim_cli.analysis.claims.finding import Finding, judged, record, untestable
from repsim_cli.analysis.couplings import Plan
from repsim_cli.findings.evidence import by_chance, by_jackknife, by_sign, by_units

Shifts = Mapping[str, Sequence[float]]  # by model, KL(block || the block before), from the second block on
PUBLISHED = 0.11  # the largest KL between consecutive blocks of the pre-trained BERT
HALF = 0.33  # the Jaccard similarity of two sets that share half of their members
OVER_ROWS = "standard error over the rows, a tenth left out at a time"


def base_distances_stay(shifts: Shifts, left_out: Sequence[Shifts], base: str | None) -> Finding:
    """Gao et al. 2024, appendix F: before fine-tuning, KL between consecutive blocks is at most 0.11."""
    statistic = "largest KL divergence between consecutive blocks of the base, nats"
    if base is None or not shifts[base]:
        return untestable(statistic, PUBLISHED, NO_BASE)
    value, without = max(shifts[base]), [max(one[base]) for one in left_out]
    evidence = by_jackknife(value, PUBLISHED, without, OVER_ROWS)
    return judged(statistic, PUBLISHED, value, evidence, published="below")


def fine_tuning_shifts_distances(shifts: Shifts, left_out: Sequence[Shifts], base: str | None) -> Finding:
    """Gao et al. 2024, appendix F: fine-tuned models show larger KL between consecutive blocks (1.58 against 0.11)."""
    statistic, threshold = "largest KL divergence between consecutive blocks: mean of fine-tuned models minus base", 0.0
    others = [label for label, own in shifts.items() if label != base and own]
    if base is None or not shifts[base] or not others:
        return untestable(statistic, threshold, f"{NO_BASE}, and another model")

    def larger(found: Shifts) -> float:
        return float(np.mean([max(found[label]) for label in others])) - max(found[base])

    value = larger(shifts)
    evidence = by_jackknife(value, threshold, [larger(one) for one in left_out], OVER_ROWS)
    return judged(statistic, threshold, value, evidence)


def distances_shift_late(shifts: Shifts, left_out: Sequence[Shifts], base: str | None) -> Finding:
    """Gao et al. 2024, appendix F: in fine-tuned models KL is large in later layers (the ninth block of 12)."""
    statistic = "mean over models (but the base) of the relative depth of the block with the largest KL divergence"
    threshold = 0.66
    others = [own for label, own in shifts.items() if label != base and len(own) >= 3]
    if not others:
        return untestable(statistic, threshold, "needs a model of four blocks that is not the base")
    depths = [np.arange(1, len(own) + 1) / len(own) for own in others]
    here = [float(own[np.argmax(kl)]) for own, kl in zip(depths, others, strict=True)]
    value, rng = float(np.mean(here)), np.random.default_rng(0)
    few = math.prod(map(len, depths)) <= PLACES
    drawn = [np.append(rng.choice(own, PLACES), at) for own, at in zip(depths, here, strict=True)]
    chance = np.mean(np.meshgrid(*depths) if few else drawn, axis=0).ravel()
    how = f"{len(chance):,} {'' if few else 'drawn '}places of the largest KL"
    return judged(statistic, threshold, value, by_chance(value, chance, how))


PLACES = 10_000  # of the largest KL in each of the models, up to which all are looked at


def neighbours_change(overlaps: Sequence[np.ndarray], chance: float) -> Finding:
    """Gao et al. 2024, table 5: the five nearest rows change across blocks (overlaps of 0.22, 0.20, 0.20).

    As few as chance gives are no change that could be seen: planes without any relation overlap as little.
    """
    statistic = (
        f"mean over models, rows and layers (without the first) of the overlap with the first ({chance:.2f} by chance)"
    )
    by_row = np.mean([own.mean(0) for own in overlaps], axis=0)
    value, how = float(by_row.mean()), f"standard error over {len(by_row)} rows, below {HALF} and above chance"
    few, some = by_units(by_row, HALF, how), by_units(-by_row, -chance, how)
    evidence = replace(few, below=max(few.below, some.below))
    return judged(statistic, HALF, value, evidence, published="below")


def couplings_are_not_the_identity(plans: Sequence[Plan]) -> Finding:
    """Gao et al. 2024, figure 10: the transport plan does not conform to the identity.

    Whether the solver ends there depends on its start, so the objectives of the two are compared.
    """
    statistic, threshold = (
        "share of the pairs of layers whose plan has a smaller objective than the identity",
        0.5,
    )
    better = [plan.objective < plan.of_identity * (1 - SAME) for plan in plans]
    evidence = by_sign(sum(better), len(better), "pairs of layers, each as likely better as not")
    return judged(statistic, threshold, float(np.mean(better)), evidence)


SAME = 1e-9  # by which two objectives may differ and be of one plan
NO_BASE = "needs a base of two blocks"
SHIFT_CLAIMS: dict[str, Callable[[Shifts, Sequence[Shifts], str | None], Finding]] = {
    function.__name__: function
    for function in (base_distances_stay, fine_tuning_shifts_distances, distances_shift_late)
}
OVERLAP_CLAIMS: dict[str, Callable[[Sequence[np.ndarray], float], Finding]] = {
    function.__name__: function for function in (neighbours_change,)
}
PLAN_CLAIMS: dict[str, Callable[[Sequence[Plan]], Finding]] = {
    function.__name__: function for function in (couplings_are_not_the_identity,)
}
# the view that each claim is about
VIEW_CLAIMS: dict[str, str] = {
    **dict.fromkeys(SHIFT_CLAIMS, "histograms"),
    **dict.fromkeys(OVERLAP_CLAIMS, "neighbours"),
    **dict.fromkeys(PLAN_CLAIMS, "couplings"),
}


def shift_verdicts(
    names: Sequence[str], shifts: Shifts, left_out: Sequence[Shifts], base: str | None
) -> list[dict[str, Any]]:
    """left_out: the same without each of some groups of rows."""
    asked = [SHIFT_CLAIMS[name] for name in names if name in SHIFT_CLAIMS]
    return [record(claim, "histograms of distances", claim(shifts, left_out, base)) for claim in asked]


def overlap_verdicts(
    names: Sequence[str], overlaps: Mapping[str, Sequence[np.ndarray]], chance: float
) -> list[dict[str, Any]]:
    """overlaps: by space, of every model (layers but the first, rows). chance: what unrelated neighbours give."""
    asked = [OVERLAP_CLAIMS[name] for name in names if name in OVERLAP_CLAIMS]
    return [
        record(claim, f"neighbours, {space}", claim(own, chance)) for claim in asked for space, own in overlaps.items()
    ]


def plan_verdicts(names: Sequence[str], plans: Mapping[str, Sequence[Plan]]) -> list[dict[str, Any]]:
    """plans: by the starts that they are the best of."""
    asked = [PLAN_CLAIMS[name] for name in names if name in PLAN_CLAIMS]
    return [record(claim, f"gromov_wasserstein, {way}", claim(own)) for claim in asked for way, own in plans.items()]
