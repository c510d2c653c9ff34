"""One distance per pair of models from their layers, and whether clusters of models are the groups."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.cluster.hierarchy as hierarchy
from jaxtyping import Float, Int
from scipy.spatial.distance import squareform

from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import slug
from repsim_cli.base.settings import Members
from repsim_cli.figures.colours import choose_colours
from repsim_cli.figures.frame import COLOURS, add_legend_beside, repeat_values
from repsim_cli.figures.heatmap import add_tree, draw_heatmap
from repsim_cli.figures.lines import PANEL, draw_light_grid
from repsim_cli.figures.panels import set_headline
from repsim_cli.findings.analysis import Finished, Job, Part, Planned, analysis
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import list_group_arrangements, weigh_by_jackknife
from repsim_cli.findings.groups import list_depths_at_points, pair_models_by_group
from repsim_cli.findings.permuted_groups import (
    Permuted,
    compute_separation,
    number_groups,
    permute_groups,
    say_why_untestable,
)
from repsim_cli.runs.content import Matrix, Side, Table

ROUNDING = 1e-6  # by which a cosine may leave [-1, 1]
VIOLIN = 8  # pairs from which a violin says more than the points
CLUSTERS, AGREEMENT, SPREAD = "clusters of models", "clusters and groups", "distances by groups"
COLUMNS = {
    CLUSTERS: ["distance", "model", "group", "hierarchical", "spectral"],
    AGREEMENT: ["distance", "clusters", "adjusted Rand", "p", "arrangements", "exact"],
    SPREAD: ["distance", "pairs of", "pairs", "mean", "standard deviation", "smallest", "largest"],
}
Square = Float[np.ndarray, "m m"]


@dataclass(frozen=True, kw_only=True)
class Distances:
    """One distance per pair of models and hook point, over all layers (Brown et al. 2023, eq. 2), and clusters of the
    models against their groups. It has no settings."""

    def check(self, planned: Planned) -> None:
        if len(planned.groups) < 2:
            raise BadInput(f"clusters need 2 groups, got {len(planned.groups)}; set groups")
        for label, card in planned.measures.items():
            if not has_distance(card):
                raise BadInput(f"{label} is neither a metric nor a cosine, got no angle; use cka_unbiased")


def has_distance(card: Mapping[str, Any]) -> bool:
    """Tells whether distances of models follow from a measure: it is one, or its angle is."""
    return card["is_metric"] or card["cosine"]


def convert_to_angles(similarities: Float[np.ndarray, "m m l"]) -> Float[np.ndarray, "m m l"]:
    """arccos of normalised inner products, in radians.

    A negative one (unbiased CKA may be) is an angle above pi/2: U-centred Gram matrices have inner products like any
    others, and the mean of their cosines over batches is the cosine of the batches' unit vectors laid end to end; so
    the angles are a metric whatever the sign. One above 1 by rounding counts as 1. Angles below 1e-4 are rounding.
    Raises BadInput for a value beyond [-1, 1].
    """
    worst = float(np.abs(similarities).max())
    if worst > 1 + ROUNDING:
        raise BadInput(f"no cosine, got {worst:.6g}; arccos needs values from -1 to 1")
    return np.arccos(np.clip(similarities, -1, 1))


def combine_layer_distances(layers: Float[np.ndarray, "m m l"]) -> Square:
    """sqrt(sum over layers of d^2), a metric where d is one of counterparts (Brown et al. 2023, eq. 2)."""
    whole = np.sqrt(np.square((layers + layers.transpose(1, 0, 2)) / 2).sum(2))
    np.fill_diagonal(whole, 0)
    return whole


def cluster_models(values: Square, count: int) -> dict[str, Int[np.ndarray, " m"]]:
    """`count` clusters each: hierarchical by average linkage, spectral from the affinity exp(-d^2 / (2 s^2)), s the
    median distance.

    Raises BadInput where half of the models are the same.
    """
    from sklearn.cluster import SpectralClustering

    scale = float(np.median(squareform(values, checks=False)))
    if not scale:
        raise BadInput("half of the pairs of models are the same, got a median of 0; drop copies")
    affinity = np.exp(-np.square(values / scale) / 2)
    spectral = SpectralClustering(count, affinity="precomputed", assign_labels="cluster_qr", random_state=0)
    return {
        "hierarchical": cluster_by_average_linkage(values, count),
        "spectral": np.asarray(spectral.fit_predict(affinity)),
    }


def build_linkage_tree(values: Square) -> Float[np.ndarray, "n 4"]:
    """The merges of an average-linkage clustering."""
    return hierarchy.linkage(squareform(values, checks=False), "average", optimal_ordering=True)


def cluster_by_average_linkage(values: Square, count: int) -> Int[np.ndarray, " m"]:
    """`count` clusters by average linkage."""
    return hierarchy.cut_tree(build_linkage_tree(values), count)[:, 0]


def compute_adjusted_rand(labels: Int[np.ndarray, "k m"], cut: Int[np.ndarray, " m"]) -> Float[np.ndarray, " k"]:
    """Hubert and Arabie's adjusted Rand index of each row with these clusters: 1 is equal, 0 expected by chance."""

    def pairs(counts: np.ndarray) -> np.ndarray:
        return counts * (counts - 1) / 2

    table = (labels[:, :, None] == np.unique(labels)).astype(float).transpose(0, 2, 1) @ (
        cut[:, None] == np.unique(cut)
    )
    together = pairs(table).sum((1, 2))
    rows, columns = pairs(table.sum(2)).sum(1), pairs(table.sum(1)).sum(1)
    expected = rows * columns / math.comb(len(cut), 2)
    most = (rows + columns) / 2
    return np.where(most == expected, 1.0, (together - expected) / np.where(most == expected, 1.0, most - expected))


