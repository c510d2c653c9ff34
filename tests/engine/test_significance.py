"""Nulls, standard errors and bands against what they claim: false positive rates, coverage, brute force."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
import reference
import scipy.stats
import torch
from helpers.nights import nightly
from helpers.recorded import recorded

from repsim_cli import measures
from repsim_cli.activations import segments
from repsim_cli.activations.segments import Segments
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Significance
from repsim_cli.engine import closed_null, corrections
from repsim_cli.engine import significance as judging
from repsim_cli.engine.pairs import SimilarityMatrix, compute_all_pairs
from repsim_cli.engine.permuted import permute_pairs
from repsim_cli.runs import reader

INNER = [name for name in measures.available() if isinstance(measures.get(name), measures.InnerProduct)]


def small(name):
    """With settings for few rows."""
    return measures.get(name, **reference.SETTINGS.get(name, {}))


def prepared(name, sides, **settings):
    """What the engine prepares of the sides for the measure, and their values."""
    seen = []
    values = compute_all_pairs({name: small(name)}, sides, observe=lambda *given: seen.append(given[2]), **settings)
    return seen[0], values[name]


def shuffled(n, count, seed):
    """Random orders of n rows that do not depend on each other."""
    rows = segments.find_segments([np.arange(n)], [np.full(n, segments.BOTH)])
    return torch.from_numpy(rows.orders(0, count, [seed]))


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
    # of three features, different ones have nothing in common
    sides = [side if name == "cka_columns" else side[:, :3] for side in independent(7, 0)]
    measure = measures.get(name)
    squares = []
    for kernel, side in zip((measure.row, measure.column), sides, strict=True):
        states, _ = prepared(name, [side, side])
        squares.append(closed_null._build_kernel_matrix(kernel, states.states[kernel][0], 7))
    null = closed_null.compute_closed_form_null(*([closed_null.compute_null_moments(square)] for square in squares))
    orders = torch.tensor(list(itertools.permutations(range(7))))
    moved = squares[1][orders[:, :, None], orders[:, None, :]]
    drawn = (squares[0] * moved).sum((1, 2))
    scale = float(squares[0].norm() * squares[1].norm())
    assert float(null.mean) == pytest.approx(float(drawn.mean()), abs=1e-10 * scale)
    assert float(null.deviation) == pytest.approx(float(drawn.std(correction=0)), rel=1e-9)


def test_three_rows_have_a_closed_form():
    """The fewest: of 3! pairings, with the moments of all of them."""
    sides = independent(3, 0)
    found, values = prepared("cka", sides)
    drawn = permute_pairs(found, torch.tensor(list(itertools.permutations(range(3)))))[:, 0, 1]
    z = (values[0, 1] - drawn.mean()) / drawn.std(correction=0)
    assert float(closed_null.standardise(found)["z"][0, 1]) == pytest.approx(float(z))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_are_all_as_far_apart_are_as_close_under_every_pairing(dtype):
    """Such as one-hot ones, whose CKA with anything does not depend on the pairing: p is 1, not that of rounding."""
    sides = [torch.eye(40, dtype=dtype), *(side.to(dtype) for side in independent(40, 0))]
    found, values = prepared("cka", sides)
    seen = closed_null.standardise(found)
    matrix = SimilarityMatrix(values=values, se=None, estimate="full", rows=40, batches=1, statistics=seen)
    judged = judging.judge(Significance(method="closed_form"), measures.get("cka"), matrix, None, [slice(0, 3)])
    for p in (judged.p, judged.p_family, judged.q):
        assert p[0].tolist() == p[:, 0].tolist() == [1, 1, 1]
        assert p.isfinite().all()


@pytest.mark.parametrize("name", nightly(INNER, *(name for name in INNER if name not in ("cka_unbiased", "rsa"))))
def test_closed_form_keeps_its_false_positive_rates(name):
    """6000 pairings of independent rows, two pairs of representations: 5, 1 and 0.1 % within binomial error."""
    n, draws = 60, 3000
    sides = independent(n, 1, 3)
    if measures.card(name).refuses_wide:
        sides = [side[:, :5] for side in sides]
    measure = measures.get(name)
    found, _ = prepared(name, sides)
    rows, columns = (found.states[kernel] for kernel in (measure.row, measure.column))
    left, right = (
        torch.stack([closed_null._build_kernel_matrix(kernel, state, n) for state in side])
        for kernel, side in ((measure.row, rows), (measure.column, columns))
    )
    null = closed_null.compute_closed_form_null(
        [closed_null.compute_null_moments(m) for m in left], [closed_null.compute_null_moments(m) for m in right]
    )
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(n, generator=generator) for _ in range(draws)]
    cross = torch.stack([torch.einsum("aij,bij->ab", left, right[:, o][:, :, o]) for o in orders])
    z = (cross - null.mean) / null.deviation
    p = torch.stack([closed_null.compute_tail_p(one, null.skewness, null.heaviness) for one in z])[
        :, [0, 0, 1], [1, 2, 2]
    ]
    for level in (0.05, 0.01, 0.001):
        rate = float((p < level).double().mean())
        # pairs share their orders, so that the error is that of `draws` alone; the skewness is of leading order
        assert abs(rate - level) < 4 * np.sqrt(level / draws) + 0.25 * level, (level, rate)


@pytest.mark.parametrize("name", nightly(["cka_unbiased", "rsa", "mutual_knn", "procrustes"], "rsa", "procrustes"))
def test_false_positive_rate_of_permutations(name):
    n, hits = 30, 0
    for seed in range(200):
        found, values = prepared(name, independent(n, 1000 + seed))
        null = permute_pairs(found, shuffled(n, 19, seed))
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
    together = permute_pairs(found, torch.stack([order, torch.arange(30)]))
    measure = small(name)
    expected = [[[measure(a, b[o]) for b in sides] for a in sides] for o in (order, torch.arange(30))]
    torch.testing.assert_close(together, torch.tensor(expected, dtype=torch.float64), atol=1e-8, rtol=0)


@pytest.mark.parametrize("name", ["cka_unbiased", "procrustes"])
def test_permutations_show_their_progress(name):
    found, _ = prepared(name, independent(20, 0, 2))
    orders, shown = shuffled(20, 19, 0), []

    def progress(steps, measure):
        for step in steps:
            yield step
            shown.append((measure, len(steps)))

    silent = permute_pairs(found, orders)
    assert torch.equal(permute_pairs(found, orders, progress), silent)
    assert shown == [(name, len(shown))] * len(shown)
    assert len(shown) > 1


@pytest.mark.parametrize("name", ["cka_unbiased", "procrustes"])
def test_permutations_resume_where_they_were_interrupted(name):
    found, _ = prepared(name, independent(20, 0, 2))
    orders = shuffled(20, 39, 0)
    whole = permute_pairs(found, orders)
    noted = np.full(whole.shape, np.nan)

    def interrupted(steps, measure):
        yield steps[0]
        yield steps[1]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        permute_pairs(found, orders, interrupted, noted)
    there = int((~np.isnan(noted)).all((1, 2)).sum())
    assert 0 < there < 39
    left = []

    def counted(steps, measure):
        for step in steps:
            left.append(len(step) if isinstance(step, list) else 1)
            yield step

    assert torch.equal(permute_pairs(found, orders, counted, noted), whole)
    assert sum(left) == 39 - there


def test_calibrated_score_by_hand():
    """Observed 0.9 among 0.1 ... 0.4 at alpha 0.2: the threshold is the 4th of 5 sorted values, 0.4."""
    null = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).view(4, 1, 1)
    observed = torch.tensor([[0.9]], dtype=torch.float64)
    card = measures.card("cka")
    threshold = judging.compute_null_quantile(observed, null, card, 0.2)
    assert float(threshold) == 0.4
    assert float(judging.calibrate(observed, threshold, card)) == pytest.approx(0.5 / 0.6)
    assert float(judging.p_values(observed, null, card)) == pytest.approx(1 / 5)
    assert float(judging.calibrate(observed * 0.3, threshold, card)) == 0
    distance = measures.card("procrustes")
    assert float(judging.p_values(observed, null, distance)) == 1
    assert float(judging.calibrate(0.3 * observed, threshold, distance)) == pytest.approx(0.13 / 0.4)
    endless = replace(card, bounds=(None, None))
    assert float(judging.calibrate(observed, threshold, endless)) == pytest.approx(0.5)
    assert float(judging.calibrate(0.3 * observed, threshold, replace(endless, larger_is_closer=False))) == (
        pytest.approx(0.13)
    )


def test_the_threshold_is_without_what_pairings_keep_by_leaving_rows_in_place():
    """The threshold by hand, 0.4, less what drawn pairings have on average beyond those that leave no row in place."""
    null = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).view(4, 1, 1)
    observed = torch.tensor([[0.9]], dtype=torch.float64)
    seen = {"tested": observed, "null": null, "away": torch.tensor([[0.2]], dtype=torch.float64)}
    matrix = SimilarityMatrix(values=observed, se=None, estimate="full", rows=40, batches=1, statistics=seen)
    settings = Significance(method="permutation", alpha=0.2)
    judged = judging.judge(settings, measures.get("cka"), matrix, Segments([], 40, 1.0), [slice(0, 1)])
    assert float(judged.calibrated) == pytest.approx((0.9 - 0.35) / 0.65)


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
            error = judging.jackknife(found, matrix, np.arange(200))[0, 1]
            values.append(float(matrix[0, 1]))
            errors.append(float(error))
            inside.append(truth is None or abs(values[-1] - truth) < 1.96 * errors[-1])
        assert np.mean(errors) == pytest.approx(np.std(values), rel=0.35)
        assert np.mean(inside) >= 0.9


def test_sampled_rows_say_what_rsa_is_of_all_with_their_error():
    """Samples of a tenth of the rows, of documents that come in order of topics: two errors hold the value of other
    documents' pairs in 0.93 of 100 draws or more, less two binomial errors (`benchmarks/many_rows.py`)."""
    rng, inside = np.random.default_rng(0), []
    mixing, documents = [rng.normal(size=(4, 8)) for _ in range(2)], np.repeat(np.arange(600), 4)
    topics = rng.normal(size=(12, 4))

    def draw():
        centres = 2 * topics[np.sort(rng.integers(12, size=600))] + rng.normal(size=(600, 4))
        signal = centres.repeat(4, 0) + rng.normal(size=(2400, 4))
        return [torch.from_numpy(np.tanh(signal @ m / 3) + rng.normal(size=(2400, 8)) / 3) for m in mixing]

    def compute(xs, rows):
        of = torch.from_numpy(documents[rows])
        return prepared("rsa_euclidean", [x[rows] for x in xs], documents=of)

    truth = np.mean([float(compute(draw(), np.arange(0, 2400, 4))[1][0, 1]) for _ in range(40)])
    for _ in range(100):
        xs = draw()
        rows = np.sort(rng.choice(2400, 240, replace=False))
        found, matrix = compute(xs, rows)
        error = float(judging.jackknife(found, matrix, documents[rows])[0, 1])
        inside.append(abs(float(matrix[0, 1]) - truth) < 2 * error)
    assert np.mean(inside) >= 0.93 - 2 * (0.95 * 0.05 / 100) ** 0.5


