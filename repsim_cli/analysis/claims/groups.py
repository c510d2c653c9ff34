"""Claims on groups of models: by depth, by their distances, and stitched."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from repsim_cli.analysis.claims.finding import Finding, judged, untestable
from repsim_cli.analysis.distances import adjusted_rand, hierarchical
from repsim_cli.analysis.groups import (
    Depths,
    Judged,
    Members,
    arrangements,
    codes,
    separated,
    separation,
    smallest_p,
    within_gap,
)
from repsim_cli.analysis.groups import judged as arranged
from repsim_cli.findings.evidence import LEVEL, Evidence, by_jackknife

LATE, EARLY = 0.75, 0.5  # beyond, and up to which share of the blocks a depth is late or early
LITTLE = 0.02  # a penalty in accuracy that is almost none
ALIKE = 0.25  # share of the late gap that an early gap may have


def groups_differ_late(depths: Depths) -> Finding:
    """Brown et al. 2023, figure 2 right: in late layers models of two groups are less similar than models of one."""
    return _gap(
        "similarity beyond 75 % of the depth: pairs within groups minus pairs between", depths, depths.shares > LATE
    )


def groups_alike_early(depths: Depths) -> Finding:
    """Brown et al. 2023, figure 2 right: in early layers similarity does not tell the groups apart."""
    statistic = "|within minus between| in the first half of the depth, as a share of the same beyond 75 %"
    early, late = depths.shares <= EARLY, depths.shares > LATE
    if not early.any() or not late.any():
        return untestable(statistic, ALIKE, "needs layers in the first half and beyond 75 % of the depth")
    if why := _no_groups(depths.groups):
        return untestable(statistic, ALIKE, why)
    apart = _separated(depths, late)
    if apart.value <= 0 or apart.p > LEVEL:
        return untestable(statistic, ALIKE, f"the groups do not differ in late layers (p = {apart.p:.2g})")
    own, sign = codes(depths.groups), -1 if depths.larger_is_closer else 1
    sides = [sign * depths.symmetric[..., at].mean(2) for at in (early, late)]

    def gaps(kept: np.ndarray) -> np.ndarray:
        return np.array([separation(x[np.ix_(kept, kept)], own[kept][None])[0] for x in sides])

    gap, left_out = gaps(np.arange(len(own))), np.array([gaps(kept) for kept in _without_each(len(own))])
    # alike: the early gap lies above the negative and below the positive share of the late one
    how = f"standard error over {len(own)} models"
    above = by_jackknife(gap[0] - ALIKE * gap[1], 0.0, left_out @ [1, -ALIKE], how)
    below = by_jackknife(gap[0] + ALIKE * gap[1], 0.0, left_out @ [1, ALIKE], how)
    share = by_jackknife(float(gap[0] / gap[1]), ALIKE, left_out[:, 0] / left_out[:, 1], how)
    p, opposite = max(above.below, below.above), min(1.0, 2 * min(above.above, below.below))
    alike = Evidence(opposite, p, how, se=share.se)
    return judged(statistic, ALIKE, float(abs(gap[0] / gap[1])), alike, published="below")


def between_groups_cost_late(depths: Depths) -> Finding:
    """Brown et al. 2023, figure 2 left: beyond 75 % of the depth stitching between groups costs more than within."""
    return _gap(
        "penalty beyond 75 % of the depth: pairs between groups minus pairs within", depths, depths.shares > LATE
    )


def within_groups_cost_little(depths: Depths) -> Finding:
    """Brown et al. 2023, figure 2 left: beyond 75 % of the depth stitching within a group costs almost nothing."""
    own = codes(depths.groups)
    same = (own[:, None] == own) & ~np.eye(len(own), dtype=bool)
    return _little("mean penalty within groups beyond 75 % of the depth", depths, same, depths.shares > LATE)


def early_layers_cost_little(depths: Depths) -> Finding:
    """Brown et al. 2023, figure 2 left: in early layers identity stitching costs almost nothing."""
    others = ~np.eye(len(depths.values), dtype=bool)
    return _little("mean penalty of all pairs in the first half of the depth", depths, others, depths.shares <= EARLY)


def groups_keep_apart_on_hans(depths: Depths) -> Finding:
    """Brown et al. 2023, figure 7: stitched in the last layer, models of one group and of the other differ on HANS."""
    statistic = "accuracy of models stitched after the last block: within the first group minus within the second"
    why = _no_groups(depths.groups) or ("" if depths.shares[-1] == 1 else "the last block is not among the layers")
    if why:
        return untestable(statistic, 0.0, why)
    own = codes(depths.groups)
    labels, exact = arrangements(own, seed=0)
    values = depths.symmetric[..., -1]
    found = arranged(within_gap(values, labels), float(within_gap(values, own[None])[0]), exact)
    return _told_apart(statistic, found)


def _separated(depths: Depths, at: np.ndarray) -> Judged:
    """How far apart the groups are at these depths, positive where models of one group are closer."""
    values = depths.symmetric[..., at].mean(2)
    return separated(-values if depths.larger_is_closer else values, depths.groups, seed=0)


def _gap(statistic: str, depths: Depths, at: np.ndarray) -> Finding:
    why = _no_groups(depths.groups) or ("" if at.any() else "no layer lies beyond 75 % of the depth")
    return untestable(statistic, 0.0, why) if why else _told_apart(statistic, _separated(depths, at))


def _no_groups(groups: Members) -> str:
    """Why these groups cannot be told apart."""
    if len(groups) < 2:
        return "needs two groups"
    least = smallest_p(groups)
    return f"groups of this size have no p below {least:.2g}; needs larger groups" if least > LEVEL else ""


def _told_apart(statistic: str, found: Judged) -> Finding:
    return judged(statistic, 0.0, found.value, _of(found))


def _of(found: Judged) -> Evidence:
    how = f"{found.arrangements:,} {'' if found.exact else 'drawn '}groupings of the models"
    return Evidence(found.p, found.opposite_p, how)


def _little(statistic: str, depths: Depths, pairs: np.ndarray, at: np.ndarray) -> Finding:
    if not at.any():
        return untestable(statistic, LITTLE, "no layer lies there")
    values = depths.values[..., at].mean(2)

    def mean(kept: np.ndarray) -> float:
        own = np.ix_(kept, kept)
        return float(values[own][pairs[own]].mean()) if pairs[own].any() else float("nan")

    left_out = [mean(kept) for kept in _without_each(len(values))]
    if not np.isfinite(left_out).all():
        return untestable(statistic, LITTLE, "needs pairs of models whichever model is left out")
    value = mean(np.arange(len(values)))
    evidence = by_jackknife(value, LITTLE, left_out, f"standard error over {len(values)} models")
    return judged(statistic, LITTLE, value, evidence, published="below")


def _without_each(count: int) -> list[np.ndarray]:
    """The places that are left without each model."""
    return [np.delete(np.arange(count), place) for place in range(count)]


def between_group_distances_are_larger(groups: Members, values: np.ndarray, found: Mapping[str, Any]) -> Finding:
    """Brown et al. 2023, figure 8: models of two groups are farther apart than models of one."""
    statistic, why = "mean distance between groups minus within", _no_groups(groups)
    return untestable(statistic, 0.0, why) if why else _told_apart(statistic, separated(values, groups, seed=0))


def clusters_are_the_groups(groups: Members, values: np.ndarray, found: Mapping[str, Any]) -> Finding:
    """Brown et al. 2023, figure 8: the groups form two distinct clusters; here these are found from distances alone."""
    statistic, threshold, why = "adjusted Rand index of hierarchical clusters and groups", 0.5, _no_groups(groups)
    if why:
        return untestable(statistic, threshold, why)
    one, own = Judged(**found["agreement"]["hierarchical"]), codes(groups)

    def without(model: int) -> float:
        kept = np.delete(np.arange(len(own)), model)
        _, cut = hierarchical(values[np.ix_(kept, kept)], len(groups))
        return float(adjusted_rand(own[kept][None], cut)[0])

    how = f"standard error over {len(own)} models, and {_of(one).how}"
    evidence = by_jackknife(one.value, threshold, [without(model) for model in range(len(own))], how)
    return judged(statistic, threshold, one.value, replace(evidence, above=max(evidence.above, one.p)))


GROUP_CLAIMS: dict[str, Callable[[Depths], Finding]] = {
    function.__name__: function for function in (groups_differ_late, groups_alike_early)
}
PENALTY_CLAIMS: dict[str, Callable[[Depths], Finding]] = {
    function.__name__: function
    for function in (
        between_groups_cost_late,
        within_groups_cost_little,
        early_layers_cost_little,
        groups_keep_apart_on_hans,
    )
}
# the quantity of stitched models that each of them is about
TESTED_ON = {**dict.fromkeys(PENALTY_CLAIMS, "accuracy_penalty"), "groups_keep_apart_on_hans": "accuracy"}
DISTANCE_CLAIMS: dict[str, Callable[[Members, np.ndarray, Mapping[str, Any]], Finding]] = {
    function.__name__: function for function in (between_group_distances_are_larger, clusters_are_the_groups)
}

OF_GROUPS = {**GROUP_CLAIMS, **DISTANCE_CLAIMS}
