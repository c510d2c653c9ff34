"""Published findings as functions: a statistic, a threshold and a verdict, reported whatever it is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.stats

from repsim_cli.analysis.convergence import at_share
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
from repsim_cli.analysis.localization import localization, to_base
from repsim_cli.errors import BadInput
from repsim_cli.registry import did_you_mean


@dataclass(frozen=True)
class Finding:
    """statistic: what the number is. value: None where the models at hand cannot test it, because of `why`."""

    statistic: str
    threshold: float
    holds: bool | None
    value: float | None
    why: str = ""


def untestable(statistic: str, threshold: float, why: str) -> Finding:
    return Finding(statistic, threshold, None, None, why)


Models = dict[str, slice]


def falls_with_layer_distance(models: Models, values: np.ndarray) -> Finding:
    """Brown et al. 2023, section 4: within a model, similarity falls with the distance between layers."""
    statistic, threshold = "mean over models of Spearman's rho between similarity and layer distance", -0.5
    rhos = []
    for place in models.values():
        within = values[place, place]
        a, b = np.triu_indices(len(within), k=1)
        if len(within) >= 4:
            rhos.append(float(np.asarray(scipy.stats.spearmanr(b - a, within[a, b]))[0]))
    if not rhos or not np.isfinite(rhos).all():
        return untestable(statistic, threshold, "no model has four layers that differ in similarity")
    value = float(np.mean(rhos))
    return Finding(statistic, threshold, value <= threshold, value)


def early_layers_agree(models: Models, values: np.ndarray) -> Finding:
    """Brown et al. 2023, section 4: across models, early layers are more similar than late ones."""
    statistic, threshold = (
        "similarity across models at equal relative depth: first third minus last third",
        0.0,
    )
    gaps = []
    names = list(models)
    for i, row in enumerate(names):
        for column in names[i + 1 :]:
            curve = _equal_depth(values[models[row], models[column]])
            third = len(curve) // 3
            if third:
                gaps.append(float(curve[:third].mean() - curve[-third:].mean()))
    if not gaps:
        return untestable(statistic, threshold, "needs two models of three layers or more")
    value = float(np.mean(gaps))
    return Finding(statistic, threshold, value > threshold, value)


def pythia_2_8b_stands_apart(models: Models, values: np.ndarray) -> Finding:
    """Brown et al. 2023, section 4: 2.8b is less similar to 1b, 1.4b and 6.9b than these are to each other."""
    statistic, threshold = "mean similarity at equal relative depth: among the others minus with 2.8b", 0.0
    odd, others = "pythia_2_8b", ("pythia_1b", "pythia_1_4b", "pythia_6_9b")
    absent = [name for name in (odd, *others) if name not in models]
    if absent:
        return untestable(statistic, threshold, f"needs {', '.join(absent)}")

    def mean(row: str, column: str) -> float:
        return float(_equal_depth(values[models[row], models[column]]).mean())

    among = [mean(a, b) for i, a in enumerate(others) for b in others[i + 1 :]]
    value = float(np.mean(among) - np.mean([mean(a, odd) for a in others]))
    return Finding(statistic, threshold, value > threshold, value)


def _equal_depth(block: np.ndarray) -> np.ndarray:
    """The entries at equal relative depth, one per layer of the shallower model."""
    steps = min(block.shape)
    at = [np.round(np.linspace(0, size - 1, steps)).astype(int) for size in block.shape]
    return block[at[0], at[1]]


CLAIMS: dict[str, Callable[[Models, np.ndarray], Finding]] = {
    function.__name__: function
    for function in (falls_with_layer_distance, early_layers_agree, pythia_2_8b_stands_apart)
}


def pythia_2_8b_has_a_small_head(ratios: Mapping[str, float | None], factor: float) -> Finding:
    """Brown et al. 2023, table 1: 2.8b has an unexpectedly small attention head."""
    statistic, threshold = "d_head of 2.8b over the median of its neighbours in size", round(1 / factor, 4)
    value = next((ratio for label, ratio in ratios.items() if label.startswith("pythia_2_8b")), None)
    if value is None:
        return untestable(statistic, threshold, "needs pythia_2_8b and two neighbours")
    return Finding(statistic, threshold, value < threshold, value)


SHAPE_CLAIMS: dict[str, Callable[[Mapping[str, float | None], float], Finding]] = {
    function.__name__: function for function in (pythia_2_8b_has_a_small_head,)
}


Curves = Sequence[Mapping[str, Any]]
TableRows = Sequence[Sequence[Any]]
AT_20 = 0.2  # the share of training at which the paper looks


def larger_models_converge_earlier(curves: Curves, rows: TableRows) -> Finding:
    """Diehl Martinez et al. 2024, figure 2: after 20 % of training larger models are nearer to their final state."""
    statistic = "Spearman's rho over models between parameters and mean similarity to the last checkpoint at 20 %"
    return _with_size(statistic, curves, "to last", lambda curve: at_share(curve, AT_20))


def larger_models_have_larger_parameter_rank(curves: Curves, rows: TableRows) -> Finding:
    """Diehl Martinez et al. 2024: parameters of larger models span a larger share of their dimensions."""
    statistic = "Spearman's rho over models between parameters and mean proportional effective rank at the end"
    return _with_size(statistic, curves, "parameters", lambda curve: [row[-1] for row in curve["values"]])


def larger_models_have_larger_gradient_rank(curves: Curves, rows: TableRows) -> Finding:
    """Diehl Martinez et al. 2024: throughout training, gradients of larger models span a larger share of dimensions."""
    statistic = "Spearman's rho over models between parameters and mean proportional effective rank of gradients"
    return _with_size(statistic, curves, "gradients", _whole_training)


def earlier_layers_converge_faster(curves: Curves, rows: TableRows) -> Finding:
    """Diehl Martinez et al. 2024: earlier layers converge faster to their final state than later ones."""
    statistic = "mean over models of Spearman's rho between layer and its mean similarity before the last checkpoint"
    threshold = 0.0
    rhos = []
    for curve in _of(curves, "to last"):
        means = [float(np.mean([v for v in row[:-1] if v is not None])) for row in curve["values"]]
        if len(means) >= 4 and len(set(means)) > 1:
            rhos.append(float(np.asarray(scipy.stats.spearmanr(range(len(means)), means))[0]))
    if not rhos:
        return untestable(statistic, threshold, "no model has four layers that differ in similarity")
    value = float(np.mean(rhos))
    return Finding(statistic, threshold, value < threshold, value)


def rank_keeps_falling_in_small_models(curves: Curves, rows: TableRows) -> Finding:
    """Diehl Martinez et al. 2024: parameter rank stabilises early in large models, keeps falling in small ones."""
    statistic, threshold = "fall of the mean parameter rank after 20 % of training: smallest minus largest model", 0.0
    falls: dict[int, list[float]] = {}
    for curve in _of(curves, "parameters"):
        then = at_share(curve, AT_20)
        if then is not None:
            falls.setdefault(curve["parameters"], []).append(float(np.mean(then)) - curve["mean"][-1])
    if len(falls) < 2:
        return untestable(statistic, threshold, "needs two sizes with a checkpoint in the first 20 %")
    value = float(np.mean(falls[min(falls)]) - np.mean(falls[max(falls)]))
    return Finding(statistic, threshold, value > threshold, value)


def early_attention_has_large_rank(curves: Curves, rows: TableRows) -> Finding:
    """Diehl Martinez et al. 2024, table 1: attention layers that converge early have large rank, at every size."""
    statistic, threshold = "mean over models of the Matthews correlation of attention, parameters and gradients", 0.5
    found = [row[-2] for row in rows if row[1] == "attn_out" and row[-2] is not None]
    if not found:
        return untestable(statistic, threshold, "no Matthews correlation is defined")
    value = float(np.mean(found))
    return Finding(statistic, threshold, value >= threshold, value)


def _of(curves: Curves, what: str) -> list[Mapping[str, Any]]:
    return [curve for curve in curves if curve["quantity"].endswith(what)]


def _whole_training(curve: Mapping[str, Any]) -> list[float]:
    return [value for value in curve["mean"] if value is not None]


def _with_size(
    statistic: str, curves: Curves, what: str, values: Callable[[Mapping[str, Any]], list[float] | None]
) -> Finding:
    """Rank correlation over models of three sizes or more with the mean of `values` over the model's curves."""
    threshold = 0.5
    by_size: dict[int, list[float]] = {}
    for curve in _of(curves, what):
        found = values(curve)
        if found is not None:
            by_size.setdefault(curve["parameters"], []).append(float(np.mean(found)))
    means = [float(np.mean(found)) for found in by_size.values()]
    if len(by_size) < 3 or len(set(means)) < 2:
        return untestable(statistic, threshold, f"needs three sizes that differ, got {len(by_size)}")
    value = float(np.asarray(scipy.stats.spearmanr(list(by_size), means))[0])
    return Finding(statistic, threshold, value >= threshold, value)


