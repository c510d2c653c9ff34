"""How many of the nearest rows of a row stay the nearest in later layers (Gao et al. 2024, figure 9, table 5)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float, Int

from repsim_cli.base.plain import escape, slug
from repsim_cli.figures.frame import COLOURS, MARKERS, repeat_values
from repsim_cli.figures.heatmap import name_by_block
from repsim_cli.figures.lines import list_layer_figures
from repsim_cli.figures.panels import count_columns, make_panels, name_panels, set_headline, split_into_pages
from repsim_cli.figures.texts import shorten
from repsim_cli.findings.analysis import FEW, Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.runs.content import Axis, Curve, Matrix, Table
from repsim_cli.studies.views.lacking import name_left_out

QUANTITY = "neighbours kept"
COLUMNS = [
    "model", "space", "sample", "mean overlap with the first layer", "mean overlap without it", "overlap by chance",
]  # fmt: skip
STAY = "neighbours that stay"
OF_ALL = ["model", "space", "rows", "nearest", "share that stays", "lowest", "lowest in", "by chance", "p"]
DRAWN = 999  # random pairings of rows
PLANE = "t-SNE plane"
LETTERS = 52  # of a text in a legend


@dataclass(frozen=True, kw_only=True)
class NeighbourOptions:
    """How many of the nearest rows of all rows in the first layer stay the nearest in later ones, and the overlap of
    some rows' (shared ones over those near in either layer). It has no settings."""


def compute_jaccard_overlap(a: Int[np.ndarray, "... k"], b: Int[np.ndarray, "... k"]) -> Float[np.ndarray, "..."]:
    """Jaccard similarity of sets of k: shared members over those in either, 0 to 1.

    >>> compute_jaccard_overlap(np.array([[1, 2, 3]]), np.array([[3, 2, 9]])).tolist()
    [0.5]
    """
    shared = (a[..., :, None] == b[..., None, :]).sum((-2, -1))
    return shared / (2 * a.shape[-1] - shared)


def compute_chance_overlap(rows: int, k: int) -> float:
    """The expected overlap of two sets of k drawn independently from the rows - 1 others.

    >>> round(compute_chance_overlap(16, 5), 4)
    0.2144
    """
    shared = np.arange(k + 1)
    shares = scipy.stats.hypergeom.pmf(shared, rows - 1, k, k)
    return float(shares @ (shared / (2 * k - shared)))


def measure_staying_shares(nearest: Int[np.ndarray, "layers n k"]) -> tuple[Float[np.ndarray, " later"], float]:
    """The share of the nearest rows of all rows in the first layer that are among the nearest in each later one, and p:
    how often their mean is as large where rows of the first layer are paired with those of the others at random. By
    chance a share is k / (n - 1).

    >>> measure_staying_shares(np.array([[[1], [0], [3], [2]], [[1], [0], [3], [0]], [[2], [3], [0], [1]]]))[0].tolist()
    [0.75, 0.0]
    """
    count, shares = nearest.shape[1], list[float]()
    each, whole = np.arange(count)[:, None], np.zeros((count, count), int)
    for layer in nearest[1:]:
        near = np.zeros((count, count), bool)
        near[each, layer] = True
        shares.append(float(near[each, nearest[0]].mean()))
        whole += near
    rng = np.random.default_rng(0)
    orders = [np.arange(count), *(rng.permutation(count) for _ in range(DRAWN))]
    stay = np.array([whole[order[:, None], order[nearest[0]]].sum() for order in orders])
    return np.array(shares), float((stay >= stay[0]).mean())


# ---- figures ----

SIDE, SMALLEST, MOST = 1.25, 0.9, 30  # inches of a panel; panels of a figure
PLAIN = "0.62"
KEPT: dict[str, Any] = {"linewidth": 1.1}
NEW: dict[str, Any] = {"linewidth": 0.6, "linestyle": (0, (1, 1.5)), "alpha": 0.8}
EDGE: dict[str, Any] = {"markeredgecolor": "black", "markeredgewidth": 0.7}


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """by-layer-neighbours_kept; neighbours-NUMBER-MODEL on demand, or where there are few models"""
    measured = run.select_kind("neighbours")
    for number, matrix in enumerate(measured if whole or len(measured) <= FEW else ()):
        for name, places in split_into_pages(
            slug("neighbours", f"{number:02d}", matrix.rows.model), range(len(matrix.rows.layers)), MOST
        ):
            yield name, partial(_draw_neighbour_lines, run, matrix, places)
    yield from list_layer_figures(run.results.curves, "neighbours", run.seeds)


