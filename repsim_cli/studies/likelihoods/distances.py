"""Computes distances of models from the log-likelihoods that they give to the same texts, without torch."""

import math
import sys
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from repsim_cli.findings.student import find_t_quantile

ROUNDING = 1e-12  # of a distance, below which it is none without a document
LIKELIHOODS, OF_MODELS = "log_likelihoods", "likelihoods of models"
COLUMNS = ["model", "nats per text", "se", "nats per word", "texts", "words"]


class LikelihoodDistances(NamedTuple):
    """Half the variance over texts of the difference of two models' log-likelihoods, nats², with standard errors over
    documents. A variance of few documents is far from normal, its logarithm is less: errors are those of the logarithm,
    times the distance (`find_likelihood_interval`)."""

    values: Float[np.ndarray, "m m"]
    se: Float[np.ndarray, "m m"]


def compute_likelihood_distances(
    logs: Float[np.ndarray, "m n"], documents: Int[np.ndarray, " n"]
) -> LikelihoodDistances:
    """Computes the distances of models, with errors from leaving out each document. logs: of each model, of each text.
    documents: of the texts.

    Half the squared distance of the rows of the matrix that is centred both ways, over n - 1, is as large as the KL
    divergence of the distributions over texts, in nats, where these are close (Oyama et al. 2025).

    >>> compute_likelihood_distances(np.array([[-1.0, -2.0, -6.0], [-3.0, -2.0, -4.0]]), np.arange(3)).values.tolist()
    [[0.0, 2.0], [2.0, 0.0]]
    """
    n, groups = logs.shape[1], np.unique(documents, return_inverse=True)[1]
    count = groups.max() + 1
    of_document = np.zeros((n, count))
    of_document[np.arange(n), groups] = 1
    left = n - of_document.sum(0)
    values, errors = np.zeros((2, len(logs), len(logs)))
    for a, row in enumerate(logs):
        apart = row - logs
        apart = apart - apart.mean(1, keepdims=True)
        sums, squares = apart @ of_document, np.square(apart) @ of_document
        whole = squares.sum(1)
        values[a] = whole / (n - 1) / 2
        if left.min() > 1:
            without = (whole[:, None] - squares - np.square(sums) / left) / (left - 1) / 2
            known = without.min(1) > ROUNDING * values[a]
            # of models that differ on one document alone, the variance itself
            left_out = np.where(known[:, None], np.log(np.where(known[:, None], without, 1.0)), without)
            errors[a] = np.where(known, values[a], 1.0) * np.sqrt((count - 1) * left_out.var(1))
    return LikelihoodDistances(values, errors)


def find_likelihood_interval(value: float, se: float, freedom: int, level: float) -> tuple[float, float]:
    """Finds the t interval of a distance from that of its logarithm."""
    if not value > 0:
        return value, value
    factor = math.exp(find_t_quantile((1 - level) / 2, freedom) * se / value)
    return value / factor, value * factor


def take_logarithm(value: float, se: float) -> tuple[float, float]:
    """Takes the logarithm of a distance, by which distances are told apart, and its error; of 0, which has none, that
    of the smallest number.

    >>> [round(number, 1) for number in (*take_logarithm(10.0, 2.0), *take_logarithm(0.0, 0.0))]
    [2.3, 0.2, -708.4, 0.0]
    """
    return (math.log(value), se / value) if value > 0 else (math.log(sys.float_info.min), 0.0)


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
