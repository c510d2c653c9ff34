"""Whether a layer is the most similar one to itself in the same network under another seed (Kornblith et al. 2019)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float

from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import find_free_key, slug
from repsim_cli.figures.frame import COLOURS
from repsim_cli.figures.panels import (
    add_colour_bar,
    count_columns,
    find_outer_panels,
    make_panels,
    name_panels,
    set_headline,
)
from repsim_cli.findings.analysis import Finished, Job, LayerMap, Part, Planned, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.findings.evidence import ROUNDING, list_permutations
from repsim_cli.findings.groups import PointLayers, group_layers_by_point
from repsim_cli.runs.content import Matrix, Side, Table

TABLE = "identification of layers"
COLUMNS = ["measure", "models", "hook point", "identified", "low", "high", "chance", "layers", "seeds", "p"]
FOUND = "most similar layers"  # the kind of matrix
ROW, PANEL, SMALL, SMALLEST = 0.16, 1.7, 1.15, 0.85  # inches: a measure, a panel of all measures, matrices of layers
Seeds = Mapping[str, Sequence[str]]
Blocks = Float[np.ndarray, "m m l l"]


@dataclass(frozen=True, kw_only=True)
class LayerIdentification:
    """The share of layers whose most similar layer in the same network under another seed is the same layer, at every
    hook point and under every measure (Kornblith et al. 2019). The models of an entry are the seeds of a network; other
    models are seeds of one where family and layers are the same. It has no settings."""

    def check(self, planned: Planned) -> None:
        labels = {model: (about.entry or about.family, *about.layers) for model, about in planned.models.items()}
        if len(set(labels.values())) == len(labels):
            raise BadInput(f"two seeds of a network are needed, got {', '.join(labels)}; give e.g. `seeds: [0, 1]`")


def group_models_by_network(run: Finished) -> Seeds:
    """The models of each network that has several, by its entry or family."""
    networks: dict[tuple[str, ...], list[str]] = {}
    for model, about in run.models.items():
        networks.setdefault((about.entry or about.family, *about.layers), []).append(model)
    return {network[0]: models for network, models in networks.items() if len(models) > 1}


def mark_most_similar(similar: Float[np.ndarray, "l l"]) -> Float[np.ndarray, "l l"]:
    """Marks the largest entry of each row with 1; equal ones share it.

    >>> mark_most_similar(np.array([[0.9, 0.2, 0.1], [0.5, 0.5, 0.3], [0.8, 0.1, 0.2]])).tolist()
    [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]
    """
    best = similar >= similar.max(1, keepdims=True) - ROUNDING
    return best / best.sum(1, keepdims=True)


def find_most_similar_layers(layers: LayerMap, models: Sequence[str], point: PointLayers) -> Blocks:
    """Finds, for each ordered pair of models, which layer of the second is most similar to each of the first."""
    sign = 1 if layers.measure.larger_is_closer else -1
    at = np.array([[layers.places[model].start + place for place in point.places] for model in models])
    similar = sign * layers.values[at[:, None, :, None], at[None, :, None, :]]
    return np.array([[mark_most_similar(block) for block in row] for row in similar])


def identify(blocks: Blocks) -> Float[np.ndarray, "m m"]:
    """The share of layers of each model that are identified in each other one; NaN for a model and itself."""
    shares = blocks.diagonal(axis1=2, axis2=3).mean(-1)
    np.fill_diagonal(shares, np.nan)
    return shares


def weigh_identification(blocks: Blocks) -> float:
    """Tells how often layers are identified as often or more where those of each model are named at random: p of the
    mean share over models. All orders of the layers are taken, or, of more than 5040, drawn ones."""
    count, layers = blocks.shape[1:3]
    others = np.stack(list_permutations([layers] * (count - 1))[0])
    # the first model keeps its order: what counts is that of one model to another's
    orders = np.stack([np.broadcast_to(np.arange(layers), others[0].shape), *others])
    pairs = permutations(range(count), 2)
    shares = np.sum([blocks[i, j][orders[i], orders[j]].sum(-1) for i, j in pairs], 0)
    return float((shares >= shares[0] - ROUNDING).mean())


def compute_jackknife_interval(shares: Float[np.ndarray, "m m"], level: float) -> tuple[float | None, float | None]:
    """A t interval for the mean from the jackknife over models, within 0 and 1; none of fewer than three models, nor of
    models that are all alike, whose spread is not known."""
    count = len(shares)
    if count < 3:
        return None, None
    left = [np.nanmean(shares[np.ix_(kept, kept)]) for kept in (np.delete(np.arange(count), i) for i in range(count))]
    half = np.std(left) * np.sqrt(count - 1) * scipy.stats.t.ppf((1 + level) / 2, count - 1)
    if not half > 0:
        return None, None
    mean = np.nanmean(shares)
    return max(0.0, float(mean - half)), min(1.0, float(mean + half))


# ---- figures ----


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """identification-NETWORK: the share under every measure, a panel per hook point. With `whole`,
    identified-POINT-NETWORK: which layers are taken for which."""
    table = run.results.tables[TABLE]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    for network in dict.fromkeys(row["models"] for row in rows):
        yield (
            slug("identification", network),
            partial(_draw_identified_shares, [row for row in rows if row["models"] == network], run.level),
        )
    matrices = run.select_kind(FOUND) if whole else []
    for network, point in dict.fromkeys((matrix.about["models"], matrix.about["hook point"]) for matrix in matrices):
        here = [m for m in matrices if (m.about["models"], m.about["hook point"]) == (network, point)]
        yield slug("identified", point, network), partial(_draw_found, run, here, point)


def _draw_identified_shares(rows: Sequence[Mapping[str, Any]], level: float) -> Any:
    """Measures in the order of their mean share, the largest above."""
    points = list(dict.fromkeys(row["hook point"] for row in rows))
    by_measure: dict[str, list[float]] = {}
    for row in rows:
        by_measure.setdefault(row["measure"], []).append(row["identified"])
    order = sorted(by_measure, key=lambda measure: -np.mean(by_measure[measure]))
    figure, axes = make_panels(len(points), len(points), PANEL, 0.4 + ROW * len(order), gaps=(0.3, 0.0))
    for number, (axis, point) in enumerate(zip(axes, points, strict=True)):
        here = [row for row in rows if row["hook point"] == point]
        axis.axvline(here[0]["chance"], color="0.5", linestyle="--", linewidth=0.8, zorder=0)
        for row in here:
            y = order.index(row["measure"])
            if row["low"] is not None:
                axis.plot([row["low"], row["high"]], [y, y], color=COLOURS[0], linewidth=1.4, clip_on=False)
            told = row.get("p", 0.0) <= 1 - level  # runs of before have no p
            ink = COLOURS[0] if told else "white"
            axis.plot(row["identified"], y, "o", color=ink, markeredgecolor=COLOURS[0], markersize=4, clip_on=False)
        axis.set_xlim(0, 1)
        axis.set_ylim(len(order) - 0.5, -0.5)
        axis.set_xticks([0, 0.5, 1], ["0", "50", "100"])
        axis.set_xlabel("% of layers", fontsize=7)
        axis.set_yticks(range(len(order)), order if number == 0 else [], fontsize=7, parse_math=False)
        axis.tick_params(axis="x", labelsize=7)
        axis.grid(alpha=0.25, linewidth=0.5)
        axis.spines[["top", "right"]].set_visible(False)
    name_panels(axes, [f"{point}, {find_point_row(rows, point)['layers']} layers" for point in points])
    bands = f"lines: {100 * level:g} % over seeds; " if rows[0]["low"] is not None else ""
    title = f"Layers identified in another seed: {rows[0]['models']}, {rows[0]['seeds']} seeds"
    set_headline(figure, title, f"{bands}dashed: chance; hollow: not told from chance, p > {1 - level:.2g}")
    return figure


def find_point_row(rows: Sequence[Mapping[str, Any]], point: str) -> Mapping[str, Any]:
    return next(row for row in rows if row["hook point"] == point)


def _draw_found(run: Finished, matrices: Sequence[Matrix], point: str) -> Any:
    figure, axes = make_panels(
        len(matrices), count_columns(len(matrices)), SMALL, SMALL, gaps=(0.12, 0.28), least=SMALLEST
    )
    for axis, (first, lowest), matrix in zip(axes, find_outer_panels(axes), matrices, strict=True):
        axis.imshow(run.array(matrix.values), vmin=0, vmax=1)
        count = len(matrix.rows.layers)
        axis.set_xticks(range(count), range(count) if lowest else [""] * count, fontsize=6)
        axis.set_yticks(range(count), range(count) if first else [""] * count, fontsize=6)
        axis.tick_params(length=1.5)
    name_panels(axes, [matrix.about["measure"] for matrix in matrices])
    add_colour_bar(figure, axes[0].images[0], "share of pairs of seeds")
    set_headline(figure, "Most similar layer of another seed (columns) to each layer (rows)", point)
    return figure


# ---- the analysis ----


@analysis(studies=("similarity",), figures=draw_figures)
def layer_identification(run: Finished, options: LayerIdentification, claims: Sequence[Claim]) -> Part:
    rows, matrices = [], {}
    for label, layers in run.maps.items():
        for network, models in group_models_by_network(run).items():
            for point, at in group_layers_by_point(run.models[models[0]]).items():
                if len(at.places) < 2:
                    continue
                blocks = find_most_similar_layers(layers, models, at)
                shares, count = identify(blocks), len(at.places)
                ends = compute_jackknife_interval(shares, run.level)
                mean = float(np.nanmean(shares))
                rows.append(
                    [label, network, point, mean, *ends, 1 / count, count, len(models), weigh_identification(blocks)]
                )
                names = [run.models[models[0]].layers[place] for place in at.places]
                pairs = np.array(list(permutations(range(len(models)), 2))).T
                matrices[find_free_key(f"{FOUND}, {label}, {network}, {point}", matrices)] = (
                    blocks[pairs[0], pairs[1]].mean(0),
                    Matrix(
                        rows=Side(model=network, layers=names),
                        columns=Side(model=f"{network}, another seed", layers=names),
                        label="share of pairs of seeds",
                        bounds=[0.0, 1.0],
                        about={"kind": FOUND, "measure": label, "models": network, "hook point": point},
                    ),
                )
    return Part(tables={TABLE: Table(columns=COLUMNS, rows=rows)}, matrices=matrices)
