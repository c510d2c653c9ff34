"""How models of modular sums learn: loss and accuracy against the epoch, and whether all of them generalise."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from repsim_cli.figures.frame import COLOURS, add_legend_beside, repeat_values
from repsim_cli.figures.lines import draw_light_grid, mark_gaps
from repsim_cli.figures.panels import set_headline
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.claims import FAILS, HOLDS, Claim, Fact, Untestable, claim
from repsim_cli.runs.content import Curve

PANEL = (3.6, 2.9)  # inches
STYLES = {"validation": "-", "training": "--"}


@dataclass(frozen=True, kw_only=True)
class ModularSums:
    """The figure of the learning curves of models of modular sums. There are no settings."""


@claim(
    "Gao et al. 2024, section 5.1",
    statistic="lowest validation accuracy over models and their stages",
    threshold=1.0,
    unit="fact",
)
def all_models_reach_full_accuracy(metrics: Mapping[str, Mapping[str, float]]) -> Fact | Untestable:
    """Models 0, E and L reach 100 % validation accuracy."""
    accuracies = {
        f"{name.removesuffix('_accuracy')} of {label}": value
        for label, scores in metrics.items()
        for name, value in scores.items()
        if name.endswith("_accuracy")
    }
    if not accuracies:
        return Untestable("no model was saved with an accuracy")
    worst = min(accuracies, key=lambda name: accuracies[name])
    holds = accuracies[worst] >= 1.0
    return Fact(accuracies[worst], HOLDS if holds else FAILS, "" if holds else f"lowest: {worst}")


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """learning-curves"""
    yield "learning-curves", partial(_draw_learning, list(run.results.curves.values()))


def _draw_learning(curves: Sequence[Curve]) -> Any:
    """Draws loss and accuracy side by side, with a colour per model and stage."""
    from matplotlib.figure import Figure

    quantities = list(dict.fromkeys(curve.about["quantity"] for curve in curves))
    stages = list(dict.fromkeys((curve.about["model"], curve.about["stage"]) for curve in curves))
    alone = {model for model, _ in stages if sum(model == other for other, _ in stages) == 1}
    shades = repeat_values(COLOURS, len(stages))
    figure = Figure(figsize=(len(quantities) * PANEL[0], PANEL[1]))
    panels = figure.subplots(1, len(quantities), gridspec_kw={"wspace": 0.28})
    for panel, quantity in zip(panels, quantities, strict=True):
        for curve in (curve for curve in curves if curve.about["quantity"] == quantity):
            model, stage = curve.about["model"], curve.about["stage"]
            for rows, values in curve.lines.items():
                named = rows == "validation"
                panel.plot(
                    curve.at,
                    mark_gaps(values),
                    STYLES[rows],
                    color=shades[stages.index((model, stage))],
                    linewidth=1.4 if named else 1.0,
                    label=(model if model in alone else f"{model}, {stage}") if named else "_",
                )
            panel.set_ylabel(str(curve.y), fontsize=8)
        panel.set_xscale("log")
        panel.set_xlabel("epoch")
        panel.set_title(quantity, loc="left")
        draw_light_grid(panel)
    panels[quantities.index("loss")].set_yscale("log")
    panels[quantities.index("accuracy")].set_ylim(-0.02, 1.03)
    for rows, style in STYLES.items():
        panels[-1].plot([], [], style, color="0.3", linewidth=1.2, label=f"{rows} rows")
    add_legend_beside(panels[-1], bbox_to_anchor=(1.02, 0.5))
    set_headline(figure, "How models learn modular sums, stage by stage")
    return figure


@analysis(studies=("modular_training",), unasked=lambda planned: True, figures=draw_figures)
def modular_sums(run: Finished, options: ModularSums, claims: Sequence[Claim]) -> Part:
    metrics = {label: identity["metrics"] for label, identity in run.manifest["models"].items()}
    return Part(claims=[each.verdict("accuracy", metrics) for each in claims])