TRAINING_CLAIMS: dict[str, Callable[[Curves, TableRows], Finding]] = {
    function.__name__: function
    for function in (
        larger_models_converge_earlier,
        earlier_layers_converge_faster,
        larger_models_have_larger_parameter_rank,
        larger_models_have_larger_gradient_rank,
        rank_keeps_falling_in_small_models,
        early_attention_has_large_rank,
    )
}


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


Metrics = Mapping[str, float]
OVERLAP = "hans_lexical_overlap_non_entailment"


def seeds_differ_beyond_their_training(classifiers: Sequence[Metrics]) -> Finding:
    """McCoy et al. 2020 (Brown et al. 2023, section 4.2): seeds are alike in distribution and differ on HANS."""
    statistic = "range over seeds of HANS accuracy (lexical overlap, not entailed) minus range of accuracy"
    threshold = 0.3
    both = [one for one in classifiers if {"accuracy", OVERLAP} <= one.keys()]
    if len(both) < 2:
        return untestable(statistic, threshold, f"needs two classifiers with {OVERLAP}, got {len(both)}")
    value = float(np.ptp([one[OVERLAP] for one in both]) - np.ptp([one["accuracy"] for one in both]))
    return Finding(statistic, threshold, value >= threshold, value)


CLASSIFIER_CLAIMS: dict[str, Callable[[Sequence[Metrics]], Finding]] = {
    function.__name__: function for function in (seeds_differ_beyond_their_training,)
}


