"""Draws values against the number of rows: whether what closest layers score would still move with more rows."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np

from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import slug
from repsim_cli.figures.frame import add_legend_beside, choose_line_styles
from repsim_cli.figures.lines import draw_light_grid, mark_gaps
from repsim_cli.figures.panels import set_headline
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.findings.student import find_t_quantile
from repsim_cli.runs.content import FEWER_ROWS, Axis, Curve, Table

CHANCE = "chance, "  # before the name of a line, that of its level
CHANGES = "what more rows change"
COLUMNS = ["measure", "layers", "rows", "value", "fewer rows", "value there", "change", "se of the change", "chance",
           "low", "high"]  # fmt: skip
SIZE = (4.4, 3.2)  # inches
PAIRS = 12  # lines of a figure


@dataclass(frozen=True, kw_only=True)
class FewerRows:
    """Says what the closest layers of every two models score on random samples of 1/2, 1/4, 1/8 ... of the rows.

    pairs: lines that a figure has at most, the first of the run.
    """

    pairs: int = PAIRS


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """fewer-rows-MEASURE: a line per pair of models over the number of rows, dotted what chance gives."""
    most = run.results.analyses["fewer_rows"]["options"]["pairs"]
    for curve in run.results.curves.values():
        if curve.analysis == "fewer_rows":
            yield slug("fewer-rows", curve.about["measure"]), partial(_draw_values_by_rows, curve, most)


def _draw_values_by_rows(curve: Curve, most: int) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE)
    axes = figure.subplots()
    names = [name for name in curve.lines if not name.startswith(CHANCE)][:most]
    for name, style in zip(names, choose_line_styles(len(names)), strict=True):
        values, errors = mark_gaps(curve.lines[name]), mark_gaps(curve.errors[name])
        half = errors * np.array(curve.about.get("half widths", 1.0))
        axes.plot(curve.at, values, **style, markersize=3.5, linewidth=1.3, label=name)
        axes.fill_between(curve.at, values - half, values + half, color=style["color"], alpha=0.2, linewidth=0)
        axes.plot(curve.at, mark_gaps(curve.lines[CHANCE + name]), color=style["color"], linestyle=":", linewidth=1.2)
    axes.plot([], [], color="grey", linestyle=":", label="chance")
    axes.fill_between(
        [], [], [], color="grey", alpha=0.3, linewidth=0, label=curve.about.get("band", "one standard error")
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(curve.at, [f"{rows:,}" for rows in curve.at], rotation=90, fontsize=7)
    axes.minorticks_off()
    axes.set_xlabel("rows, random samples of those of the run")
    axes.set_ylabel(str(curve.y), parse_math=False)
    draw_light_grid(axes)
    add_legend_beside(axes)
    set_headline(figure, f"{curve.y} of the closest layers against the number of rows")
    return figure


@analysis(studies=("similarity",), figures=draw_figures, needs="fewer_rows")
def fewer_rows(run: Finished, options: FewerRows, claims: Sequence[Claim]) -> Part:
    if FEWER_ROWS not in run.results.tables:
        raise BadInput("the run has no values of fewer rows; run it again with analyses.fewer_rows={}")
    table, changes, curves = run.results.tables[FEWER_ROWS], [], {}
    records = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    for measured in run.results.measures:
        of_measure = [row for row in records if row["measure"] == measured.label]
        at = sorted({row["rows"] for row in of_measure})
        if len(at) < 2:
            continue
        by_pair: dict[str, dict[int, Any]] = {}
        for row in of_measure:
            name = f"{row['model a']} {row['layer a']}, {row['model b']} {row['layer b']}"
            by_pair.setdefault(name, {})[row["rows"]] = row
        samples = {row["rows"]: row["samples"] for row in of_measure}
        cells = {
            key: {pair: [found.get(n, {}).get(key) for n in at] for pair, found in by_pair.items()}
            for key in ("value", "se", "chance")
        }
        curves[f"fewer rows, {measured.label}"] = Curve(
            x=Axis(name="rows"),
            y=Axis(name=measured.card["label"]),
            at=at,
            lines=cells["value"] | {CHANCE + pair: levels for pair, levels in cells["chance"].items()},
            errors=cells["se"],
            about={
                "quantity": f"fewer rows {measured.label}",
                "measure": measured.label,
                "half widths": [find_half_width(samples[n], run.level) for n in at],
                "band": f"{100 * run.level:g} % over samples",
            },
        )
        changes += [
            [measured.label, pair, at[-1], *_compare_with_all_rows(found, at, run.level)]
            for pair, found in by_pair.items()
        ]
    return Part(tables={CHANGES: Table(columns=COLUMNS, rows=changes)}, curves=curves)


def find_half_width(samples: int, level: float) -> float:
    """Finds how many standard errors an interval extends to each side, where the error is from this number of samples;
    from one, it is taken as known.

    >>> round(find_half_width(4, 0.95), 2), round(find_half_width(1, 0.95), 2)
    (3.18, 1.96)
    """
    p = (1 - level) / 2
    return find_t_quantile(p, samples - 1) if samples > 1 else NormalDist().inv_cdf(1 - p)


def _compare_with_all_rows(found: dict[int, Any], at: Sequence[int], level: float) -> list[float | None]:
    """Computes how far the value on all rows is from that on the largest samples; the error, if theirs is known, and a
    t interval with as few degrees of freedom as there are samples but one."""
    whole, half = found.get(at[-1]), found.get(at[-2])
    if whole is None or half is None:
        return [None] * 8
    change, ends = whole["value"] - half["value"], [None, None]
    se = None if half["se"] is None else math.hypot(whole["se"] or 0.0, half["se"])
    if se is not None:
        wide = se * find_half_width(half["samples"], level)
        ends = [change - wide, change + wide]
    return [whole["value"], at[-2], half["value"], change, se, whole["chance"], *ends]
