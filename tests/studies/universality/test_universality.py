"""The verdicts of the universality grid: planted truth is found, noise is not called alike, and no seed is called less."""

import itertools

import numpy as np
import pytest

from repsim_cli.base.errors import BadInput
from repsim_cli.findings.analysis import Planned
from repsim_cli.studies.universality import finding as universality
from repsim_cli.studies.universality.finding import RELATED, SAME, UNCLEAR, UNRELATED, UNTRAINED, Compared, Universality

ALPHA, DRAWS = 0.05, 60


def models(rng, base, value, seeds, across, within, spread=0.02):
    """Similarities of models with these means, where models differ and pairs of them too."""
    count = base + value
    mean = np.full((count, count), within)
    mean[:base, :base], mean[:base, base:], mean[base:, :base] = seeds, across, across
    of_models, pairs = rng.normal(0, spread, count), rng.normal(0, spread, (count, count))
    return mean + of_models[:, None] + of_models + (pairs + pairs.T) / 2


def grid(rng, across, *, seeds=0.8, within=None, untrained=0.3, chance=0.01, base=5, value=3, cells=14, spread=0.02):
    """The verdicts of the cells of a grid whose p against chance is given."""
    within = across if within is None else within
    judged = [
        universality.judge(
            Compared(
                models(rng, base, value, seeds, across, within, spread),
                base,
                models(rng, 3, 3, untrained, untrained, untrained, spread),
                3,
            )
        )
        for _ in range(cells)
    ]
    names = ("above", "under", "below")
    above, under, below = (universality.corrected([getattr(one, name) for one in judged]) for name in names)
    return universality.verdicts(np.full(cells, chance), above, under, below, ALPHA)


@pytest.mark.parametrize(
    ("settings", "verdict"),
    [
        ({"across": 0.8}, SAME),
        ({"across": 0.55}, RELATED),
        ({"across": 0.05, "chance": 0.7}, UNRELATED),  # no more than chance
        ({"across": 0.05}, UNTRAINED),  # more than chance, but less than untrained twins
        ({"across": 0.3}, UNCLEAR),  # less than seeds, as much as untrained twins
        ({"across": 0.8, "seeds": 0.8, "untrained": 0.8}, UNCLEAR),  # seeds are no closer than untrained twins
    ],
)
def test_planted_verdicts_are_found(settings, verdict):
    rng = np.random.default_rng(0)
    said = list(itertools.chain.from_iterable(grid(rng, **settings) for _ in range(6)))
    assert said.count(verdict) / len(said) >= 0.9


@pytest.mark.parametrize(
    ("across", "chance", "verdict"),
    [(0.8, 0.01, RELATED), (0.8, 0.7, UNRELATED), (0.05, 0.01, UNTRAINED), (0.3, 0.01, UNCLEAR)],
)
def test_single_models_are_never_called_the_same(across, chance, verdict):
    said = grid(np.random.default_rng(0), across, base=1, value=1, chance=chance, cells=60)
    assert said.count(verdict) / len(said) >= 0.8
    assert SAME not in said


def test_further_seeds_are_called_less_no_more_often_than_alpha():
    rng = np.random.default_rng(1)
    below = [
        universality.judge(Compared(models(rng, 5, 3, 0.8, 0.8, 0.8), 5, models(rng, 3, 0, 0.3, 0, 0), 3)).below
        for _ in range(8 * DRAWS)
    ]
    rate = np.mean(np.array(below) <= ALPHA)
    assert 0 < rate <= ALPHA + 2 * (ALPHA * (1 - ALPHA) / len(below)) ** 0.5


def test_noise_is_called_same_or_related_no_more_often_than_alpha():
    """A measure of noise: its p against chance is uniform, and nothing differs but by chance."""
    rng, alike = np.random.default_rng(2), 0
    for _ in range(DRAWS):
        noise = {"seeds": 0.0, "untrained": 0.0, "spread": 0.1, "cells": 6}
        said = grid(rng, 0.0, chance=float(rng.uniform()), **noise)
        alike += any(one in (SAME, RELATED) for one in said)
    assert alike / DRAWS <= ALPHA + 2 * (ALPHA * (1 - ALPHA) / DRAWS) ** 0.5


