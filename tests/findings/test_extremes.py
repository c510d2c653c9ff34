"""What cannot be told apart from the largest or smallest of several values."""

import numpy as np
import pytest

from repsim_cli.findings.extremes import list_alike, say_others
from repsim_cli.studies.barycentre.finding import say_ends
from repsim_cli.studies.layers.columns import KL_WITHOUT, STANDING_OUT
from repsim_cli.studies.layers.finding import say_extreme
from repsim_cli.studies.layers.scores import average_over_documents, compare_with_best


@pytest.mark.parametrize("count", [2, 5, 12, 30])
@pytest.mark.parametrize("end", [np.argmin, np.argmax])
def test_equal_values_are_seldom_told_apart(count, end):
    """Values have errors of their own, which are of half, one and two units; 2,000 draws: 0.05 and three errors of a
    share."""
    random = np.random.default_rng(count)
    told = 0
    for _ in range(2000):
        errors = random.choice([0.5, 1.0, 2.0], count)
        values = random.normal(0.0, errors)
        told += len(list_alike(values.tolist(), errors.tolist(), int(end(values)))) < count
    assert told / 2000 <= 0.05 + 3 * 0.005


def test_values_that_differ_are_told_apart():
    values, errors = [1.0, 1.5, 9.0, 10.0], [0.4, 0.4, 0.4, 0.4]
    assert list_alike(values, errors, 0) == [0, 1]
    assert list_alike(values, errors, 3) == [2, 3]
    assert list_alike(values, [0.0] * 4, 0) == [0]
    assert list_alike(values, [0.4, None, 0.4, 0.4], 0) == [0, 1]
    assert list_alike(values, [None, 0.4, 0.4, 0.4], 0) == [0, 1, 2, 3]


def test_others_are_named_up_to_a_number():
    assert say_others("abcdefg", [0, 1, 2, 3, 4, 5], 0) == "; b, c, d and 2 more are not told apart from it"
    assert say_others("abcdef", [0, 1, 2, 3, 4, 5], 0) == "; none of the other 5 is told apart from it"
    assert say_others("abc", [0, 1, 2], 0) == "; b and c are not told apart from it"
    assert say_others("abcdef", [0, 2, 4], 2, 1) == "; a and 1 more are not told apart from it"
    assert say_others("ab", [0, 1], 0) == "; b is not told apart from it"


@pytest.mark.parametrize(("models", "groups"), [(3, 4), (10, 4), (4, 10), (10, 10)])
def test_errors_from_few_groups_rank_no_equal_models(models, groups):
    """Distances and errors are those of means over as many groups as are left out: 400 draws, 0.05 and three errors of
    a share."""
    random, told = np.random.default_rng(models + groups), 0
    for _ in range(400):
        drawn = random.normal(1.0, 0.1, (models, groups))
        errors = drawn.std(1, ddof=1) / groups**0.5
        rows = [
            {"model": f"m{i}", "distance": mean, "se": error}
            for i, (mean, error) in enumerate(zip(drawn.mean(1).tolist(), errors.tolist(), strict=True))
        ]
        told += "closest" in say_ends(rows, groups - 1)
    assert told / 400 <= 0.05 + 3 * 0.011


def test_models_that_are_as_far_from_a_shape_are_not_ranked():
    """Ten models of one kind, whose distances and errors a trial gave: 0.651 to 0.675."""
    rows = [{"model": f"m{i}", "distance": 0.651 + 0.0027 * i, "se": 0.0085} for i in range(10)]
    assert say_ends(rows, 9) == (
        "no model is told apart from the others: their distances from the common shape are 0.651 (se 0.0085) to 0.675 "
        "(se 0.0085)"
    )
    rows[0]["distance"], rows[1]["distance"] = 0.551, 0.561
    assert say_ends(rows, 9).startswith(
        "m0 is closest to the common shape at 0.551 (se 0.0085); m1 is not told apart from it, m9 furthest at 0.675"
    )


@pytest.mark.parametrize("skewed", [False, True])
def test_layers_that_noise_alone_separates_do_not_stand_out(skewed):
    """All layers are of the same few documents, some of which are higher in every layer."""
    random = np.random.default_rng(3)
    said, freedom = 0, 7
    for _ in range(300):
        numbers = 3 * random.normal(size=freedom + 1) + random.normal(size=(25, freedom + 1))
        estimates = [average_over_documents(np.exp(x / 3) if skewed else x, np.arange(len(x))) for x in numbers]
        layers = [{"layer": f"resid_post@{i}", KL_WITHOUT: each.value} for i, each in enumerate(estimates)]
        apart = [{KL_WITHOUT: error} for error in compare_with_best(estimates, STANDING_OUT[KL_WITHOUT])]
        said += "stands out" not in say_extreme(layers, apart, KL_WITHOUT, freedom)
    assert said / 300 <= 0.05 + 3 * 0.0126
