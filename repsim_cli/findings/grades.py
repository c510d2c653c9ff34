"""Measures graded by tests whose answer is known: layers found again, layers in order, groups of models told apart."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.stats
from jaxtyping import Float, Int

from repsim_cli.content import COMPARED, Table
from repsim_cli.draw.frame import COLOURS
from repsim_cli.draw.panels import headline, name_panels, panels
from repsim_cli.errors import BadInput
from repsim_cli.findings.analysis import Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.findings.evidence import ROUNDING, ranks
from repsim_cli.findings.groups import codes, points_of
from repsim_cli.results import slug

GRADES = ["measure", "test", "of", "hook point", "score", "low", "high", "chance", "rank", "models"]
MEASURES = ["measure", "mean rank", "low", "high", "tests"]
GROUPS = ["of", "group", "models", "mean", "least", "largest"]
ROW = 0.17  # inches of a measure in the figure
PANEL = 2.4  # inches of a test in the figure
ACROSS = 3  # tests side by side


@dataclass(frozen=True, kw_only=True)
class Grades:
    """Grades every measure of a run by tests whose answer is known, and ranks the measures. Models that differ in their
    seeds alone are wanted; with `groups`, within each group.

    `identification`: the share of layers whose most similar layer in another model is the same layer (Kornblith et al.
    2019); equal candidates share the point. `order of layers`: Spearman's rho of similarity and closeness of layers,
    `monotonicity`: how often the nearer of two layers is the more similar one, ties counted half, each averaged over
    layers and both directions. `separation`: with groups, average precision of pairs within a group among all pairs
    with a model of that group, averaged over groups; `conformity`: how often such a pair is more similar than
    one across groups, ties counted as no. `differences`: Spearman's rho of distance and difference in `metric` over
    pairs of models (all but the first two: Klabunde et al. 2024). The last three look at the last layer of a hook
    point.

    metric: the metric of trained models for `differences`; left out where models lack it.
    """

    metric: str = "accuracy"


class Models(NamedTuple):
    """Models at a hook point under a measure, larger is closer.

    similar: of layer i of a and layer j of b. groups: the group of each model. metric: of each model, NaN if unknown.
    """

    similar: Float[np.ndarray, "m m l l"]
    groups: Int[np.ndarray, " m"]
    metric: Float[np.ndarray, " m"]

    def only(self, kept: Int[np.ndarray, " k"]) -> "Models":
        return Models(self.similar[np.ix_(kept, kept)], self.groups[kept], self.metric[kept])

    @property
    def last(self) -> Float[np.ndarray, "m m"]:
        """Similarity of the last layers, both directions averaged."""
        values = self.similar[..., -1, -1]
        return (values + values.T) / 2

    def pairs(self) -> list[tuple[int, int]]:
        """All pairs of different models of a group."""
        every = itertools.combinations(range(len(self.groups)), 2)
        return [(a, b) for a, b in every if self.groups[a] == self.groups[b]]


def identification(models: Models) -> float:
    if models.similar.shape[-1] < 2:
        return np.nan
    shares = []
    for a, b in models.pairs():
        for block in (models.similar[a, b], models.similar[b, a]):
            best = block >= block.max(1, keepdims=True) - ROUNDING
            shares.append(float((best.diagonal() / best.sum(1)).mean()))
    return _mean(shares)


def _within(models: Models) -> Iterator[Float[np.ndarray, " k"]]:
    """From every layer of every model its similarity to the layers on one side, the nearest first; two at least."""
    for model in range(len(models.groups)):
        block = models.similar[model, model]
        values = (block + block.T) / 2
        for layer in range(len(values)):
            yield from (side for side in (values[layer, layer + 1 :], values[layer, :layer][::-1]) if len(side) > 1)


def monotonicity(models: Models) -> float:
    def conform(side: Float[np.ndarray, " k"]) -> float:
        nearer, farther = np.triu_indices(len(side), 1)
        return float((1 + _sign(side[nearer] - side[farther])).mean() / 2)

    return _mean([conform(side) for side in _within(models)])


def order_of_layers(models: Models) -> float:
    return _mean([float(-ranks(side) @ ranks(np.arange(len(side)))) for side in _within(models)])


def _apart(models: Models) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of every group, the similarities of its pairs, and those of its models with others."""
    for group in np.unique(models.groups):
        own = models.groups == group
        within = models.last[np.ix_(own, own)]
        across = models.last[np.ix_(own, ~own)].ravel()
        if len(within) > 1 and len(across):
            yield within[np.triu_indices(len(within), 1)], across