def compute_recovery(groups: Members, cut: Int[np.ndarray, " m"], seed: int) -> Permuted:
    """The adjusted Rand index of clusters and groups, against all other ways to group the models."""
    labels, exact = list_group_arrangements(number_groups(groups), seed)
    return permute_groups(
        compute_adjusted_rand(labels, cut),
        float(compute_adjusted_rand(number_groups(groups)[None], cut)[0]),
        exact,
        len(cut),
    )


@dataclass(frozen=True)
class GroupDistances:
    """Distances between the models of the groups, in their order, the clusters by method, and how far each method's
    clusters are the groups."""

    groups: Members
    values: Square
    clusters: Mapping[str, Int[np.ndarray, " m"]] = field(default_factory=dict)
    agreement: Mapping[str, Permuted] = field(default_factory=dict)


def make_group_distances(groups: Members, values: Square, seed: int) -> GroupDistances:
    """Clusters the models by their distances, and says how well each method recovers the groups. Raises BadInput as
    `cluster_models` does.

    values: the distances.
    seed: that of the arrangements that are drawn.
    """
    cut = cluster_models(values, len(groups))
    return GroupDistances(
        groups, values, cut, {method: compute_recovery(groups, labels, seed) for method, labels in cut.items()}
    )


# ---- claims ----


@claim(
    "Brown et al. 2023, figure 8",
    statistic="mean distance between groups minus within",
    threshold=0.0,
    unit="model",
    across="groups",
)
def between_group_distances_are_larger(models: GroupDistances) -> Weighed | Untestable:
    """Models of two groups are farther apart than models of one."""
    if why := say_why_untestable(models.groups):
        return Untestable(why)
    apart = compute_separation(models.values, models.groups, seed=0)
    return Weighed(apart.value, apart.evidence)


