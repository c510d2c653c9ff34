"""Claims on the map of all layers of all models: under each measure, and under several together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.stats

from repsim_cli.analysis.claims.finding import Finding, record, untestable
from repsim_cli.analysis.claims.layers import Models
from repsim_cli.analysis.localization import localization, to_base


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
# with the measures that they read
OF_SEVERAL: dict[Callable[[Map], Finding], tuple[str, ...]] = {
    neurons_are_block_diagonal: ("neuronsim", "cka"),
    single_heads_match_across_families: ("attention_js", "attention_cka"),
    neurons_differ_between_models: ("neuronsim", "cka"),
    localization_rises_with_depth: ("neuronsim", "svcca"),
    top_layers_change_most: ("cka",),
    fine_tuning_delocalizes_the_top: ("neuronsim", "svcca"),
}
MAPS_CLAIMS: dict[str, Callable[[Map], Finding]] = {function.__name__: function for function in OF_SEVERAL}


def map_verdicts(names: Sequence[str], found: Map, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Claims on maps, as results.json keeps them. labels: in the run, of the measures by name."""
    of_one = [
        record(MAP_CLAIMS[name], label, MAP_CLAIMS[name](found, found.values[measure]))
        for name in names
        if name in MAP_CLAIMS
        for measure, label in labels.items()
    ]
    of_several = [MAPS_CLAIMS[name] for name in names if name in MAPS_CLAIMS]
    return of_one + [
        record(claim, " and ".join(labels.get(name, name) for name in OF_SEVERAL[claim]), claim(found))
        for claim in of_several
    ]