def separation(models: Models) -> float:
    from sklearn.metrics import average_precision_score

    def precision(within: np.ndarray, across: np.ndarray) -> float:
        return float(average_precision_score([1] * len(within) + [0] * len(across), np.concatenate([within, across])))

    return _mean([precision(*parts) for parts in _apart(models)])


def conformity(models: Models) -> float:
    return _mean([float((_sign(within[:, None] - across) > 0).mean()) for within, across in _apart(models)])


def differences(models: Models) -> float:
    pairs = np.array(models.pairs())
    if len(models.metric) < 4 or np.isnan(models.metric).any():
        return np.nan
    return float(ranks(-models.last[*pairs.T]) @ ranks(np.abs(np.subtract(*models.metric[pairs.T]))))


def _sign(values: np.ndarray) -> np.ndarray:
    return np.where(np.abs(values) <= ROUNDING, 0, np.sign(values))


def _mean(scores: Sequence[float]) -> float:
    """Over those that are defined."""
    known = [score for score in scores if not np.isnan(score)]
    return float(np.mean(known)) if known else np.nan


class Test(NamedTuple):
    """score: NaN where it is not defined. chance: what a measure of noise is expected to have. lowest: the least score.
    The largest of all is 1."""

    score: Callable[[Models], float]
    chance: Callable[[Models], float]
    lowest: float = 0.0


TESTS: Mapping[str, Test] = {
    "identification": Test(identification, lambda models: 1 / models.similar.shape[-1]),
    "monotonicity": Test(monotonicity, lambda models: 0.5),
    "order of layers": Test(order_of_layers, lambda models: 0.0, -1.0),
    "separation": Test(separation, lambda models: _mean([len(a) / (len(a) + len(b)) for a, b in _apart(models)])),
    "conformity": Test(conformity, lambda models: 0.5),
    "differences": Test(differences, lambda models: 0.0, -1.0),
}
APART = ("separation", "conformity")


class Compared(NamedTuple):
    """The layers of some models under every measure.

    of: what tells them apart from others of the run. groups: their models. maps: by measure, all layers of all of them,
    larger is closer.
    """

    of: str
    groups: Mapping[str, Sequence[str]]
    maps: Mapping[str, Float[np.ndarray, "r r"]]


def compared(run: Finished) -> list[Compared]:
    """The tests of a run of `grounding`, or all models of another run; without groups these are one."""
    matrices = run.measured(COMPARED)
    if not matrices:
        models = list(dict.fromkeys(model for layers in run.maps.values() for model in layers.places))
        groups = run.groups or {"": models}
        order = [model for members in groups.values() for model in members]
        maps = {}
        for label, layers in run.maps.items():
            at = np.concatenate([np.arange(layers.places[model].start, layers.places[model].stop) for model in order])
            maps[label] = layers.values[np.ix_(at, at)] * _direction(layers.measure.card)
        return [Compared("", groups, maps)] if maps else []
    return [
        Compared(
            test,
            of_test[0].about["groups"],
            {x.about["measure"]: run.array(x.values) * _direction(x.about["card"]) for x in of_test},
        )
        for test in dict.fromkeys(matrix.about["test"] for matrix in matrices)
        if (of_test := [matrix for matrix in matrices if matrix.about["test"] == test])
    ]


def _direction(card: Mapping[str, Any]) -> float:
    return 1.0 if card["larger_is_closer"] else -1.0


