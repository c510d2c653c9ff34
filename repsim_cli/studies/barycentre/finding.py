"""Says which models are closest to the shape that all share, and draws a map of the models about it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from jaxtyping import Float

from repsim_cli.figures.frame import add_legend_beside, choose_line_styles
from repsim_cli.figures.lines import draw_light_grid, mark_gaps, name_bands, start_at_zero
from repsim_cli.figures.panels import list_models, make_panels, set_headline, split_into_pages
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.findings.extremes import list_alike, say_others
from repsim_cli.runs.content import NEAREST, Axis, Curve, Numbers, Table
from repsim_cli.studies.barycentre.columns import APART, FROM_SHAPE, GROUPS, OF_PLACES

Row = Mapping[str, Any]
MAP, CHANCE = "map about the common shape", "rows paired at random"
PANEL, LINES = 2.1, (4.0, 2.6)  # inches
ACROSS = 3  # panels of a map


@dataclass(frozen=True, kw_only=True)
class BarycentreOptions:
    """Says which models are closest to their common shape and furthest, with a map. There are no settings."""


def group_by_depth(table: Table) -> dict[str, list[Row]]:
    rows = (dict(zip(table.columns, values, strict=True)) for values in table.rows)
    return {depth: list(some) for depth, some in groupby(rows, key=lambda row: row["depth"])}


def place_models(apart: Float[np.ndarray, "m m"]) -> tuple[Float[np.ndarray, "m 2"], Float[np.ndarray, " 2"]]:
    """Places models about their mean on the plane that keeps most of their squared distances; and gives the share of
    each axis. On each axis the model furthest out is on the positive side.

    >>> places, shares = place_models(np.array([[0.0, 2.0], [2.0, 0.0]]))
    >>> np.abs(places).round(6).tolist(), shares.round(6).tolist()
    ([[1.0, 0.0], [1.0, 0.0]], [1.0, 0.0])
    """
    middle = np.eye(len(apart)) - 1 / len(apart)
    products = -middle @ np.square(apart) @ middle / 2
    sizes, axes = np.linalg.eigh(products)
    sizes, axes = sizes[::-1].clip(0)[:2], axes[:, ::-1][:, :2]
    places = axes * np.sqrt(sizes) * np.where(axes[np.abs(axes).argmax(0), [0, 1]] < 0, -1, 1)
    return places, sizes / max(np.trace(products), np.finfo(float).tiny)


def say_answers(run: Finished) -> Iterator[list[str]]:
    """Says of each depth how far the models are from their common shape, and what chance gives."""
    documents = run.results.tables[OF_PLACES].column("documents")
    for (depth, rows), count in zip(group_by_depth(run.results.tables[FROM_SHAPE]).items(), documents, strict=True):
        ends, chance = say_ends(rows, min(GROUPS, count) - 1), np.mean([row["chance"] for row in rows])
        yield [_name_depth(depth), f"{ends} (rows paired at random: {chance:.2f})"]


def say_ends(rows: Sequence[Row], freedom: int) -> str:
    """Says which model is closest and which furthest, and which others cannot be told apart from these. freedom: of the
    errors, one less than the groups of documents that are left out for them."""
    values, errors = [row["distance"] for row in rows], [row["se"] for row in rows]
    if len(rows) == 2:
        return f"both models are {_format_distance(rows[0])} from their common shape"
    first, last = int(np.argmin(values)), int(np.argmax(values))
    if last in list_alike(values, errors, first, freedom):
        return (
            "no model is told apart from the others: their distances from the common shape are "
            f"{_format_distance(rows[first])} to {_format_distance(rows[last])}"
        )
    models = [row["model"] for row in rows]
    closest, furthest = (
        _format_distance(rows[end]) + say_others(models, list_alike(values, errors, end, freedom), end)
        for end in (first, last)
    )
    return f"{models[first]} is closest to the common shape at {closest}, {models[last]} furthest at {furthest}"


def _name_depth(depth: str) -> str:
    return f"depth {depth}" if depth.replace(".", "").isdigit() else depth


def _format_distance(row: Row) -> str:
    return f"{row['distance']:.3f}" + ("" if row["se"] is None else f" (se {row['se']:.2g})")


def make_depth_curve(depths: Mapping[str, Sequence[Row]]) -> Curve:
    """A curve of all models over depth."""
    of_models: dict[str, list[Row]] = {}
    for rows in depths.values():
        for row in rows:
            of_models.setdefault(row["model"], []).append(row)
    lines: dict[str, Numbers] = {model: [row["distance"] for row in rows] for model, rows in of_models.items()}
    lines[CHANCE] = [float(np.mean([row["chance"] for row in rows])) for rows in depths.values()]
    return Curve(
        x=Axis(name="depth"),
        y=Axis(name="distance from the common shape"),
        at=list(depths),
        lines=lines,
        errors={
            model: [row["se"] for row in rows]
            for model, rows in of_models.items()
            if any(row["se"] is not None for row in rows)
        },
        bounds=[0.0, 1.0],
    )


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """barycentre: how far models are from their common shape, over depth; barycentre-map: where they are about it"""
    for curve in run.results.curves.values():
        yield "barycentre", partial(_draw_depth_curve, curve, run)
    for name, depths in split_into_pages("barycentre-map", list(group_by_depth(run.results.tables[MAP])), ACROSS):
        yield name, partial(_draw_map, depths, run)


def _draw_depth_curve(curve: Curve, run: Finished) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=LINES)
    panel = figure.add_axes((0, 0, 1, 1))
    models = [name for name in curve.lines if name != CHANCE]
    for model, style in zip(models, choose_line_styles(len(models)), strict=True):
        values = mark_gaps(curve.lines[model])
        if model in curve.errors:
            error = mark_gaps(curve.errors[model])
            panel.fill_between(curve.at, values - error, values + error, color=style["color"], alpha=0.15, linewidth=0)
        panel.plot(curve.at, values, **style, markersize=3.5, linewidth=1.3, label=model)
    panel.plot(curve.at, mark_gaps(curve.lines[CHANCE]), color="grey", linestyle=":", linewidth=1.2, label=CHANCE)
    start_at_zero([panel])
    if curve.errors:
        name_bands(panel, ["one standard error"])
    panel.set_xlabel(str(curve.x), fontsize=8)
    panel.set_ylabel(str(curve.y), fontsize=8)
    panel.tick_params(labelsize=7)
    draw_light_grid(panel)
    add_legend_beside(panel)
    set_headline(figure, f"{list_models(models)}: distance from the shape that they share", _say_rows(run))
    return figure


def _say_rows(run: Finished) -> str:
    table = run.results.tables[OF_PLACES]
    return f"{table.column('rows')[0]:,} rows of {table.column('documents')[0]:,} documents"


def _draw_map(shown: Sequence[str], run: Finished) -> Any:
    table = run.results.tables[MAP]
    depths = group_by_depth(table)
    models = list(dict.fromkeys(table.column("model")))
    style_of = dict(zip(models, choose_line_styles(len(models)), strict=True))
    chance = {depth: np.mean([row["chance"] for row in rows])
              for depth, rows in group_by_depth(run.results.tables[FROM_SHAPE]).items()}  # fmt: skip
    reach = 1.15 * max(*chance.values(), *(np.hypot(row["first"], row["second"]) for x in depths.values() for row in x))
    figure, axes = make_panels(len(shown), len(shown), PANEL, PANEL, gaps=(0.6, 0.75))
    around = np.linspace(0, 2 * np.pi, 200)
    for panel, depth in zip(axes, shown, strict=True):
        rows = depths[depth]
        panel.plot([0], [0], linestyle="none", marker="+", color="black", markersize=7, label="common shape")
        panel.plot(
            chance[depth] * np.cos(around), chance[depth] * np.sin(around), color="grey", linestyle=":", label=CHANCE
        )
        for row in rows:
            style = {**style_of[row["model"]], "linestyle": "none"}
            panel.plot([row["first"]], [row["second"]], **style, markersize=5, label=row["model"])
        panel.set_title(_name_depth(depth), loc="left", fontsize=9, parse_math=False)
        panel.set_xlabel(f"first axis ({100 * rows[0]['share of the first']:.0f} %)", fontsize=8)
        panel.set_ylabel(f"second ({100 * rows[0]['share of the second']:.0f} %)", fontsize=8)
        panel.set_xlim(-reach, reach)
        panel.set_ylim(-reach, reach)
        panel.set_aspect("equal")
        panel.locator_params(nbins=5)
        panel.tick_params(labelsize=7)
        draw_light_grid(panel)
    add_legend_beside(axes[-1])
    set_headline(
        figure,
        f"{list_models(models)} about the shape that they share",
        f"{_say_rows(run)}; each axis with its share of squared distances",
    )
    return figure


@analysis(studies=("barycentre",), unasked=lambda planned: True, figures=draw_figures)
def barycentre(run: Finished, options: BarycentreOptions, claims: Sequence[Claim]) -> Part:
    """Says which models are closest to their common shape, and places them on a map about it."""
    rows = []
    for matrix in run.results.matrices.values():
        if matrix.about.get("kind") == APART:
            places, shares = place_models(np.asarray(run.array(matrix.values)))
            rows += [
                [matrix.about["depth"], label, *map(float, place), *map(float, shares)]
                for label, place in zip(matrix.rows.layers, places, strict=True)
            ]
    curve = make_depth_curve(group_by_depth(run.results.tables[FROM_SHAPE]))
    columns = ["depth", "model", "first", "second", "share of the first", "share of the second"]
    return Part(
        tables={
            NEAREST: Table(columns=["models", "what"], rows=list(say_answers(run))),
            MAP: Table(columns=columns, rows=rows),
        },
        curves={curve.y.name: curve} if len(curve.at) > 1 else {},
    )