def _draw_neighbour_lines(run: Finished, matrix: Matrix, places: Sequence[int]) -> Any:
    """Lines lead from each chosen row to its nearest, full where that row was among the nearest in the first layer."""
    from matplotlib.lines import Line2D

    batch, samples = run.results.about["batch"], matrix.about["samples"]
    planes, nearest = run.array(matrix.values), run.array(matrix.details[PLANE]).astype(int)[:, samples]
    inks = dict(zip(samples, repeat_values(COLOURS, len(samples)), strict=True))
    classes = batch["classes"] or [""] * len(batch["rows"])
    shapes = {name: MARKERS[i % len(MARKERS)] for i, name in enumerate(dict.fromkeys(classes))}
    figure, axes = make_panels(len(places), count_columns(len(places)), SIDE, SIDE, gaps=(0.07, 0.2), least=SMALLEST)
    names, said = name_by_block(matrix.rows.layers)
    name_panels(axes, [names[place] for place in places])
    for number, panel in zip(places, axes, strict=True):
        plane = planes[number]
        for sample, (place, ink) in enumerate(inks.items()):
            kept = np.isin(nearest[number, sample], nearest[0, sample])
            for others, style in ((nearest[number, sample][kept], KEPT), (nearest[number, sample][~kept], NEW)):
                ends = np.stack([np.broadcast_to(plane[place], (len(others), 2)), plane[others]])
                panel.plot(*ends.transpose(2, 0, 1), color=ink, zorder=1, **style)
        for name, shape in shapes.items():
            rest = [place for place, other in enumerate(classes) if other == name and place not in inks]
            panel.plot(*plane[rest].T, shape, color=PLAIN, markersize=4, markeredgecolor="white", markeredgewidth=0.4)
        for place, ink in inks.items():
            panel.plot(*plane[place], shapes[classes[place]], color=ink, markersize=6, **EDGE)
        panel.set_xticks([])
        panel.set_yticks([])
        panel.margins(0.1)
        panel.spines[:].set_color("0.8")
    said_of = [shorten(escape(text), LETTERS) for text in batch.get("texts") or ()] or [
        f"row {row}" for row in batch["rows"]
    ]
    handles = [
        Line2D([], [], color=ink, marker=shapes[classes[place]], markersize=5, label=said_of[place], **EDGE)
        for place, ink in inks.items()
    ]
    handles += [
        Line2D([], [], color=PLAIN, marker=shape, markersize=4, linewidth=0, label=name)
        for name, shape in shapes.items()
        if name
    ]
    handles += [
        Line2D([], [], color="0.3", label="near in the first layer too", **KEPT),
        Line2D([], [], color="0.3", label="near only here", **NEW),
    ]
    legend = figure.legend(
        handles=handles, fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    what = f"t-SNE of {len(planes[0])} rows, lines from {len(samples)} of them to their {matrix.about['k']} nearest"
    missing = name_left_out(run, "neighbours", matrix.rows.model)
    set_headline(
        figure, f"{matrix.rows.model}: which rows stay near each other", what + (f"; {said}" if said else "") + missing
    )
    return figure


@analysis(
    studies=("views",), unasked=lambda planned: planned.options.get("neighbours", {}) is not None, figures=draw_figures
)
def neighbours(run: Finished, options: NeighbourOptions, claims: Sequence[Claim]) -> Part:
    measured = run.select_kind("neighbours")
    if not measured:
        return Part()
    # all models have one batch
    rows, k, samples = measured[0].columns.layers, measured[0].about["k"], measured[0].about["samples"]
    names, by_chance = [rows[place] for place in samples], compute_chance_overlap(len(rows), k)
    tables, means, of_all, lines = {}, [], [], {}
    for matrix in measured:
        label, layers = matrix.rows.model, matrix.rows.layers
        listed: list[list[Any]] = []
        kept_by: dict[str, list[float | None]] = {}
        for space, path in matrix.details.items():
            nearest = run.array(path).astype(int)
            if len(nearest) > 1:
                shares, p = measure_staying_shares(nearest)
                least = int(shares.argmin())
                staying = [float(shares.mean()), float(shares[least]), layers[1:][least]]
                of_all.append([label, space, len(rows), k, *staying, k / (len(rows) - 1), p])
            kept = compute_jaccard_overlap(nearest[:1], nearest)[:, samples]
            listed += [[space, layer, *row] for layer, row in zip(layers, kept.tolist(), strict=True)]
            for name, row in zip(names, kept.T, strict=True):
                means.append([label, space, name, float(row.mean()), float(row[1:].mean()), by_chance])
            kept_by[space] = kept[1:].mean(1).tolist()
        tables[f"neighbours of {label}"] = Table(columns=["space", "layer", *names], rows=listed)
        lines[f"{QUANTITY}, {label}"] = Curve(
            x=Axis(name="layer"),
            y=Axis(name=f"overlap (Jaccard) with the first layer's\n{k} nearest rows of {len(samples)} rows"),
            at=layers[1:],
            lines=kept_by,
            about={"quantity": QUANTITY, "model": label, "levels": {"by chance": by_chance}},
        )
    overall = {STAY: Table(columns=OF_ALL, rows=of_all), QUANTITY: Table(columns=COLUMNS, rows=means)}
    return Part(tables={**overall, **tables}, curves=lines)
