"""What differs between models and the base that they were made from: by layer, and in what they predict."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from repsim_cli.figures.frame import legend_beside, several
from repsim_cli.figures.heatmap import by_block, chosen, heatmap
from repsim_cli.figures.lines import PANEL, of_layers, plain
from repsim_cli.findings.analysis import FEW, Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.runs.content import COSINE, KL, NEXT, RELATIVE, Axis, Band, Curve, Matrix, Numbers, Table

BANDS = {"half of the tokens": (25, 75), "nine tenths": (5, 95)}
QUANTILES = (50, 90, 99)
OUTPUTS = [
    "model",
    "tokens",
    "mean KL, nats",
    *(f"{percent} %" for percent in QUANTILES),
    "largest",
    "other next token",
]
BINS = 60
LEAST = 1e-8  # nats that the histogram shows; smaller divergences are rounding


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Curves by layer of how much each token changes, and how far the predictions change. It has no settings."""


def by_layers(run: Finished, matrix: Matrix) -> Curve:
    """The mean over tokens at every layer, and bands that hold a share of the tokens; a layer of which none has a value
    is a gap."""
    values = run.array(matrix.values)
    base, missing = run.base, int(np.isnan(values).sum())
    left_out = f"\n{missing:,} of {values.size:,} cells have no value" if missing else ""
    said = {RELATIVE: f"norm of the difference / norm in {base}", COSINE: f"cosine with {base}"}
    kind = matrix.about["kind"]

    def of_known(number: Callable[[np.ndarray], float]) -> Numbers:
        known = [row[~np.isnan(row)] for row in values]
        return [float(number(row)) if len(row) else None for row in known]

    def percentile(percent: int) -> Numbers:
        return of_known(lambda row: np.percentile(row, percent))

    return Curve(
        x=Axis(name="layer"),
        y=Axis(name=said[kind] + left_out),
        at=matrix.rows.layers,
        lines={"mean over tokens": of_known(np.mean)},
        bands={name: Band(low=percentile(low), high=percentile(high), of=name) for name, (low, high) in BANDS.items()},
        bounds=[0.0, None] if kind == RELATIVE else [-1.0, 1.0],
        about={"quantity": kind, "model": matrix.rows.model},
    )


def outputs_row(run: Finished, matrix: Matrix, following: Matrix) -> list[Any]:
    values, (before, after) = run.array(matrix.values)[0], run.array(following.values)
    quantiles = np.percentile(values, QUANTILES).tolist()
    return [matrix.rows.model, len(values), float(values.mean()), *quantiles, float(values.max()),
            float((before != after).mean())]  # fmt: skip


# ---- figures ----


def figures(run: Finished, whole: bool) -> Iterator[Job]:
    """by-layer-MEASURE_with_BASE, by-layer-relative_difference, outputs-KL; with many models, or on demand,
    relative-difference-all; on demand by-layer-cosine"""
    yield from of_layers(run.results.curves, "", run.seeds)
    curves = {name: x for name, x in run.results.curves.items() if whole or x.about["quantity"] != COSINE}
    yield from of_layers(curves, "tuned", run.seeds)
    divergences = run.measured(KL)
    if divergences:
        yield "outputs-KL", partial(_histogram, run, divergences)
    relative = run.measured(RELATIVE)
    if whole or len(relative) > FEW:
        yield "relative-difference-all", partial(_map, run, relative)


def _histogram(run: Finished, divergences: Sequence[Matrix]) -> Any:
    """The share of tokens by their divergence, on a logarithmic axis; smaller ones than LEAST are in the first bin."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=PANEL)
    axes = figure.subplots()
    values = {matrix.rows.model: np.maximum(run.array(matrix.values)[0], LEAST) for matrix in divergences}
    ends = [np.log10(max(x.max() for x in values.values()) * 1.01), np.log10(min(x.min() for x in values.values()))]
    edges = np.logspace(ends[1], max(ends[0], ends[1] + 1), BINS + 1)
    for (model, divergence), colour in zip(values.items(), several(len(values)), strict=True):
        shares = np.histogram(divergence, edges)[0] / len(divergence)
        axes.stairs(shares, edges, color=colour, label=f"{model}, mean {divergence.mean():.2g}")
    axes.set_xscale("log")
    axes.set_xlabel(f"KL({run.base} || model) of the next token, nats", fontsize=8, parse_math=False)
    axes.set_ylabel("share of tokens", fontsize=8)
    axes.tick_params(labelsize=7)
    plain(axes)
    legend_beside(axes)
    return figure


def _map(run: Finished, relative: Sequence[Matrix]) -> Any:
    """The mean relative difference of every layer (rows) of every model (columns)."""
    means = [by_layers(run, matrix).lines["mean over tokens"] for matrix in relative]
    values = np.array(means, dtype=float).T  # None is NaN
    layers, said = by_block(relative[0].rows.layers)
    title = f"mean relative difference to {run.base}" + (f"\n{said}" if said else "")
    figure, _ = heatmap(
        values,
        layers,
        [matrix.rows.model for matrix in relative],
        title=title,
        bar_label="norm of the difference / norm in the base",
        limits=(0.0, float(values[~np.isnan(values)].max(initial=1e-12))),
        colours=chosen(small_is_bright=True),
        form="{:.2g}",
    )
    return figure


@analysis(studies=("tuned",), unasked=lambda planned: True, figures=figures)
def tuned(run: Finished, options: Tuned, claims: Sequence[Claim]) -> Part:
    curves = [by_layers(run, matrix) for kind in (RELATIVE, COSINE) for matrix in run.measured(kind)]
    following = {matrix.rows.model: matrix for matrix in run.measured(NEXT)}
    rows = [outputs_row(run, matrix, following[matrix.rows.model]) for matrix in run.measured(KL)]
    tables = {"changes of the outputs": Table(columns=OUTPUTS, rows=rows)} if rows else {}
    return Part(tables=tables, curves={f"{x.about['quantity']}, {x.about['model']}": x for x in curves})