def test_jackknife_takes_copies_of_a_row_as_one():
    """Every row three times in one cluster: the standard error is that of the rows without their copies."""
    rng = np.random.default_rng(1)
    base = rng.normal(size=(80, 3))
    sides = [torch.from_numpy(base @ rng.normal(size=(3, 5)) + rng.normal(size=(80, 5))) for _ in range(2)]
    single = judging.jackknife(*prepared("cka", sides), np.arange(80))
    tripled = [side.repeat_interleave(3, 0) for side in sides]
    clustered = judging.jackknife(*prepared("cka", tripled), np.repeat(np.arange(80), 3))
    torch.testing.assert_close(clustered, single, atol=1e-10, rtol=1e-8)
    naive = judging.jackknife(*prepared("cka", tripled), np.arange(240))
    assert float(naive[0, 1]) < 0.7 * float(single[0, 1])


def test_jackknife_of_a_similarity_of_exactly_zero_is_a_number():
    """Two features at a right angle: CKA is 0, its standard error is not undefined."""
    x, y = (torch.tensor([[float(v)] for v in side], dtype=torch.float64) for side in ([1, 1, -1, -1], [1, -1, 1, -1]))
    found, values = prepared("cka", [x, y])
    assert float(values[0, 1]) == 0
    assert torch.isfinite(judging.jackknife(found, values, np.arange(4))).all()


