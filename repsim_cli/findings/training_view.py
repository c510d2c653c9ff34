"""The mean distance between layers during training, against the step and against what each checkpoint scores."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from repsim_cli.content import Table
from repsim_cli.draw.frame import shades
from repsim_cli.draw.lines import gaps
from repsim_cli.draw.steps import PANEL
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.results import slug

TABLE = "distance and metrics"
BESIDE = 4  # columns of the table before those of the metrics


@dataclass(frozen=True, kw_only=True)
class TrainingView:
    """The figure of the mean distance between layers against training steps and metrics. There are no settings."""


def figures(run: Finished, whole: bool) -> Iterator[Job]:
    """MEASURE-view"""
    table = run.results.tables[TABLE]
    for measure in dict.fromkeys(table.column("measure")):
        yield f"{slug(measure)}-view", partial(_view, table, measure)


def _view(table: Table, measure: str) -> Any:
    """A panel per quantity; a colour per model, points in the order of steps."""
    from matplotlib.figure import Figure

    rows = [row for row in table.rows if row[1] == measure]
    against = ["step", *table.columns[BESIDE:]]
    figure = Figure(figsize=(len(against) * 0.75 * PANEL[0], PANEL[1]))
    panels = figure.subplots(1, len(against), sharey=True, squeeze=False, gridspec_kw={"wspace": 0.1})[0]
    models = list(dict.fromkeys(row[0] for row in rows))
    for name, panel in zip(against, panels, strict=True):
        for model, colour in zip(models, shades(len(models)), strict=True):
            points = [(row[table.columns.index(name)], row[3]) for row in rows if row[0] == model]
            x, y = (gaps(side) for side in zip(*points, strict=True))
            panel.plot(x, y, color=colour, linewidth=1, marker="o", markersize=3.5, label=model)
        panel.set_xlabel(name)
        panel.grid(alpha=0.25, linewidth=0.5)
    panels[0].set_xscale("symlog", linthresh=1, linscale=0.4)
    panels[0].set_xlim(0)
    panels[0].set_ylabel(table.columns[3], fontsize=8)
    panels[0].set_title(measure, loc="left", parse_math=False)
    panels[-1].legend(fontsize=7, frameon=False)
    return figure


@analysis(studies=("training_view",), unasked=lambda planned: True, figures=figures)
def training_view(run: Finished, options: TrainingView, claims: Sequence[Claim]) -> Part:
    return Part()
