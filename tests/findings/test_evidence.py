"""What a claim's evidence rests on: units, errors, chance, and how many are enough."""

from itertools import permutations

import numpy as np
import pytest
import scipy.signal
import scipy.stats

from repsim_cli.findings import evidence
from repsim_cli.findings.claims import FAILS, HOLDS, UNCLEAR, UNTESTABLE, judge_claim
from repsim_cli.findings.evidence import (
    DEEP,
    Evidence,
    compare_outer_thirds,
    compute_trend_p,
    list_permutations,
    negate_evidence,
    require_shared_trend,
    weigh_by_jackknife,
    weigh_by_sign_test,
    weigh_by_standard_error,
    weigh_lone_value,
    weigh_mean,
    weigh_mean_difference,
    weigh_rank_correlation,
)
from repsim_cli.findings.layer_maps import compute_largest_noise_correlation


def test_the_rule():
    def verdict(value, above, below, **more):
        return judge_claim(value, 0.5, Evidence(above, below, "cases", **more)).verdict

    assert verdict(0.6, 0.05, 0.95) == HOLDS
    assert verdict(0.6, 0.06, 0.94) == UNCLEAR
    assert verdict(0.4, 0.05, 0.95) == UNCLEAR  # told from chance, but on the other side of the threshold
    assert verdict(0.4, 0.95, 0.05) == FAILS
    assert verdict(0.4, 0.7, 0.3) == UNCLEAR
    below = judge_claim(-0.6, -0.5, Evidence(0.99, 0.01, "", se=0.1), published="below")
    assert (below.verdict, below.p, below.opposite_p, below.se) == (HOLDS, 0.01, 0.99, 0.1)
    few = judge_claim(1.0, 0.0, Evidence(1 / 6, 1.0, "6 orders", smallest=1 / 6, units=3, needs="5 models"))
    assert (few.verdict, few.value, few.units) == (UNTESTABLE, 1.0, 3)
    assert few.why == "no p below 0.17 can be reached (6 orders); needs 5 models"
    two = judge_claim(1.0, 0.0, weigh_mean([1.0, 1.1], 0.0, "pair of models"))
    assert (two.verdict, two.why, two.p) == (
        UNTESTABLE,
        "needs 3 pairs of models with a value, got 2 pairs of models",
        None,
    )


def test_errors_and_chance():
    rng = np.random.default_rng(0)
    values, others = rng.normal(1.0, 1, 12), rng.normal(0.0, 2, 5)
    one = weigh_mean(values, 0.5, "model")
    left_out = weigh_by_jackknife(values.mean(), 0.5, [np.delete(values, i).mean() for i in range(12)], "model")
    t = {"alternative": "greater"}
    assert left_out.above == pytest.approx(one.above) == scipy.stats.ttest_1samp(values, 0.5, **t).pvalue
    welch = scipy.stats.ttest_ind(values, others, equal_var=False, **t).pvalue
    assert weigh_mean_difference(values, others, "seed").above == pytest.approx(welch)
    pooled = scipy.stats.ttest_ind([0.3], others, **t).pvalue  # one value has no spread of its own
    assert weigh_lone_value(0.3, others, "model").above == negate_evidence(weigh_lone_value(0.3, others, "model")).below
    assert weigh_lone_value(0.3, others, "model").above == pytest.approx(pooled)
    assert (
        weigh_by_standard_error(1.0, 0.0, 0.0, 3, "", 4).above,
        weigh_by_standard_error(0.0, 0.0, 0.0, 3, "", 4).above,
    ) == (1 / 16, 0.5)
    assert weigh_by_sign_test(5, 5, "seed").above == weigh_by_sign_test(5, 5, "seed").smallest == 1 / 32
    assert weigh_by_jackknife(1.0, 0.0, [1.0, 1.0, float("nan")], "model").needs == "4 models"
    assert [len(each) for each in list_permutations([2, 3])[0]] == [12, 12]
    assert list_permutations([7, 6])[1] == "2,000 drawn"
    assert compare_outer_thirds(np.array([3.0, 2, 1, 0, 0, 0])) == 2.5


def test_units_that_do_not_differ_tell_by_their_number():
    """An error of 0 is none: three that are all there are on one side by chance in one of eight cases."""
    three, five = (weigh_mean([0.2] * count, 0.0, "seed") for count in (3, 5))
    assert (three.above, five.above, five.below) == (1 / 8, 1 / 32, 1 - 1 / 32)
    assert "which do not differ: by their number alone" in three.how
    assert weigh_mean([0.0] * 5, 0.0, "seed").above == 0.5
    assert weigh_by_jackknife(0.2, 0.0, [0.2] * 4, "model").above == 1 / 16
    assert weigh_mean_difference([1.0] * 3, [0.0] * 3, "seed").above == 1 / 20  # of 20 ways to deal them
    assert weigh_lone_value(1.0, [0.0] * 4, "model").above == 1 / 5
    known = weigh_mean([1.0] * 3, 0.5, "model", evidence.find_rho_step(8))  # correlations of ranks have steps
    assert 0 < known.above < 0.01
    varied = weigh_mean([1.0, 1.0, 1 - evidence.find_rho_step(8)], 0.5, "model", evidence.find_rho_step(8))
    assert known.above < varied.above < 0.01