@pytest.mark.parametrize("documents", [5, 12])
def test_jackknife_of_few_documents_covers_the_mean_of_as_many(documents):
    """t intervals, of documents of eight rows that share half of their variance; 400 draws, 3.5 binomial errors."""
    rng, values, errors = np.random.default_rng(documents), [], []
    clusters = np.repeat(np.arange(documents), 8)
    for _ in range(400):
        x, noise = (rng.normal(size=(documents, 6))[clusters] + rng.normal(size=(len(clusters), 6)) for _ in range(2))
        found, matrix = prepared("cka", [torch.from_numpy(x), torch.from_numpy(0.7 * x + 0.7 * noise)])
        values.append(float(matrix[0, 1]))
        errors.append(float(judging.jackknife(found, matrix, clusters)[0, 1]))
    half = scipy.stats.t.ppf(0.975, documents - 1) * np.array(errors)
    inside = np.mean(np.abs(np.array(values) - np.mean(values)) <= half)
    assert inside == pytest.approx(0.95, abs=3.5 * (0.95 * 0.05 / 400) ** 0.5)


def test_one_document_has_no_standard_error():
    sides = [torch.randn(20, 4, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in range(2)]
    assert torch.isnan(judging.jackknife(*prepared("cka", sides), np.zeros(20, int))).all()


@pytest.mark.parametrize("batches", [2, 4, 7, 30])
def test_bands_cover_the_mean(batches):
    """t intervals hold their level at any number of batches; 1000 draws, four binomial errors."""
    values = torch.from_numpy(np.random.default_rng(batches).normal(size=(batches, 1000)))
    settings, card = Significance(level=0.9), measures.card("stress")
    se = values.std(0) / batches**0.5
    low, high = judging.compute_t_intervals(values.mean(0) + 9, se, batches, settings, card)
    assert float(((low <= 9) & (high >= 9)).double().mean()) == pytest.approx(0.9, abs=4 * (0.9 * 0.1 / 1000) ** 0.5)


def test_bands_stay_within_what_a_measure_can_be():
    values, se = torch.tensor([[0.99]], dtype=torch.float64), torch.tensor([[0.1]], dtype=torch.float64)
    low, high = judging.compute_t_intervals(values, se, 4, Significance(), measures.card("cka"))
    assert float(high) == 1
    assert float(low) == pytest.approx(0.99 - 3.182446 * 0.1, abs=1e-6)
    for name, least in (("cka", 0), ("cka_unbiased", 0.01 - 3.182446 * 0.1)):
        low, _ = judging.compute_t_intervals(values - 0.98, se, 4, Significance(), measures.card(name))
        assert float(low) == pytest.approx(least, abs=1e-6)


def test_errors_of_a_ratio_of_sums():
    """Leaving one batch out: of a mean its own standard error, and of CKA from sums what fresh batches scatter."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(9, 2, 2))
    torch.testing.assert_close(
        judging.compute_jackknife_errors(values, torch.clone),
        torch.from_numpy(values.std(0, ddof=1) / 3),
        atol=1e-12,
        rtol=1e-12,
    )

    def ratio(mean):
        return mean / (mean.diagonal()[:, None] * mean.diagonal()).sqrt()

    def batch():
        a, b = rng.gamma(9, size=2)
        return np.array([[a, 0.5 * (a * b) ** 0.5], [0.5 * (a * b) ** 0.5, b]])

    runs = [np.stack([batch() for _ in range(12)]) for _ in range(200)]
    scatter = np.std([float(ratio(torch.from_numpy(run.mean(0)))[0, 1]) for run in runs])
    errors = [float(judging.compute_jackknife_errors(run, ratio)[0, 1]) for run in runs]
    assert np.mean(errors) == pytest.approx(scatter, rel=0.25)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["significance=closed_form", "measure=[mutual_knn]"], "significance.method: mutual_knn has no closed form"),
        (
            ["significance=closed_form", "measure=[cka]"],
            "tokens of a document depend on each other and the closed form",
        ),
        (
            ["significance=permutation", "measure=[cka]", "extract.estimate=ratio_of_sums"],
            "sums over batches have no null, got ratio_of_sums; use extract.estimate=per_batch or full",
        ),
        (
            ["significance.jackknife=true", "measure=[cka]"],
            "significance.jackknife: it needs a single sample, got per_batch",
        ),
        (
            ["significance.jackknife=true", "extract.estimate=full", "measure=[mutual_knn]"],
            "mutual_knn is not a normalised inner product",
        ),
        (
            ["significance=permutation", "measure=[magnitude_difference]"],
            "magnitude_difference does not depend on how rows are paired, so that random pairs are not a null for it",
        ),
        (["measure=[tolerance_difference]"], "tolerance_difference needs a label per row, got data without labels"),
        (
            ["significance.bands=true", "extract.estimate=full"],
            "significance.bands: they need several batches, got full; use extract.estimate=per_batch, or significance.jack",
        ),
        (["significance.permutations=5"], "significance.permutations: wrong value, got 5"),
        (
            ["significance=closed_form", "significance.family=max_t", "significance.clusters=row", "measure=[cka]"],
            "significance.family: max_t needs permutations, got closed_form; use holm, or significance=permutation",
        ),
        (
            ["significance=permutation", "significance.family=holm", "measure=[cka]"],
            "Holm's correction of 36 cells cannot reach 0.05 with p values of at least 1/200, got 199; give at least 719",
        ),
        (["significance=permutations"], "did you mean"),
    ],
)
def test_bad_settings(repsim, words, message):
    code, _, err = repsim("run", *words)
    assert code == 2
    assert message in err


def planted(seed, cells=64, true=20, draws=199, effect=4.0):
    """Statistics of a map, which share a factor, and their joint null; the first `true` cells have an effect."""
    rng = np.random.default_rng(seed)
    scales = np.exp(rng.normal(size=cells))  # nulls of different widths
    values = (rng.normal(size=(draws + 1, cells)) + rng.normal(size=(draws + 1, 1))) * scales
    values[0, :true] += effect * scales[:true]
    return torch.from_numpy(values[0]), torch.from_numpy(values[1:])


def test_holm_by_hand():
    """The smallest of m times m, the next times m - 1; none below one before it, none above 1."""
    p = torch.tensor([0.5, 0.01, 0.4, 0.02], dtype=torch.float64)
    assert corrections.correct_by_holm(p).tolist() == pytest.approx([0.8, 0.04, 0.8, 0.06])
    assert corrections.correct_by_holm(torch.tensor([0.6, 0.7])).tolist() == [1, 1]


@pytest.mark.parametrize("seed", range(4))
def test_max_t_by_hand(seed):
    """Standardised by mean and deviation, cell after cell from the closest, against the maximum of what is left."""
    observed, null = planted(seed, cells=6, true=2, draws=12, effect=1.0)
    both = np.vstack([observed, null])
    both = (both - both.mean(0)) / both.std(0)
    expected, before = np.zeros(6), 0.0
    left = list(range(6))
    while left:
        closest = max(left, key=lambda cell: both[0, cell])
        count = sum(max(row[cell] for cell in left) >= both[0, closest] for row in both[1:])
        before = max(before, (1 + count) / 13)
        expected[closest] = before
        left.remove(closest)
    assert corrections.correct_by_max_t(observed, null).tolist() == pytest.approx(expected.tolist())


def test_errors_on_planted_maps():
    """Of maps with 20 true cells of 64: max-T errs anywhere in 5 % of maps at most, the discoveries of q are false in 5 %
    at most, and max-T finds more than Holm's correction and less than q. Bounds are four standard errors."""
    maps = 300
    errors, false, power = [], [], []
    for seed in range(maps):
        observed, null = planted(seed)
        p = judging.p_values(observed[None], null[:, None], measures.card("cka"))[0]
        whole = [slice(0, 1), slice(1, 65)]  # a model of one layer against one of 64
        fill = torch.ones(65, 65, dtype=torch.float64)
        p_all, tested, nulls = fill.clone(), fill.clone(), torch.ones(len(null), 65, 65, dtype=torch.float64)
        p_all[0, 1:], tested[0, 1:], nulls[:, 0, 1:] = p, observed, null
        among = corrections.group_into_families(tested, measures.card("cka"), whole, "map")
        made = corrections.correct(p_all, tested, nulls, measures.card("cka"), among)
        family, q = (part[0, 1:] for part in made)
        assert torch.equal(family, corrections.correct_by_max_t(observed, null))
        found = q <= 0.05
        errors.append(bool((family[20:] <= 0.05).any()))
        false.append(float(found[20:].sum() / max(1, found.sum())))
        power.append([float((x[:20] <= 0.05).float().mean()) for x in (corrections.correct_by_holm(p), family, q)])
    assert np.mean(errors) <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / maps)
    assert np.mean(false) <= 0.05 + 4 * np.std(false) / np.sqrt(maps)
    assert np.mean(false) > 0  # the bound could be exceeded
    holm, family, q = np.mean(power, axis=0)
    assert holm < family < q


