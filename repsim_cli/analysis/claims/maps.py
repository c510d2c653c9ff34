"""Claims on the map of all layers of all models: under each measure, and under several together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import scipy.integrate
import scipy.stats
from jaxtyping import Float

from repsim_cli.analysis.claims.evidence import (
    by_chance,
    by_jackknife,
    by_lone,
    correlated,
    orders,
    over_cells,
    thirds,
)
from repsim_cli.analysis.claims.finding import Finding, judged, record, untestable
from repsim_cli.analysis.claims.layers import Models
from repsim_cli.analysis.groups import arrangements
from repsim_cli.analysis.localization import localization, to_base


@dataclass(frozen=True, kw_only=True)
class Map:
    """The matrices of all layers of all models. families: of every model, its architecture. values: by the name of
    the measure. base: the model that others were fine-tuned from. names, widths: of every layer, its hook point and its
    number of features. rows: that the values rest on. untrained: the models with fresh weights."""

    models: Models
    families: Mapping[str, str]
    values: Mapping[str, np.ndarray]
    names: Sequence[str]
    widths: Sequence[int]
    rows: int
    base: str | None = None
    untrained: frozenset[str] = field(default_factory=frozenset)

    def cells(self, same_family: bool) -> np.ndarray:
        """Pairs of different layers whose models are, or are not, of one family."""
        family = np.array([self.families[model] for model in self.owners()])
        return ((family[:, None] == family) == same_family) & ~np.eye(len(family), dtype=bool)

    def owners(self) -> np.ndarray:
        """The model of every layer."""
        return np.repeat(list(self.models), [place.stop - place.start for place in self.models.values()])

    def only(self, kept: np.ndarray) -> "Map":
        """The same of some layers. kept: whether each stays."""
        at, owners = np.flatnonzero(kept), self.owners()[kept]
        models = {m: np.flatnonzero(owners == m) for m in self.models if (owners == m).any()}
        return replace(
            self,
            models={m: slice(int(own[0]), int(own[-1]) + 1) for m, own in models.items()},
            values={name: x[np.ix_(at, at)] for name, x in self.values.items()},
            names=[self.names[i] for i in at.tolist()],
            widths=[self.widths[i] for i in at.tolist()],
        )

    def by_chance(self, name: str) -> np.ndarray:
        """What a measure gives for two representations that share nothing: the best of a layer's neurons correlates a
        little with any, and biased CKA of n rows is at most the root of the product of the widths over n - 1. Rows
        count as independent: repeated words raise both further. Of other measures 0."""
        widths = np.array(self.widths, float)
        if name == "neuronsim":
            return np.broadcast_to([best_of(width, self.rows) for width in self.widths], (len(widths), len(widths)))
        if name == "cka":
            return np.sqrt(np.outer(widths, widths)) / (self.rows - 1)
        return np.zeros((len(widths), len(widths)))


@cache
def best_of(neurons: int, rows: int) -> float:
    """The largest of so many absolute correlations with independent normal values, on average.

    >>> round(best_of(1, 100), 3), round(best_of(64, 100), 3)
    (0.08, 0.258)
    """
    r = np.linspace(0, 1, 20_001)
    none_larger = scipy.stats.beta.cdf(r**2, 0.5, (rows - 2) / 2) ** neurons
    return float(scipy.integrate.trapezoid(1 - none_larger, r))


NO_FAMILIES = "needs models of two families"


def same_family_is_closer(found: Map, values: np.ndarray) -> Finding:
    """Wu et al. 2020, section 5.1: models of one family are more similar than models of different families."""
    statistic, threshold = "mean similarity of layers of different models: of one family minus of two", 0.0
    places = list(found.models.values())
    sums, counts = (
        np.array([[float(part[row, column].sum()) for column in places] for row in places])
        for part in (values, np.ones_like(values))
    )
    a, b = np.nonzero(~np.eye(len(places), dtype=bool))
    own = np.unique([found.families[model] for model in found.models], return_inverse=True)[1]

    def gaps(labels: np.ndarray) -> Float[np.ndarray, " k"]:
        same = labels[:, a] == labels[:, b]
        one, two = ((side @ sums[a, b]) / (side @ counts[a, b]) for side in (same, ~same))
        return one - two

    if len(set(own)) < 2 or not (own[a] == own[b]).any():
        return untestable(statistic, threshold, "needs two families, one of them of two models")
    labels, exact = arrangements(own, seed=0)
    how = f"{len(labels):,} {'' if exact else 'drawn '}ways to deal the families to the models"
    value = float(gaps(own[None])[0])
    return judged(statistic, threshold, value, by_chance(value, gaps(labels), how))


def lower_layers_agree_across_families(found: Map, values: np.ndarray) -> Finding:
    """Wu et al. 2020, section 5.1: across architectures, lower layers are more similar than higher ones."""
    statistic, threshold = "mean similarity across families: lower third of both models minus upper third", 0.0
    across = found.cells(False)
    if not across.any():
        return untestable(statistic, threshold, NO_FAMILIES)
    sizes = [int(place.stop - place.start) for place in found.models.values()]
    permuted, count = orders(sizes)
    depths = np.concatenate(
        [np.linspace(0, 1, size)[order] for size, order in zip(sizes, permuted, strict=True)], axis=1
    )
    own = np.concatenate([np.linspace(0, 1, size) for size in sizes])[None]

    def gaps(depths: np.ndarray) -> Float[np.ndarray, " k"]:
        low, high = (
            ((side @ (values * across)) * side).sum(1) / ((side @ across.astype(float)) * side).sum(1)
            for side in ((depths <= 1 / 3).astype(float), (depths >= 2 / 3).astype(float))
        )
        return low - high

    value = float(gaps(own)[0])
    return judged(
        statistic, threshold, value, by_chance(value, gaps(depths), f"{count} orders of the layers of each model")
    )


def adjacent_layers_are_closer(found: Map, values: np.ndarray) -> Finding:
    """Wu et al. 2020, section 5.1: within a model, adjacent layers are more similar than others."""
    statistic, threshold = "mean over models of similarity: adjacent layers minus layers further apart", 0.0
    own = [values[place, place] for place in found.models.values() if place.stop - place.start > 2]
    if not own:
        return untestable(statistic, threshold, "no model has three layers")

    def contrast(layers: int) -> np.ndarray:
        a, b = np.triu_indices(layers, k=1)
        adjacent = b - a == 1
        return adjacent / adjacent.sum() - ~adjacent / (~adjacent).sum()

    return judged(statistic, threshold, *over_cells([(x + x.T) / 2 for x in own], contrast))


def neurons_are_block_diagonal(found: Map) -> Finding:
    """Wu et al. 2020, section 5.1: neuronsim is block-diagonal by family, ckasim much less so."""
    return _shared_by_families(found, "neuronsim", "cka")


def single_heads_match_across_families(found: Map) -> Finding:
    """Wu et al. 2020, section 5.2, figure 4: models share pairs of heads (Jensen-Shannon) more than layers (ckasim)."""
    return _shared_by_families(found, "attention_cka", "attention_js")


def neurons_differ_between_models(found: Map) -> Finding:
    """Wu et al. 2020, section 5.1: between models neurons are very different, whole representations less so."""
    statistic = f"{ABOVE_CHANCE}, between models over that within one (without a layer itself): cka minus neuronsim"
    models = replace(found, families={model: model for model in found.models})
    return _shared(models, statistic, "neuronsim", "cka")


ABOVE_CHANCE = "mean similarity above chance"


def _shared_by_families(found: Map, less: str, more: str) -> Finding:
    over = "across families over that within them (without a layer itself)"
    statistic = f"{ABOVE_CHANCE}, {over}: {more} minus {less}"
    if len(set(found.families.values())) < 2:
        return untestable(statistic, 0.0, NO_FAMILIES)
    return _shared(found, statistic, less, more)


def _shared(found: Map, statistic: str, less: str, more: str) -> Finding:
    """Whether measure `more` keeps more across families of what it has within them than measure `less` does."""
    if absent := [name for name in (more, less) if name not in found.values]:
        return untestable(statistic, 0.0, f"needs the measure {absent[0]}")
    apart = {name: found.values[name] - found.by_chance(name) for name in (more, less)}
    same, across, owners = found.cells(True), found.cells(False), found.owners()

    def gap(kept: np.ndarray) -> float:
        inside, outside = (cells & kept[:, None] & kept for cells in (same, across))
        if not inside.any() or not outside.any():
            return float("nan")
        left = {name: x[outside].mean() / x[inside].mean() for name, x in apart.items()}
        return float(left[more] - left[less])

    left_out = [gap(owners != model) for model in found.models]
    if not np.isfinite(left_out).all():
        return untestable(statistic, 0.0, "needs three models, and two families whichever model is left out")
    value = gap(np.ones(len(owners), bool))
    return judged(
        statistic, 0.0, value, by_jackknife(value, 0.0, left_out, f"standard error over {len(found.models)} models")
    )


def localization_rises_with_depth(found: Map) -> Finding:
    """Wu et al. 2020, section 5.1, figure 3: higher layers are more localized than lower ones."""
    statistic, threshold = "mean over models of Spearman's rho between block and localization (row means)", 0.5
    trained = _trained_blocks(found)
    if isinstance(trained, str):
        return untestable(statistic, threshold, trained)
    scores = _localized(trained)
    deep = [scores[place] for place in trained.models.values() if place.stop - place.start >= 4]
    if not deep or any(len(set(one)) < 2 for one in deep):
        return untestable(statistic, threshold, "no trained model has four blocks that differ in localization")
    return judged(
        statistic, threshold, *correlated([(np.arange(len(one)), one) for one in deep], "each model's blocks")
    )


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
    curves = [one for one in to_base(values, found.models, found.base).values() if len(one) > 2]
    if not curves:
        return untestable(CHANGE, 0.0, "no model has the base's layers, three or more")
    return judged(CHANGE, 0.0, *thirds(np.mean(curves, axis=0)))


def fine_tuning_delocalizes_the_top(found: Map) -> Finding:
    """Wu et al. 2020, section 6, figure 7: fine-tuned models lose localization in their top layers."""
    statistic = "mean localization (row means) of the top third of blocks: the base's minus the fine-tuned models'"
    trained = _trained_blocks(found)
    if found.base is None or isinstance(trained, str):
        return untestable(statistic, 0.0, "needs a base" if found.base is None else str(trained))
    if found.base not in trained.models:
        return untestable(statistic, 0.0, "needs a base that is trained")
    scores, base = _localized(trained), trained.models[found.base]
    depth = base.stop - base.start
    top = {
        label: float(scores[place][-max(1, depth // 3) :].mean())
        for label, place in trained.models.items()
        if place.stop - place.start == depth
    }
    others = [score for label, score in top.items() if label != found.base]
    if len(others) < 2:
        return untestable(statistic, 0.0, f"needs two trained models of the base's depth beside it, got {len(others)}")
    evidence = by_lone(top[found.base], others, f"standard error over {len(others)} fine-tuned models")
    return judged(statistic, 0.0, top[found.base] - float(np.mean(others)), evidence)


def _trained_blocks(found: Map) -> Map | str:
    """Without the embeddings and the models with fresh weights, or why localization says nothing there."""
    if absent := [name for name in ("neuronsim", "svcca") if name not in found.values]:
        return f"needs the measure {absent[0]}"
    kept = np.array([name != "embed" for name in found.names]) & ~np.isin(found.owners(), list(found.untrained))
    return found.only(kept) if kept.sum() > 1 else "needs trained models"


def _localized(found: Map) -> np.ndarray:
    """Localization of every layer by row means."""
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