@dataclass(frozen=True, kw_only=True)
class Map:
    """The matrices of all layers of all models. families: of every model, its architecture. values: by the name of
    the measure. base: the model that others were fine-tuned from."""

    models: Models
    families: Mapping[str, str]
    values: Mapping[str, np.ndarray]
    base: str | None = None

    def cells(self, same_family: bool) -> np.ndarray:
        """Pairs of different layers whose models are, or are not, of one family."""
        sizes = [place.stop - place.start for place in self.models.values()]
        family = np.repeat([self.families[model] for model in self.models], sizes)
        return ((family[:, None] == family) == same_family) & ~np.eye(len(family), dtype=bool)

    def depths(self) -> np.ndarray:
        """Of every layer its relative depth in its model, from 0 to 1."""
        return np.concatenate([np.linspace(0, 1, place.stop - place.start) for place in self.models.values()])


NO_FAMILIES = "needs models of two families"


def same_family_is_closer(found: Map, values: np.ndarray) -> Finding:
    """Wu et al. 2020, section 5.1: models of one family are more similar than models of different families."""
    statistic, threshold = "mean similarity of layers of different models: of one family minus of two", 0.0
    models = np.repeat(np.arange(len(found.models)), [place.stop - place.start for place in found.models.values()])
    same, across = found.cells(True) & (models[:, None] != models), found.cells(False)
    if not same.any() or not across.any():
        return untestable(statistic, threshold, "needs two families, one of them of two models")
    value = float(values[same].mean() - values[across].mean())
    return Finding(statistic, threshold, value > threshold, value)


def lower_layers_agree_across_families(found: Map, values: np.ndarray) -> Finding:
    """Wu et al. 2020, section 5.1: across architectures, lower layers are more similar than higher ones."""
    statistic, threshold = "mean similarity across families: lower third of both models minus upper third", 0.0
    depths, across = found.depths(), found.cells(False)
    low, high = (across & (side[:, None] & side) for side in (depths <= 1 / 3, depths >= 2 / 3))
    if not across.any():
        return untestable(statistic, threshold, NO_FAMILIES)
    value = float(values[low].mean() - values[high].mean())
    return Finding(statistic, threshold, value > threshold, value)


