"""Says which models give texts alike likelihoods, and draws a map of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from repsim_cli.base.plain import say_count
from repsim_cli.figures.frame import add_legend_beside, choose_line_styles
from repsim_cli.figures.lines import draw_light_grid
from repsim_cli.figures.panels import set_headline
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.findings.extremes import say_ends
from repsim_cli.runs.content import NEAREST, Table
from repsim_cli.studies.likelihoods.distances import LIKELIHOODS, find_likelihood_interval, place_models, take_logarithm

MAP = "map of models"
PANEL = (3.6, 3.0)  # inches
FEWEST = 5  # documents of an interval
NEAR = 1.0  # nats²: above, half the variance is far from the KL divergence in nats
HALF = "half the variance of the difference of log-likelihoods"


@dataclass(frozen=True, kw_only=True)
class LikelihoodOptions:
    """Says which models are closest and furthest by the likelihoods of texts, with a map. There are no settings."""


def say_answers(run: Finished) -> Iterator[list[str]]:
    """Says which two models are closest and which are furthest, with the error of each distance."""
    (measured,) = run.results.measures
    (matrix,) = measured.matrices
    assert matrix.se is not None
    labels, values, errors = matrix.rows.layers, run.array(matrix.values), run.array(matrix.se)
    pairs = list(combinations(range(len(labels)), 2))

    documents = run.results.about.get("documents")
    freedom = run.results.about.get("freedom", None if documents is None else documents - 1)

    def say(place: int) -> str:
        value, error = float(values[pairs[place]]), float(errors[pairs[place]])
        if not value:
            return f"0 ({matrix.n:,} texts), the same to the bit"
        unit, how = ("nats", ", about their KL divergence") if value < NEAR else ("nats²", " and no KL divergence")
        about = f"se {error:.2g}"
        if documents is not None and freedom is not None:
            about = say_interval(value, error, documents, freedom, run.level)
        return f"{value:.3g} {unit} ({about}, {matrix.n:,} texts), {HALF}{how}"

    names = [f"{labels[a]} with {labels[b]}" for a, b in pairs]
    logs, widths = zip(*(take_logarithm(float(values[pair]), float(errors[pair])) for pair in pairs), strict=True)
    yield from say_ends(names, logs, widths, freedom, say)


def say_interval(value: float, error: float, documents: int, freedom: int, level: float) -> str:
    """Says the interval of a distance, or that too few documents have none. freedom: of the error."""
    if documents < FEWEST:
        return f"no interval from {say_count(documents, 'document')}"
    low, high = find_likelihood_interval(value, error, freedom, level)
    return f"{100 * level:g} % interval {low:.3g} to {high:.3g} over {documents} documents"


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """likelihoods-map: the models on the plane that keeps most of their distances"""
    yield "likelihoods-map", partial(_draw, run)


def _draw(run: Finished) -> Any:
    from matplotlib.figure import Figure

    table = run.results.tables[MAP]
    figure = Figure(figsize=PANEL)
    panel = figure.add_axes((0, 0, 1, 1))
    for (label, x, y, *_), style in zip(table.rows, choose_line_styles(len(table.rows)), strict=True):
        panel.plot([x], [y], **{**style, "linestyle": "none"}, markersize=5, label=label)
    shares = table.rows[0][3:]
    panel.set_xlabel(f"first axis, nats ({100 * shares[0]:.0f} % of squared distances)", fontsize=8)
    panel.set_ylabel(f"second axis ({100 * shares[1]:.0f} %)", fontsize=8)
    panel.margins(0.2)
    panel.set_aspect("equal", adjustable="datalim")
    draw_light_grid(panel)
    add_legend_beside(panel)
    set_headline(figure, "Models by the likelihoods of texts", f"squared distances are {HALF}, nats²")
    return figure


@analysis(studies=("likelihoods",), unasked=lambda planned: True, figures=draw_figures)
def likelihoods(run: Finished, options: LikelihoodOptions, claims: Sequence[Claim]) -> Part:
    """Says which models are closest and furthest, and places them on a map."""
    logs = run.array(run.results.matrices[LIKELIHOODS].values)
    places, shares = place_models(np.asarray(logs))
    labels = run.results.matrices[LIKELIHOODS].rows.layers
    rows = [[label, *map(float, place), *map(float, shares)] for label, place in zip(labels, places, strict=True)]
    columns = ["model", "first", "second", "share of the first", "share of the second"]
    return Part(
        tables={
            NEAREST: Table(columns=["models", "what"], rows=list(say_answers(run))),
            MAP: Table(columns=columns, rows=rows),
        }
    )
