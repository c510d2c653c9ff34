"""Under which measures, and for which factors, models of different training are as alike as seeds of one training."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.cluster.hierarchy as hierarchy
from jaxtyping import Float

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean
from repsim_cli.figures.layout import find_available_width
from repsim_cli.figures.panels import add_colour_bar, set_headline
from repsim_cli.findings.agreement import draw_agreement_map
from repsim_cli.findings.analysis import Finished, Job, Part, Planned, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.findings.distances import build_linkage_tree
from repsim_cli.findings.evidence import normalise_ranks
from repsim_cli.findings.leaderboard import trust
from repsim_cli.runs.content import GRID, Matrix, Side, Table, omit_nan
from repsim_cli.studies.universality.rule import (
    MARGIN,
    RELATED,
    SAME,
    UNCLEAR,
    UNRELATED,
    UNTRAINED,
    FactorComparison,
    correct,
    decide_verdicts,
    find_weakest,
    judge_contrasts,
    list_contrasts,
)

MARKERS = {SAME: "o", RELATED: "^", UNTRAINED: "_", UNRELATED: "x", UNCLEAR: "$?$"}
CELLS, FACTORS, AGREEMENT = "universality", "universality of factors", "agreement on the grid"
WEIGHTED = "universality by weight of measures"
COLUMNS = [
    "measure", "factor", "value", "models", "similarity", "low", "high", "seeds", "least of seeds", "largest of seeds",
    "untrained", "tested", "chance", "p against chance",  # tested: of a model each, on the rows that chance is of
    "p against untrained", "p below seeds", "share of seeds", "margin", "p of same", "p of unrelated", "verdict",
]  # fmt: skip
LEAST = "least share of seeds"
OF_FACTORS = ["measure", "factor", "values", LEAST, "largest share of seeds", "margin", "verdict"]
SHOWN = (0.0, 1.0)  # the ends of the scale of colours, as a share of the way from the baseline to the seeds
CELL, ROW = 0.36, 0.2  # inches of a column and of a row, which is as high as wide or at least this
BAR = 0.85  # inches that the colour bar takes beside the map


@dataclass(frozen=True, kw_only=True)
class UniversalityOptions:
    """The verdict of every measure on every factor of a run of `study=universality`.

    Every verdict is shown by tests (see `options.margin` of the study), corrected for the number of values; what none
    shows is `undecided`. `same`: more than 1 - margin of the way from untrained twins, and from chance, to seeds
    of the base. `related`: less similar than seeds, but more than chance and untrained twins. `below untrained`: less
    similar than seeds and than untrained twins, but more than chance: the input may be what they share. `unrelated`:
    less than `margin` of the way from chance to seeds, and not more than chance. A factor has the weakest verdict of
    its values. Single models, without seeds beside them, are never `same` or `unrelated`.

    weights: how far each measure is trusted, {MEASURE: WEIGHT}; the others weigh nothing; empty: all alike; null: the
        share of the graded measures that it is told to be better than, by the shipped grades; what is not told apart
        counts half, as does a measure without a grade.
    """

    weights: dict[str, float] | None = None

    def check(self, planned: Planned) -> None:
        if planned.measures:  # of a run that is analysed again, they are in its matrices
            self.check_measures(planned.measures)
        for label, weight in (self.weights or {}).items():
            if not weight >= 0:
                raise BadInput(f"weights.{label}: not a weight, got {weight}; give 0 or more")
        if self.weights and not sum(self.weights.values()) > 0:
            raise BadInput(f"weights: no measure weighs anything, got {self.weights}; raise one")

    def check_measures(self, known: Collection[str]) -> None:
        for label in self.weights or {}:
            if label not in known:
                raise BadInput(f"weights: no such measure, got '{label}'; {did_you_mean(label, known)}")


def _group_matrices_by_measure(run: Finished) -> Iterator[tuple[str, dict[str, Any], list[Matrix]]]:
    """Groups the matrices by measure: its label, its card, its matrices."""
    every = run.select_kind(GRID)
    for label in dict.fromkeys(matrix.about["measure"] for matrix in every):
        of_label = [matrix for matrix in every if matrix.about["measure"] == label]
        yield label, of_label[0].about["card"], of_label


def _read_margin(run: Finished) -> float:
    return run.results.about.get("margin", MARGIN)


def _compare(run: Finished, matrix: Matrix, sign: float) -> FactorComparison:
    similar, untrained, null = (
        sign * run.array(path) for path in (matrix.values, matrix.details["untrained"], matrix.details["null"])
    )
    return FactorComparison(similar, matrix.about["seeds"], untrained, matrix.about["shapes"], float(null.mean()))


def make_factor_rows(
    run: Finished, label: str, card: Mapping[str, Any], matrices: Sequence[Matrix]
) -> Iterator[list[Any]]:
    """A row of the table for every value of every factor."""
    sign, margin = 1.0 if card["larger_is_closer"] else -1.0, _read_margin(run)
    compared = [_compare(run, matrix, sign) for matrix in matrices]
    judged = [judge_contrasts(cell, margin, run.level) for cell in compared]
    p = {name: correct([getattr(x, name) for x in judged]) for name in list_contrasts(margin)}
    p["chance"] = np.array([matrix.about["p_family"] for matrix in matrices])
    said = decide_verdicts(p, run.results.about["alpha"])
    for i, (matrix, cell, given) in enumerate(zip(matrices, judged, compared, strict=True)):
        about: Sequence[float | None] = [None] * 5  # of single models
        if len(cell.seeds):
            low, high = sorted(sign * end for end in (cell.low, cell.high))
            least, largest = sorted(sign * float(end) for end in (cell.seeds.min(), cell.seeds.max()))
            about = (low, high, sign * float(cell.seeds.mean()), least, largest)
        above, below, alike, apart = (omit_nan(p[name][i]) for name in ("above", "below", "alike", "apart"))
        yield [
            label, matrix.about["factor"], matrix.about["value"],
            f"{matrix.about['seeds']} x {len(matrix.rows.layers) - matrix.about['seeds']}",
            sign * cell.similarity, *about,
            sign * cell.untrained, matrix.about["tested"], sign * given.chance, float(p["chance"][i]),
            above, below, omit_nan(cell.share), margin, alike, apart, said[i],
        ]  # fmt: skip


def list_weakest_verdicts(cells: Sequence[Mapping[str, Any]]) -> Iterator[list[Any]]:
    """The weakest verdict of the values of a factor under a measure, and their least and largest share of the seeds."""
    for measure, factor in dict.fromkeys((cell["measure"], cell["factor"]) for cell in cells):
        of_factor = [cell for cell in cells if (cell["measure"], cell["factor"]) == (measure, factor)]
        shares = [share for cell in of_factor if (share := cell["share of seeds"]) is not None]
        ends = (min(shares), max(shares)) if len(shares) == len(of_factor) else (None, None)
        said = find_weakest([cell["verdict"] for cell in of_factor])
        yield [measure, factor, len(of_factor), *ends, of_factor[0]["margin"], said]


def weigh_verdicts(factors: Sequence[Sequence[Any]], weights: Mapping[str, float]) -> Iterator[list[Any]]:
    """Computes for every factor the share of the weight of all measures that has each verdict."""
    for factor in dict.fromkeys(row[1] for row in factors):
        weighted = [(weights.get(row[0], 0.0) if weights else 1.0, row[-1]) for row in factors if row[1] == factor]
        total = sum(weight for weight, _ in weighted)
        shares = [sum(weight for weight, said in weighted if said == verdict) / total for verdict in MARKERS]
        yield [factor, *shares, factors[0][OF_FACTORS.index("margin")]]


def correlate_over_factors(similar: Float[np.ndarray, "measures cells"]) -> Float[np.ndarray, "measures measures"]:
    """Spearman's rho between measures over the values of all factors."""
    ranked = np.stack([normalise_ranks(row) for row in similar])
    rho = ranked @ ranked.T
    np.fill_diagonal(rho, 1)
    return rho


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """universality-factors, universality-values, universality-measures: the answer stands first, also by name"""
    tables = run.results.tables
    yield "universality-factors", partial(_draw_factor_verdicts, tables[FACTORS], None)
    yield "universality-values", partial(_draw_factor_verdicts, tables[CELLS], "value")
    if matrix := run.results.matrices.get(AGREEMENT):
        yield "universality-measures", partial(_draw_universality_agreement, run, matrix)


