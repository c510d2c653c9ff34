"""The verdicts of the universality grid: planted truth is found, noise is not called alike, and no seed is called less."""

import itertools
from functools import partial

import numpy as np
import pytest

from repsim_cli.base.errors import BadInput
from repsim_cli.findings.analysis import Planned
from repsim_cli.studies.universality import finding as universality
from repsim_cli.studies.universality import rule
from repsim_cli.studies.universality.finding import UniversalityOptions
from repsim_cli.studies.universality.rule import RELATED, SAME, UNCLEAR, UNRELATED, UNTRAINED, FactorComparison

ALPHA, DRAWS = 0.05, 60


def models(rng, base, value, seeds, across, within, spread=0.02):
    """Similarities of models with these means, where models differ and pairs of them too."""
    count = base + value
    mean = np.full((count, count), within)
    mean[:base, :base], mean[:base, base:], mean[base:, :base] = seeds, across, across
    of_models, pairs = rng.normal(0, spread, count), rng.normal(0, spread, (count, count))
    return mean + of_models[:, None] + of_models + (pairs + pairs.T) / 2


def judged_cell(rng, across, *, seeds=0.8, within=None, untrained=0.3, level=0.0, base=5, value=3, spread=0.02):
    """level: of chance."""
    within = across if within is None else within
    fresh = models(rng, 3, 3, untrained, untrained, untrained, spread)
    return rule.judge_contrasts(
        FactorComparison(models(rng, base, value, seeds, across, within, spread), base, fresh, 3, level)
    )


def said_of(judged, chance=0.01):
    """The verdicts of cells whose p against chance is given, corrected for each other."""
    p = {name: rule.correct([getattr(one, name) for one in judged]) for name in rule.list_contrasts(0.2)}
    return rule.decide_verdicts({**p, "chance": np.full(len(judged), chance)}, ALPHA)


def grid(rng, across, *, chance=0.01, cells=14, **planted):
    return said_of([judged_cell(rng, across, **planted) for _ in range(cells)], chance)


@pytest.mark.parametrize(
    ("settings", "verdict"),
    [
        ({"across": 0.8}, SAME),
        ({"across": 0.55}, RELATED),
        ({"across": 0.02, "chance": 0.7}, UNRELATED),  # no more than chance
        ({"across": 0.05}, UNTRAINED),  # more than chance, but less than untrained twins
        ({"across": 0.3}, UNCLEAR),  # less than seeds, as much as untrained twins
        ({"across": 0.3, "untrained": 0.1, "chance": 0.7}, UNCLEAR),  # chance is not shown, nor near
        ({"across": 0.7, "spread": 0.06}, UNCLEAR),  # at the edge: neither less than seeds nor the same is shown
        ({"across": 0.8, "seeds": 0.8, "untrained": 0.8}, UNCLEAR),  # seeds are no closer than untrained twins
    ],
)
def test_planted_verdicts_are_found(settings, verdict):
    rng = np.random.default_rng(0)
    said = list(itertools.chain.from_iterable(grid(rng, **settings) for _ in range(6)))
    assert said.count(verdict) / len(said) >= 0.8


@pytest.mark.parametrize(("base", "value"), [(3, 3), (5, 2), (5, 5), (8, 3)])
@pytest.mark.parametrize("cells", [1, 2, 15])
def test_a_value_that_deviates_is_never_the_same_however_many_are_tested(base, value, cells):
    """The value is at 0.4 of the way, many errors from the seeds; all other values are seeds."""
    rng, lone = np.random.default_rng(5), []
    for _ in range(40):
        others = [judged_cell(rng, 0.8, base=base, value=value) for _ in range(cells - 1)]
        lone.append(said_of([judged_cell(rng, 0.5, base=base, value=value), *others])[0])
    assert SAME not in lone
    if value >= 3 and base >= 5:
        assert lone.count(RELATED) / len(lone) >= 0.8