def adjacent_layers_are_closer(found: Map, values: np.ndarray) -> Finding:
    """Wu et al. 2020, section 5.1: within a model, adjacent layers are more similar than others."""
    statistic, threshold = "mean over models of similarity: adjacent layers minus layers further apart", 0.0
    gaps = []
    for place in found.models.values():
        within = values[place, place]
        apart = np.abs(np.subtract.outer(range(len(within)), range(len(within))))
        if len(within) > 2:
            gaps.append(float(within[apart == 1].mean() - within[apart > 1].mean()))
    if not gaps:
        return untestable(statistic, threshold, "no model has three layers")
    value = float(np.mean(gaps))
    return Finding(statistic, threshold, value > threshold, value)


def neurons_are_block_diagonal(found: Map) -> Finding:
    """Wu et al. 2020, section 5.1: neuronsim is block-diagonal by family, ckasim much less so."""
    return _shared_by_families(found, "neuronsim", "cka")


def single_heads_match_across_families(found: Map) -> Finding:
    """Wu et al. 2020, section 5.2, figure 4: models share pairs of heads (Jensen-Shannon) more than layers (ckasim)."""
    return _shared_by_families(found, "attention_cka", "attention_js")


def neurons_differ_between_models(found: Map) -> Finding:
    """Wu et al. 2020, section 5.1: between models neurons are very different, whole representations less so."""
    statistic = "mean similarity between models over that within one (without a layer itself): cka minus neuronsim"
    if len(found.models) < 2:
        return untestable(statistic, 0.0, "needs two models")
    models = replace(found, families={model: model for model in found.models})
    return _shared(models, statistic, "neuronsim", "cka")


def _shared_by_families(found: Map, less: str, more: str) -> Finding:
    statistic = f"mean similarity across families over that within them (without a layer itself): {more} minus {less}"
    if len(set(found.families.values())) < 2:
        return untestable(statistic, 0.0, NO_FAMILIES)
    return _shared(found, statistic, less, more)


def _shared(found: Map, statistic: str, less: str, more: str) -> Finding:
    """Whether measure `more` keeps more across families of what it has within them than measure `less` does."""
    threshold, same, across = 0.0, found.cells(True), found.cells(False)
    if absent := [name for name in (more, less) if name not in found.values]:
        return untestable(statistic, threshold, f"needs the measure {absent[0]}")
    left = {name: float(found.values[name][across].mean() / found.values[name][same].mean()) for name in (more, less)}
    value = left[more] - left[less]
    return Finding(statistic, threshold, value > threshold, value)


def localization_rises_with_depth(found: Map) -> Finding:
    """Wu et al. 2020, section 5.1, figure 3: higher layers are more localized than lower ones."""
    statistic, threshold = "mean over models of Spearman's rho between layer and localization (row means)", 0.5
    scores = _localized(found)
    if isinstance(scores, str):
        return untestable(statistic, threshold, scores)
    rhos = [
        float(np.asarray(scipy.stats.spearmanr(range(place.stop - place.start), scores[place]))[0])
        for place in found.models.values()
        if place.stop - place.start >= 4
    ]
    if not rhos or not np.isfinite(rhos).all():
        return untestable(statistic, threshold, "no model has four layers that differ in localization")
    value = float(np.mean(rhos))
    return Finding(statistic, threshold, value >= threshold, value)


def top_layers_change_most(found: Map) -> Finding:
    """Wu et al. 2020, section 6: fine-tuning changes the top layers most."""
    if "cka" not in found.values:
        return untestable(CHANGE, 0.0, "needs the measure cka")
    return _changes_at_the_top(found, found.values["cka"])


def top_attention_changes_most(found: Map, values: np.ndarray) -> Finding:
    """Wu et al. 2020, section 6, figure 6: fine-tuning changes the attention of the top layers most."""
    return _changes_at_the_top(found, values)


CHANGE = "mean similarity with the same layer of the base: lower third minus upper third"


