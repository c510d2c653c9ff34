"""Nulls, standard errors and bands against what they claim: false positive rates, coverage, brute force."""

import itertools

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from repsim_cli import measures, results
from repsim_cli import significance as judging
from repsim_cli.settings import Significance
from repsim_cli.similarity import SimilarityMatrix, all_pairs

INNER = [name for name in measures.available() if measures.get(name).inner is not None]


def small(name):
    """With settings for few rows."""
    return measures.get(name, **reference.SETTINGS.get(name, {}))


def prepared(name, sides, **settings):
    """What the engine prepares of the sides for the measure, and their values."""
    seen = []
    values = all_pairs({name: small(name)}, sides, observe=lambda *given: seen.append(given[2]), **settings)
    return seen[0], values[name]


def independent(n, seed, count=2):
    """Unrelated representations: one isotropic, one of long tails, one of few dimensions."""
    rng = np.random.default_rng(seed)
    sides = [
        rng.normal(size=(n, 12)),
        np.exp(rng.normal(size=(n, 12))),
        rng.normal(size=(n, 12)) * np.arange(1, 13) ** -1.5,
    ]
    return [torch.from_numpy(side) for side in sides[:count]]


@pytest.mark.parametrize("name", INNER)
def test_closed_form_has_the_moments_of_all_permutations(name):
    """Mean and variance over all 7! pairings of the rows, exactly."""
    sides = [side[:, :3] for side in independent(7, 0)]
    inner = measures.get(name).inner
    squares = []
    for kernel, side in zip((inner.row, inner.column), sides, strict=True):
        states, _ = prepared(name, [side, side])
        squares.append(judging._square(kernel, states.states[kernel][0], 7))
    null = judging.closed_form(*([judging.moments(square)] for square in squares))
    orders = torch.tensor(list(itertools.permutations(range(7))))
    moved = squares[1][orders[:, :, None], orders[:, None, :]]
    drawn = (squares[0] * moved).sum((1, 2))
    scale = float(squares[0].norm() * squares[1].norm())
    assert float(null.mean) == pytest.approx(float(drawn.mean()), abs=1e-10 * scale)
    assert float(null.deviation) == pytest.approx(float(drawn.std(correction=0)), rel=1e-9)


@pytest.mark.parametrize("name", INNER)
def test_closed_form_keeps_its_false_positive_rates(name):
    """6000 pairings of independent rows, two pairs of representations: 5, 1 and 0.1 % within binomial error."""
    n, draws = 60, 3000
    sides = independent(n, 1, 3)
    if measures.card(name).refuses_wide:
        sides = [side[:, :5] for side in sides]
    measure = measures.get(name)
    found, _ = prepared(name, sides)
    rows, columns = (found.states[kernel] for kernel in (measure.inner.row, measure.inner.column))
    left, right = (
        torch.stack([judging._square(kernel, state, n) for state in side])
        for kernel, side in ((measure.inner.row, rows), (measure.inner.column, columns))
    )
    null = judging.closed_form([judging.moments(m) for m in left], [judging.moments(m) for m in right])
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(n, generator=generator) for _ in range(draws)]
    cross = torch.stack([torch.einsum("aij,bij->ab", left, right[:, o][:, :, o]) for o in orders])
    z = (cross - null.mean) / null.deviation
    p = torch.stack([judging.tail(one, null.skewness) for one in z])[:, [0, 0, 1], [1, 2, 2]]
    for level in (0.05, 0.01, 0.001):
        rate = float((p < level).double().mean())
        # pairs share their orders, so that the error is that of `draws` alone; the skewness is of leading order
        assert abs(rate - level) < 4 * np.sqrt(level / draws) + 0.25 * level, (level, rate)


@given(seed=st.integers(0, 10**6))
def test_permutation_p_values_are_never_too_small(seed):
    """Under independence the chance of p <= a is at most a: the mean of p is at least 1/2 over many draws."""
    sides = independent(24, seed)
    orders = judging.shuffles(np.arange(24), 19, [seed])
    for name in ("cka", "mutual_knn", "procrustes"):
        found, values = prepared(name, sides)
        null = judging.permuted(measures.get(name), found, orders)
        p = judging.p_values(values, null, measures.card(name))
        assert p.min() >= 1 / 20
        assert p.max() <= 1


@pytest.mark.parametrize("name", ["cka_unbiased", "rsa", "mutual_knn", "procrustes"])
def test_false_positive_rate_of_permutations(name):
    n, hits = 30, 0
    for seed in range(200):
        found, values = prepared(name, independent(n, 1000 + seed))
        null = judging.permuted(measures.get(name), found, judging.shuffles(np.arange(n), 19, [seed]))
        hits += float(judging.p_values(values, null, measures.card(name))[0, 1]) <= 0.05
    assert hits / 200 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


