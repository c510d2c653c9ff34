"""Under which measures, and for which factors, models of different training are as alike as seeds of one training."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy
import scipy.cluster.hierarchy as hierarchy
from jaxtyping import Float, Int

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean
from repsim_cli.figures.heatmap import add_tree, heatmap
from repsim_cli.figures.layout import available
from repsim_cli.figures.panels import LONG, bar_beside
from repsim_cli.findings.analysis import Finished, Job, Part, Planned, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.findings.distances import tree
from repsim_cli.findings.evidence import ROUNDING, arrangements, ranks
from repsim_cli.findings.leaderboard import trust
from repsim_cli.runs.content import GRID, Matrix, Side, Table

SAME, RELATED, UNTRAINED, UNRELATED, UNCLEAR = "same", "related", "below untrained", "unrelated", "unclear"
WEAKEST = (UNRELATED, UNTRAINED, UNCLEAR, RELATED, SAME)  # a factor has the first that one of its values has
MARKERS = {SAME: "o", RELATED: "^", UNTRAINED: "_", UNRELATED: "x", UNCLEAR: "$?$"}
CELLS, FACTORS, AGREEMENT = "universality", "universality of factors", "agreement on the grid"
WEIGHTED = "universality by weight of measures"
COLUMNS = [
    "measure", "factor", "value", "models", "similarity", "low", "high", "seeds", "least of seeds", "largest of seeds",
    "untrained", "tested", "chance", "p against chance",  # tested: of a model each, on the rows that chance is of
    "p against untrained", "p below seeds", "share of seeds", "verdict",
]  # fmt: skip
SHOWN = (0.0, 1.0)  # the ends of the scale of colours, as a share of the way from the baseline to the seeds
CELL, ROW = 0.36, 0.2  # inches of a column and of a row, which is as high as wide or at least this
BAR = 2.6  # inches that the label of the colour bar takes


@dataclass(frozen=True, kw_only=True)
class Universality:
    """The verdict of every measure on every factor of a run of `study=universality`.

    `same`: not less similar than seeds of the base, and more similar than chance and than untrained twins. `related`:
    less similar than seeds, but more than both. `below untrained`: less similar than seeds and than untrained twins,
    but more than chance: the input may be what they share. `unrelated`: less similar than seeds, and not more than
    chance. `unclear`: an interval spans a border. A factor has the weakest verdict of its values. For single models,
    without seeds beside them, the verdict leaves seeds out and is never `same`.

    weights: how far each measure is trusted, {MEASURE: WEIGHT}; the others weigh nothing; empty: all alike; null: the
        share of the graded measures that it is better than on average, by the shipped grades (a half without a grade).
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


class Compared(NamedTuple):
    """One value of a factor under one measure, larger is closer.

    similar: all models, those of the base first. base: how many these are. untrained: untrained models, those in the
    shape of the base first. shapes: how many these are; all of them where both shapes are the same.
    """

    similar: Float[np.ndarray, "m m"]
    base: int
    untrained: Float[np.ndarray, "u u"]
    shapes: int


class Judged(NamedTuple):
    """The similarity of the base and a value with its interval, that of seeds and of untrained twins, and one-sided p
    values: more than untrained twins, less than these, less than seeds of the base. NaN: not known of single models."""

    similarity: float
    low: float
    high: float
    seeds: Float[np.ndarray, " pairs"]
    untrained: float
    above: float
    under: float
    below: float


def across(similar: Float[np.ndarray, "m m"], first: Int[np.ndarray, " m"]) -> float:
    """Mean over the pairs of a model that is one of the first and one that is not."""
    return float(similar[np.ix_(first == 1, first == 0)].mean())


def among(similar: Float[np.ndarray, "m m"]) -> Float[np.ndarray, " pairs"]:
    return similar[np.triu_indices(len(similar), 1)]


