"""Numbers of one layer: against plain recomputations, planted manifolds, and what errors promise."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.spatial import cKDTree
from scipy.special import beta

from repsim_cli.base.errors import Degenerate
from repsim_cli.studies.layers import scores
from repsim_cli.studies.layers.study import find_copies


def planted(rng, n, dim, wide=20):
    """Rows on a rotated plane of this dimension."""
    rotation, _ = np.linalg.qr(rng.normal(size=(wide, dim)))
    return rng.normal(size=(n, dim)) @ rotation.T


@pytest.mark.parametrize("k", [1, 2, 5])
def test_dimension_is_the_most_likely_one(k):
    """The density is that of the ratio of two neighbours' distances, as it is printed (Denti et al. 2022)."""
    x = planted(np.random.default_rng(0), 200, 4)
    distances, _ = cKDTree(x).query(x, 2 * k + 1)
    ratios = distances[:, 2 * k] / distances[:, k]

    def unlikely(d):
        density = d * (ratios**d - 1) ** (k - 1) / ratios ** ((2 * k - 1) * d + 1) / beta(k, k)
        return -np.log(density).sum()

    wanted = minimize_scalar(unlikely, bounds=(0.1, 50), method="bounded", options={"xatol": 1e-9}).x
    wanted *= (len(x) - 1) / len(x) if k == 1 else 1  # unbiased
    near = scores.find_nearest_distances(torch.from_numpy(x), 3 * k + 10)
    assert scores.estimate_intrinsic_dimension(near, k, np.arange(200)).value == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("dim", [2, 5])
def test_planted_dimensions_are_within_their_errors(dim):
    rng, off = np.random.default_rng(1), []
    for _ in range(40):
        near = scores.find_nearest_distances(torch.from_numpy(planted(rng, 300, dim)), 30)
        found = scores.estimate_intrinsic_dimension(near, 2, np.arange(300))
        value, se = found.value, found.se
        off.append((value - dim) / se)
    assert np.mean(np.abs(off) < 2) >= 0.95
    assert np.std(off) > 0.3  # an error that says something


def test_errors_hold_where_texts_of_a_document_are_alike():
    """Errors are over draws of documents, of which whole ones are left out."""
    rng, found = np.random.default_rng(2), []
    for _ in range(30):
        x = np.repeat(planted(rng, 60, 6), 5, 0) + 0.3 * planted(rng, 300, 6)
        near = scores.find_nearest_distances(torch.from_numpy(x), 40)
        of = scores.estimate_intrinsic_dimension(near, 1, np.repeat(np.arange(60), 5))
        found.append((of.value, of.se))
    values, errors = np.array(found).T
    assert 0.9 < errors.mean() / values.std(ddof=1) < 2.5
    assert np.mean(np.abs(values - values.mean()) < 2 * errors) >= 0.88


def test_equal_rows_have_no_dimension():
    x = torch.from_numpy(np.repeat(planted(np.random.default_rng(3), 50, 3), 4, 0))
    with pytest.raises(Degenerate, match="200 of 200 rows that are equal to others"):
        scores.estimate_intrinsic_dimension(scores.find_nearest_distances(x, 20), 1, np.arange(200))
    with pytest.raises(Degenerate, match="equal rows"):
        scores.effective_rank(torch.ones(5, 3))


def test_effective_rank():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(60, 8)) * np.arange(1, 9)
    shares = np.linalg.eigvalsh(np.cov(x.T))
    shares = shares / shares.sum()
    assert scores.effective_rank(torch.from_numpy(x)) == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))


def test_numbers_of_texts_by_hand():
    rng = np.random.default_rng(5)
    texts = rng.normal(size=(3, 7, 4))
    for text, entropy, curvature in zip(
        texts,
        scores.compute_prompt_entropies(torch.from_numpy(texts)),
        scores.compute_curvatures(torch.from_numpy(texts)),
        strict=True,
    ):
        shares = np.linalg.svd(text, compute_uv=False) ** 2
        shares /= shares.sum()
        assert float(entropy) == pytest.approx(-(shares * np.log(shares)).sum() / np.log(4))
        angles = []
        for before, here, after in zip(text, text[1:], text[2:], strict=False):
            one, other = here - before, after - here
            angles.append(np.degrees(np.arccos(one @ other / np.linalg.norm(one) / np.linalg.norm(other))))
        assert float(curvature) == pytest.approx(np.mean(angles))
    line = torch.arange(5.0)[None, :, None] * torch.ones(3)
    assert float(scores.compute_curvatures(line)[0]) == pytest.approx(0, abs=1e-5)
    wide = torch.from_numpy(rng.normal(size=(40, 30, 2000)))
    assert float(scores.compute_curvatures(wide).mean()) == pytest.approx(120, abs=0.3)  # independent rows


def test_mean_cosine_is_over_texts():
    rng = np.random.default_rng(6)
    x, text = rng.normal(size=(30, 5)) + 1, np.repeat(np.arange(10), 3)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    wanted = [unit[i] @ unit[j] for i in range(30) for j in range(30) if text[i] != text[j]]
    sums = torch.from_numpy(np.stack([unit[text == i].sum(0) for i in range(10)]))
    assert scores.mean_cosine(sums, torch.full((10,), 3.0)) == pytest.approx(np.mean(wanted))


def test_neighbours_of_the_same_class():
    rng = np.random.default_rng(7)
    classes = np.repeat([0, 1, 2], [30, 20, 10])
    near = scores.find_nearest_distances(torch.from_numpy(rng.normal(size=(60, 5)) + 20 * classes[:, None]), 12)
    shares, chance = scores.compute_same_class_shares(near, 9, classes)
    assert shares.tolist() == [1] * 60
    drawn = [np.mean(np.delete(classes, i) == classes[i]) for i in range(60)]
    assert chance == pytest.approx(np.mean(drawn))
    shuffled, _ = scores.compute_same_class_shares(near, 9, rng.permutation(classes))
    assert shuffled.mean() == pytest.approx(chance, abs=0.08)


def test_means_are_over_documents():
    found = scores.average_over_documents(np.array([1.0, 3.0, 6.0, np.nan]), np.array([0, 0, 1, 2]))
    assert (found.value, found.se) == pytest.approx((4.0, np.std([2.0, 6.0], ddof=1) / 2**0.5))
    assert np.isnan(scores.average_over_documents(np.array([np.nan]), np.array([0])).value)


def test_what_documents_do_to_all_layers_alike_does_not_count():
    """The error of a difference is that of the differences of documents."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 8)) + 10 * rng.normal(size=8)
    best = int(values.mean(1).argmin())
    found = scores.compare_with_best([scores.average_over_documents(x, np.arange(8)) for x in values], highest=False)
    assert found == pytest.approx((values - values[best]).std(1, ddof=1) / 8**0.5)
    unknown = [scores.UNKNOWN, *(scores.average_over_documents(x[:2], np.array([0, 0])) for x in values)]
    assert np.isnan(scores.compare_with_best(unknown, highest=True)).all()


def test_models_with_the_same_numbers_are_copies():
    rows = [[label, layer, value, None] for label in "ab" for layer, value in (("x", 1.0), ("y", 2.0))]
    other = [["c", "x", 1.0, None], ["c", "y", 2.01, None], ["d", "x", 1.0, None]]
    assert list(find_copies([*rows, *other])) == [["a", "b"]]
