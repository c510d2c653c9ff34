"""Measures graded on models of which the answer is known, and ranked: scores in, tables out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Float

from repsim_cli.base.errors import Degenerate
from repsim_cli.runs.content import Table
from repsim_cli.studies.grounding.scores import SCORES, Models

GRADES = [
    "measure", "test", "data", "models of", "hook point",
    "score", "low", "high", "chance", "p", "rank", "models", "why",
]  # fmt: skip
MEASURES = [
    "measure", "mean rank", "low", "high", "tests", "without a score", "ahead of", "behind",
    "seconds per pair", "rows", "rows needed",
]  # fmt: skip
NEAR = 0.02  # measures whose scores differ by no more in any test count as one
EQUAL = 1e-12  # scores that differ by no more are equal
STABLE = 0.95  # Spearman's rho with all rows, from which on a measure ranks similarities as it does on all of them
FEWEST = 6  # models of a test from which on it is said which measures are ahead of others


class Case(NamedTuple):
    """Models at a hook point under every measure. data, test: what tells them apart from other cases of the run.
    groups: the names of their groups and models. failed: by measure, why it gives nothing here."""

    data: str
    test: str
    point: str
    groups: Mapping[str, Sequence[str]]
    models: Mapping[str, Models]
    failed: Mapping[str, str]


# ---- scores ----


class Graded(NamedTuple):
    """A test at a hook point. scores: by measure, its score and those without each model in turn, where there are more
    than two. why: by measure, why it has none."""

    test: str
    case: Case
    scores: Mapping[str, tuple[float, Float[np.ndarray, " m"]]]
    why: Mapping[str, str]
    p: Mapping[str, float]
    chance: float
    models: int


def grade_all(case: Case) -> Iterator[Graded]:
    """Grades the measures of a case in every test that its models allow."""
    if not case.models:
        return
    for name, score in SCORES.items():
        of, p, why = {}, {}, dict(case.failed)
        allowing = {label: models for label, models in case.models.items() if score.applies(models)}
        if not allowing:
            continue
        for label, models in allowing.items():
            try:
                of[label] = (score.compute(models), leave_out(score.compute, score.applies, models))
            except Degenerate as error:
                why[label] = str(error)
                continue
            if score.p is not None:
                p[label] = score.p(models)
        first = next(iter(allowing.values()))
        yield Graded(name, case, of, why, p, score.chance(first), first.count)


def leave_out(
    score: Callable[[Models], float], applies: Callable[[Models], bool], models: Models
) -> Float[np.ndarray, " m"]:
    """The score without each model in turn, NaN where it has none; of no more than two models, none."""
    if models.count < 3:
        return np.empty(0)
    scores = []
    for i in range(models.count):
        some = models.keep_models(np.delete(np.arange(models.count), i))
        try:
            scores.append(score(some) if applies(some) else np.nan)
        except Degenerate:
            scores.append(np.nan)
    return np.array(scores)


# ---- ranks ----


def rank(values: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
    """Ranks scores: 1 is the best; equal scores share the smallest rank, as ReSi has it; NaN without a score."""
    return scipy.stats.rankdata(-values.round(12), method="min", nan_policy="omit").astype(float)


class Field(NamedTuple):
    """The measures of tests. kin: the number of the group of near-duplicates of each. halves: by test, half the width
    of the interval of the difference of two scores, from the jackknife over models; infinite where a score is not
    defined without some model, 0 of fewer than three models."""

    labels: Sequence[str]
    kin: np.ndarray
    halves: Sequence[Float[np.ndarray, "k k"]]


def build_field(tests: Sequence[Graded], level: float) -> Field:
    labels = list(dict.fromkeys(label for each in tests for label in (*each.scores, *each.why)))
    return Field(
        labels,
        _group_equal_measures(np.array([_list_measure_scores(each, labels) for each in tests])),
        [_compute_half_widths(x, labels, level) for x in tests],
    )


def _group_equal_measures(scores: Float[np.ndarray, "t k"]) -> np.ndarray:
    """The group of every measure: that of the first measure which has scores in the same tests, all within NEAR."""
    first: list[int] = []
    for column in range(scores.shape[1]):
        alike = [np.allclose(scores[:, column], scores[:, c], rtol=0, atol=NEAR, equal_nan=True) for c in first]
        first += [] if any(alike) else [column]
    return np.array(
        [
            next(g for g, c in enumerate(first) if np.allclose(x, scores[:, c], rtol=0, atol=NEAR, equal_nan=True))
            for x in scores.T
        ]
    )


def _compute_half_widths(each: Graded, labels: Sequence[str], level: float) -> Float[np.ndarray, "k k"]:
    if each.models < 3:
        return np.zeros((len(labels), len(labels)))
    left = np.array(
        [each.scores[label][1] if label in each.scores else np.full(each.models, np.nan) for label in labels]
    )
    spread = (left[:, None] - left[None]).std(-1) * np.sqrt(each.models - 1)
    return np.nan_to_num(spread * scipy.stats.t.ppf((1 + level) / 2, each.models - 1), nan=np.inf)


def rank_measures(
    scores: Float[np.ndarray, " k"], half: Float[np.ndarray, "k k"], kin: np.ndarray
) -> Float[np.ndarray, " k"]:
    """Ranks, 1 the best: every other group of near-duplicates counts 1 where it is better and a half where it is not
    told apart, by the share of its measures that are; NaN without a score."""
    ahead = scores[None] - scores[:, None]
    counted = np.where(np.abs(ahead) <= np.maximum(half, EQUAL), 0.5, ahead > 0)
    known = ~np.isnan(scores)
    weights = known / np.array([np.count_nonzero(kin[known] == g) or 1 for g in kin])
    counted = np.where(known & (kin[:, None] != kin), counted, 0.0)
    return np.where(known, 1 + counted @ weights, np.nan)


def compute_jackknife_band(
    value: float, left: Float[np.ndarray, " m"], level: float, lowest: float, highest: float
) -> tuple[float | None, float | None]:
    """A t interval from the jackknife over models; none of fewer than three, or where one of them has no score."""
    if len(left) < 3 or np.isnan(left).any():
        return None, None
    half = np.std(left) * np.sqrt(len(left) - 1) * scipy.stats.t.ppf((1 + level) / 2, len(left) - 1)
    return max(lowest, float(value - half)), min(highest, float(value + half))


def list_grades(tests: Sequence[Graded], level: float) -> Iterator[list[Any]]:
    """A row for every measure in every test; without a score it says why."""
    field = build_field(tests, level)
    for each, half in zip(tests, field.halves, strict=True):
        ranks = dict(
            zip(field.labels, rank_measures(_list_measure_scores(each, field.labels), half, field.kin), strict=True)
        )
        where = [each.test, each.case.data, each.case.test, each.case.point]
        for label, (value, left) in each.scores.items():
            ends = compute_jackknife_band(value, left, level, SCORES[each.test].lowest, 1.0)
            yield [label, *where, value, *ends, each.chance, each.p.get(label), float(ranks[label]), each.models, ""]
        for label, why in each.why.items():
            yield [label, *where, None, None, None, each.chance, None, None, each.models, why]


class Standing(NamedTuple):
    """A measure over all tests in which it has a score. missed: how many it has none in. ahead, behind: of how many
    other measures, where the interval of the difference of both mean ranks does not hold 0, pair by pair; None without
    intervals, and of fewer than FEWEST models, whose ranks jump so that measures of noise would be ahead."""

    measure: str
    mean: float
    low: float | None
    high: float | None
    tests: int
    missed: int
    ahead: int | None
    behind: int | None


def list_standings(tests: Sequence[Graded], level: float) -> list[Standing]:
    """The measures by their mean rank, the best first, with a band from the jackknife over models: of tests of the same
    models together, tests of other models are independent. A rank that is not defined without some model counts as if
    it did not vary."""
    field = build_field(tests, level)
    labels, groups = field.labels, len(set(field.kin.tolist()))
    whole = np.array(
        [rank_measures(_list_measure_scores(x, labels), h, field.kin) for x, h in zip(tests, field.halves, strict=True)]
    )
    counts = (~np.isnan(whole)).sum(0)
    variance, apart, freedom = np.zeros(len(labels)), np.zeros((len(labels), len(labels))), np.inf
    same: dict[Any, list[int]] = {}
    for i, each in enumerate(tests):
        same.setdefault((each.case.data, each.case.test, each.models), []).append(i)
    for some in same.values():
        count = tests[some[0]].models
        if count < 3:
            variance, apart = variance + np.nan, apart + np.nan
            continue
        left = np.array(
            [
                [rank_measures(_list_measure_scores(tests[i], labels, m), field.halves[i], field.kin) for i in some]
                for m in range(count)
            ]
        )
        left = np.where(np.isnan(left), np.nan_to_num(whole[some]), left).sum(1) / counts.clip(1)
        variance = variance + left.var(0) * (count - 1)
        apart = apart + (left[:, :, None] - left[:, None]).var(0) * (count - 1)
        freedom = min(freedom, count - 1)
    wide = scipy.stats.t.ppf((1 + level) / 2, freedom) if freedom > 1 else np.nan
    means, half = np.nansum(whole, 0) / counts.clip(1), np.sqrt(variance) * wide
    ahead = means[None] - means[:, None] > np.maximum(np.sqrt(apart) * wide, EQUAL)
    ahead &= (counts > 0) & (field.kin[:, None] != field.kin)
    rows = []
    for i, (label, count) in enumerate(zip(labels, counts, strict=True)):
        if count:
            low, high = max(1.0, float(means[i] - half[i])), min(float(groups), float(means[i] + half[i]))
            told, tests_of = not np.isnan(half[i]), (int(count), len(tests) - int(count))
            ends = (low, high) if told else (None, None)
            sure = told and freedom >= FEWEST - 1
            others = (int(ahead[i].sum()), int(ahead[counts > 0, i].sum())) if sure else (None, None)
            rows.append(Standing(label, float(means[i]), *ends, *tests_of, *others))
    return sorted(rows, key=lambda row: row.mean)


def _list_measure_scores(each: Graded, labels: Sequence[str], left: int | None = None) -> Float[np.ndarray, " k"]:
    """Lists the scores of these measures in a test, NaN without one. left: the number of the model that is left out."""
    known = {label: score if left is None else without[left] for label, (score, without) in each.scores.items()}
    return np.array([known.get(label, np.nan) for label in labels])


# ---- cost ----


class MeasureCost(NamedTuple):
    """seconds: that a pair of layers takes on a CPU thread. rows: that it was timed on. needed: the fewest rows from
    which on it ranks similarities as on all rows; None where no fewer than all do."""

    seconds: float
    rows: int
    needed: int


def compute_measure_costs(table: Table) -> dict[str, MeasureCost]:
    """Computes for each measure, over all data, the mean seconds per pair and the largest number of rows needed."""
    by_measure: dict[str, MeasureCost] = {}
    for label in dict.fromkeys(table.column("measure")):
        series: dict[str, list[tuple[int, float, float]]] = {}
        for measure, data, rows, _, seconds, rho in table.rows:
            if measure == label:
                series.setdefault(data, []).append((rows, seconds, rho))
        largest = [max(each) for each in series.values()]
        by_measure[label] = MeasureCost(
            float(np.mean([seconds for _, seconds, _ in largest])),
            max(rows for rows, _, _ in largest),
            max(find_fewest_stable_rows([(rows, rho) for rows, _, rho in each]) for each in series.values()),
        )
    return by_measure


def find_fewest_stable_rows(series: Sequence[tuple[int, float]]) -> int:
    """The fewest rows of a series from which on rho with all rows is at least STABLE.

    >>> find_fewest_stable_rows([(500, 1.0), (250, 0.99), (125, 0.96), (62, 0.8), (31, 0.97)])
    125
    """
    needed = max(series)[0]
    for rows, rho in sorted(series, reverse=True):
        if rho < STABLE:
            break
        needed = rows
    return needed
