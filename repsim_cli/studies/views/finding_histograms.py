"""How far the distances among rows shift from one layer to the next (Gao et al. 2024, figures 2 and 11)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float, Num

from repsim_cli.base.plain import slug
from repsim_cli.figures.frame import COLOURS
from repsim_cli.figures.heatmap import hatch, name_by_block
from repsim_cli.figures.lines import list_layer_figures
from repsim_cli.figures.panels import (
    count_columns,
    find_outer_panels,
    make_panels,
    name_panels,
    set_headline,
    split_into_pages,
)
from repsim_cli.findings.analysis import FEW, Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim, Untestable, Weighed, claim
from repsim_cli.findings.evidence import FEWEST, log_of, negate_evidence, weigh_lone_value
from repsim_cli.findings.layers import read_hook_point
from repsim_cli.runs.content import Axis, Curve, Matrix, Table, omit_nan

# by model, KL(block || the block before), from the second block on; NaN where one of the two has no value
Shifts = Mapping[str, Sequence[float]]

MEASURE = "histograms of distances"
NEW = "in bins empty before"
COLUMNS = [
    "model", "layer", "mean", "standard deviation", "KL(layer || previous)", "KL(previous || layer)",
    "± KL(layer || previous)", NEW,
]  # fmt: skip
QUANTITY = "KL from previous layer"
PSEUDO = 0.5  # distances added to every bin before two histograms are compared


@dataclass(frozen=True, kw_only=True)
class HistogramOptions:
    """KL divergence between the distances within layers that follow each other in the network. It has no settings."""


def compute_histogram_divergence(a: Num[np.ndarray, " bins"], b: Num[np.ndarray, " bins"]) -> float:
    """KL(a || b) = sum p log(p / q) in nats, of two histograms in the same bins, where p and q are the shares of the
    bins after half a distance is added to each: no bin is empty, and equal histograms are at 0. NaN where one of them
    is.

    Shares 0.7, 0.3 and 0.3, 0.7 are 0.4 log(7 / 3) apart:

    >>> round(compute_histogram_divergence(np.array([3, 1]), np.array([1, 3])), 6)
    0.338919
    """
    p, q = ((counts + PSEUDO) / (counts + PSEUDO).sum() for counts in (a, b))
    return float(np.sum(p * np.log(p / q)).clip(min=0.0))


def compute_consecutive_divergences(counts: Num[np.ndarray, "layers bins"]) -> list[float]:
    """KL(layer || the layer before) from the second layer on; NaN where one of the two has no value."""
    return [compute_histogram_divergence(after, before) for before, after in pairwise(counts)]


def measure_new_shares(counts: Num[np.ndarray, "layers bins"]) -> list[float]:
    """Measures from the second layer on the share of distances in bins that the layer before has none in: there KL says
    what is added to empty bins, and no more; NaN where one of the two has no value.

    >>> measure_new_shares(np.array([[4, 0, 0], [2, 1, 1]]))
    [0.5]
    """
    return [
        float(after[before == 0].sum() / after.sum()) if before.sum() > 0 else math.nan
        for before, after in pairwise(counts)
    ]


def drop_nan(numbers: Sequence[float]) -> list[float]:
    """Drops the numbers that are NaN."""
    return [number for number in numbers if not math.isnan(number)]


def estimate_divergence_errors(left_out: Num[np.ndarray, "subsets layers bins"]) -> Float[np.ndarray, " _"]:
    """The standard errors of KL(layer || the layer before), by the jackknife over parts of the rows.

    left_out: the histograms without each part.
    """
    each = np.array([compute_consecutive_divergences(counts) for counts in left_out])
    return each.std(0) * np.sqrt(len(each) - 1)


def select_between_blocks(names: Sequence[str], kl: Sequence[float]) -> list[float]:
    """Selects the KL of layers that are the same hook point of two blocks, since claims compare blocks.

    kl: of each layer and the one before.
    """
    points = [read_hook_point(name).rstrip("0123456789") for name in names]
    return [value for value, (before, after) in zip(kl, pairwise(points), strict=True) if before == after]


# ---- claims ----

NEEDS = "needs a run that made histograms of distances (options.histograms={})"
NO_BASE = f"needs a base of two blocks, and {FEWEST} models that were fine-tuned from it"


@claim(
    "Gao et al. 2024, appendix F",
    statistic="log of the largest KL divergence between consecutive blocks: mean of fine-tuned models minus base",
    threshold=0.0,
    unit="model",
)
def fine_tuning_shifts_distances(by_model: Shifts, base: str | None) -> Weighed | Untestable:
    """Fine-tuned models show larger KL between consecutive blocks (1.58 against 0.11)."""
    largest = {label: log_of(max(drop_nan(kl))) for label, kl in by_model.items() if drop_nan(kl)}
    others = [value for label, value in largest.items() if label != base]
    if base not in largest or not others:
        return Untestable(NO_BASE)
    evidence = negate_evidence(weigh_lone_value(largest[base], others, "model"))
    return Weighed(float(np.mean(others)) - largest[base], evidence)


# ---- figures ----

WIDTH, HEIGHT, NARROWEST = 1.3, 0.75, 0.85  # of a panel, inches
MOST = 30  # panels of a figure
SCALES = {"none": "Euclidean distance of two rows", "mean": "distance of two rows over their layer's mean"}
FILL, BEFORE = COLOURS[0], "0.45"


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """by-layer-KL_from_previous_layer; histograms-NUMBER-MODEL on demand, or where there are few models"""
    measured = run.select_kind("histograms")
    for number, matrix in enumerate(measured if whole or len(measured) <= FEW else ()):
        for name, places in split_into_pages(
            slug("histograms", f"{number:02d}", matrix.rows.model), range(len(matrix.rows.layers)), MOST
        ):
            yield name, partial(_draw_histograms, run, matrix, places)
    yield from list_layer_figures(run.results.curves, "histograms", run.seeds)


def _draw_histograms(run: Finished, matrix: Matrix, places: Sequence[int]) -> Any:
    """The share of all pairs of rows in each bin; the layer before is outlined, with KL(layer || layer before)."""
    ends, counts = run.array(matrix.details["edges"]), run.array(matrix.values)
    kl, shares = compute_consecutive_divergences(counts), counts / counts.sum(1, keepdims=True)
    none = np.isnan(shares).any(1)  # whose layer has no value
    figure, axes = make_panels(
        len(places), count_columns(len(places)), WIDTH, HEIGHT, gaps=(0.1, 0.24), least=NARROWEST
    )
    names, said = name_by_block(matrix.rows.layers)
    name_panels(axes, [names[place] for place in places])
    for number, panel, (_, lowest) in zip(places, axes, find_outer_panels(axes), strict=True):
        drawn = [i for i in (number - 1, number) if i >= 0 and not none[number] and not none[i]]
        if none[number]:
            hatch(panel)
        else:
            panel.stairs(shares[number], ends, fill=True, color=FILL, alpha=0.85)
            panel.set_ylim(0, 1.3 * shares[drawn].max())
        if len(drawn) == 2:
            panel.stairs(shares[number - 1], ends, color=BEFORE, linewidth=0.8)
            place = {"transform": panel.transAxes, "ha": "right", "va": "top", "fontsize": 7}
            panel.text(0.97, 0.95, f"KL {kl[number - 1]:.2g}", **place)
        panel.set_xlim(0, ends[-1])
        panel.locator_params(axis="x", nbins=3, prune="upper")
        panel.set_yticks([])
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(labelsize=6, length=2)
        if not lowest:
            panel.set_xticklabels([])
    width, height = figure.get_size_inches()
    figure.supylabel("share of pairs", fontsize=8, x=-0.2 / width)
    below = f"{SCALES[matrix.about['scale']]} (outlined: the layer before; KL from it in nats)"
    figure.supxlabel(below, fontsize=8, y=-0.22 / height, va="top")
    notes = [
        f"{int(np.nansum(counts, 1).max()):,} pairs of rows",
        said,
        "each panel to its own height",
        "hatched: no value" if none.any() else "",
    ]
    set_headline(
        figure, f"{matrix.rows.model}: how far apart rows are, from layer to layer", "; ".join(filter(None, notes))
    )
    return figure


@analysis(
    studies=("views",), unasked=lambda planned: planned.options.get("histograms", {}) is not None, figures=draw_figures
)
def histograms(run: Finished, options: HistogramOptions, claims: Sequence[Claim]) -> Part:
    measured = run.select_kind("histograms")
    if not measured:
        return Part(claims=[each.untestable(MEASURE, NEEDS) for each in claims])
    rows, lines, by_model = [], {}, {}
    for matrix in measured:
        label, names, counts = matrix.rows.model, matrix.rows.layers, run.array(matrix.values)
        forward = compute_consecutive_divergences(counts)
        backward = [*map(omit_nan, (compute_histogram_divergence(*both) for both in pairwise(counts)))]
        spread = run.array(matrix.details["spread"]).tolist()
        errors = estimate_divergence_errors(run.array(matrix.details["left out"]))
        for name, (mean, deviation, _), *kl in zip(
            names,
            spread,
            [None, *map(omit_nan, forward)],
            [None, *backward],
            [None, *map(omit_nan, errors)],
            [None, *map(omit_nan, measure_new_shares(counts))],
            strict=True,
        ):
            rows.append([label, name, *map(omit_nan, (mean, deviation)), *kl])
        lines[f"{QUANTITY}, {label}"] = Curve(
            x=Axis(name="layer"),
            y=Axis(name="KL(layer || previous layer)", unit="nats"),
            at=names[1:],
            lines={"KL": [*map(omit_nan, forward)]},
            about={"quantity": QUANTITY, "model": label},
        )
        by_model[label] = select_between_blocks(names, forward)
    return Part(
        tables={"distances": Table(columns=COLUMNS, rows=rows)},
        curves=lines,
        claims=[each.verdict(MEASURE, by_model, run.base) for each in claims],
    )