def test_distances_are_corrected_towards_small_values():
    """A distance is significant where it is small: its correction is that of its negative as a similarity."""
    rng = np.random.default_rng(0)
    tested, null = torch.from_numpy(rng.normal(size=(4, 4))), torch.from_numpy(rng.normal(size=(99, 4, 4)))
    tested, null = tested + tested.mT, null + null.mT
    p = (1 + (null <= tested).sum(0)).double() / 100
    among = corrections.group_into_families(tested, measures.card("procrustes"), [slice(0, 4)], "map")
    found = corrections.correct(p, tested, null, measures.card("procrustes"), among)
    expected = corrections.correct(p, -tested, -null, measures.card("cka"), among)
    off = ~torch.eye(4, dtype=torch.bool)
    assert torch.equal(found[0][off], expected[0][off])
    assert found[0][off].argmin() == tested[off].argmin()


@pytest.mark.parametrize(
    ("of", "layers", "name", "cells"),
    [
        ("run", [3, 5], "cka", 28),
        ("map", [3, 5], "cka", 15),
        ("map", [2, 5, 4], "cka", 20),
        ("map", [5], "cka", 10),
        ("map", [2], "cka", 1),
        ("map", [5], "neuronsim", 20),
        ("map", [3, 5], "neuronsim", 20),
        ("run", [3, 5], "neuronsim", 56),
    ],
)
def test_so_many_permutations_are_needed_as_the_largest_family_has_cells(of, layers, name, cells):
    """A pair of layers is one cell, and two of a measure that differs between the directions."""
    card, total = measures.card(name), sum(layers)
    ends = np.cumsum(layers)
    places = [slice(int(end - count), int(end)) for end, count in zip(ends, layers, strict=True)]
    families = corrections.group_into_families(torch.ones(total, total), card, places, of)
    assert max(int(family.sum()) for family in families) == cells
    enough = Significance(method="permutation", family="holm", family_of=of, permutations=20 * cells - 1)
    corrections.check_family(enough, layers, card.symmetric)
    message = f"correction of {cells} cells cannot reach 0.05 .* give at least {20 * cells - 1}"
    with pytest.raises(BadInput, match=message):
        corrections.check_family(replace(enough, permutations=20 * cells - 2), layers, card.symmetric)


