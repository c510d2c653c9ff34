"""The loss of a pre-training: of every step, and on held-out text at the steps that were kept."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from repsim_cli.figures.lines import mark_gaps
from repsim_cli.figures.panels import set_headline
from repsim_cli.figures.steps import make_step_panel
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.runs.content import REACHED, Curve, Table

TRAINING, HELD_OUT = "training loss", "held-out loss"


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """The figure of the loss over the steps of a pre-training. There are no settings."""


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """loss"""
    yield "loss", partial(_draw_pretraining_loss, run.results.curves[TRAINING], run.results.curves[HELD_OUT])


def _draw_pretraining_loss(training: Curve, held_out: Curve) -> Any:
    figure, panel = make_step_panel(range(len(training.at) + 1))
    # the loss of step s is that of the weights after s steps
    panel.plot(training.at, mark_gaps(training.lines["loss"]), color="0.7", linewidth=0.7, label="training, one batch")
    style = {"color": "black", "linewidth": 1.4, "marker": "o", "markersize": 3}
    panel.plot(held_out.at, mark_gaps(held_out.lines["loss"]), label="held-out text", **style)
    panel.set_ylim(0)
    panel.set_ylabel(held_out.y.unit)
    set_headline(figure, "How the next-token loss falls")
    panel.legend(fontsize=7, frameon=False)
    return figure


@analysis(studies=("pretrain",), unasked=lambda planned: True, figures=draw_figures)
def pretraining(run: Finished, options: Pretraining, claims: Sequence[Claim]) -> Part:
    """Says what the held-out loss comes to, and draws it."""
    held_out = run.results.curves[HELD_OUT]
    return Part(tables={REACHED: Table(columns=["loss", "what"], rows=[["held-out loss", say_loss(held_out)]])})


def say_loss(held_out: Curve) -> str:
    """Says from where to where the loss goes, and whether it was lower before."""
    losses = [loss for loss in held_out.lines["loss"] if loss is not None]
    steps = [step for step, loss in zip(held_out.at, held_out.lines["loss"], strict=True) if loss is not None]
    if not losses:
        return "no step that was kept has a finite loss"
    least = min(range(len(losses)), key=lambda place: losses[place])
    lowest = f"; lowest at step {steps[least]:,}, {losses[least]:.3g}" if losses[least] < losses[-1] else ""
    start = f"{losses[0]:.3g} at step {steps[0]:,} to " if len(steps) > 1 else ""
    return f"{start}{losses[-1]:.3g} {held_out.y.unit} at step {steps[-1]:,}{lowest}"
