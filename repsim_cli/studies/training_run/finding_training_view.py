"""The mean distance between layers during training, against the step and against what each checkpoint scores (Gao et
al. 2024, section 5.3)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from repsim_cli.base.plain import slug
from repsim_cli.figures.frame import add_legend_beside, choose_shades
from repsim_cli.figures.lines import mark_gaps
from repsim_cli.figures.panels import list_models, set_headline
from repsim_cli.figures.steps import PANEL, set_step_axis
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import (
    DEEP,
    FEWEST,
    find_rho_step,
    normalise,
    normalise_ranks,
    require_shared_trend,
    weigh_mean,
)
from repsim_cli.runs.content import Table

TABLE = "distance and metrics"
BESIDE = 4  # columns of the table before those of the metrics
# by model and quantity (`distance`, `step`, metrics), the value at each checkpoint
Courses = Mapping[str, Mapping[str, Sequence[float | None]]]


@dataclass(frozen=True, kw_only=True)
class TrainingViewOptions:
    """The figure of the mean distance between layers against training steps and metrics. There are no settings."""


# ---- claims ----


def _correlate_with_distance(courses: Courses, quantity: str, threshold: float) -> Weighed | Untestable:
    """Spearman's rho between a quantity and the mean distance, over the checkpoints that have both: one per model."""
    sides = []
    for course in courses.values():
        pairs = zip(course[quantity], course["distance"], strict=True) if quantity in course else ()
        known = np.array([pair for pair in pairs if None not in pair], float)
        if len(known) >= DEEP and (np.ptp(known, axis=0) > 0).all():
            sides.append((known[:, 0], known[:, 1]))
    if not sides:
        return Untestable(f"needs {FEWEST} models of {DEEP} checkpoints with different values of {quantity}")
    rhos = [float(normalise_ranks(x) @ normalise_ranks(y)) for x, y in sides]
    curves = [normalise(y)[x.argsort(kind="stable")] for x, y in sides]
    over = weigh_mean(rhos, threshold, "model", find_rho_step(min(map(len, curves))))
    return Weighed(float(np.mean(rhos)), require_shared_trend(over, curves, threshold))


OVER = "mean over models of Spearman's rho over checkpoints between the mean distance of layers and"


@claim("Gao et al. 2024, section 5.3, figure 6a", statistic=f"{OVER} the step", threshold=0.5, unit="model")
def distances_grow_in_training(courses: Courses) -> Weighed | Untestable:
    """The mean distance between blocks grows over training iterations."""
    return _correlate_with_distance(courses, "step", 0.5)


@claim("Gao et al. 2024, section 5.3, figure 6b", statistic=f"{OVER} accuracy", threshold=0.5, unit="model")
def distances_grow_with_accuracy(courses: Courses) -> Weighed | Untestable:
    """The mean distance between blocks grows as the model achieves better accuracy."""
    return _correlate_with_distance(courses, "accuracy", 0.5)


@claim("Gao et al. 2024, section 5.3, figure 6b", statistic=f"{OVER} F1", threshold=0.5, unit="model")
def distances_grow_with_f1(courses: Courses) -> Weighed | Untestable:
    """The mean distance between blocks grows as the model achieves better F1 scores."""
    return _correlate_with_distance(courses, "f1", 0.5)


@claim(
    "Gao et al. 2024, section 5.3, figure 6c",
    statistic=f"{OVER} the loss",
    threshold=-0.5,
    unit="model",
    published="below",
)
def distances_grow_as_loss_falls(courses: Courses) -> Weighed | Untestable:
    """The mean distance between blocks increases in order to achieve a lower training loss."""
    known = all("training_loss" in course for course in courses.values())
    return _correlate_with_distance(courses, "training_loss" if known else "loss", -0.5)


def collect_courses(table: Table, measure: str, larger_is_closer: bool) -> Courses:
    """Collects the columns of every model under one measure. Minus the mean of a similarity stands for a distance."""
    sign = -1 if larger_is_closer else 1
    names = ["model", "measure", "step", "distance", *table.columns[BESIDE:]]
    rows = [dict(zip(names, row, strict=True)) for row in table.rows if row[1] == measure]
    courses: dict[str, dict[str, list[float | None]]] = {}
    for row in rows:
        row["distance"] *= sign
        course = courses.setdefault(row["model"], {name: [] for name in names[2:]})
        for name, values in course.items():
            values.append(row[name])
    return courses


# ---- figures ----


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """MEASURE-view"""
    table = run.results.tables[TABLE]
    for measure in dict.fromkeys(table.column("measure")):
        yield slug(measure, "view"), partial(_draw_training_view, table, measure)


def _draw_training_view(table: Table, measure: str) -> Any:
    """A panel per quantity; a colour per model, points in the order of steps."""
    from matplotlib.figure import Figure

    rows = [row for row in table.rows if row[1] == measure]
    against = ["step", *table.columns[BESIDE:]]
    figure = Figure(figsize=(len(against) * 0.75 * PANEL[0], PANEL[1]))
    panels = figure.subplots(1, len(against), sharey=True, squeeze=False, gridspec_kw={"wspace": 0.1})[0]
    models = list(dict.fromkeys(row[0] for row in rows))
    for name, panel in zip(against, panels, strict=True):
        for model, colour in zip(models, choose_shades(len(models)), strict=True):
            points = [(row[table.columns.index(name)], row[3]) for row in rows if row[0] == model]
            x, y = (mark_gaps(side) for side in zip(*points, strict=True))
            panel.plot(x, y, color=colour, linewidth=1, marker="o", markersize=3.5, label=model)
        panel.set_xlabel(name)
        panel.grid(alpha=0.25, linewidth=0.5)
    set_step_axis(panels[0], [row[2] for row in rows])
    panels[0].set_ylabel(table.columns[3], fontsize=8)
    said = f"{list_models(models)}: {measure} between layers, beside how good the model is"
    set_headline(figure, said, "mean over the pairs of layers of each checkpoint")
    add_legend_beside(panels[-1])
    return figure


@analysis(studies=("training_view",), unasked=lambda planned: True, figures=draw_figures)
def training_view(run: Finished, options: TrainingViewOptions, claims: Sequence[Claim]) -> Part:
    table, closer = run.results.tables[TABLE], {x.label: x.larger_is_closer for x in run.results.measures}
    by_measure = {row[1]: closer[f"{row[1]} between layers of {row[0]}"] for row in table.rows}
    return Part(
        claims=[
            each.verdict(measure, collect_courses(table, measure, larger))
            for measure, larger in by_measure.items()
            for each in claims
        ]
    )
