"""Maps of all layers of all models: their heatmaps, and what publications say of such maps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import combinations
from typing import Any, Literal

import numpy as np
import scipy
from jaxtyping import Float
from scipy.cluster import hierarchy

from repsim_cli.base.plain import slug
from repsim_cli.base.settings import treatment
from repsim_cli.figures.heatmap import (
    Beside,
    Chance,
    add_strips,
    bar_label,
    by_block,
    colour_range,
    colours,
    heatmap,
    outer_names,
    pair,
    small_heatmaps,
)
from repsim_cli.findings import multiples, sub_networks
from repsim_cli.findings.analysis import Finished, Job, Part, analysis, asked
from repsim_cli.findings.chance import level_in
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.distances import tree
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
from repsim_cli.findings.layers import in_order
from repsim_cli.findings.multiples import MOST_PAIRS
from repsim_cli.runs.content import DIAGNOSTICS, FEATURE_SHARE, ROWS_SHARE, Matrix, Measured

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


# ---- figures ----


def figures(run: Finished, whole: bool) -> Iterator[Job]:
    """NAME-all of every measure, or NAME-panels where models are compared with themselves alone. On demand, or where
    there are few pairs of models, NAME-MODEL-MODEL of each, and measures-MODEL-MODEL of it under all measures; on
    demand NAME-all-se. What another analysis draws with its sub-networks is not drawn twice."""
    yield from multiples.figures(run, whole)
    drawn_with_layers = sub_networks.drawn(run, whole)
    count = sum(len(measured.matrices) for measured in run.results.measures)
    each = (whole or count <= MOST_PAIRS) and not run.groups
    for measured in run.results.measures:
        matrices, label = measured.matrices, measured.label
        models = list(dict.fromkeys(matrix.rows.model for matrix in matrices))
        pairs = {frozenset((matrix.rows.model, matrix.columns.model)) for matrix in matrices}
        alone = drawn_with_layers and len(models) == 1
        complete = len(pairs) == len(models) * (len(models) + 1) // 2 and not alone
        if len(models) > 1 and not drawn_with_layers and all(matrix.rows == matrix.columns for matrix in matrices):
            yield slug(label, "panels"), partial(_panels, run, measured)
            continue
        if complete:
            yield slug(label, "all"), partial(_grid, run, measured, "values")
        if complete and whole and matrices[0].se is not None:
            yield slug(label, "all", "se"), partial(_grid, run, measured, "se")
        limits = cache(partial(_limits, run, measured))
        for matrix in matrices if each and len(models) > 1 else ():
            if drawn_with_layers and matrix.rows == matrix.columns:
                continue
            i, j = (models.index(side.model) for side in (matrix.rows, matrix.columns))
            name = slug(label, f"{i:02d}", f"{j:02d}", models[i], models[j])
            yield name, partial(_pair, run, measured, matrix, drawn_with_layers, limits)


def _grid(run: Finished, measured: Measured, quantity: str) -> Any:
    """The matrices of all pairs of models in one, its layers in the order of the analysis."""
    layers = {matrix.rows.model: matrix.rows.layers for matrix in measured.matrices}
    models = list(layers)
    ends = np.cumsum([0, *map(len, layers.values())])
    larger = measured.card["larger_is_closer"]
    order = run.results.analyses["maps"].get("options", {}).get("order", "model")

    def joined(quantity: str) -> np.ndarray:
        cells = np.full((ends[-1], ends[-1]), np.nan)
        for matrix in measured.matrices:
            i, j = (models.index(side.model) for side in (matrix.rows, matrix.columns))
            block = run.array(getattr(matrix, quantity))
            cells[ends[i] : ends[i + 1], ends[j] : ends[j + 1]] = block
            if measured.card["symmetric"]:
                cells[ends[j] : ends[j + 1], ends[i] : ends[i + 1]] = block.T
        return cells

    raw = joined("values")
    at = ORDERS[order](np.diff(ends), raw if larger else -raw)
    cells = np.ix_(at, at)
    everywhere = [(model, name) for model in models for name in layers[model]]
    owners, names = map(list, zip(*(everywhere[i] for i in at), strict=True))
    values = quantity == "values"
    p = joined(tested(measured.null)[0])[cells] if values and measured.null else None
    score = joined("calibrated")[cells] if values and matrix_has(measured, "calibrated") else None
    level = level_in(run, measured, raw[cells], owners, owners) if values else None
    shown, said = by_block(names)
    mixed = order != "model"
    labels = [f"{model} {name}" for model, name in zip(owners, shown, strict=True)] if mixed else names
    starts = (0,) if mixed else ends[:-1].tolist()
    whole = (raw if values else joined(quantity))[cells]
    figure, _ = _measured(whole, p, labels, labels, measured, quantity, starts, score, level)
    for number, each in enumerate(pair(figure)):
        if mixed:
            each.set_xlabel(", ".join(filter(None, [f"layers by {order}", said])), fontsize=7)
            continue
        for end in ends[1:-1]:
            each.axhline(end - 0.5, color="white", linewidth=1.2)
            each.axvline(end - 0.5, color="white", linewidth=1.2)
        for which in "x" if number and each.get_position().y0 == pair(figure)[0].get_position().y0 else "xy":
            outer_names(each, which, models, ends, said)
    if values:
        _diagnose(run, figure, list(zip(owners, names, strict=True)))
    return figure


def by_depth(counts: Sequence[int] | np.ndarray, closeness: np.ndarray) -> np.ndarray:
    """Places of all layers by their share of the way through their model. counts: the layers of each model.

    >>> by_depth([2, 3], np.eye(5)).tolist()
    [0, 2, 3, 1, 4]
    """
    return np.argsort(np.concatenate([np.linspace(0, 1, count) for count in counts]), kind="stable")


def by_cluster(counts: Sequence[int] | np.ndarray, closeness: np.ndarray) -> np.ndarray:
    """Places of all layers as the leaves of a tree of average linkage, neighbours as close as the tree allows. Pairs
    that were not compared are as far apart as any.

    >>> by_cluster([4], np.array([[3, 0, 2, 0], [0, 3, 0, 2], [2, 0, 3, 1], [0, 2, 1, 3]])).tolist()
    [0, 2, 3, 1]
    """
    both = (closeness + closeness.T) / 2
    apart = np.nanmax(both) - np.where(np.isnan(both), np.nanmin(both), both)
    np.fill_diagonal(apart, 0)
    return hierarchy.leaves_list(tree(apart))


Order = Literal["model", "depth", "cluster"]
ORDERS: dict[Order, Callable[[Any, np.ndarray], np.ndarray]] = {
    "model": lambda counts, closeness: np.arange(len(closeness)),
    "depth": by_depth,
    "cluster": by_cluster,
}


def matrix_has(measured: Measured, quantity: str) -> bool:
    return all(getattr(matrix, quantity) is not None for matrix in measured.matrices)


def _diagnose(run: Finished, figure: Any, columns: Sequence[tuple[str, str]]) -> None:
    """Strips above a matrix whose columns are these (model, layer): how much of their variance a single feature, and
    the largest rows, have."""
    table = run.results.tables.get(DIAGNOSTICS)
    if table is None:
        return
    rows = {(row["model"], row["layer"]): row for row in (dict(zip(table.columns, x, strict=True)) for x in table.rows)}
    if not all(layer in rows for layer in columns):
        return
    shares = {
        name: np.array([rows[layer][share] or 0.0 for layer in columns], float)
        for name, share in (("largest feature", FEATURE_SHARE), ("largest 1 % of rows", ROWS_SHARE))
    }
    for axes in pair(figure)[:1]:
        add_strips(axes, shares)


def _panels(run: Finished, measured: Measured) -> Any:
    """A small matrix per model."""
    matrices = measured.matrices
    squares = [(x.rows.model, run.array(x.values), x.rows.layers, x.rows.layers) for x in matrices]
    _, said = by_block([name for matrix in matrices for name in matrix.rows.layers])
    models = [matrix.rows.model for matrix in matrices]
    chance, level = level_in(run, measured, np.full((len(models), len(models)), np.nan), models, models)
    title = (f"{measured.label}, {said}" if said else measured.label) + (f"\n{level}" if level else "")
    return small_heatmaps(squares, measured.card, title, chance)[0]


def _limits(run: Finished, measured: Measured) -> tuple[float, float]:
    """Of the colours of all pairs of models, so that their figures can be compared."""
    arrays = [x[np.isfinite(x)] for x in (run.array(matrix.values) for matrix in measured.matrices)]
    ends = np.array([end for values in arrays if values.size for end in (values.min(), values.max())])
    return colour_range(ends, measured.card, "values")


def _pair(
    run: Finished,
    measured: Measured,
    matrix: Matrix,
    ordered: bool,
    limits: Callable[[], tuple[float, float]],
) -> Any:
    """ordered: layers are drawn in the order of the network, not in that of the file. limits: of the colours."""
    orders = [
        in_order(side.layers) if ordered else list(range(len(side.layers))) for side in (matrix.rows, matrix.columns)
    ]
    cells = np.ix_(*orders)
    values = run.array(matrix.values)[cells]
    p = run.array(file)[cells] if measured.null and (file := getattr(matrix, tested(measured.null)[0])) else None
    down, across = (
        [side.layers[i] for i in order] for side, order in zip((matrix.rows, matrix.columns), orders, strict=True)
    )
    score = None if matrix.calibrated is None else run.array(matrix.calibrated)[cells]
    models = matrix.rows.model, matrix.columns.model
    level = level_in(run, measured, values, [models[0]] * len(down), [models[1]] * len(across))
    figure, axes = _measured(values, p, down, across, measured, "values", (0,), score, level, limits())
    _, said = by_block([*down, *across])
    axes.set_ylabel(models[0], parse_math=False)
    for each in pair(figure):
        each.set_xlabel(models[1] + (f"\n{said}" if said else ""), parse_math=False)
    _diagnose(run, figure, [(models[1], layer) for layer in across])
    return figure


FAMILY = {"max_t": "family-wise by max-T", "holm": "family-wise by Holm"}


def tested(null: Mapping[str, Any]) -> tuple[str, str]:
    """Which p values cross out cells, and how they are corrected for the cells of a map, where the run did so."""
    return ("p_family", FAMILY[null["family"]]) if "family" in null else ("p", "uncorrected")


SAMPLED = {
    "full": "one sample",
    "per_batch": "mean over {}",
    "ratio_of_sums": "HSIC summed over {}",
    "moments": "second moments of all rows",
}


def _measured(
    values: np.ndarray,
    p: np.ndarray | None,
    rows: list[str],
    columns: list[str],
    measured: Measured,
    quantity: str,
    starts: Sequence[int] = (0,),
    score: np.ndarray | None = None,
    level: tuple[Chance | None, str] | None = None,
    limits: tuple[float, float] | None = None,
) -> tuple[Any, Any]:
    """A heatmap of a measure's values or standard errors, in the colours of its card; chance is crossed out. score:
    the calibrated scores, drawn beside it. level: of chance, and what is said of it. limits: of the colours, by default
    those of these values."""
    card, estimate = measured.card, measured.estimate
    batches = "1 batch" if estimate["batches"] == 1 else f"{estimate['batches']:,} batches"
    alpha = measured.null["alpha"] if p is not None and measured.null else 1.0
    chance = np.zeros(values.shape, bool) if p is None else p > alpha
    _, said = by_block([*rows, *columns])
    parts = [
        SAMPLED[estimate["kind"]].format(batches),
        f"{estimate['rows']:,} {estimate.get('unit', 'rows')}",
    ]
    treated = treatment(estimate.get("remedies", {}))
    crosses = f" (×: p > {alpha:g}, {tested(measured.null)[1]})" if measured.null and chance.any() else ""
    return heatmap(
        values,
        by_block(rows)[0] if said else rows,
        by_block(columns)[0] if said else columns,
        title=f"{card['label']}{': standard error' if quantity == 'se' else ''}\n{', '.join(parts)}{crosses}"
        + "".join(f"\n{line}" for line in (treated, level[1] if level else "") if line),
        bar_label="standard error" if quantity == "se" else bar_label(card),
        limits=limits or colour_range(values, card, quantity),
        colours=colours(card, quantity),
        form="{:.2g}" if quantity == "se" or card.get("reads") == "outputs" else "{:.2f}",
        starts=starts,
        crossed=chance,
        chance=level[0] if level else None,
        beside=None if score is None else Beside(values=score, **_calibrated(score, card)),
    )


def _calibrated(score: np.ndarray, card: Mapping[str, Any]) -> dict[str, Any]:
    """How calibrated scores are drawn: as shares of the way from chance to the best value, where there is one."""
    best = card["bounds"][1] if card["larger_is_closer"] else card["bounds"][0]
    limits = (0.0, 1.0 if best is not None else float(score[np.isfinite(score)].max(initial=1e-12)))
    return {
        "label": "calibrated score (0: chance)",
        "limits": limits,
        "colours": colours({"larger_is_closer": True}, ""),
    }


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
