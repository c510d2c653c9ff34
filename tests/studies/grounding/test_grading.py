"""Ranks and bands of measures, the rows that they need, and why a measure has no score."""

import numpy as np
import pytest

from repsim_cli.runs.content import COSTS_COLUMNS, Table
from repsim_cli.studies.grounding.grading import (
    Case,
    compute_measure_costs,
    find_fewest_stable_rows,
    grade_all,
    list_grades,
    list_standings,
    rank_measures,
)
from repsim_cli.studies.grounding.scores import Models

LAYERS, COUNT = 4, 6


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
    tests = list(grade_all(of))
    assert [each.test for each in tests] == ["identification", "monotonicity", "order of layers"]
    first, *others = list_standings(tests, 0.95)
    assert first[:2] == ("good", 1.0)
    assert first.low <= 1.0 <= first.high
    assert {row.measure: (row.tests, row.missed) for row in others} == {"noise": (3, 0), "constant": (2, 1)}
    rows = {(row[0], row[1]): row for row in list_grades(tests, 0.95)}
    score, rank, models, why = (rows["constant", "order of layers"][i] for i in (5, 10, 11, 12))
    assert (score, rank, models, why) == (None, None, COUNT, "all similarities are equal")
    assert rows["broken", "identification"][-1] == "no value"
    assert rows["good", "identification"][-1] == ""
    assert {rows["good", test.test][10] for test in tests} == {1.0}


def test_a_measure_may_be_missing_from_a_test():
    """Ranks go by name, whatever the order in which tests name their measures."""
    good, noise, third = planted(0, 50.0), planted(1, 0.0), planted(2, 5.0)
    some, others = case(good=good, noise=noise), case(third=third, noise=noise, good=good)
    table = {row.measure: row for row in list_standings([*grade_all(some), *grade_all(others)], 0.95)}
    assert table["good"].mean == 1.25  # in three of six tests equal to the third
    assert table["good"].tests == table["noise"].tests == 6
    assert table["third"].tests == 3
    assert table["third"].missed == 3


def test_bands_of_ranks_are_jackknifed():
    """Ranks of three tests of the same models, by hand."""
    a, b = planted(0, 1.0), planted(1, 0.3)
    tests = list(grade_all(case(a=a, b=b)))
    differences = np.array([t.scores["b"][1] - t.scores["a"][1] for t in tests]).T
    halves = 2.7764451 * differences.std(0) * 2
    ranks = np.where(np.abs(differences) <= halves, 1.5, 1 + (differences > 0))
    half = 2.7764451 * ranks.mean(1).std() * 2
    (row,) = [row for row in list_standings(tests, 0.95) if row.measure == "a"]
    whole = np.array([t.scores["b"][0] - t.scores["a"][0] for t in tests])
    assert row.mean == pytest.approx(np.where(np.abs(whole) <= halves, 1.5, 1 + (whole > 0)).mean())
    assert row.low == pytest.approx(max(1.0, row.mean - half))
    assert row.high == pytest.approx(min(3.0, row.mean + half))


def test_what_is_not_told_apart_shares_a_rank_and_near_duplicates_count_once():
    scores, kin = np.array([1.0, 1.0, 0.98, 0.5, 0.5, 0.5, np.nan]), np.array([0, 1, 2, 3, 3, 4, 5])
    half = np.full((7, 7), 0.1)
    ranks = rank_measures(scores, half, kin)
    # of five groups: two others are not told apart from the first three, and two are worse
    assert ranks[:3].tolist() == [2.0] * 3
    assert ranks[3:6].tolist() == [4.5] * 3
    assert np.isnan(ranks[6])
    half[:3, :3] = 0.01
    assert rank_measures(scores, half, kin)[:3].tolist() == [1.5, 1.5, 3.0]


def test_copies_of_a_measure_change_no_other_rank():
    good, noise, third = planted(0, 50.0), planted(1, 0.0), planted(2, 1.0)
    alone = {
        row.measure: row for row in list_standings(list(grade_all(case(good=good, noise=noise, third=third))), 0.95)
    }
    copies = {f"noise {i}": noise for i in range(4)}
    many = {row.measure: row for row in list_standings(list(grade_all(case(good=good, third=third, **copies))), 0.95)}
    for name in ("good", "third"):
        assert many[name][1:4] == pytest.approx(alone[name][1:4])
    assert many["noise 2"].mean == pytest.approx(alone["noise"].mean)
    assert (alone["good"].ahead, alone["noise"].behind) == (1, 2)
    assert (many["good"].ahead, many["noise 1"].behind) == (4, 2)


def test_rows_needed():
    assert find_fewest_stable_rows([(500, 1.0), (250, 0.94), (125, 0.99)]) == 500
    assert find_fewest_stable_rows([(500, 1.0), (250, 0.96), (125, 0.95)]) == 125
    rows = [
        ["cka", "a", 500, 10, 0.2, 1.0], ["cka", "a", 250, 10, 0.1, 0.99],
        ["cka", "b", 500, 10, 0.4, 1.0], ["cka", "b", 250, 10, 0.1, 0.5],
    ]  # fmt: skip
    assert compute_measure_costs(Table(columns=COSTS_COLUMNS, rows=rows))["cka"] == (pytest.approx(0.3), 500, 500)