def _draw_factor_verdicts(table: Table, value: str | None) -> Any:
    """Measures by factors, or by the values of all factors: the share of seeds (of a factor the least) as a colour, the
    verdict as a mark."""
    from matplotlib.figure import Figure

    measures, factors = (list(dict.fromkeys(table.column(name))) for name in ("measure", "factor"))
    columns, shares, said = _arrange_verdicts(table, measures, value)
    limit = find_available_width()
    wide = CELL if limit is None else min(CELL, limit / len(columns))
    width, height = wide * len(columns), max(ROW, wide) * len(measures)
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    size = min(8.0, 40 * wide)  # of a mark, in points
    axes.patch.set(facecolor="white", edgecolor="0.75", hatch="////")  # where there is no share
    image = axes.imshow(shares, cmap="cividis", vmin=SHOWN[0], vmax=SHOWN[1], aspect="auto")
    if np.isfinite(shares).any():
        add_colour_bar(figure, image, "0: untrained or chance; 1: seeds of the base", extend="both", ticks=SHOWN)
    for (row, column), verdict in said.items():
        share = shares[row, column]
        ink = "black" if np.isnan(share) or share > 0.55 else "white"
        axes.plot(column, row, color=ink, **_mark(verdict, size))
    axes.set_yticks(range(len(measures)), measures, fontsize=7, parse_math=False)
    axes.set_xticks(range(len(columns)), [key[1] for key in columns], fontsize=7, rotation=90, parse_math=False)
    axes.tick_params(length=2)
    if value:
        for factor in factors:
            of_factor = [i for i, key in enumerate(columns) if key[0] == factor]
            axes.axvline(of_factor[-1] + 0.5, color="white", linewidth=2)
            axes.text(
                sum(of_factor) / len(of_factor),
                -0.62,
                factor,
                ha="left",
                va="bottom",
                rotation=60,
                fontsize=7,
                parse_math=False,
            )
    names = {SAME: f"{SAME} (margin {table.column('margin')[0]:g})"}
    handles = [
        axes.plot([], [], color="black", label=names.get(verdict, verdict), **_mark(verdict, 8.0))[0]
        for verdict in MARKERS
    ]
    axes.legend(handles=handles, fontsize=8, frameon=False, loc="upper left", borderpad=0,
                bbox_to_anchor=(1 + BAR / width, 1), handletextpad=0.2)  # fmt: skip
    same = sum(verdict == SAME for verdict in said.values())
    set_headline(
        figure,
        f"Models that differ in one factor: the same as seeds in {same} of {len(said)} verdicts",
        "a row per measure; colour: how far from untrained models or chance to seeds; hatched: no such share",
    )
    return figure