@pytest.mark.parametrize(("base", "value"), [(3, 3), (5, 5), (8, 3)])
def test_at_the_margin_the_same_is_said_no_more_often_than_alpha(base, value):
    """The margin is at exactly 0.8 of the way; of true seeds it is said often."""
    rng = np.random.default_rng(6)
    edge, seeds = (
        [judged_cell(rng, across, base=base, value=value).alike <= ALPHA for _ in range(6 * DRAWS)]
        for across in (0.7, 0.8)
    )
    assert 0 < np.mean(edge) <= ALPHA + 2 * (ALPHA * (1 - ALPHA) / len(edge)) ** 0.5
    assert np.mean(seeds) >= 0.9


@pytest.mark.parametrize("count", [2, 1])
def test_of_two_models_or_one_nothing_is_the_same_or_unrelated(count):
    judged = judged_cell(np.random.default_rng(7), 0.8, base=8, value=count, spread=1e-3)
    assert np.isnan([judged.alike, judged.apart]).all()


@pytest.mark.parametrize(
    ("across", "chance", "verdict"),
    [(0.8, 0.01, RELATED), (0.8, 0.7, UNCLEAR), (0.05, 0.01, UNTRAINED), (0.3, 0.01, UNCLEAR)],
)
def test_single_models_are_never_called_the_same_or_unrelated(across, chance, verdict):
    said = grid(np.random.default_rng(0), across, base=1, value=1, chance=chance, cells=60, spread=0.01)
    assert said.count(verdict) / len(said) >= 0.8
    assert not {SAME, UNRELATED} & {*said}


@pytest.mark.parametrize("shapes", [3, 5])
def test_a_single_pair_like_untrained_twins_is_more_than_these_no_more_often_than_alpha(shapes):
    """Twins of one shape, or of two."""
    rng, above = np.random.default_rng(8), []
    for _ in range(12 * DRAWS):
        count = 3 if shapes == 3 else 10
        every = models(rng, count + 2, 0, 0.3, 0.3, 0.3)
        # two models more that are like the twins, the second of the other shape
        above.append(
            rule.judge_contrasts(FactorComparison(every[count:, count:], 1, every[:count, :count], shapes)).above
            <= ALPHA
        )
    assert np.mean(above) <= ALPHA + 2.5 * (ALPHA * (1 - ALPHA) / len(above)) ** 0.5


def test_further_seeds_are_called_less_no_more_often_than_alpha():
    rng = np.random.default_rng(1)
    below = [judged_cell(rng, 0.8).below for _ in range(8 * DRAWS)]
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
    above = [judged_cell(rng, 0.3, within=0.8).above for _ in range(8 * DRAWS)]
    assert np.mean(np.array(above) <= ALPHA) <= ALPHA + 2 * (ALPHA * (1 - ALPHA) / len(above)) ** 0.5


def test_a_value_well_above_chance_is_unrelated_no_more_often_than_alpha():
    """A fifth of the way from chance to seeds, the edge, though no p against chance is small."""
    rng = np.random.default_rng(9)
    said = [said_of([judged_cell(rng, 0.16)], chance=1.0)[0] for _ in range(6 * DRAWS)]
    assert said.count(UNRELATED) / len(said) <= ALPHA + 2 * (ALPHA * (1 - ALPHA) / len(said)) ** 0.5


def test_means_and_errors_are_those_of_loops():
    """Each model left out in turn, by definition."""
    rng = np.random.default_rng(10)
    similar, fresh = models(rng, 4, 3, 0.8, 0.6, 0.5), models(rng, 3, 4, 0.3, 0.2, 0.3)
    means, left = rule._compute_comparison_means(FactorComparison(similar, 4, fresh, 3, 0.1))

    def by_loop(kept, twins):
        pairs = [similar[i, j] for i in kept for j in kept if i < 4 <= j]
        seeds = [similar[i, j] for i, j in itertools.combinations(kept, 2) if j < 4]
        return [np.mean(pairs), np.mean(seeds), np.mean([fresh[i, j] for i in twins for j in twins if i < 3 <= j]), 0.1]

    every, twins = range(7), range(7)
    assert means == pytest.approx(by_loop(every, twins))
    expected = [by_loop([*{*every} - {i}], twins) for i in every] + [by_loop(every, [*{*twins} - {i}]) for i in twins]
    assert [len(group) for group in left] == [4, 3, 3, 4]
    assert np.concatenate(left) == pytest.approx(np.array(expected))