def test_untrained_models_are_called_more_than_untrained_no_more_often_than_alpha():
    rng = np.random.default_rng(3)
    above = [
        universality.judge(Compared(models(rng, 5, 3, 0.8, 0.3, 0.8), 5, models(rng, 3, 3, 0.3, 0.3, 0.3), 3)).above
        for _ in range(8 * DRAWS)
    ]
    assert np.mean(np.array(above) <= ALPHA) <= ALPHA + 2 * (ALPHA * (1 - ALPHA) / len(above)) ** 0.5


def test_p_of_less_than_seeds_is_exact():
    """Two seeds that are alike and two models that are not: one of six ways to choose the base."""
    similar = np.full((4, 4), 0.2)
    similar[0, 1] = similar[1, 0] = 0.9
    judged = universality.judge(Compared(similar, 2, np.full((3, 3), 0.1) + np.eye(3), 3))
    assert judged.below == pytest.approx(1 / 6)
    assert judged.similarity == pytest.approx(0.2)
    assert judged.low == judged.high == pytest.approx(0.2)  # every pair is the same
    assert judged.untrained == pytest.approx(0.1)
    assert judged.seeds.tolist() == [0.9]


def test_the_diagonal_is_not_read():
    rng = np.random.default_rng(4)
    similar, fresh = models(rng, 3, 3, 0.8, 0.5, 0.5), models(rng, 3, 3, 0.3, 0.3, 0.3)
    one = universality.judge(Compared(similar, 3, fresh, 3))
    np.fill_diagonal(similar, 100.0)
    np.fill_diagonal(fresh, -100.0)
    other = universality.judge(Compared(similar, 3, fresh, 3))
    assert one[:3] == other[:3]
    assert one[4:] == other[4:]


def test_a_factor_has_the_weakest_verdict_and_measures_their_weight():
    cells = [
        {"measure": measure, "factor": "width", "share of seeds": share, "verdict": verdict}
        for measure, share, verdict in [
            ("cka", 1.0, SAME),
            ("cka", 0.5, RELATED),
            ("rsa", 1.0, SAME),
            ("rsa", None, SAME),
        ]
    ]
    factors = list(universality.of_factors(cells))
    assert factors == [["cka", "width", 2, 0.75, RELATED], ["rsa", "width", 2, None, SAME]]
    assert list(universality.by_weight(factors, {})) == [["width", 0.5, 0.5, 0.0, 0.0, 0.0]]
    assert list(universality.by_weight(factors, {"cka": 3.0, "rsa": 1.0})) == [["width", 0.25, 0.75, 0.0, 0.0, 0.0]]
    assert [universality.weakest(some) for some in ([SAME, UNCLEAR], [RELATED, UNRELATED], [UNCLEAR, UNRELATED])] == [
        UNCLEAR, UNRELATED, UNRELATED,
    ]  # fmt: skip


def test_agreement_is_spearmans_rho_over_cells():
    rho = universality.agreement_of(np.array([[0.1, 0.2, 0.3, 0.9], [1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]]))
    assert rho == pytest.approx(np.array([[1, 1, -1], [1, 1, -1], [-1, -1, 1]]))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"ckaa": 1.0}, "weights: no such measure, got 'ckaa'; did you mean 'cka'?"),
        ({"cka": -1.0}, "weights.cka: not a weight, got -1.0; give 0 or more"),
        ({"cka": float("nan")}, "weights.cka: not a weight, got nan"),
        ({"cka": 0.0}, "weights: no measure weighs anything"),
    ],
)
def test_bad_weights(weights, message):
    planned = Planned(study="universality", models={}, measures={"cka": {}, "rsa": {}}, groups={}, base=None)
    with pytest.raises(BadInput, match=message.replace("?", r"\?")):
        Universality(weights=weights).check(planned)


def test_measures_weigh_by_their_grades():
    from repsim_cli.findings.leaderboard import leaderboard, trust

    graded = leaderboard()
    found = trust(["cka_rbf", "euclidean", "unheard_of"])
    assert found["unheard_of"] == 0.5
    assert found["cka_rbf"] == pytest.approx((len(graded) - float(graded["cka_rbf"]["mean rank"])) / (len(graded) - 1))
    assert 0 <= found["euclidean"] < 0.5 < found["cka_rbf"] <= 1