def test_a_measure_in_both_directions_has_two_tests_per_pair():
    """Under a symmetric measure a pair of layers counts once, under an asymmetric one twice."""
    p = torch.full((3, 3), 0.01, dtype=torch.float64)
    both = {}
    for name in ("cka", "neuronsim"):
        among = corrections.group_into_families(p, measures.card(name), [slice(0, 3)], "map")
        both[name] = corrections.correct(p, p, None, measures.card(name), among)[0]
    off = ~torch.eye(3, dtype=torch.bool)
    assert both["cka"][off].tolist() == pytest.approx([0.03] * 6)
    assert both["neuronsim"][off].tolist() == pytest.approx([0.06] * 6)
    assert both["cka"].diagonal().tolist() == both["neuronsim"].diagonal().tolist() == [0.01] * 3


def test_a_run_with_permutations(repsim, newest):
    small = ("model=[tiny_a,tiny_b]", "extract.sequences=16", "extract.batch_rows=400", "significance.permutations=19")
    code, _, err = repsim("run", "significance=permutation", "significance.bands=true", *small)
    assert code == 0, err
    found = recorded(newest())
    (warned,) = [one for one in found["warnings"] if one.startswith("significance: p values and calibrated")]
    for measure in found["measures"]:
        null = measure["null"]
        assert {**null, "segments": 0, "share": 0} == {
            "method": "permutation", "permutations": 19, "clusters": "document", "alpha": 0.05, "family": "max_t",
            "family_of": "map", "families": 3, "permutations_for_q": 719, "segments": 0, "share": 0,
        }  # fmt: skip
        assert null["segments"] >= 10
        assert 0 < null["share"] < 1
        assert f"of {100 * null['share']:.0f} % of the rows, in {null['segments']} segments" in warned
        for matrix in measure["matrices"]:
            assert matrix.get("q") is None  # with 19 permutations none of 36 cells could be told
            keys = ("p", "p_family", "calibrated", "tested", "values", "low", "high")
            parts = {key: reader.read_array(newest(), matrix[key]) for key in keys}
            assert parts["p"].min() >= 0.05 - 1e-12
            assert (parts["tested"] != parts["values"]).any()
            assert (parts["p_family"] >= parts["p"] - 1e-12).all()
            assert parts["p_family"].max() <= 1
            if matrix["rows"]["model"] == matrix["columns"]["model"]:
                for key in ("p", "p_family"):
                    assert (parts[key] == parts[key].T).all()
                    assert (parts[key].diagonal() == parts["p"].diagonal()).all()
            assert (parts["low"] <= parts["high"]).all()
            assert ((parts["calibrated"] >= 0) & (parts["calibrated"] <= 1)).all()
    assert not list(newest().glob(".p*"))