def judge(cell: Compared, level: float = 0.95) -> Judged:
    """p of less than seeds: the mean over pairs of seeds minus the mean over pairs of a seed and a model of the value,
    over all ways to call as many of all models the base. Exact where models of the value are further seeds. Interval
    and comparison with untrained twins: t, with errors from the jackknife over models; of two single models the error
    of the twins alone, so that p is about these two."""
    first = (np.arange(len(cell.similar)) < cell.base).astype(int)
    single = len(first) == 2
    value, error = (float(cell.similar[0, 1]), 0.0) if single else _with_error(cell.similar, first)
    twins = np.ones(len(cell.untrained), int) if cell.shapes == len(cell.untrained) else (
        np.arange(len(cell.untrained)) < cell.shapes).astype(int)  # fmt: skip
    baseline, its_error = _with_error(cell.untrained, twins)
    models, fresh = min(cell.base, len(first) - cell.base), np.bincount(twins)[np.unique(twins)].min()
    freedom = int(fresh if single else min(models, fresh)) - 1
    half = math.nan if single else error * float(scipy.stats.t.ppf((1 + level) / 2, models - 1))
    difference, spread = value - baseline, math.hypot(error, its_error)
    z = difference / spread if spread else math.copysign(math.inf, difference) if difference else 0.0
    return Judged(
        similarity=value,
        low=value - half,
        high=value + half,
        seeds=among(cell.similar[: cell.base, : cell.base]),
        untrained=baseline,
        above=float(scipy.stats.t.sf(z, freedom)),
        under=float(scipy.stats.t.cdf(z, freedom)),
        below=math.nan if single else _below(cell.similar, first),
    )


def _with_error(similar: Float[np.ndarray, "m m"], first: Int[np.ndarray, " m"]) -> tuple[float, float]:
    """The mean over pairs across, or over all pairs of a single kind, and its error from the jackknife over models."""
    kinds = np.unique(first)

    def mean(kept: Int[np.ndarray, " k"]) -> float:
        some = similar[np.ix_(kept, kept)]
        return across(some, first[kept]) if len(kinds) > 1 else float(among(some).mean())

    variance = 0.0
    for kind in kinds:
        places = np.flatnonzero(first == kind)
        left = np.array([mean(np.delete(np.arange(len(first)), place)) for place in places])
        variance += float(left.var() * (len(places) - 1))
    return mean(np.arange(len(first))), math.sqrt(variance)


def _below(similar: Float[np.ndarray, "m m"], first: Int[np.ndarray, " m"]) -> float:
    """The share of all ways to call as many models the base in which the others are as far below its seeds."""
    labels, _ = arrangements(1 - first, seed=0)
    base = 1.0 - labels
    off = similar - np.diag(np.diag(similar))
    count, others = int(first.sum()), int((1 - first).sum())
    within = np.einsum("ki,ij,kj->k", base, off, base) / (count * (count - 1))
    gaps = within - np.einsum("ki,ij,kj->k", base, off, 1 - base) / (count * others)
    observed = gaps[(base == first).all(1).argmax()]
    return float((gaps >= observed - ROUNDING * max(1.0, abs(observed))).mean())


def verdicts(
    chance: Float[np.ndarray, " cells"],
    above: Float[np.ndarray, " cells"],
    under: Float[np.ndarray, " cells"],
    below: Float[np.ndarray, " cells"],
    alpha: float,
) -> list[str]:
    """The verdict of every cell from its corrected p: above chance, above and under untrained twins, below seeds (NaN
    where there are none).

    >>> p = lambda *values: np.array(values)
    >>> chance, above, under = p(.01, .01, .01, .9, .01), p(.01, .01, .9, .9, .3), p(.9, .9, .01, .1, .7)
    >>> verdicts(chance, above, under, p(.4, .01, .01, .01, .01), 0.05)
    ['same', 'related', 'below untrained', 'unrelated', 'unclear']
    """
    by_chance, less = chance > alpha, (below <= alpha) | np.isnan(below)
    higher, lower = ~by_chance & (above <= alpha), ~by_chance & (under <= alpha)
    cases = {SAME: ~less & higher, RELATED: less & higher, UNTRAINED: less & lower, UNRELATED: less & by_chance}
    return np.select([*cases.values()], [*cases], UNCLEAR).tolist()


def weakest(some: Sequence[str]) -> str:
    return min(some, key=WEAKEST.index)


def corrected(p: Sequence[float]) -> Float[np.ndarray, " cells"]:
    """For the values of all factors under a measure (Benjamini and Hochberg 1995); NaN where there is no p."""
    adjusted, known = np.array(p, float), np.isfinite(p)
    if known.any():
        adjusted[known] = scipy.stats.false_discovery_control(adjusted[known])
    return adjusted