@pytest.mark.slow
def test_a_rank_correlation_against_a_true_one():
    """Tests against 0 say what the exact permutations do; against 0.5 a true 0.1 fails with as many as 200."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 7))
    rho, found = weigh_rank_correlation(x, y, 0.0, "model")
    exact = scipy.stats.permutation_test(
        (x,), lambda order: scipy.stats.spearmanr(order, y)[0], permutation_type="pairings", alternative="greater"
    )
    assert rho == pytest.approx(scipy.stats.spearmanr(x, y)[0])
    assert found.above == pytest.approx(exact.pvalue, abs=0.02)
    x = rng.normal(size=200)
    rho, found = weigh_rank_correlation(x, 0.1 * x + rng.normal(size=200), 0.5, "model")
    assert judge_claim(rho, 0.5, found).verdict == FAILS
    tied, found = weigh_rank_correlation([0, 0, 0, 1, 1, 1], [1.0, 2, 3, 4, 5, 6], 0.5, "model")
    assert tied == pytest.approx(scipy.stats.spearmanr([0, 0, 0, 1, 1, 1], [1, 2, 3, 4, 5, 6])[0])
    assert found.above > weigh_rank_correlation(range(6), range(6), 0.5, "model")[1].above  # with ties it says less


def test_what_all_share_must_be_steady():
    rng = np.random.default_rng(0)
    line, bend = np.linspace(0, 1, 12), np.cos(np.linspace(0.3, 3.8, 12))
    assert compute_trend_p(line + rng.normal(0, 0.03, 12))[0] < 0.05 < compute_trend_p(bend)[1]
    over = weigh_mean([1.0, 1.1, 0.9], 0.0, "model")  # the models agree
    alike = [bend + rng.normal(0, 0.01, 12) for _ in range(3)]
    assert over.above < 0.05 < require_shared_trend(over, alike).above
    assert require_shared_trend(over, [line + rng.normal(0, 0.03, 12) for _ in range(3)]).above < 0.05
    few = require_shared_trend(over, [line[: DEEP - 1]] * 3)
    assert (few.smallest, few.needs) == (1.0, "6 layers or checkpoints")


def test_the_best_of_many_independent_neurons():
    rng = np.random.default_rng(0)
    found = [np.abs(np.corrcoef(rng.normal(size=(21, 50)))[0, 1:]).max() for _ in range(400)]
    assert np.mean(found) == pytest.approx(compute_largest_noise_correlation(20, 50), abs=0.01)


@pytest.mark.slow
def test_rhos_of_samples_are_those_of_independent_ranks_and_of_their_true_one():
    """Seven independent units: the exact share of orders whose rho is at least 0.75 is 0.033 (tables of Spearman's
    rho); of many units the mean is the true one."""
    null = evidence._list_untied(7, 0.0)
    assert np.abs(null).max() <= 1 + 1e-12
    assert abs(null.mean()) < 4 / np.sqrt(6 * len(null))
    exact = np.mean([scipy.stats.spearmanr(range(7), order)[0] >= 0.75 - 1e-9 for order in permutations(range(7))])
    assert (null >= 0.75 - 1e-9).mean() == pytest.approx(exact, abs=4 * np.sqrt(exact / len(null)))
    assert evidence._list_untied(200, 0.5).mean() == pytest.approx(0.5, abs=0.01)
    assert evidence._list_untied(200, -0.3).mean() == pytest.approx(-0.3, abs=0.01)


def test_steps_that_resemble_the_next_ones_count_less():
    """Steps by hand, and curves that wander with steps of one direction for a while: no more than 5 % are a trend."""
    curve = np.array([0.0, 1.0, 1.5, 3.0, 3.2, 5.0, 4.5, 7.0, 7.5, 9.0])
    steps = np.diff(curve)
    off = steps - steps.mean()
    r = off[:-1] @ off[1:] / (off @ off) + evidence.UPPER / 3
    left = 9 * (1 - max(r, 0)) / (1 + max(r, 0))
    t = steps.mean() / np.sqrt(off @ off / 8 / left)
    rises, falls = evidence.compute_trend_p(curve)
    assert rises == pytest.approx(scipy.stats.t.sf(t, left - 1))
    assert falls == pytest.approx(scipy.stats.t.cdf(t, left - 1))
    rng = np.random.default_rng(0)
    for alike in (0.0, 0.3, 0.6):
        noise = rng.normal(size=(1000, 75))
        wander = scipy.signal.lfilter([1], [1, -alike], noise, axis=1)[:, 50:].cumsum(1)
        assert np.mean([evidence.compute_trend_p(curve)[0] <= 0.05 for curve in wander]) <= 0.05 + 0.03
