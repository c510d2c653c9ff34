"""Ranks and bands of measures, the rows that they need, and why a measure has no score."""

import numpy as np
import pytest

from repsim_cli.runs.content import COSTS_COLUMNS, Table
from repsim_cli.studies.grounding.grading import Case, by_test, costs, graded, rows_needed, standings
from repsim_cli.studies.grounding.scores import Models

LAYERS, COUNT = 4, 5


def seeds(similar):
    return Models(similar=similar, groups=np.zeros(COUNT, int), apart={})


def planted(seed, strength):
    """Layers by distance, with noise."""
    depth = np.arange(LAYERS)
    drawn = np.random.default_rng(seed).normal(size=(COUNT, COUNT, LAYERS, LAYERS))
    return seeds(-strength * np.abs(depth[:, None] - depth) + drawn)


def case(**models):
    return Case("rows", "seeds", "resid_post", {"": [f"m{i}" for i in range(COUNT)]}, models, {"broken": "no value"})


def test_measures_are_ranked_and_those_without_a_score_say_why():
    of = case(good=planted(0, 50.0), noise=planted(1, 0.0), constant=seeds(np.ones((COUNT, COUNT, LAYERS, LAYERS))))
    tests = list(graded(of))
    assert [each.test for each in tests] == ["identification", "monotonicity", "order of layers"]
    first, *others = standings(tests, 0.95)
    assert first[:2] == ("good", 1.0)
    assert first.low <= 1.0 <= first.high
    assert {row.measure: (row.tests, row.missed) for row in others} == {"noise": (3, 0), "constant": (2, 1)}
    rows = {(row[0], row[1]): row for row in by_test(tests, 0.95)}
    score, rank, models, why = (rows["constant", "order of layers"][i] for i in (5, 10, 11, 12))
    assert (score, rank, models, why) == (None, None, COUNT, "all similarities are equal")
    assert rows["broken", "identification"][-1] == "no value"
    assert rows["good", "identification"][-1] == ""
    assert {rows["good", test.test][10] for test in tests} == {1.0}


def test_a_measure_may_be_missing_from_a_test():
    """Ranks go by name, whatever the order in which tests name their measures."""
    good, noise, third = planted(0, 50.0), planted(1, 0.0), planted(2, 5.0)
    some, others = case(good=good, noise=noise), case(third=third, noise=noise, good=good)
    table = {row.measure: row for row in standings([*graded(some), *graded(others)], 0.95)}
    assert table["good"].mean == 1.0
    assert table["good"].tests == table["noise"].tests == 6
    assert table["third"].tests == 3
    assert table["third"].missed == 3


def test_bands_of_ranks_are_jackknifed():
    """Of two tests of the same models, by hand."""
    a, b = planted(0, 1.0), planted(1, 0.8)
    tests = list(graded(case(a=a, b=b)))
    left = np.array(
        [
            [1.0 + (t.of["b"][1][i] > t.of["a"][1][i] + 1e-12) for t in tests]
            for i in range(COUNT)
        ]
    ).sum(1)  # fmt: skip
    half = 2.7764451 * np.sqrt(left.var() * (COUNT - 1)) / len(tests)
    (row,) = [row for row in standings(tests, 0.95) if row.measure == "a"]
    assert row.low == pytest.approx(max(1.0, row.mean - half))
    assert row.high == pytest.approx(min(3.0, row.mean + half))


def test_rows_needed():
    assert rows_needed([(500, 1.0), (250, 0.94), (125, 0.99)]) == 500
    assert rows_needed([(500, 1.0), (250, 0.96), (125, 0.95)]) == 125
    rows = [
        ["cka", "a", 500, 10, 0.2, 1.0], ["cka", "a", 250, 10, 0.1, 0.99],
        ["cka", "b", 500, 10, 0.4, 1.0], ["cka", "b", 250, 10, 0.1, 0.5],
    ]  # fmt: skip
    assert costs(Table(columns=COSTS_COLUMNS, rows=rows))["cka"] == (pytest.approx(0.3), 500, 500)