@pytest.mark.parametrize("name", measures.available())
def test_permuted_states_are_the_states_of_permuted_rows(name):
    """Nothing is refitted, yet the values are those of the measure on reordered rows."""
    card = measures.card(name)
    if card.labelled or card.infinite_to_itself:
        pytest.skip("labels go with the rows of both sides; all pairs hold a layer with itself")
    rng = np.random.default_rng(0)
    base = rng.normal(size=(30, 4))
    x, y = (base @ rng.normal(size=(4, 5)) + rng.normal(size=(30, 5)) for _ in range(2))
    sides = [torch.from_numpy(side) for side in (x, y)]
    found, _ = prepared(name, sides)
    order = torch.from_numpy(rng.permutation(30))
    together = judging.permuted(small(name), found, [order, torch.arange(30)])
    measure = small(name)
    expected = [[[measure(a, b[o]) for b in sides] for a in sides] for o in (order, torch.arange(30))]
    torch.testing.assert_close(together, torch.tensor(expected, dtype=torch.float64), atol=1e-8, rtol=0)


@pytest.mark.parametrize("name", ["cka_unbiased", "procrustes"])
def test_permutations_show_their_progress(name):
    found, _ = prepared(name, independent(20, 0, 2))
    orders, shown = judging.shuffles(np.arange(20), 19, [0]), []

    def progress(steps, measure):
        for step in steps:
            yield step
            shown.append((measure, len(steps)))

    silent = judging.permuted(small(name), found, orders)
    assert torch.equal(judging.permuted(small(name), found, orders, progress), silent)
    assert shown == [(name, len(shown))] * len(shown)
    assert len(shown) > 1


def test_clusters_move_whole():
    clusters = np.repeat([7, 3, 9], [2, 4, 3])
    for order in judging.shuffles(clusters, 20, [0]):
        runs = [key for key, _ in itertools.groupby(clusters[order])]
        assert sorted(runs) == [3, 7, 9]
        assert sorted(order.tolist()) == list(range(9))
        assert all(np.diff(order[clusters[order] == c]).tolist() == [1] * (sum(clusters == c) - 1) for c in (7, 3, 9))


def test_calibrated_score_by_hand():
    """Observed 0.9 among 0.1 ... 0.4 at alpha 0.2: the threshold is the 4th of 5 sorted values, 0.4."""
    null = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).view(4, 1, 1)
    observed = torch.tensor([[0.9]], dtype=torch.float64)
    card = measures.card("cka")
    assert float(judging.calibrated(observed, null, card, 0.2)) == pytest.approx(0.5 / 0.6)
    assert float(judging.p_values(observed, null, card)) == pytest.approx(1 / 5)
    assert float(judging.calibrated(observed * 0.3, null, card, 0.2)) == 0
    distance = measures.card("procrustes")
    assert float(judging.p_values(observed, null, distance)) == 1


def test_jackknife_against_the_bootstrap_and_its_coverage():
    """Standard errors of CKA: 95 % intervals hold the value of a large sample in at least 90 % of fresh samples."""
    rng = np.random.default_rng(0)
    mixing = [rng.normal(size=(4, 6)) for _ in range(2)]

    def sample(n):
        base = rng.normal(size=(n, 4))
        return [torch.from_numpy(base @ m + rng.normal(size=(n, 6))) for m in mixing]

    for name in ("cka", "cka_unbiased"):
        truth = measures.get(name)(*sample(20_000)[:2]) if name == "cka_unbiased" else None
        inside, values, errors = [], [], []
        for _ in range(60):
            found, matrix = prepared(name, sample(200), tile=64)
            error = judging.jackknife(measures.get(name), found, matrix, np.arange(200))[0, 1]
            values.append(float(matrix[0, 1]))
            errors.append(float(error))
            inside.append(truth is None or abs(values[-1] - truth) < 1.96 * errors[-1])
        assert np.mean(errors) == pytest.approx(np.std(values), rel=0.35)
        assert np.mean(inside) >= 0.9


def test_jackknife_takes_copies_of_a_row_as_one():
    """Every row three times in one cluster: the standard error is that of the rows without their copies."""
    rng = np.random.default_rng(1)
    base = rng.normal(size=(80, 3))
    sides = [torch.from_numpy(base @ rng.normal(size=(3, 5)) + rng.normal(size=(80, 5))) for _ in range(2)]
    single = judging.jackknife(measures.get("cka"), *prepared("cka", sides), np.arange(80))
    tripled = [side.repeat_interleave(3, 0) for side in sides]
    clustered = judging.jackknife(measures.get("cka"), *prepared("cka", tripled), np.repeat(np.arange(80), 3))
    torch.testing.assert_close(clustered, single, atol=1e-10, rtol=1e-8)
    naive = judging.jackknife(measures.get("cka"), *prepared("cka", tripled), np.arange(240))
    assert float(naive[0, 1]) < 0.7 * float(single[0, 1])


def test_jackknife_of_a_similarity_of_exactly_zero_is_a_number():
    """Two features at a right angle: CKA is 0, its standard error is not undefined."""
    x, y = (torch.tensor([[float(v)] for v in side], dtype=torch.float64) for side in ([1, 1, -1, -1], [1, -1, 1, -1]))
    found, values = prepared("cka", [x, y])
    assert float(values[0, 1]) == 0
    assert torch.isfinite(judging.jackknife(measures.get("cka"), found, values, np.arange(4))).all()