@claim(
    "Brown et al. 2023, figure 8",
    statistic="adjusted Rand index of hierarchical clusters and groups",
    threshold=0.5,
    unit="model",
    across="groups",
)
def clusters_are_the_groups(models: GroupDistances) -> Weighed | Untestable:
    """The groups form two distinct clusters; here these come from distances alone."""
    if why := say_why_untestable(models.groups):
        return Untestable(why)
    agreed, numbers = models.agreement["hierarchical"], number_groups(models.groups)

    def compute_without(model: int) -> float:
        kept = np.delete(np.arange(len(numbers)), model)
        cut = cluster_by_average_linkage(models.values[np.ix_(kept, kept)], len(models.groups))
        return float(compute_adjusted_rand(numbers[kept][None], cut)[0])

    evidence = weigh_by_jackknife(agreed.value, 0.5, [compute_without(model) for model in range(len(numbers))], "model")
    how = f"{evidence.how}, and {agreed.evidence.how}"
    return Weighed(agreed.value, replace(evidence, above=max(evidence.above, agreed.p), how=how))


# ---- figures ----


BOX = 0.42  # inches of a kind of pairs


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """NAME-distances and NAME-models of every distance between models"""
    for number, matrix in enumerate(x for x in run.results.matrices.values() if x.analysis == "distances"):
        stem = slug(matrix.about["distance"], *([str(number)] if number else []))
        yield slug(stem, "distances"), partial(_draw_group_distances, run, matrix)
        yield slug(stem, "models"), partial(_draw_model_distances, run, matrix)