def _arrange_verdicts(
    table: Table, measures: Sequence[str], value: str | None
) -> tuple[list[tuple[str, str]], np.ndarray, dict[tuple[int, int], str]]:
    """The factors with their values, or the factors alone; a row per measure of the shares of seeds, and the verdicts
    by place."""
    keys = list(zip(table.column("factor"), table.column(value or "factor"), strict=True))
    columns = list(dict.fromkeys(keys))
    shares, said = np.full((len(measures), len(columns)), np.nan), {}
    read = (table.column(name) for name in ("measure", "share of seeds" if value else LEAST, "verdict"))
    for key, measure, share, verdict in zip(keys, *read, strict=True):
        at = measures.index(measure), columns.index(key)
        shares[at], said[at] = (np.nan if share is None else share), verdict
    return columns, shares, said


def _mark(verdict: str, size: float) -> dict[str, Any]:
    hollow = {"markerfacecolor": "none"} if verdict == SAME else {}
    edge = 1.6 if verdict in (SAME, UNTRAINED, UNRELATED) else 0
    return {
        "marker": MARKERS.get(verdict, MARKERS[UNCLEAR]),  # of runs in which it had another name
        "markersize": size,
        "markeredgewidth": edge * size / 8,
        "linestyle": "none",
        **hollow,
    }


def _draw_universality_agreement(run: Finished, matrix: Matrix) -> Any:
    rho, names = run.array(matrix.values), matrix.rows.layers
    return draw_agreement_map(rho, names, f"{matrix.n} values of factors", matrix.label)


@analysis(studies=("universality",), unasked=lambda planned: True, figures=draw_figures)
def universality(run: Finished, options: UniversalityOptions, claims: Sequence[Claim]) -> Part:
    rows, signed, cells = [], [], list(_group_matrices_by_measure(run))
    options.check_measures([label for label, _, _ in cells])
    for label, card, matrices in cells:
        of_label = list(make_factor_rows(run, label, card, matrices))
        sign = 1.0 if card["larger_is_closer"] else -1.0
        rows += of_label
        signed.append([sign * row[COLUMNS.index("similarity")] for row in of_label])
    weights = trust([label for label, _, _ in cells]) if options.weights is None else options.weights
    factors = list(list_weakest_verdicts([dict(zip(COLUMNS, row, strict=True)) for row in rows]))
    tables = {
        CELLS: Table(columns=COLUMNS, rows=rows),
        FACTORS: Table(columns=OF_FACTORS, rows=factors),
        WEIGHTED: Table(columns=["factor", *MARKERS, "margin"], rows=list(weigh_verdicts(factors, weights))),
    }
    labels, values = list(dict.fromkeys(row[0] for row in rows)), np.array(signed)
    if len(labels) < 3 or values.shape[1] < 3 or (np.ptp(values, axis=1) == 0).any():
        return Part(tables=tables)
    rho = correlate_over_factors(values)
    order = hierarchy.leaves_list(build_linkage_tree(1 - rho))
    side = Side(model="measures", layers=[labels[i] for i in order])
    matrix = Matrix(rows=side, columns=side, n=values.shape[1], label="Spearman's rho", bounds=[-1.0, 1.0])
    return Part(tables=tables, matrices={AGREEMENT: (rho[np.ix_(order, order)], matrix)})