def _changes_at_the_top(found: Map, values: np.ndarray) -> Finding:
    if found.base is None:
        return untestable(CHANGE, 0.0, "needs a base")
    curves = to_base(values, found.models, found.base)
    gaps = [
        float(one[: len(one) // 3].mean() - one[-(len(one) // 3) :].mean()) for one in curves.values() if len(one) > 2
    ]
    if not gaps:
        return untestable(CHANGE, 0.0, "no model has the base's layers, three or more")
    value = float(np.mean(gaps))
    return Finding(CHANGE, 0.0, value > 0.0, value)


def fine_tuning_delocalizes_the_top(found: Map) -> Finding:
    """Wu et al. 2020, section 6, figure 7: fine-tuned models lose localization in their top layers."""
    statistic, threshold = (
        "mean localization (row means) of the top third: the base's minus the fine-tuned models'",
        0.0,
    )
    scores = _localized(found)
    if found.base is None or isinstance(scores, str):
        return untestable(statistic, threshold, "needs a base" if found.base is None else str(scores))
    base = found.models[found.base]
    depth = base.stop - base.start
    top = {label: scores[place][-max(1, depth // 3) :].mean() for label, place in found.models.items()}
    others = [top[label] for label, p in found.models.items() if label != found.base and p.stop - p.start == depth]
    if not others:
        return untestable(statistic, threshold, "no other model has the base's depth")
    value = float(top[found.base] - np.mean(others))
    return Finding(statistic, threshold, value > threshold, value)


def _localized(found: Map) -> np.ndarray | str:
    """Localization of every layer by row means, or why there is none."""
    if absent := [name for name in ("neuronsim", "svcca") if name not in found.values]:
        return f"needs the measure {absent[0]}"
    return localization(found.values["neuronsim"], found.values["svcca"])["row"]


# on one measure's map, and on the maps of all measures together
MAP_CLAIMS: dict[str, Callable[[Map, np.ndarray], Finding]] = {
    function.__name__: function
    for function in (
        same_family_is_closer,
        lower_layers_agree_across_families,
        adjacent_layers_are_closer,
        top_attention_changes_most,
    )
}
MAPS_CLAIMS: dict[str, Callable[[Map], Finding]] = {
    function.__name__: function
    for function in (
        neurons_are_block_diagonal,
        single_heads_match_across_families,
        neurons_differ_between_models,
        localization_rises_with_depth,
        top_layers_change_most,
        fine_tuning_delocalizes_the_top,
    )
}


def map_verdicts(names: Sequence[str], found: Map, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Claims on maps, as results.json keeps them. labels: in the run, of the measures by name."""
    return [
        record(MAP_CLAIMS[name], label, MAP_CLAIMS[name](found, found.values[measure]))
        for name in names
        if name in MAP_CLAIMS
        for measure, label in labels.items()
    ] + [record(MAPS_CLAIMS[name], "all measures", MAPS_CLAIMS[name](found)) for name in names if name in MAPS_CLAIMS]


def check_names(names: Sequence[str], known: Mapping[str, Any] = CLAIMS) -> None:
    """Raises BadInput for a claim that does not exist."""
    for name in names:
        if name not in known:
            raise BadInput(f"options.claims: unknown claim, got '{name}'; {did_you_mean(name, known)}")


def verdict(name: str, measure: str, labels: Sequence[str], values: np.ndarray) -> dict[str, Any]:
    """One claim on the matrix of all layers, as results.json keeps it. labels: the model of each row, in order."""
    order = list(dict.fromkeys(labels))
    models = {m: slice(labels.index(m), labels.index(m) + labels.count(m)) for m in order}
    return record(CLAIMS[name], measure, CLAIMS[name](models, values))


def record(claim: Callable[..., Finding], measure: str, finding: Finding) -> dict[str, Any]:
    """A claim's verdict as results.json keeps it. measure: what it was tested on."""
    words = {True: "holds", False: "fails", None: "not testable here"}
    return {
        "name": claim.__name__,
        "source": (claim.__doc__ or "").strip(),
        "measure": measure,
        "statistic": finding.statistic,
        "value": finding.value,
        "threshold": finding.threshold,
        "verdict": words[finding.holds],
        "why": finding.why,
    }


def training_verdicts(names: Sequence[str], measure: str, curves: Curves, rows: TableRows) -> list[dict[str, Any]]:
    """Claims on one measure's training curves and on the rows of the Matthews table, as results.json keeps them."""
    claims = [TRAINING_CLAIMS[name] for name in names]
    return [record(claim, measure, claim(curves, rows)) for claim in claims]
