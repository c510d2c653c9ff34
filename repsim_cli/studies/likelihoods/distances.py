"""Computes distances of models from the log-likelihoods that they give to the same texts, without torch."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

LIKELIHOODS, OF_MODELS = "log_likelihoods", "likelihoods of models"
COLUMNS = ["model", "nats per text", "se", "nats per word", "texts", "words"]


class LikelihoodDistances(NamedTuple):
    """Half the variance over texts of the difference of two models' log-likelihoods, nats, with standard errors over
    documents."""

    values: Float[np.ndarray, "m m"]
    se: Float[np.ndarray, "m m"]


def compute_likelihood_distances(
    logs: Float[np.ndarray, "m n"], documents: Int[np.ndarray, " n"]
) -> LikelihoodDistances:
    """Computes the distances of models. logs: of each model, of each text. documents: of the texts.

    Half the squared distance of the rows of the matrix that is centred both ways, over n - 1, is the KL divergence of
    the distributions over texts where these are close (Oyama et al. 2025).

    >>> compute_likelihood_distances(np.array([[-1.0, -2.0, -6.0], [-3.0, -2.0, -4.0]]), np.arange(3)).values.tolist()
    [[0.0, 2.0], [2.0, 0.0]]
    """
    n, groups = logs.shape[1], np.unique(documents, return_inverse=True)[1]
    count = groups.max() + 1
    sums = np.zeros((count, n))
    sums[groups, np.arange(n)] = 1
    values, errors = np.zeros((2, len(logs), len(logs)))
    for a, row in enumerate(logs):
        apart = row - logs
        squares = np.square(apart - apart.mean(1, keepdims=True))
        values[a] = squares.sum(1) / (n - 1) / 2
        by_document = (squares / 2 - values[a][:, None]) @ sums.T
        errors[a] = np.sqrt(np.square(by_document).sum(1) * count / max(count - 1, 1)) / n
    return LikelihoodDistances(values, errors)


def centre_twice(logs: Float[np.ndarray, "m n"]) -> Float[np.ndarray, "m n"]:
    """Takes out the mean of each model over texts, and that of each text over models."""
    rows = logs - logs.mean(1, keepdims=True)
    return rows - rows.mean(0)


def place_models(logs: Float[np.ndarray, "m n"]) -> tuple[Float[np.ndarray, "m 2"], Float[np.ndarray, " 2"]]:
    """Places the models on the plane that keeps most of their squared distances, in nats; and gives the share of each
    axis."""
    left, sizes, _ = np.linalg.svd(centre_twice(logs) / np.sqrt(2 * (logs.shape[1] - 1)), full_matrices=False)
    places = np.zeros((len(logs), 2))
    places[:, : len(sizes)] = (left * sizes)[:, :2]
    shares = np.square(np.append(sizes, 0)[:2]) / max(np.square(sizes).sum(), np.finfo(float).tiny)
    return places, shares
