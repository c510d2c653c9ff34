"""Maps between vectors: planted rotations with noise against closed forms; intervals."""

import numpy as np
import pytest
import scipy.spatial
import scipy.stats
from helpers.planted_vector_maps import FITTED, HELD, D, planted

from repsim_cli.studies.vectors.fits import KINDS, PENALTIES, centre_pair
from repsim_cli.studies.vectors.scores import (
    MAIN,
    compute_chance_recall,
    divide_over_documents,
    hold_out,
    retrieve_nearest,
    score_mapped_rows,
    score_retrieved_neighbours,
)

NOISE = (0.0, 0.1, 0.3, 0.6, 1.0)


def expected(kind, noise):
    """R^2 of new rows: 1 - (noise and the errors of the fit, per number) / (variance of the rows, mean of the fit)."""
    n, s = FITTED, noise**2
    error = {
        "affine": s * (n + 1) * (n - 2) / (n * (n - D - 2)),  # least squares on Gaussian rows, exact
        "rotation": s * (1 + (D - 1) / (2 * n) + 1 / n),  # of its generators, to the first order, and the mean
    }[kind]
    return 1 - error / ((1 + s) * (1 + 1 / n))


@pytest.mark.parametrize("noise", NOISE)
def test_planted_rotations_are_recovered_as_well_as_theory_says(noise):
    """R^2 against its closed form, and the neighbours against those that the true rotation finds."""
    found = {kind: [] for kind in ("affine", "rotation")}
    for seed in range(4):
        x, y, clean = planted(noise, seed)
        half = slice(FITTED), slice(FITTED, None)
        out = hold_out(x[half[1]], y[half[1]], np.arange(HELD))
        oracle = score_mapped_rows(out, clean[half[1]], y[half[0]].mean(0))[MAIN].value
        for kind, values in found.items():
            fit = KINDS[kind](centre_pair(x[half[0]], y[half[0]]), D)
            of = score_mapped_rows(out, fit(out.x), y[half[0]].mean(0))
            values.append([of["R^2"].value, of[MAIN].value, oracle])
    for kind, values in found.items():
        r2, recall, oracle = np.mean(values, 0)
        assert r2 == pytest.approx(expected(kind, noise), abs=0.012), kind
        assert oracle - 0.05 <= recall <= oracle + 0.02, kind
        if noise == 0:
            assert (r2, recall) == (pytest.approx(1), 1), kind


@pytest.mark.parametrize("noise", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("n", [8, 20, 40])
def test_a_ridge_map_has_the_penalty_that_leaving_rows_out_chooses(n, noise):
    x, y, _ = planted(noise, 0, n=n)
    total = np.square(x - x.mean(0)).sum()

    def solve(penalty, kept):
        a, b = x[kept] - x[kept].mean(0), y[kept] - y[kept].mean(0)
        return np.linalg.solve(a.T @ a + penalty * total * np.eye(D), a.T @ b)

    def left_out(penalty):
        errors = []
        for row in range(len(x)):
            kept = np.arange(len(x)) != row
            errors.append(y[row] - y[kept].mean(0) - (x[row] - x[kept].mean(0)) @ solve(penalty, kept))
        return np.square(errors).sum()

    fit = KINDS["ridge"](centre_pair(x, y), D)
    errors = [left_out(penalty) for penalty in PENALTIES]
    assert fit.facts["penalty"] == PENALTIES[int(np.argmin(errors))]
    np.testing.assert_allclose(fit.weight, solve(fit.facts["penalty"], slice(None)), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_the_origin_and_the_unit_of_rows_change_no_map(kind):
    """Columns that say the same again change none either; of rows that are all equal the mean is predicted."""
    x, y, _ = planted(0.5, 0, n=60)
    fit = KINDS[kind](centre_pair(x, y), 3)
    moved = KINDS[kind](centre_pair(1e3 * x + 50, y), 3)
    np.testing.assert_allclose(moved(1e3 * x + 50), fit(x), rtol=1e-6, atol=1e-6)
    if kind != "rotation":
        twice = KINDS[kind](centre_pair(np.hstack([x, x]) / 2**0.5, y), 3)
        np.testing.assert_allclose(twice(np.hstack([x, x]) / 2**0.5), fit(x), rtol=1e-6, atol=1e-6)
    equal = KINDS[kind](centre_pair(np.ones((60, 4)), y), 3)
    np.testing.assert_allclose(equal(np.full((5, 4), 7.0)), np.tile(y.mean(0), (5, 1)))


def test_a_map_of_low_rank_is_as_good_as_what_is_planted():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, D))
    y = x @ rng.normal(size=(D, 3)) @ rng.normal(size=(3, 24)) + 0.1 * rng.normal(size=(500, 24))
    given, r2 = centre_pair(x[:300], y[:300]), {}
    for rank in (2, 3):
        fit = KINDS["low_rank"](given, rank)
        assert np.linalg.matrix_rank(fit.weight) == rank == fit.facts["rank"]
        r2[rank] = 1 - np.square(y[300:] - fit(x[300:])).sum() / np.square(y[300:] - y[:300].mean(0)).sum()
    assert r2[3] > 0.99 > 0.95 > r2[2]


def test_widths_may_differ():
    """A rotation lays the narrower side into the wider one, and back."""
    x, _, clean = planted(0.0, 1)
    wide = np.hstack([clean, np.zeros((len(clean), 5))])
    there, back = KINDS["rotation"](centre_pair(x, wide), D), KINDS["rotation"](centre_pair(wide, x), D)
    assert there(x) == pytest.approx(wide, abs=1e-9)
    assert back(wide) == pytest.approx(x, abs=1e-9)