def at_points(run: Finished, whole: Compared, metric: str) -> Iterator[tuple[str, list[Models]]]:
    """At every hook point the models whose layers there are those of the first model, under each measure."""
    names = [model for members in whole.groups.values() for model in members]
    starts = np.cumsum([0, *(len(run.models[name].layers) for name in names)])
    identities = run.manifest["models"]
    known = np.array([identities[name].get("metrics", {}).get(metric, np.nan) for name in names], float)
    points = [points_of(run.models[name]) for name in names]
    layers = [[{point: [run.models[name].layers[i] for i in of.places] for point, of in own.items()}]
              for name, own in zip(names, points, strict=True)]  # fmt: skip
    for point in points[0]:
        kept = [i for i in range(len(names)) if layers[i][0].get(point) == layers[0][0][point]]
        at = np.array([[starts[i] + place for place in points[i][point].places] for i in kept])
        yield (
            point,
            [
                Models(values[at[:, None, :, None], at[None, :, None, :]], codes(whole.groups)[kept], known[kept])
                for values in whole.maps.values()
            ],
        )


class Graded(NamedTuple):
    """The scores of all measures in one test at one hook point. of: as of `Compared`. left: without each model in turn,
    if more than two."""

    test: str
    of: str
    point: str
    scores: Float[np.ndarray, " k"]
    left: Float[np.ndarray, "m k"]
    chance: float
    models: int


