"""Claims on groups of models: by depth, by their distances, and stitched."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from repsim_cli.analysis.claims.finding import Finding, untestable
from repsim_cli.analysis.groups import (
    Depths,
    Judged,
    Members,
    arrangements,
    codes,
    judged,
    separated,
    smallest_p,
    within_gap,
)

LEVEL = 0.05  # of the p values of claims on groups
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
    gaps = [_separated(depths, at).value for at in (early, late)]
    if gaps[1] <= 0:
        return untestable(statistic, ALIKE, "the groups do not differ in late layers")
    value = abs(gaps[0]) / gaps[1]
    return Finding(statistic, ALIKE, value <= ALIKE, value)


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
    found = judged(within_gap(values, labels), float(within_gap(values, own[None])[0]), exact)
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
    how = f"p = {found.p:.2g} over {found.arrangements:,} {'' if found.exact else 'drawn '}groupings of the models"
    return Finding(statistic, 0.0, found.value > 0 and found.p <= LEVEL, found.value, how)


def _little(statistic: str, depths: Depths, pairs: np.ndarray, at: np.ndarray) -> Finding:
    if not at.any():
        return untestable(statistic, LITTLE, "no layer lies there")
    value = float(depths.values[pairs][:, at].mean())
    return Finding(statistic, LITTLE, value <= LITTLE, value)


def between_group_distances_are_larger(groups: Members, values: np.ndarray, found: Mapping[str, Any]) -> Finding:
    """Brown et al. 2023, figure 8: models of two groups are farther apart than models of one."""
    statistic, why = "mean distance between groups minus within", _no_groups(groups)
    return untestable(statistic, 0.0, why) if why else _told_apart(statistic, separated(values, groups, seed=0))


def clusters_are_the_groups(groups: Members, values: np.ndarray, found: Mapping[str, Any]) -> Finding:
    """Brown et al. 2023, figure 8: the groups form two distinct clusters; here these are found from distances alone."""
    statistic, threshold, why = "adjusted Rand index of hierarchical clusters and groups", 0.5, _no_groups(groups)
    if why:
        return untestable(statistic, threshold, why)
    one = found["agreement"]["hierarchical"]
    return Finding(
        statistic, threshold, one["value"] >= threshold and one["p"] <= LEVEL, one["value"], f"p = {one['p']:.2g}"
    )


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