def test_neighbours_are_rows_of_other_documents():
    x = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    assert retrieve_nearest(x, x, np.arange(4))[:, 0].tolist() == [1, 0, 3, 2]
    assert retrieve_nearest(x, x, np.array([0, 0, 1, 1]))[:, 0].tolist() == [3, 3, 1, 1]


def test_neighbours_are_by_cosine():
    """The lengths of rows change nothing, and a row of zeros is as far from all."""
    rng = np.random.default_rng(0)
    x, store = rng.normal(size=(2, 30, 4))
    lengths = 10.0 ** rng.integers(-3, 4, (2, 30, 1))
    found = retrieve_nearest(x, store, np.arange(30))
    assert (retrieve_nearest(lengths[0] * x, lengths[1] * store, np.arange(30)) == found).all()
    away = [scipy.spatial.distance.cosine(x[3], row) for row in store]
    assert found[3].tolist() == [i for i in np.argsort(away) if i != 3][:10]
    x[0] = 0
    assert retrieve_nearest(x, store, np.arange(30))[0].tolist() == list(range(1, 11))


def test_intervals_over_documents_are_students_and_of_ratios_the_jackknifes():
    """Intervals of documents of one row are so exactly; of uneven documents within a few percent."""
    rng = np.random.default_rng(1)
    part = rng.normal(size=6) - 3
    found = divide_over_documents(part, np.ones(6), np.arange(6), np.inf)
    low, high = scipy.stats.ttest_1samp(part, 0).confidence_interval(0.95)
    assert found == pytest.approx((part.mean(), low, high))
    assert divide_over_documents(part, np.ones(6), np.arange(6), -3.0).high == -3
    documents = np.repeat(np.arange(60), rng.integers(1, 9, 60))
    whole = 1 + rng.random(len(documents))
    part = whole * (0.4 + 0.2 * rng.normal(size=60)[documents])
    found = divide_over_documents(part, whole, documents)
    left = [part[documents != each].sum() / whole[documents != each].sum() for each in range(60)]
    error = np.std(left) * 59**0.5
    assert (found.high - found.low) / 2 == pytest.approx(scipy.stats.t.ppf(0.975, 59) * error, rel=0.04)


def test_chance_is_what_random_rows_find():
    """The mean of 400 random stores; one document leaves eight rows of others, which all are among the nearest ten."""
    rng, documents = np.random.default_rng(2), np.repeat(np.arange(8), [4, 2, 1, 1, 1, 1, 1, 1])
    out = hold_out(*rng.normal(size=(2, 12, 3)), documents)
    drawn = [score_retrieved_neighbours(out, rng.normal(size=(12, 3))) for _ in range(400)]
    chance = compute_chance_recall(out, list(rng.normal(size=(4, 12, 3))))
    assert chance.keys() == drawn[0].keys()
    for name, found in chance.items():
        assert found.low <= found.value <= found.high
        assert np.mean([each[name].value for each in drawn]) == pytest.approx(found.value, abs=0.02), name
    assert score_retrieved_neighbours(out, out.y)[MAIN].value == 1


@pytest.mark.slow
def test_what_random_pairings_reach_holds_where_few_rows_are_near_to_many():
    """Intervals over documents alone, of rows whose variance lies in few features, would tell 0.2 of noise from
    chance."""
    rng, documents, beyond = np.random.default_rng(4), np.repeat(np.arange(30), 5), []
    for _ in range(60):
        rows = rng.normal(size=(3, 150, 16)) / np.arange(1, 17)
        out = hold_out(rows[0], rows[1], documents)
        recall = score_retrieved_neighbours(out, rows[2])[MAIN].value
        beyond.append(recall > compute_chance_recall(out, [rows[2]])[MAIN].high)
    assert np.mean(beyond) <= 0.1


def test_scores_of_mapped_rows_by_hand():
    """R^2 against the mean of the fitted rows and the cosine; an interval is as far to both sides, up to 1."""
    rng = np.random.default_rng(3)
    x, y, mean = rng.normal(size=(50, 4)), rng.normal(size=(50, 4)), np.ones(4)
    out = hold_out(x, y, np.arange(50))
    for noise, clipped in ((1.0, False), (0.0, False), (1e-3, True)):
        mapped = y + noise * rng.normal(size=y.shape)
        if clipped:
            mapped[0] = -y[0]
        found = score_mapped_rows(out, mapped, mean)
        r2, cosine = found["R^2"], found["cosine"]
        assert r2.value == pytest.approx(1 - ((y - mapped) ** 2).sum() / ((y - mean) ** 2).sum())
        assert cosine.value == pytest.approx(
            np.mean([1 - scipy.spatial.distance.cosine(*pair) for pair in zip(mapped, y, strict=True)])
        )
        for score in (r2, cosine):
            assert score.high == pytest.approx(1 if clipped else 2 * score.value - score.low)


def test_intervals_cover():
    """Intervals of R^2 of one map over draws of documents of 3 rows each that share most of their error."""
    rng, inside = np.random.default_rng(0), []
    for _ in range(400):
        documents = np.repeat(np.arange(40), 3)
        error = np.square(0.3 * rng.normal(size=120) + rng.normal(size=40)[documents])
        total = error + rng.normal(size=40)[documents] ** 2 * 3
        found = divide_over_documents(error, total, documents, np.inf)
        inside.append(found.low <= 1.09 / 4.09 <= found.high)
    assert 0.91 <= np.mean(inside) <= 0.98