def _draw_group_distances(run: Finished, matrix: Matrix) -> Any:
    """Box, violin and the points of every kind of pair."""
    from matplotlib.figure import Figure

    whole, by_kind = run.array(matrix.values), pair_models_by_group(run.groups)
    figure = Figure(figsize=(PANEL[0], 0.3 + BOX * len(by_kind)))
    axes = figure.add_axes((0, 0, 1, 1))
    rng = np.random.default_rng(0)  # points beside each other, the same in every drawing
    names = []
    for place, (kind, pairs) in enumerate(by_kind.items()):
        values, colour = whole[tuple(np.array(pairs).T)], repeat_values(COLOURS, place + 1)[place]
        names.append(" – ".join(kind))
        if len(values) >= VIOLIN and np.ptp(values):
            drawn: Any = axes.violinplot(values, [place], orientation="horizontal", widths=0.8, showextrema=False)
            drawn["bodies"][0].set(facecolor=colour, alpha=0.2)
        grey = {"color": "0.3"}
        median = {"color": "black", "linewidth": 1.4}
        lines = {"medianprops": median, "boxprops": grey, "whiskerprops": grey, "capprops": grey}
        axes.boxplot(values, positions=[place], orientation="horizontal", widths=0.28, showfliers=False, **lines)
        aside = rng.uniform(-0.1, 0.1, len(values))
        axes.plot(values, place + aside, "o", color=colour, markersize=3.5, alpha=0.65, markeredgewidth=0, zorder=3)
        pairs_said = f"{len(values)} pair{'s' if len(values) != 1 else ''}"
        axes.text(1.01, place, pairs_said, transform=axes.get_yaxis_transform(), fontsize=6, va="center")
    axes.set_yticks(range(len(names)), names, fontsize=8, parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(f"distance (root of the sum over layers of {matrix.about['layers']}²)", fontsize=8)
    draw_light_grid(axes)
    set_headline(figure, "How far apart models are, within and between groups", matrix.about["distance"])
    return figure


def _draw_model_distances(run: Finished, matrix: Matrix) -> Any:
    """The matrix of distances in the order of the tree's leaves; names in the colours of their groups."""
    from matplotlib import colormaps

    name, whole = matrix.about["distance"], run.array(matrix.values)
    merges = build_linkage_tree(whole)
    order = hierarchy.leaves_list(merges)
    values, names = whole[np.ix_(order, order)], [matrix.rows.layers[i] for i in order]
    agreed = [f"{row[1]} {row[2]:.2f} (p = {row[3]:.2g})" for row in run.results.tables[AGREEMENT].rows
              if row[0] == name]  # fmt: skip
    apart = values[~np.eye(len(values), dtype=bool)]
    title = f"Which models are near each other\n{name}; clusters against groups, adjusted Rand: {', '.join(agreed)}"
    limits = (float(apart.min()), float(apart.max()))
    # a model and itself stand apart: white, below the scale of different models
    scale = colormaps[choose_colours(small_is_bright=True)].with_extremes(under="white")
    figure, axes = draw_heatmap(values, names, names, title, matrix.label, limits, scale, "{:.2f}")
    colours = repeat_values(COLOURS[::2] + COLOURS[1::2], len(run.groups))
    of_models = dict(zip(matrix.rows.layers, number_groups(run.groups), strict=True))
    for axis in (axes.xaxis, axes.yaxis):
        for label in axis.get_ticklabels():
            label.set_color(colours[of_models[label.get_text()]])
    above = add_tree(figure, axes, merges, "distance")
    above.set_ylim(0.9 * merges[0, 2], None)
    handles = [
        above.plot([], [], "s", color=colour, label=group)[0] for group, colour in zip(run.groups, colours, strict=True)
    ]
    add_legend_beside(above, handles=handles)
    return figure


@analysis(studies=("similarity",), figures=draw_figures)
def distances(run: Finished, options: Distances, claims: Sequence[Claim]) -> Part:
    matrices: dict[str, tuple[np.ndarray, Matrix]] = {}
    rows: dict[str, list[list[Any]]] = {table: [] for table in COLUMNS}
    verdicts = []
    for name, measure, _, _, depths in list_depths_at_points(run):
        if not has_distance(measure.card):
            continue
        groups, card = depths.groups, measure.card
        if len(groups) < 2:
            models = GroupDistances(groups, depths.values[..., 0])
        else:
            try:
                values = combine_layer_distances(
                    depths.values if card["is_metric"] else convert_to_angles(depths.values)
                )
                models = make_group_distances(groups, values, run.seed)
            except BadInput as error:
                raise BadInput(f"{name}: {error}") from None
            layers = card["label"] if card["is_metric"] else f"arccos {card['label']}"
            matrices[f"{name}, between models"] = (values, _describe_distance_matrix(name, groups, layers))
            for table, more in _tabulate_distances(name, models).items():
                rows[table] += more
        verdicts += [each.verdict(name, models) for each in claims]
    tables = {name: Table(columns=COLUMNS[name], rows=lines) for name, lines in rows.items() if lines}
    return Part(matrices=matrices, tables=tables, claims=verdicts)


def _describe_distance_matrix(name: str, groups: Members, layers: str) -> Matrix:
    models = Side(model="models", layers=[model for members in groups.values() for model in members])
    about = {"distance": name, "layers": layers}
    return Matrix(rows=models, columns=models, label="distance (smaller is closer)", bounds=[0.0, None], about=about)


def _tabulate_distances(name: str, models: GroupDistances) -> dict[str, list[list[Any]]]:
    """Lists the rows of each table for one distance between models."""
    labels = [(model, group) for group, members in models.groups.items() for model in members]
    spread = []
    for kind, pairs in pair_models_by_group(models.groups).items():
        values = models.values[tuple(np.array(pairs).T)]
        deviation = float(values.std(ddof=1)) if len(values) > 1 else None
        numbers = [float(values.mean()), deviation, float(values.min()), float(values.max())]
        spread.append([name, "-".join(kind), len(values), *numbers])
    return {
        CLUSTERS: [
            [name, *label, *(int(cut[i]) for cut in models.clusters.values())] for i, label in enumerate(labels)
        ],
        AGREEMENT: [
            [name, method, agreed.value, agreed.p, agreed.arrangements, agreed.exact]
            for method, agreed in models.agreement.items()
        ],
        SPREAD: spread,
    }
