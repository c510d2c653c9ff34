"""Classifiers of several seeds: metrics by kind of example, their spread over seeds, and the loss of the trainings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from repsim_cli.figures.frame import SHADES, add_legend_beside, choose_shades
from repsim_cli.figures.lines import draw_light_grid, mark_gaps
from repsim_cli.figures.panels import set_headline
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import weigh_against_null
from repsim_cli.runs.content import Curve, Table

Metrics = Mapping[str, float]
TABLE = "classifiers"
OVERLAP = "hans_lexical_overlap"  # over both labels: readiness to answer one of them is not understanding
FIT = 8  # seeds of which a standard deviation says something
DRAWS = 9999  # of as many seeds whose deviations are SPREAD apart
SPREAD = 0.02  # a range of 0.1 over a hundred normal values; the hundred published seeds have twice that
BY = "hans_lexical_overlap_non_entailment"  # what colours the seeds, where it is there
PANEL = (4.6, 3.2)  # inches
NAMED = 12  # models up to which a legend has each


@dataclass(frozen=True, kw_only=True)
class ClassifierOptions:
    """Tables of the metrics of all seeds and of their spread. It has no settings."""


@claim(
    "McCoy et al. 2020 (Brown et al. 2023, section 4.2)",
    statistic="standard deviation over seeds of HANS accuracy (lexical overlap, both labels) minus that of accuracy",
    threshold=SPREAD,
    unit="seed",
)
def seeds_differ_beyond_their_training(classifiers: Sequence[Metrics]) -> Weighed | Untestable:
    """Seeds are alike in distribution and differ on HANS."""
    both = np.array(
        [[scores[OVERLAP], scores["accuracy"]] for scores in classifiers if {"accuracy", OVERLAP} <= scores.keys()]
    )
    if len(both) < FIT:
        return Untestable(f"needs {FIT} seeds with {OVERLAP}, got {len(both)}")

    hans, accuracy = both.std(0, ddof=1)
    freedom, common = len(both) - 1, (accuracy + max(hans - SPREAD, 0)) / 2  # what both say of it if they differ so
    others = np.sqrt(np.random.default_rng(0).chisquare(freedom, (DRAWS, 2)) / freedom) * [common + SPREAD, common]
    # the ratio, whose error does not depend on the deviations themselves
    ratio, null = hans / (accuracy + SPREAD), others[:, 0] / (others[:, 1] + SPREAD)
    how = f"{len(both)} seeds against normal ones whose deviations are {SPREAD:g} apart"
    evidence = weigh_against_null(float(ratio), np.append(null, ratio), how, len(both), f"{FIT} seeds")
    return Weighed(float(hans - accuracy), evidence)


def make_model_table(metrics: Mapping[str, Metrics]) -> Table:
    """A row per model: accuracy where it was trained to be right, and by heuristic and label."""
    given = [name for name in next(iter(metrics.values())) if all(name in scores for scores in metrics.values())]
    names = [name for name in given if name.count("_") == 0 or name.endswith("entailment")]
    rows = [[label, *(scores[name] for name in names)] for label, scores in metrics.items()]
    return Table(columns=["model", *names], rows=rows)


def summarise_columns(table: Table) -> Table:
    """The mean, the standard deviation and the ends of every column of numbers."""
    rows = []
    for name in table.columns[1:]:
        values = np.array(table.column(name))
        spread = float(values.std(ddof=1)) if len(values) > 1 else None
        rows.append([name, float(values.min()), float(values.mean()), float(values.max()), spread])
    return Table(columns=["metric", "lowest", "mean", "highest", "standard deviation"], rows=rows)


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """classifiers-all with the metrics of the table, classifiers-loss with the training"""
    table, curves = run.results.tables[TABLE], list(run.results.curves.values())
    yield "classifiers-all", partial(_draw_accuracies, table)
    yield "classifiers-loss", partial(_draw_losses, curves, table)


def _draw_accuracies(table: Table) -> Any:
    from matplotlib.figure import Figure

    names = [name for name in table.columns[1:] if name != "loss"]
    figure = Figure(figsize=PANEL)
    axes = figure.add_subplot()
    inks, by = _choose_model_shades(table)
    for number, (row, colour) in enumerate(zip(table.rows, inks, strict=True)):
        aside = 0.36 * (number / max(len(table.rows) - 1, 1) - 0.5)
        heights = [row[table.columns.index(name)] for name in names]
        at = np.arange(len(names)) + aside
        axes.plot(at, heights, "o", color=colour, markersize=4, markeredgewidth=0, label=row[0])
    labels = [name.removeprefix("hans_").replace("_non_entailment", "\nnot entailed") for name in names]
    labels = [label.replace("_entailment", "\nentailed").replace("_", " ") for label in labels]
    axes.set_xticks(range(len(names)), labels, fontsize=7, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("accuracy")
    axes.grid(axis="y", alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    _name_few_models(axes)
    set_headline(figure, f"{len(table.rows)} classifiers: accuracy by data set", f"bright: {by}" if by else "")
    return figure


def _draw_losses(curves: Sequence[Curve], table: Table) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=PANEL)
    axes = figure.add_subplot()
    inks, by = _choose_model_shades(table)
    for model, curve, colour in zip(table.column("model"), curves, inks, strict=True):
        axes.plot(curve.at, mark_gaps(curve.lines["loss"]), color=colour, linewidth=1, label=model)
    axes.set_xlabel(str(curves[0].x))
    axes.set_ylabel(str(curves[0].y))
    axes.set_ylim(0, None)
    draw_light_grid(axes)
    _name_few_models(axes)
    headline = f"{len(curves)} classifiers: {curves[0].y} over the training"
    set_headline(figure, headline, f"bright: {by}" if by else "")
    return figure


def _name_few_models(axes: Any) -> None:
    """Names the models of the axes, where these are not too many."""
    if len(axes.lines) <= NAMED:
        add_legend_beside(axes)


def _choose_model_shades(table: Table) -> tuple[Any, str]:
    """A colour per model, the brighter the more of HANS it gets right, and what that is called."""
    from matplotlib import colormaps

    if BY not in table.columns:
        return choose_shades(len(table.rows)), ""
    values = np.array(table.column(BY))
    scaled = (values - values.min()) / (np.ptp(values) or 1.0)
    return colormaps["viridis"](SHADES[0] + (SHADES[1] - SHADES[0]) * scaled), "right on lexical overlap, not entailed"


@analysis(studies=("finetune",), unasked=lambda planned: True, figures=draw_figures)
def classifiers(run: Finished, options: ClassifierOptions, claims: Sequence[Claim]) -> Part:
    metrics = {label: identity["metrics"] for label, identity in run.manifest["models"].items()}
    table = make_model_table(metrics)
    verdicts = [each.verdict("accuracy", list(metrics.values())) for each in claims]
    return Part(tables={TABLE: table, "over seeds": summarise_columns(table)}, claims=verdicts)