def test_what_a_run_needs_before_it_starts():
    wanted = partial(rule.find_needed, margin=0.2, alpha=ALPHA)
    assert wanted(3, 3, 2) is None
    assert wanted(8, 3, 1) is None
    assert wanted(8, 3, 15) == (8, 4)
    assert wanted(5, 2, 2) == (5, 3)
    assert wanted(1, 5, 2) == (3, 5)
    assert (
        rule.find_needed(3, 3, 2, 0.05, ALPHA)[0] > 3
    )  # no number of models of the value is enough beside three seeds


def test_what_a_run_needs_is_what_it_takes():
    """The planned power is that of draws, at the planned spread."""
    rng = np.random.default_rng(11)
    alpha = ALPHA / 15
    found = [judged_cell(rng, 0.8, base=8, value=3).alike <= alpha for _ in range(6 * DRAWS)]
    assert np.mean(found) == pytest.approx(
        rule.compute_power(8, 3, 15, 0.2, ALPHA), abs=0.15
    )  # without the error of twins


def test_the_diagonal_is_not_read():
    rng = np.random.default_rng(4)
    similar, fresh = models(rng, 3, 3, 0.8, 0.5, 0.5), models(rng, 3, 3, 0.3, 0.3, 0.3)
    one = rule.judge_contrasts(FactorComparison(similar, 3, fresh, 3))
    np.fill_diagonal(similar, 100.0)
    np.fill_diagonal(fresh, -100.0)
    other = rule.judge_contrasts(FactorComparison(similar, 3, fresh, 3))
    assert one[:3] == other[:3]
    assert one[4:9] == other[4:9]


def test_a_factor_has_the_weakest_verdict_and_measures_their_weight():
    cells = [
        {"measure": measure, "factor": "width", "share of seeds": share, "margin": 0.2, "verdict": verdict}
        for measure, share, verdict in [
            ("cka", 1.03, SAME),
            ("cka", -0.03, RELATED),
            ("rsa", 1.0, SAME),
            ("rsa", None, SAME),
        ]
    ]
    factors = list(universality.list_weakest_verdicts(cells))
    assert factors == [["cka", "width", 2, -0.03, 1.03, 0.2, RELATED], ["rsa", "width", 2, None, None, 0.2, SAME]]
    assert list(universality.weigh_verdicts(factors, {})) == [["width", 0.5, 0.5, 0.0, 0.0, 0.0, 0.2]]
    weighted = list(universality.weigh_verdicts(factors, {"cka": 3.0, "rsa": 1.0}))
    assert weighted == [["width", 0.25, 0.75, 0.0, 0.0, 0.0, 0.2]]
    assert [universality.find_weakest(some) for some in ([SAME, UNCLEAR], [RELATED, UNRELATED], [UNCLEAR, UNRELATED])] == [
        UNCLEAR, UNRELATED, UNRELATED,
    ]  # fmt: skip


def test_agreement_is_spearmans_rho_over_cells():
    rho = universality.correlate_over_factors(
        np.array([[0.1, 0.2, 0.3, 0.9], [1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]])
    )
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
        UniversalityOptions(weights=weights).check(planned)


def test_measures_weigh_by_their_grades():
    from repsim_cli.findings.leaderboard import count_better_and_worse, load_leaderboard, trust

    found = trust(["cka_rbf", "procrustes", "euclidean", "unheard_of"])
    assert found["unheard_of"] == 0.5
    ahead, behind = count_better_and_worse("euclidean")
    assert found["euclidean"] == pytest.approx(0.5 - (behind - ahead) / (2 * (len(load_leaderboard()) - 1)))
    assert 0 <= found["euclidean"] < 0.5 <= found["cka_rbf"] <= found["procrustes"] <= 1
