"""Standard errors and bands against what they claim: the bootstrap, coverage."""

import warnings

import numpy as np
import pytest
import scipy.stats
import torch
from helpers.unrelated import prepared

from repsim_cli import measures
from repsim_cli.base.settings import Significance
from repsim_cli.engine import significance as judging
from repsim_cli.measures.base import MeasureWarning


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


@pytest.mark.slow
def test_sampled_rows_say_what_rsa_is_of_all_with_their_error():
    """Samples of a tenth of the rows, of documents that come in order of topics: two errors hold the value of other
    documents' pairs in 0.93 of 60 draws or more, less two binomial errors (`benchmarks/many_rows.py`)."""
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
    for _ in range(60):
        xs = draw()
        rows = np.sort(rng.choice(2400, 240, replace=False))
        found, matrix = compute(xs, rows)
        error = float(judging.jackknife(found, matrix, documents[rows])[0, 1])
        inside.append(abs(float(matrix[0, 1]) - truth) < 2 * error)
    assert np.mean(inside) >= 0.93 - 2 * (0.95 * 0.05 / 60) ** 0.5


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


def draw_documents(rng, kind, documents=24, rows=6):
    """Two related layers of documents with effects of their own, and which document each row is of."""
    counts = rng.integers(3, 20, documents) if kind == "uneven" else np.full(documents, rows)
    of = np.repeat(np.arange(documents), counts)
    scale = rng.pareto(1.5, documents) + 1 if kind == "heavy" else np.ones(documents)
    x, noise = (
        scale[of, None] * (rng.normal(size=(documents, 8))[of] + rng.normal(size=(len(of), 8))) for _ in range(2)
    )
    if kind == "rare":  # a massive feature in four rows
        x[rng.choice(len(of), 4, replace=False), 3] += 100
    return [torch.from_numpy(x), torch.from_numpy(0.6 * x + 0.8 * noise)], of


@pytest.mark.parametrize(("kind", "warned"), [("plain", 0), ("uneven", 0), ("heavy", 1), ("rare", 1)])
def test_errors_that_few_documents_make_are_warned_of(kind, warned):
    """Intervals hold the value of other documents too seldom where a warning says so."""
    told = 0
    for seed in range(40):
        sides, of = draw_documents(np.random.default_rng(seed), kind)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", MeasureWarning)
            judging.jackknife(*prepared("cka_unbiased", sides), of)
        told += any("few documents make most of" in str(each.message) for each in caught)
    assert (told >= 30) if warned else (told <= 1)


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