def test_bands_of_a_ratio_of_sums(repsim, newest):
    words = ("model=[tiny_a]", "extract.sequences=8", "extract.batch_rows=200", "extract.estimate=ratio_of_sums")
    assert repsim("run", "measure=[cka_unbiased]", "significance.bands=true", *words)[0] == 0
    (measure,) = recorded(newest())["measures"]
    (matrix,) = measure["matrices"]
    low, values, high, se = (reader.read_array(newest(), matrix[key]) for key in ("low", "values", "high", "se"))
    off = ~np.eye(len(values), dtype=bool)
    assert (low[off] < values[off]).all()
    assert (values[off] <= high[off]).all()
    assert (se[off] > 0).all()
    assert not list(newest().glob(".per-batch*"))


def test_one_document_is_no_null(repsim, tmp_path, monkeypatch):
    """Its sequences stand for documents, with a warning; of few of them no permutation says anything: refused, with the
    settings that help."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"Paragraph {i} says {' and '.join('abcdefghij'[i % 9 :])}. " * 9 for i in range(40)))
    words = (
        "model=[tiny_a]", "data=local_text", f"data.path={text}", "significance=permutation", "measure=[cka_unbiased]",
        "extract.estimate=full", "significance.permutations=19",
    )  # fmt: skip
    code, _, err = repsim("run", *words, "extract.sequences=5")
    assert code == 2
    assert re.search(
        r"got \d of 5; give more documents, or set significance.clusters=row where rows do not depend", err
    )
    assert repsim("run", *words, "data.sample_by=paragraph")[0] == 0


def test_heavy_rows_have_no_corrected_p_in_closed_form(repsim, newest, tmp_path):
    """One row holds most of the variance: moments do not tell the tail of the null."""
    rng = np.random.default_rng(0)
    large = np.where(np.arange(80) == 3, 30, 1)[:, None]
    rows = {"plain": rng.normal(size=(80, 12)), "heavy": rng.normal(size=(80, 12)) * large}
    for name, x in rows.items():
        np.savez(tmp_path / name, a=x, b=x + 0.1 * rng.normal(size=x.shape))
        model = f"+model.one={{kind: precomputed, path: {tmp_path / name}.npz}}"
        words = ("model=[]", model, "extract.estimate=full", "significance=closed_form", "significance.clusters=row", "measure=[cka]")  # fmt: skip
        assert repsim("run", *words)[0] == 0
        found = recorded(newest())
        warned = [one for one in found["warnings"] if "the closed form does not know the tail of the null" in one]
        assert len(warned) == (name == "heavy")
        (measured,) = found["measures"]
        assert measured["null"]["heavy"] == (name == "heavy")
        for key in ("p_family", "q"):
            assert (measured["matrices"][0].get(key) is None) == (name == "heavy")


def test_a_run_with_the_closed_form_marks_chance(repsim, newest, tmp_path):
    """Unrelated stored activations are crossed out in the figure, related ones are not."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 8))
    np.savez(tmp_path / "one.npz", a=x, b=x + 0.3 * rng.normal(size=x.shape))
    np.savez(tmp_path / "other.npz", c=rng.normal(size=(200, 8)))
    models = [f"+model.{name}={{kind: precomputed, path: {tmp_path / name}.npz}}" for name in ("one", "other")]
    words = ("model=[]", *models, "extract.estimate=full", "significance=closed_form", "significance.clusters=row", "measure=[cka_unbiased]")  # fmt: skip
    assert repsim("run", *words)[0] == 0
    found = recorded(newest())["measures"][0]["matrices"]
    p = {(m["rows"]["model"], m["columns"]["model"]): reader.read_array(newest(), m["p"]) for m in found}
    assert p["one", "one"].max() == 1e-6
    assert p["one", "other"].min() > 0.05
    assert repsim("plot", newest())[0] == 0