def test_bands_cover_the_mean():
    rng = np.random.default_rng(0)
    settings = Significance(bootstrap=400, level=0.9)
    inside = 0
    for seed in range(100):
        batches = rng.normal(size=(40, 1, 1)) + 5
        low, high = judging.bands(batches, settings, seed)
        inside += bool((low <= 5) & (high >= 5))
    assert 80 <= inside <= 98


def test_best_pair_of_layers_is_judged_as_a_maximum():
    """The null of the best of many pairs is the best of the null's pairs."""
    null = torch.zeros(19, 4, 4, dtype=torch.float64)
    null[:, :2, 2:] = torch.linspace(0, 0.9, 19 * 4, dtype=torch.float64).view(19, 2, 2)
    values = torch.eye(4, dtype=torch.float64)
    values[0, 3] = values[3, 0] = 0.5
    matrix = SimilarityMatrix(values=values, se=None, estimate="full", rows=9, batches=1, statistics={"null": null})
    places = {"a": slice(0, 2), "b": slice(2, 4)}
    (row,) = judging.best_pairs(Significance(), measures.get("cka"), matrix, places, ["a0", "a1", "b0", "b1"])
    above = int((null[:, :2, 2:].flatten(1).amax(1) >= 0.5).sum())
    assert row[:5] == ["a", "b", "a0", "b1", 0.5]
    assert row[5] == pytest.approx((1 + above) / 20)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["significance=closed_form", "measure=[mutual_knn]"], "significance.method: mutual_knn has no closed form"),
        (
            ["significance=closed_form", "measure=[cka]"],
            "tokens of one document depend on each other and the closed form",
        ),
        (
            ["significance=permutation", "measure=[cka]", "extract.estimate=ratio_of_sums"],
            "sums over batches have no null, got ratio_of_sums; use per_batch or full",
        ),
        (
            ["significance.jackknife=true", "measure=[cka]"],
            "significance.jackknife: it is for one sample, got per_batch",
        ),
        (["significance.jackknife=true", "extract.estimate=full"], "mutual_knn is no normalised inner product"),
        (
            ["significance=permutation", "measure=[magnitude_difference]"],
            "magnitude_difference does not depend on how rows are paired, so that random pairs are no null for it",
        ),
        (["measure=[tolerance_difference]"], "tolerance_difference needs a label per row, got data without labels"),
        (["significance.bootstrap=100", "extract.estimate=full"], "significance.bootstrap: it draws batches, got full"),
        (["significance.permutations=5"], "significance.permutations: wrong value, got 5"),
        (["significance=permutations"], "did you mean"),
    ],
)
def test_bad_settings(repsim, words, message):
    code, _, err = repsim("run", *words)
    assert code == 2
    assert message in err


def test_a_run_with_permutations(repsim, newest):
    small = ("model=[tiny_a,tiny_b]", "extract.sequences=8", "extract.batch_rows=200", "significance.permutations=19")
    code, _, err = repsim("run", "significance=permutation", "significance.bootstrap=50", *small)
    assert code == 0, err
    found = results.read_results(newest())
    for measure in found["measures"]:
        assert measure["null"] == {"method": "permutation", "permutations": 19, "clusters": "document", "alpha": 0.05}
        for matrix in measure["matrices"]:
            parts = {
                key: results.read_array(newest(), matrix[key]) for key in ("p", "calibrated", "values", "low", "high")
            }
            assert parts["p"].min() >= 0.05 - 1e-12
            if matrix["rows"]["model"] == matrix["columns"]["model"]:
                assert (parts["p"] == parts["p"].T).all()
            assert (parts["low"] <= parts["high"]).all()
            assert ((parts["calibrated"] >= 0) & (parts["calibrated"] <= 1)).all()
    table = found["tables"]["closest layers"]
    assert [row[:3] for row in table["rows"]] == [
        ["cka_unbiased", "tiny_a", "tiny_b"],
        ["mutual_knn", "tiny_a", "tiny_b"],
    ]
    assert not list(newest().glob(".per-batch*"))


def test_a_run_with_the_closed_form_marks_chance(repsim, newest, tmp_path):
    """Unrelated stored activations are crossed out in the figure, related ones are not."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 8))
    np.savez(tmp_path / "one.npz", a=x, b=x + 0.3 * rng.normal(size=x.shape))
    np.savez(tmp_path / "other.npz", c=rng.normal(size=(200, 8)))
    models = [f"+model.{name}={{kind: precomputed, path: {tmp_path / name}.npz}}" for name in ("one", "other")]
    words = ("model=[]", *models, "extract.estimate=full", "significance=closed_form", "measure=[cka_unbiased]")
    assert repsim("run", *words)[0] == 0
    found = results.read_results(newest())["measures"][0]["matrices"]
    p = {(m["rows"]["model"], m["columns"]["model"]): results.read_array(newest(), m["p"]) for m in found}
    assert p["one", "one"].max() == 1e-6
    assert p["one", "other"].min() > 0.05
    assert repsim("plot", newest())[0] == 0