def _cells(run: Finished) -> Iterator[tuple[str, dict[str, Any], list[Matrix]]]:
    """By measure, its card and its matrices."""
    every = run.measured(GRID)
    for label in dict.fromkeys(matrix.about["measure"] for matrix in every):
        of_label = [matrix for matrix in every if matrix.about["measure"] == label]
        yield label, of_label[0].about["card"], of_label


def _compared(run: Finished, matrix: Matrix, sign: float) -> Compared:
    similar, untrained = run.array(matrix.values), run.array(matrix.details["untrained"])
    return Compared(sign * similar, matrix.about["seeds"], sign * untrained, matrix.about["shapes"])


def rows_of(run: Finished, label: str, card: Mapping[str, Any], matrices: Sequence[Matrix]) -> Iterator[list[Any]]:
    """A row of the table for every value of every factor."""
    sign = 1.0 if card["larger_is_closer"] else -1.0
    judged = [judge(_compared(run, matrix, sign), run.level) for matrix in matrices]
    above, under, below = (corrected([getattr(x, name) for x in judged]) for name in ("above", "under", "below"))
    chance = np.array([matrix.about["p_family"] for matrix in matrices])
    said = verdicts(chance, above, under, below, run.results.about["alpha"])
    for i, (matrix, cell) in enumerate(zip(matrices, judged, strict=True)):
        by_chance = sign * float(run.array(matrix.details["null"]).mean())
        about: Sequence[float | None] = [None] * 5  # of single models
        share = below_seeds = None
        if len(cell.seeds):
            floor, seeds = max(by_chance, cell.untrained), float(cell.seeds.mean())
            share = (cell.similarity - floor) / (seeds - floor) if seeds > floor else None
            low, high = sorted(sign * end for end in (cell.low, cell.high))
            least, largest = sorted(sign * float(end) for end in (cell.seeds.min(), cell.seeds.max()))
            about, below_seeds = (low, high, sign * seeds, least, largest), float(below[i])
        yield [
            label, matrix.about["factor"], matrix.about["value"],
            f"{matrix.about['seeds']} x {len(matrix.rows.layers) - matrix.about['seeds']}",
            sign * cell.similarity, *about,
            sign * cell.untrained, matrix.about["tested"], sign * by_chance, float(chance[i]),
            float(above[i]), below_seeds, share, said[i],
        ]  # fmt: skip


def of_factors(cells: Sequence[Mapping[str, Any]]) -> Iterator[list[Any]]:
    """The weakest verdict of the values of a factor under a measure, and their mean share of the seeds."""
    for measure, factor in dict.fromkeys((cell["measure"], cell["factor"]) for cell in cells):
        of_factor = [cell for cell in cells if (cell["measure"], cell["factor"]) == (measure, factor)]
        shares = [cell["share of seeds"] for cell in of_factor]
        known = [share for share in shares if share is not None]
        mean = float(np.mean(known)) if len(known) == len(shares) else None
        yield [measure, factor, len(of_factor), mean, weakest([cell["verdict"] for cell in of_factor])]


def by_weight(factors: Sequence[Sequence[Any]], weights: Mapping[str, float]) -> Iterator[list[Any]]:
    """Of every factor the share of the weight of all measures that has each verdict."""
    for factor in dict.fromkeys(row[1] for row in factors):
        weighted = [(weights.get(row[0], 0.0) if weights else 1.0, row[-1]) for row in factors if row[1] == factor]
        total = sum(weight for weight, _ in weighted)
        yield [factor, *(sum(weight for weight, said in weighted if said == verdict) / total for verdict in MARKERS)]


def agreement_of(similar: Float[np.ndarray, "measures cells"]) -> Float[np.ndarray, "measures measures"]:
    """Spearman's rho between measures over the values of all factors."""
    ranked = np.stack([ranks(row) for row in similar])
    rho = ranked @ ranked.T
    np.fill_diagonal(rho, 1)
    return rho


def figures(run: Finished, whole: bool) -> Iterator[Job]:
    """universality-factors, universality-values, universality-agreement"""
    tables = run.results.tables
    yield "universality-factors", partial(_figure, tables[FACTORS], None)
    yield "universality-values", partial(_figure, tables[CELLS], "value")
    if matrix := run.results.matrices.get(AGREEMENT):
        yield "universality-agreement", partial(_agreement, run, matrix)