def judged_of(observed, null, settings, places):
    """The significance of a map from its statistics and their null."""
    statistics = {"tested": observed, "null": null, "away": null.mean(0)}
    matrix = SimilarityMatrix(values=observed, se=None, estimate="full", rows=40, batches=1, statistics=statistics)
    return judging.judge(settings, measures.get("cka"), matrix, Segments([], 40, 1.0), places)


def draw_pairings(documents, sides, batch=0, **settings):
    """What CKA of a batch is observed with beside its values."""
    return judging.draw_pairings(
        Significance(method="permutation", **settings), {"cka": measures.get("cka")}, documents,
        names=["a", "b"], seed=0, tile=512, labels=lambda batch: None,
        notes=lambda batch, label, shape: np.full(shape, np.nan),
    )(batch, sides)  # fmt: skip


def test_documents_are_shuffled_or_move_on_by_as_many():
    """Every drawn value under `shifts` is that of one side moved on by whole documents; of other orders few are."""
    sides = independent(36, 0)
    documents = segments.find_segments([np.repeat(np.arange(12), 3)], [np.tile([segments.BOTH, 0, 0], 12)])
    moved = [float(measures.get("cka")(sides[0], sides[1].roll(3 * k, 0))) for k in range(12)]
    for order in ("shifts", "any"):
        found = draw_pairings(documents, sides, permutations=99, order=order)
        drawn = found["cka", "null"][:, 0, 1].numpy()
        assert len(drawn) == 99
        assert float(found["cka", "tested"][0, 1]) == pytest.approx(moved[0])
        hits = np.isclose(drawn[:, None], moved, rtol=1e-9, atol=0).any(1).mean()
        assert hits == 1 if order == "shifts" else hits < 0.1


def test_a_batch_without_documents_that_trade_places_is_not_tested():
    rows = [np.repeat(np.arange(12), 3), np.full(36, 12)]
    begins = [np.tile([segments.BOTH, 0, 0], 12), np.array([segments.BOTH, *[0] * 35])]
    documents = segments.find_segments(rows, begins)
    assert draw_pairings(documents, independent(36, 0), batch=1) == {}
    assert draw_pairings(documents, independent(36, 0), permutations=19) != {}


def test_the_family_is_a_map_or_the_run():
    """Three models of two layers: max-T over the twelve cells across and the three within, or over each map."""
    observed, null = (x.view(-1, 6, 6) for x in planted(0, cells=36, true=4))
    upper = torch.ones(6, 6, dtype=torch.bool).triu()
    observed, null = (torch.where(upper, x, x.mT) for x in (observed[0], null))
    places = [slice(0, 2), slice(2, 4), slice(4, 6)]
    made = {
        of: judged_of(observed, null, Significance(method="permutation", family_of=of), places) for of in ("map", "run")
    }
    cells = upper & ~torch.eye(6, dtype=torch.bool)
    expected = corrections.correct_by_max_t(observed[cells], null[:, cells])
    assert made["run"].p_family[cells].tolist() == expected.tolist()
    block = made["map"].p_family[:2, 2:4].flatten()
    assert (
        block.tolist()
        == corrections.correct_by_max_t(observed[:2, 2:4].flatten(), null[:, :2, 2:4].flatten(1)).tolist()
    )
    assert (made["map"].p_family <= made["run"].p_family).all()
    assert [made[of].null["families"] for of in made] == [6, 1]
    holm = judged_of(observed, null, Significance(method="permutation", family="holm", family_of="run"), places)
    assert holm.p_family[cells].tolist() == corrections.correct_by_holm(holm.p[cells]).tolist()
    assert (holm.null["family"], made["run"].null["family"]) == ("holm", "max_t")


