"""Maps of all layers of all models, and what publications say of such maps; `map_figures.py` draws them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float

from repsim_cli.findings.analysis import Finished, Part, analysis, asked
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import (
    arrangements,
    by_chance,
    by_depths,
    by_jackknife,
    orders,
    over_cells,
    ranks,
    thirds,
)
from repsim_cli.findings.map_figures import Order, figures

Models = Mapping[str, slice]


@dataclass(frozen=True, kw_only=True)
class Map:
    """The matrices of all layers of all models. models: the places of their layers. families: of every model, its
    architecture. values: by the name of the measure. base: the model that others were fine-tuned from. names, widths:
    of every layer, its hook point and its number of features. rows: that the values rest on. untrained: the models with
    fresh weights. entries: by model, its entry where it shares that with others, such as seeds of its training."""

    models: Models
    families: Mapping[str, str]
    values: Mapping[str, np.ndarray]
    names: Sequence[str]
    widths: Sequence[int]
    rows: int
    base: str | None = None
    untrained: frozenset[str] = field(default_factory=frozenset)
    entries: Mapping[str, str] = field(default_factory=dict)

    def cells(self, same_family: bool) -> np.ndarray:
        """Pairs of different layers whose models are, or are not, of one family."""
        family = np.array([self.families[model] for model in self.owners()])
        return ((family[:, None] == family) == same_family) & ~np.eye(len(family), dtype=bool)

    def entry(self, model: str) -> str:
        """What the seeds of a training have in common; of other models their label."""
        return self.entries.get(model, model)

    def owners(self) -> np.ndarray:
        """The model of every layer."""
        return np.repeat(list(self.models), [place.stop - place.start for place in self.models.values()])

    def only(self, kept: np.ndarray) -> "Map":
        """The same of some layers. kept: whether each stays."""
        at, owners = np.flatnonzero(kept), self.owners()[kept]
        places = {model: np.flatnonzero(owners == model) for model in self.models if (owners == model).any()}
        return replace(
            self,
            models={model: slice(int(at[0]), int(at[-1]) + 1) for model, at in places.items()},
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


def map_of(run: Finished) -> tuple[Map, dict[str, str]]:
    """The map of a run under the measures that are larger for closer layers, and their labels by name."""
    first = next(iter(run.maps.values()))
    closer = {label: m for label, m in run.maps.items() if m.measure.larger_is_closer}
    facts = {model: run.models[model] for model in first.places}
    whole = Map(
        models=first.places,
        families={model: about.family for model, about in facts.items()},
        values={m.measure.name: m.values for m in closer.values()},
        names=first.names,
        widths=first.widths,
        rows=min(m.measure.estimate["rows"] // m.measure.estimate["batches"] for m in run.maps.values()),
        base=run.base,
        untrained=frozenset(model for model, about in facts.items() if not about.trained),
        entries={model: about.entry for model, about in facts.items() if about.entry},
    )
    return whole, {m.measure.name: label for label, m in closer.items()}


@cache
def best_of(neurons: int, rows: int) -> float:
    """The largest of so many absolute correlations with independent normal values, on average.

    >>> round(best_of(1, 100), 3), round(best_of(64, 100), 3)
    (0.08, 0.258)
    """
    r = np.linspace(0, 1, 20_001)
    none_larger = scipy.stats.beta.cdf(r**2, 0.5, (rows - 2) / 2) ** neurons
    return float(scipy.integrate.trapezoid(1 - none_larger, r))


# ---- claims on one map: which layers of which models are alike ----


@claim(
    "Brown et al. 2023, section 4",
    statistic="mean over models of Spearman's rho between similarity and layer distance",
    threshold=-0.5,
    published="below",
    on="layers",
)
def falls_with_layer_distance(models: Models, values: np.ndarray) -> Weighed | Untestable:
    """Within a model, similarity falls with the distance between layers."""
    ranked = [ranked_cells(values[place, place]) for place in models.values() if place.stop - place.start >= 4]
    if not ranked or not all(np.isfinite(square).all() for square in ranked):
        return Untestable("no model has four layers that differ in similarity")
    return Weighed(*over_cells(ranked, ranked_distances))


def ranked_cells(square: np.ndarray) -> np.ndarray:
    """The ranks of the cells above the diagonal, both directions averaged, in their places and mirrored."""
    both = (square + square.T) / 2
    ranked, cells = np.zeros_like(both), np.triu_indices(len(both), k=1)
    ranked[cells] = ranks(both[cells])
    return ranked + ranked.T


def ranked_distances(layers: int) -> np.ndarray:
    a, b = np.triu_indices(layers, k=1)
    return ranks(b - a)


@claim(
    "Brown et al. 2023, section 4",
    statistic="similarity across models at equal relative depth: first third minus last third",
    threshold=0.0,
    on="layers",
)
def early_layers_agree(models: Models, values: np.ndarray) -> Weighed | Untestable:
    """Across models, early layers are more similar than late ones."""
    deep = [place for place in models.values() if place.stop - place.start >= 3]
    if len(deep) < 2:
        return Untestable("needs two models of three layers or more")
    steps = min(place.stop - place.start for place in deep)
    curve = np.mean([_equal_depth(values[row, column], steps) for row, column in combinations(deep, 2)], axis=0)
    return Weighed(*thirds(curve))


@claim(
    "Brown et al. 2023, section 4",
    statistic="mean similarity at equal relative depth: among the others minus with 2.8b",
    threshold=0.0,
    on="layers",
)
def pythia_2_8b_stands_apart(models: Models, values: np.ndarray) -> Weighed | Untestable:
    """2.8b is less similar to 1b, 1.4b and 6.9b than these are to each other."""
    odd, others = "pythia_2_8b", ("pythia_1b", "pythia_1_4b", "pythia_6_9b")
    absent = [name for name in (odd, *others) if name not in models]
    if absent:
        return Untestable(f"needs {', '.join(absent)}")
    steps = min(models[name].stop - models[name].start for name in (odd, *others))
    if steps < 4:
        return Untestable(f"needs four layers of each, got {steps}")

    def curve(row: str, column: str) -> np.ndarray:
        return _equal_depth(values[models[row], models[column]], steps)

    among = np.mean([curve(a, b) for a, b in combinations(others, 2)], axis=0)
    gaps = among - np.mean([curve(a, odd) for a in others], axis=0)
    return Weighed(float(gaps.mean()), by_depths(gaps, 0.0))


def _equal_depth(block: np.ndarray, steps: int) -> np.ndarray:
    """The entries at equal relative depth, at so many steps from the first layers to the last."""
    rows, columns = (np.round(np.linspace(0, size - 1, steps)).astype(int) for size in block.shape)
    return block[rows, columns]


@claim(
    "Wu et al. 2020, section 5.1",
    statistic="mean similarity of layers of different models: of one family minus of two",
    threshold=0.0,
    on="map",
)
def same_family_is_closer(whole: Map, values: np.ndarray) -> Weighed | Untestable:
    """Models of one family are more similar than models of different families."""
    places = list(whole.models.values())
    sums, counts = (
        np.array([[float(part[row, column].sum()) for column in places] for row in places])
        for part in (values, np.ones_like(values))
    )
    a, b = np.nonzero(~np.eye(len(places), dtype=bool))
    family = np.unique([whole.families[model] for model in whole.models], return_inverse=True)[1]

    def gaps(labels: np.ndarray) -> Float[np.ndarray, " k"]:
        same = labels[:, a] == labels[:, b]
        within, between = ((side @ sums[a, b]) / (side @ counts[a, b]) for side in (same, ~same))
        return within - between

    if len(set(family)) < 2 or not (family[a] == family[b]).any():
        return Untestable("needs two families, one of them of two models")
    labels, exact = arrangements(family, seed=0)
    how = f"{len(labels):,} {'' if exact else 'drawn '}ways to deal the families to the models"
    value = float(gaps(family[None])[0])
    return Weighed(value, by_chance(value, gaps(labels), how))


@claim(
    "Wu et al. 2020, section 5.1",
    statistic="mean similarity across families: lower third of both models minus upper third",
    threshold=0.0,
    on="map",
)
def lower_layers_agree_across_families(whole: Map, values: np.ndarray) -> Weighed | Untestable:
    """Across architectures, lower layers are more similar than higher ones."""
    across = whole.cells(False)
    if not across.any():
        return Untestable(NO_FAMILIES)
    sizes = [int(place.stop - place.start) for place in whole.models.values()]
    permuted, count = orders(sizes)
    depths = np.concatenate(
        [np.linspace(0, 1, size)[order] for size, order in zip(sizes, permuted, strict=True)], axis=1
    )
    observed = np.concatenate([np.linspace(0, 1, size) for size in sizes])[None]

    def gaps(depths: np.ndarray) -> Float[np.ndarray, " k"]:
        low, high = (
            ((side @ (values * across)) * side).sum(1) / ((side @ across.astype(float)) * side).sum(1)
            for side in ((depths <= 1 / 3).astype(float), (depths >= 2 / 3).astype(float))
        )
        return low - high

    value = float(gaps(observed)[0])
    return Weighed(value, by_chance(value, gaps(depths), f"{count} orders of the layers of each model"))


@claim(
    "Wu et al. 2020, section 5.1",
    statistic="mean over models of similarity: adjacent layers minus layers further apart",
    threshold=0.0,
    on="map",
)
def adjacent_layers_are_closer(whole: Map, values: np.ndarray) -> Weighed | Untestable:
    """Within a model, adjacent layers are more similar than others."""
    squares = [values[place, place] for place in whole.models.values() if place.stop - place.start > 2]
    if not squares:
        return Untestable("no model has three layers")

    def contrast(layers: int) -> np.ndarray:
        a, b = np.triu_indices(layers, k=1)
        adjacent = b - a == 1
        return adjacent / adjacent.sum() - ~adjacent / (~adjacent).sum()

    return Weighed(*over_cells([(x + x.T) / 2 for x in squares], contrast))


# ---- claims on the maps of two measures together ----

ABOVE_CHANCE = "mean similarity above chance"
OVER_FAMILIES = "across families over that within them (without a layer itself)"
NO_FAMILIES = "needs models of two families"


@claim(
    "Wu et al. 2020, section 5.1",
    statistic=f"{ABOVE_CHANCE}, {OVER_FAMILIES}: cka minus neuronsim",
    threshold=0.0,
    on="neuronsim and cka",
)
def neurons_are_block_diagonal(whole: Map) -> Weighed | Untestable:
    """neuronsim is block-diagonal by family, ckasim much less so."""
    return _shared_by_families(whole, "neuronsim", "cka")


@claim(
    "Wu et al. 2020, section 5.2, figure 4",
    statistic=f"{ABOVE_CHANCE}, {OVER_FAMILIES}: attention_js minus attention_cka",
    threshold=0.0,
    on="attention_js and attention_cka",
)
def single_heads_match_across_families(whole: Map) -> Weighed | Untestable:
    """Models share pairs of heads (Jensen-Shannon) more than layers (ckasim)."""
    return _shared_by_families(whole, "attention_cka", "attention_js")


@claim(
    "Wu et al. 2020, section 5.1",
    statistic=f"{ABOVE_CHANCE}, between models over that within one (without a layer itself): cka minus neuronsim",
    threshold=0.0,
    on="neuronsim and cka",
)
def neurons_differ_between_models(whole: Map) -> Weighed | Untestable:
    """Between models neurons are very different, whole representations less so."""
    return _shared(replace(whole, families={model: model for model in whole.models}), "neuronsim", "cka")


def _shared_by_families(whole: Map, less: str, more: str) -> Weighed | Untestable:
    return _shared(whole, less, more) if len(set(whole.families.values())) > 1 else Untestable(NO_FAMILIES)


def _shared(whole: Map, less: str, more: str) -> Weighed | Untestable:
    """Whether measure `more` keeps more across families of what it has within them than measure `less` does."""
    if absent := [name for name in (more, less) if name not in whole.values]:
        return Untestable(f"needs the measure {absent[0]}")
    apart = {name: whole.values[name] - whole.by_chance(name) for name in (more, less)}
    same, across, owners = whole.cells(True), whole.cells(False), whole.owners()

    def gap(kept: np.ndarray) -> float:
        inside, outside = (cells & kept[:, None] & kept for cells in (same, across))
        if not inside.any() or not outside.any():
            return float("nan")
        left = {name: x[outside].mean() / x[inside].mean() for name, x in apart.items()}
        return float(left[more] - left[less])

    left_out = [gap(owners != model) for model in whole.models]
    if not np.isfinite(left_out).all():
        return Untestable("needs three models, and two families whichever model is left out")
    value = gap(np.ones(len(owners), bool))
    return Weighed(value, by_jackknife(value, 0.0, left_out, f"standard error over {len(whole.models)} models"))


@dataclass(frozen=True, kw_only=True)
class Maps:
    """Heatmaps of every measure over all layers of all models.

    order: of the layers: by `model`; by `depth`, their share of the way through their model; or by `cluster`, the
        leaves of a tree of average linkage.
    """

    order: Order = "model"


@analysis(
    studies=("similarity", "attention", "outputs", "convergence", "training_view"),
    unasked=lambda planned: True,
    figures=figures,
)
def maps(run: Finished, options: Maps, claims: Sequence[Claim]) -> Part:
    if not claims or not run.maps:
        return Part()
    whole, labels = map_of(run)
    of_each: dict[str, Callable[[np.ndarray], tuple[Any, ...]]] = {
        "layers": lambda values: (whole.models, values),
        "map": lambda values: (whole, values),
    }
    verdicts = [
        claim.verdict(label, *given(whole.values[name]))
        for kind, given in of_each.items()
        for claim in asked(claims, kind)
        for name, label in labels.items()
    ]
    pairs = [claim.verdict(" and ".join(labels.get(name, name) for name in claim.on.split(" and ")), whole)
             for claim in claims if claim.on not in of_each]  # fmt: skip
    return Part(claims=[*verdicts, *pairs])