def _figure(table: Table, value: str | None) -> Any:
    """Measures by factors, or by the values of all factors: the share of seeds as a colour, the verdict as a mark."""
    from matplotlib.figure import Figure

    measures, factors = (list(dict.fromkeys(table.column(name))) for name in ("measure", "factor"))
    keys = list(zip(table.column("factor"), table.column(value) if value else table.column("factor"), strict=True))
    columns = list(dict.fromkeys(keys))
    shares, said = np.full((len(measures), len(columns)), np.nan), {}
    for measure, key, share, verdict in zip(
        table.column("measure"), keys, table.column("share of seeds"), table.column("verdict"), strict=True
    ):
        at = measures.index(measure), columns.index(key)
        shares[at], said[at] = (np.nan if share is None else share), verdict
    limit = available()
    wide = CELL if limit is None else min(CELL, limit / len(columns))
    width, height = wide * len(columns), max(ROW, wide) * len(measures)
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    size = min(8.0, 40 * wide)  # of a mark, in points
    axes.patch.set(facecolor="white", edgecolor="0.75", hatch="////")  # where there is no share
    image = axes.imshow(shares, cmap="cividis", vmin=SHOWN[0], vmax=SHOWN[1], aspect="auto")
    if np.isfinite(shares).any():
        bar_beside(figure, image, "0: untrained or chance; 1: seeds of the base", extend="both", ticks=SHOWN)
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
    above = 0.2 + 0.055 * max(map(len, factors)) if value else 0.06  # inches, of the names of factors
    above = max(above, (BAR - max(height, LONG[0])) / 2)
    handles = [axes.plot([], [], color="black", label=verdict, **_mark(verdict, 8.0))[0] for verdict in MARKERS]
    axes.legend(handles=handles, ncols=len(MARKERS), fontsize=8, frameon=False, loc="lower left", borderpad=0,
                bbox_to_anchor=(0, 1 + above / height), columnspacing=1, handletextpad=0.2)  # fmt: skip
    return figure


def _mark(verdict: str, size: float) -> dict[str, Any]:
    hollow = {"markerfacecolor": "none"} if verdict == SAME else {}
    edge = 1.6 if verdict in (SAME, UNTRAINED, UNRELATED) else 0
    return {
        "marker": MARKERS[verdict],
        "markersize": size,
        "markeredgewidth": edge * size / 8,
        "linestyle": "none",
        **hollow,
    }


def _agreement(run: Finished, matrix: Matrix) -> Any:
    rho, names = run.array(matrix.values), matrix.rows.layers
    title = f"Agreement of measures\nSpearman's rho over {matrix.n} values of factors"
    figure, axes = heatmap(rho, names, names, title, matrix.label, (-1.0, 1.0), "RdBu_r", "{:.2f}")
    add_tree(figure, axes, tree(1 - rho), "1 - rho")
    return figure


@analysis(studies=("universality",), unasked=lambda planned: True, figures=figures)
def universality(run: Finished, options: Universality, claims: Sequence[Claim]) -> Part:
    rows, signed, cells = [], [], list(_cells(run))
    options.check_measures([label for label, _, _ in cells])
    for label, card, matrices in cells:
        of_label = list(rows_of(run, label, card, matrices))
        sign = 1.0 if card["larger_is_closer"] else -1.0
        rows += of_label
        signed.append([sign * row[COLUMNS.index("similarity")] for row in of_label])
    weights = trust([label for label, _, _ in cells]) if options.weights is None else options.weights
    factors = list(of_factors([dict(zip(COLUMNS, row, strict=True)) for row in rows]))
    tables = {
        CELLS: Table(columns=COLUMNS, rows=rows),
        FACTORS: Table(columns=["measure", "factor", "values", "share of seeds", "verdict"], rows=factors),
        WEIGHTED: Table(columns=["factor", *MARKERS], rows=list(by_weight(factors, weights))),
    }
    labels, values = list(dict.fromkeys(row[0] for row in rows)), np.array(signed)
    if len(labels) < 3 or values.shape[1] < 3 or (np.ptp(values, axis=1) == 0).any():
        return Part(tables=tables)
    rho = agreement_of(values)
    order = hierarchy.leaves_list(tree(1 - rho))
    side = Side(model="measures", layers=[labels[i] for i in order])
    matrix = Matrix(rows=side, columns=side, n=values.shape[1], label="Spearman's rho", bounds=[-1.0, 1.0])
    return Part(tables=tables, matrices={AGREEMENT: (rho[np.ix_(order, order)], matrix)})