def test_q_is_given_where_it_can_be_small():
    """Of 2 x 3 cells from 119 permutations on, of 1 within a model from 19, of the run's 10 from 199."""
    observed, null = (x.view(-1, 5, 5) for x in planted(1, cells=25, true=4))
    places = [slice(0, 2), slice(2, 5)]

    def q_of(count, of="map"):
        settings = Significance(method="permutation", permutations=count, family_of=of)
        judged = judged_of(observed[0], null[:count], settings, places)
        return judged.q, judged.null.get("permutations_for_q")

    whole, needed = q_of(119)
    assert needed is None
    assert whole.isfinite().all()
    some, needed = q_of(99)
    assert needed == 119
    assert some[:2, :2].isfinite().all()
    assert some[2:, 2:].isfinite().all()
    assert some[:2, 2:].isnan().all()
    assert q_of(198, "run") == (None, 199)
    assert q_of(199, "run")[1] is None


def judge_z(z, skewness, heaviness):
    """The significance of a map in closed form, from z of each batch."""
    fill = torch.ones_like(z[0])
    seen = {"z": z.mean(0), "skewness": skewness * fill, "heaviness": heaviness * fill}
    matrix = SimilarityMatrix(values=fill, se=None, estimate="per_batch", rows=1, batches=len(z), statistics=seen)
    settings = Significance(method="closed_form")
    return judging.judge(settings, measures.get("cka"), matrix, None, [slice(0, len(fill))])


def test_p_in_closed_form_is_that_of_all_batches_together():
    """Four gamma variables of shape 2 are one of shape 8; of four of t with 8 degrees of freedom, 1 and 0.1 % are found."""
    rng = np.random.default_rng(0)
    z = rng.gamma(2, size=(4, 20, 20))
    p = judge_z(torch.from_numpy((z - 2) / 2**0.5), 2**0.5, 0.0).p
    np.testing.assert_allclose(p, scipy.stats.gamma.sf(z.sum(0), 8), atol=1e-6)
    p = judge_z(torch.from_numpy(rng.standard_t(8, size=(4, 300, 300)) * (6 / 8) ** 0.5), 0.0, 6 / 4).p
    for level in (0.01, 0.001):
        assert float((p < level).double().mean()) == pytest.approx(level, abs=4 * (level / 90_000) ** 0.5 + 0.1 * level)


def test_a_tail_that_moments_do_not_tell_has_no_corrected_p():
    """Of a skewness of 4, or a heaviness of 8, in one batch; that of four batches is half of it, or a quarter."""
    for skewness, heaviness in ((4.0, 0.0), (0.0, 8.0)):
        for batches in (1, 4):
            judged = judge_z(torch.zeros(batches, 3, 3, dtype=torch.float64), skewness, heaviness)
            assert (judged.p_family is None) == (judged.q is None) == (batches == 1)
            assert judged.p.isfinite().all()


def test_heavy_rows_keep_their_level_at_the_tail():
    """Log-normal norms: at a 36th of 5 %, three moments reject several times too often, and the fourth keeps it."""
    rng = np.random.default_rng(0)
    squares = []
    for _ in range(2):
        x = rng.normal(size=(50, 24)) * rng.lognormal(sigma=0.75, size=(50, 1))
        square = (x - x.mean(0)) @ (x - x.mean(0)).T
        squares.append(square * (1 - np.eye(50)))
    null = closed_null.compute_closed_form_null(
        *([closed_null.compute_null_moments(torch.from_numpy(x))] for x in squares)
    )
    orders = (rng.permutation(50) for _ in range(20_000))
    drawn = torch.tensor([np.vdot(squares[0], squares[1][o][:, o]) for o in orders], dtype=torch.float64)
    z = (drawn - float(null.mean)) / float(null.deviation)
    level = 0.05 / 36
    rates = {}
    for name, heaviness in (("three", 0.0), ("four", float(null.heaviness))):
        p = closed_null.compute_tail_p(z, torch.full_like(z, float(null.skewness)), torch.full_like(z, heaviness))
        rates[name] = float((p <= level).double().mean()) / level
    assert 0.5 < float(null.heaviness) < judging.HEAVY
    assert rates["three"] > 2
    assert rates["four"] < 1.5