def rank(scores: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
    """1 is the best; equal scores share the smallest; NaN without a score."""
    return scipy.stats.rankdata(-scores.round(12), method="min", nan_policy="omit").astype(float)


def graded(run: Finished, whole: Compared, metric: str) -> Iterator[Graded]:
    """Every test at every hook point in which some measure has a score. Models of a test of `grounding` with several
    groups are told apart, nothing else."""
    apart = whole.of and len(whole.groups) > 1
    for point, of_each in at_points(run, whole, metric):
        places = np.arange(len(of_each[0].groups))
        parts = [np.delete(places, i) for i in places] if len(places) > 2 else []
        for name, test in TESTS.items():
            scores = np.array([test.score(models) for models in of_each])
            if np.isnan(scores).all() or (apart and name not in APART):
                continue
            left = np.array([[test.score(models.only(kept)) for models in of_each] for kept in parts])
            left = left.reshape(len(parts), len(scores))
            yield Graded(name, whole.of, point, scores, left, test.chance(of_each[0]), len(places))


def band(
    value: float, left: Float[np.ndarray, " m"], level: float, lowest: float, highest: float
) -> tuple[float | None, float | None]:
    """A t interval from the jackknife over models; none where a score is not defined."""
    if len(left) < 3 or np.isnan(left).any() or np.isnan(value):
        return None, None
    half = np.std(left) * np.sqrt(len(left) - 1) * scipy.stats.t.ppf((1 + level) / 2, len(left) - 1)
    return max(lowest, float(value - half)), min(highest, float(value + half))


def figures(run: Finished, whole: bool) -> Iterator[Job]:
    """grades-POINT: the score of every measure in every test, measures in the order of their mean rank."""
    table = run.results.tables["grades"]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    order = run.results.tables["measures by grade"].column("measure")
    for point in dict.fromkeys(row["hook point"] for row in rows):
        own = [row for row in rows if row["hook point"] == point]
        yield f"grades-{slug(point)}", partial(_figure, point, own, order, run.level)


def _figure(point: str, rows: Sequence[Mapping[str, Any]], order: Sequence[str], level: float) -> Any:
    tests = list(dict.fromkeys((row["test"], row["of"], row["models"], row["chance"]) for row in rows))
    across = min(ACROSS, len(tests))
    figure, axes = panels(len(tests), across, PANEL, max(1.4, 0.5 + ROW * len(order)), gaps=(0.12, 0.35))
    for number, (axis, (test, of, _, chance)) in enumerate(zip(axes, tests, strict=True)):
        axis.axvline(chance, color="0.5", linestyle="--", linewidth=0.8, zorder=0)
        for row in rows:
            if (row["test"], row["of"]) == (test, of) and row["score"] is not None:
                y = order.index(row["measure"])
                if row["low"] is not None:
                    axis.plot([row["low"], row["high"]], [y, y], color=COLOURS[0], linewidth=1.2)
                axis.plot(row["score"], y, "o", color=COLOURS[0], markersize=3.5)
        axis.set_xlim(TESTS[test].lowest - 0.05, 1.05)
        axis.set_ylim(len(order) - 0.5, -0.5)
        axis.set_yticks(range(len(order)), order if number % across == 0 else [], fontsize=7, parse_math=False)
        axis.tick_params(axis="x", labelsize=6)
        axis.grid(alpha=0.25, linewidth=0.5)
    name_panels(axes, [f"{test}{f', {of}' if of else ''}, {models} models" for test, of, models, _ in tests])
    bands = f"lines: {100 * level:g} % over models; " if any(row["low"] is not None for row in rows) else ""
    headline(figure, f"Measures by grade, {point}; {bands}dashed: chance", 0.3)
    return figure


@analysis(studies=("similarity", "grounding"), unasked=lambda planned: planned.study == "grounding", figures=figures)
def grades(run: Finished, options: Grades, claims: Sequence[Claim]) -> Part:
    wholes = compared(run)
    found = [one for whole in wholes for one in graded(run, whole, options.metric)]
    if not found:
        raise BadInput(
            "no test applies, got a run without two models of the same layers and without three layers of one hook "
            "point; select more layers, or models of several seeds"
        )
    labels, rows = list(wholes[0].maps), []
    for one in found:
        for label, score, place, left in zip(labels, one.scores, rank(one.scores), one.left.T, strict=True):
            interval = band(score, left, run.level, TESTS[one.test].lowest, 1.0)
            value, ranked = (None if np.isnan(x) else float(x) for x in (score, place))
            rows.append([label, one.test, one.of, one.point, value, *interval, one.chance, ranked, one.models])
    return Part(
        tables={
            "grades": Table(columns=GRADES, rows=rows),
            "measures by grade": Table(columns=MEASURES, rows=by_rank(labels, found, run.level)),
            f"{options.metric} of groups": Table(columns=GROUPS, rows=list(of_groups(run, wholes, options.metric))),
        }
    )


def of_groups(run: Finished, wholes: Sequence[Compared], metric: str) -> Iterator[list[Any]]:
    """Of every group the metric over its models: whether they differ as they should."""
    for whole in wholes:
        for group, models in whole.groups.items():
            known = [run.manifest["models"][model].get("metrics", {}).get(metric) for model in models]
            values = [value for value in known if value is not None]
            numbers = [float(np.mean(values)), min(values), max(values)] if values else [None] * 3
            yield [whole.of, group, len(models), *numbers]


def by_rank(labels: Sequence[str], found: Sequence[Graded], level: float) -> list[list[Any]]:
    """The measures by their mean rank over the tests in which they have a score, the best first, with a band.

    The band is from the jackknife over models, of the tests of the same models together; tests of other models are
    independent.
    """
    whole = np.array([rank(one.scores) for one in found])
    same: dict[tuple[str, int], list[Graded]] = {}
    for one in found:
        same.setdefault((one.of, one.models), []).append(one)
    tests = (~np.isnan(whole)).sum(0)
    half = np.zeros(len(labels))
    for some in same.values():
        ranks_left = np.array([[rank(one.left[i]) for one in some] for i in range(len(some[0].left))])
        half = half + (ranks_left.sum(1).var(0) * (len(ranks_left) - 1) if len(ranks_left) > 2 else np.nan)
    freedom = min(len(one.left) for one in found) - 1
    half = np.sqrt(half) / tests.clip(1) * (scipy.stats.t.ppf((1 + level) / 2, freedom) if freedom > 0 else np.nan)
    rows = []
    for label, mean, width, count in zip(labels, _means(whole), half, tests, strict=True):
        if count:
            ends = (None, None) if np.isnan(width) else (max(1.0, mean - width), min(len(labels), mean + width))
            rows.append([label, mean, *(end if end is None else float(end) for end in ends), int(count)])
    return sorted(rows, key=lambda row: row[1])


def _means(ranked: Float[np.ndarray, "tests k"]) -> list[float]:
    """Over the tests in which a measure has a rank."""
    return [_mean(column.tolist()) for column in ranked.T]
