"""Scores of measures: an oracle has 1 in every test, noise has chance, and the scores are those of the definitions."""

import itertools

import numpy as np
import pytest
from helpers.planted_models import CUTS, GROUPS, LAYERS, apart, noise, oracle, truncated

from repsim_cli.base.errors import Degenerate
from repsim_cli.studies.grounding import scores
from repsim_cli.studies.grounding.scores import SCORES, Models, Truncated


def in_one_group(models):
    """One group, for scores of seeds, among which none is told apart."""
    depth = np.arange(LAYERS)
    away = models.apart[scores.ACCURACY][..., None, None]
    return Models(
        similar=-np.abs(depth[:, None] - depth) - 0.05 * away, groups=np.zeros(12, int), apart=models.apart,
        truncated=models.truncated,
    )  # fmt: skip


def constant():
    return Models(
        similar=np.ones((12, 12, LAYERS, LAYERS)), groups=GROUPS, apart=apart(), truncated=truncated(np.ones((12, LAYERS, CUTS)))
    )  # fmt: skip


@pytest.mark.parametrize("name", SCORES)
def test_an_oracle_has_one_and_noise_has_chance(name):
    score = SCORES[name]
    grouped = name in ("separation", "conformity", "identification", "monotonicity", "order of layers")
    perfect = oracle() if grouped else in_one_group(oracle())
    assert score.applies(perfect)
    assert score.compute(perfect) == pytest.approx(1)
    values = [score.compute(noise(seed)) for seed in range(100)]
    error = np.std(values, ddof=1) / 10
    chance = score.chance(noise(0))
    assert abs(np.mean(values) - chance) < 4 * error
    assert np.mean(values) < 0.7
    assert min(values) >= score.lowest


@pytest.mark.parametrize(("positives", "pairs"), [(1, 1), (1, 5), (3, 3), (3, 12), (4, 9), (6, 11)])
def test_average_precision_of_noise_is_that_of_all_orders(positives, pairs):
    """2 groups of 3 models are 3 positives among 12 pairs: 0.393, where their share is 0.25."""
    every = [
        np.mean(np.arange(1, positives + 1) / (np.array(places) + 1))
        for places in itertools.combinations(range(pairs), positives)
    ]
    assert scores.compute_chance_precision(positives, pairs) == pytest.approx(np.mean(every))


def test_chance_of_separation_is_that_of_its_groups():
    models = Models(similar=np.ones((6, 6, 1, 1)), groups=np.repeat([0, 1], 3), apart={})
    assert SCORES["separation"].chance(models) == pytest.approx(0.393, abs=5e-4)


def test_a_constant_measure_gains_nothing():
    gained = {}
    for name, score in SCORES.items():
        try:
            gained[name] = score.compute(constant())
        except Degenerate as error:
            gained[name] = str(error)
    known = {"identification": 1 / LAYERS, "monotonicity": 0.5, "specificity": 0, "separation": 6 / 38, "conformity": 0}
    assert {name: gained.pop(name) for name in known} == pytest.approx(known)
    assert set(gained.values()) == {"all similarities are equal"}
    assert len(gained) == len(SCORES) - len(known)


def test_scores_by_hand():
    block = np.array([[1.0, 0.8, 0.9], [0.3, 0.2, 0.1], [0.0, 0.5, 0.7]])
    similar = np.stack([np.stack([block, block]), np.stack([block, block])])
    models = Models(similar=similar, groups=np.zeros(2, int), apart={})
    # the largest of each row: 0, 0, 2
    assert scores.identification(models) == pytest.approx(2 / 3)
    # both directions averaged: 0-1 0.55, 0-2 0.45, 1-2 0.3; layer 0 and layer 2 see two layers on a side
    assert scores.monotonicity(models) == pytest.approx((1 + 0) / 2)
    assert scores.order_of_layers(models) == pytest.approx((1 - 1) / 2)
    last = np.array([[1, 0.9, 0.2, 0.5], [0.9, 1, 0.4, 0.1], [0.2, 0.4, 1, 0.3], [0.5, 0.1, 0.3, 1]])
    models = Models(similar=last[..., None, None], groups=np.array([0, 0, 1, 1]), apart={})
    # group 0: 0.9 is first of five; group 1: 0.3 is third of 0.5, 0.4, 0.3, 0.2, 0.1
    assert scores.separation(models) == pytest.approx((1 + 1 / 3) / 2)
    assert scores.conformity(models) == pytest.approx((1 + 2 / 4) / 2)


def test_deletions_by_hand():
    """Two seeds; of three deletions the first is harmless, the others damage by more than the seeds differ."""
    cut = Truncated(
        similar=np.array([[[0.9, 0.8, 0.1]], [[0.9, 0.2, 0.3]]]),
        accuracy=np.array([[[0.9, 0.7, 0.6]], [[0.8, 0.6, 0.5]]]),
        whole=np.array([[0.9], [0.8]]),
    )
    assert cut.damaged.tolist() == [[[False, True, True]]] * 2
    last = np.array([[1, 0.5], [0.5, 1]])
    models = Models(similar=last[..., None, None], groups=np.zeros(2, int), apart={}, truncated=cut)
    # harmless: 0.9, 0.9 are nearer than 0.5; damaging: 0.8 is not farther, 0.1, 0.2, 0.3 are
    assert scores.specificity(models) == pytest.approx((1 + 3 / 4) / 2)
    # the second model's distances 0.1, 0.8, 0.7 have the order of the losses in part
    assert scores.sensitivity(models) == pytest.approx((1 + 0.5) / 2)


def test_p_over_orders_of_models():
    rng = np.random.default_rng(3)
    last, away = (x + x.T for x in rng.normal(size=(2, 4, 4)))
    models = Models(similar=last[..., None, None], groups=np.zeros(4, int), apart={"known": np.abs(away)})

    def rho(order):
        return scores.make_correlation_score("known")(
            Models(similar=models.similar, groups=models.groups, apart={"known": np.abs(away)[np.ix_(order, order)]})
        )

    every = [rho(order) for order in itertools.permutations(range(4))]
    expected = np.mean([value >= every[0] - 1e-12 for value in every])
    assert scores.make_correlation_p("known")(models) == pytest.approx(expected)
    assert 1 / 24 <= expected < 1


def test_outputs_by_hand():
    sure, other, half = [1.0, 0.0], [0.0, 1.0], [0.5, 0.5]
    probabilities = np.array([[sure, sure], [other, sure], [half, other]])
    # disjoint distributions are 1 bit apart; a sure and an even one 1 - 0.75 log2(3) / ... = 0.3113
    away = scores.compute_js_divergence(probabilities)
    assert away[0, 1] == pytest.approx((1 + 0) / 2)
    assert away[0, 2] == pytest.approx((0.311278 + 1) / 2, abs=1e-6)
    assert np.allclose(away, away.T)
    assert np.allclose(away.diagonal(), 0)
    assert scores.compute_disagreement(probabilities).tolist() == [[0, 0.5, 0.5], [0.5, 0, 1], [0.5, 1, 0]]
