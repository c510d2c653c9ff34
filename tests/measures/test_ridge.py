"""Held-out ridge regression: folds of whole documents, against scikit-learn, and 0 where nothing is shared."""

import itertools

import numpy as np
import pytest
import torch
from reference.held_out import PENALTIES, ridge
from sklearn.linear_model import Ridge
from sklearn.model_selection import LeaveOneGroupOut

from repsim_cli import measures
from repsim_cli.base.errors import Degenerate
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.engine.permuted import permute_pairs
from repsim_cli.measures.base import restrict_to_other_documents
from repsim_cli.measures.ridge import split_into_folds


def bound(documents, **settings):
    return restrict_to_other_documents(measures.get("ridge", **settings), torch.from_numpy(documents))


def planted(seed, n=90, width=6, noise=1.0):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(n, width)) + 5
    return y[:, :3] @ rng.normal(size=(3, 8)) + noise * rng.normal(size=(n, 8)), y


def fold_numbers(n, count, documents=None):
    fold = np.empty(n, int)
    for f, rows in enumerate(split_into_folds(n, count, None if documents is None else torch.from_numpy(documents))):
        fold[rows.numpy()] = f
    return fold


def test_folds_hold_whole_documents_and_about_as_many_rows():
    documents = np.random.default_rng(0).permutation(
        np.repeat(np.arange(23), np.random.default_rng(1).integers(1, 9, 23))
    )
    fold = fold_numbers(len(documents), 5, documents)
    assert all(len(set(fold[documents == document])) == 1 for document in range(23))
    assert np.ptp(np.bincount(fold)) <= 4
    assert fold_numbers(12, 5, np.repeat([0, 1, 2], 4)).max() == 2  # no more folds than documents
    assert fold_numbers(11, 3).tolist() == [0] * 4 + [1] * 4 + [2] * 3
    with pytest.raises(Degenerate, match="rows of 3 documents or more are needed, got 2; give more documents"):
        bound(np.repeat([0, 1], 10))(*planted(0, n=20))


def test_equals_scikit_learn_with_a_document_left_out_at_a_time():
    """A search in nested loops over Ridge, whose penalty is over the summed variance of what is fitted."""
    x, y = planted(3)
    documents = np.repeat(np.arange(4), [20, 30, 15, 25])

    def errors(fitted, scored, shares):
        variance = np.sum((y[fitted] - y[fitted].mean(0)) ** 2)
        fits = (Ridge(alpha=share * variance).fit(y[fitted], x[fitted]).predict(y[scored]) for share in shares)
        return np.array([np.sum((x[scored] - fit) ** 2) for fit in fits])

    error = total = 0.0
    for fitted, scored in LeaveOneGroupOut().split(y, groups=documents):
        inner = LeaveOneGroupOut().split(y[fitted], groups=documents[fitted])
        chosen = sum(errors(fitted[rest], fitted[left], PENALTIES[1:]) for rest, left in inner).argmin()
        error += errors(fitted, scored, [PENALTIES[1:][chosen]])[0]
        total += np.sum((x[scored] - x[fitted].mean(0)) ** 2)
    assert bound(documents, folds=4)(x, y) == pytest.approx(1 - error / total, abs=1e-10)


@pytest.mark.parametrize("width", [4, 60])
def test_equals_the_reference_by_documents_and_for_wide_rows(width):
    x, y = planted(4, n=60, width=width)
    documents = np.random.default_rng(0).integers(0, 9, 60)
    fold = fold_numbers(60, 5, documents)
    assert bound(documents)(x, y) == pytest.approx(ridge(x, y, fold=fold), abs=1e-9)
    found = compute_all_pairs(
        {"m": measures.get("ridge")}, [*map(torch.from_numpy, (x, y))], documents=torch.from_numpy(documents)
    )
    assert float(found["m"][0, 1]) == pytest.approx(bound(documents)(x, y), abs=1e-12)


def test_unrelated_layers_have_0_whatever_their_width_and_their_documents():
    """Regression within the sample has 0.5 and more; with rows of a document on both sides held-out R^2 is 0.3."""
    free, by_document = [], []
    for seed in range(5):
        rng = np.random.default_rng([seed, 1])
        free.append(measures.get("ridge")(rng.normal(size=(60, 8)), rng.normal(size=(60, 40))))
        documents = rng.permutation(np.repeat(np.arange(20), 5))
        x, y = (rng.normal(size=(20, 16))[documents] + 0.5 * rng.normal(size=(100, 16)) for _ in range(2))
        by_document.append((bound(documents)(x, y), measures.get("ridge")(x, y)))
    apart, torn = np.mean(by_document, axis=0)
    assert -0.01 < np.mean(free) < 0.003
    assert -0.02 < apart < 0.003
    assert torn > 0.3


def test_the_share_that_is_planted_is_found():
    """A share of 0.7 of the variance is predictable from many independent rows."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=(4000, 10))
    x = np.sqrt(0.7) * y @ np.linalg.qr(rng.normal(size=(10, 10)))[0] + np.sqrt(0.3) * rng.normal(size=(4000, 10))
    assert measures.get("ridge")(x, y) == pytest.approx(0.7, abs=0.01)


def test_permuted_rows_are_predicted_anew():
    x, y = planted(5, n=40)
    seen = []
    given = {"observe": lambda label, measure, found, values: seen.append(found)}
    compute_all_pairs({"m": measures.get("ridge")}, [*map(torch.from_numpy, (x, y))], **given)
    order = np.random.default_rng(1).permutation(40)
    moved = permute_pairs(seen[0], torch.from_numpy(order)[None])[0]
    for (a, first), (b, second) in itertools.product(enumerate((x, y)), repeat=2):
        assert float(moved[a, b]) == pytest.approx(measures.get("ridge")(first, second[order]), abs=1e-12)
