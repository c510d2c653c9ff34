"""CKA of populations of which the features are samples: against sums over pairs of features, and planted populations."""

import itertools

import numpy as np
import pytest
import torch
from helpers.drawn_documents import LENGTHS, projected, sides

from repsim_cli import measures
from repsim_cli.base.errors import Degenerate
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.measures.base import restrict_to_other_documents
from repsim_cli.measures.centring import centre_rows
from repsim_cli.measures.columns import fit_columns

POWERS = np.arange(1, 61) ** -0.5


def sampled(rng, latents, scales, features):
    """Random features of latent variables, whose kernel in infinite width is that of the scaled latent variables."""
    return latents * scales @ rng.normal(size=(latents.shape[1], features)) / np.sqrt(features)


def population(first, second):
    """CKA in infinite width and of all inputs, of independent latent variables."""
    return np.sum(first**2 * second**2) / np.sqrt(np.sum(first**4) * np.sum(second**4))


@pytest.mark.parametrize("second", [POWERS, POWERS[::-1]], ids=["same", "other"])
def test_samples_of_neurons_give_the_value_of_their_populations(second):
    """Unbiased CKA of the samples falls short of it, the more the fewer the neurons."""
    truth, values = population(POWERS, second), {"cka_columns": [], "cka_unbiased": []}
    for seed in range(16):
        rng = np.random.default_rng([seed, 3])
        latents = rng.normal(size=(250, 60))
        x, y = (sampled(rng, latents, scales, 48) for scales in (POWERS, second))
        for name, found in values.items():
            found.append(measures.get(name)(x, y))
    means = {name: np.mean(found) for name, found in values.items()}
    error = np.std(values["cka_columns"], ddof=1) / 4
    assert means["cka_columns"] == pytest.approx(truth, abs=2.5 * error + 0.01)
    assert means["cka_unbiased"] < 0.85 * truth


def squared(x):
    """HSIC of a sample of features with itself, over pairs of different ones, without the scale that is divided out."""
    features = centre_rows(torch.from_numpy(x))
    return fit_columns(features).different * features.scale**4 / (x.shape[1] * (x.shape[1] - 1))


def test_squared_norms_are_unbiased_over_draws_of_features():
    """The mean over all samples of 3 of 5 features is the value of all 5, over pairs of different ones."""
    x = np.random.default_rng(0).normal(size=(12, 5)) @ (np.eye(5) + 1)
    samples = [squared(x[:, list(chosen)]) for chosen in itertools.combinations(range(5), 3)]
    assert np.mean(samples) == pytest.approx(squared(x), rel=1e-12)


def between(x, y, documents):
    """The value over pairs of rows of different documents and pairs of features, of which those of one side are
    different."""
    pairs = [np.outer(column, column) for column in (x - x.mean(0)).T]
    others = [np.outer(column, column) for column in (y - y.mean(0)).T]
    pairs, others = ([projected(k, documents) for k in side] for side in (pairs, others))
    across = np.mean([(k * m).sum() for k, m in itertools.product(pairs, others)])
    within = [np.mean([(k * m).sum() for k, m in itertools.permutations(side, 2)]) for side in (pairs, others)]
    return across / np.sqrt(within[0] * within[1])


@pytest.mark.parametrize("lengths", LENGTHS)
def test_pairs_of_rows_of_one_document_are_left_out(lengths):
    documents, (x, y) = sides(lengths)
    x, y = (side @ (np.eye(4) + 2) for side in (x, y))
    bound = restrict_to_other_documents(measures.get("cka_columns"), torch.from_numpy(documents))
    assert bound(x, y) == pytest.approx(between(x, y, documents), abs=1e-10)
    assert bound(x, 2 * x[:, ::-1] + 1) == 1


def test_float32_rows_in_tiles_give_the_same_and_a_layer_with_itself_is_1():
    rng = np.random.default_rng(2)
    latents = rng.normal(size=(90, 60))
    xs = [torch.from_numpy(sampled(rng, latents, POWERS, width)) for width in (20, 30, 24)]
    exact = compute_all_pairs({"m": measures.get("cka_columns")}, xs)["m"]
    found = compute_all_pairs({"m": measures.get("cka_columns")}, [x.float() for x in xs], tile=16)["m"]
    torch.testing.assert_close(found, exact, atol=1e-5, rtol=0)
    assert found.diagonal().tolist() == [1.0] * 3
    assert float(exact[0, 1]) == pytest.approx(measures.get("cka_columns")(xs[0], xs[1]), abs=1e-12)


def test_features_without_anything_in_common_are_refused():
    rows = np.random.default_rng(0).normal(size=(40, 1))
    with pytest.raises(Degenerate, match="x: 2 features or more are needed, got 1; use cka_unbiased"):
        measures.get("cka_columns")(rows, np.hstack([rows, rows]))
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]] * 10, float)  # uncorrelated features
    with pytest.raises(Degenerate, match="different features have nothing in common, got -0.0.* of the similarity of"):
        measures.get("cka_columns")(signs, np.hstack([rows, rows]))
