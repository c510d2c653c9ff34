"""Slow, obvious versions of the descriptive statistics, from the papers, in numpy float64."""

import itertools

import numpy as np

CONVENTIONS = {"uniformity_difference": lambda entry: {} if entry["pairs"] == "i<j" else None}


def similarity(a, b):
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


def magnitude_difference(x, y):
    return abs(np.linalg.norm(x.mean(0)) - np.linalg.norm(y.mean(0)))


def concentricity_difference(x, y):
    return abs(np.mean([similarity(a, x.mean(0)) for a in x]) - np.mean([similarity(b, y.mean(0)) for b in y]))


def uniformity(z):
    z = [row / np.linalg.norm(row) for row in z]
    return np.log(np.mean([np.exp(-2 * np.sum((a - b) ** 2)) for a, b in itertools.combinations(z, 2)]))


def uniformity_difference(x, y):
    return abs(uniformity(x) - uniformity(y))


def tolerance(z, labels):
    pairs = itertools.combinations(zip(z, labels, strict=True), 2)
    return np.mean([similarity(a, b) for (a, i), (b, j) in pairs if i == j])


def tolerance_difference(x, y, labels):
    return abs(tolerance(x, labels) - tolerance(y, labels))


def participation_ratio(z):
    values = np.linalg.eigvalsh(np.cov(z.T))
    return values.sum() ** 2 / np.sum(values**2)


def participation_ratio_difference(x, y):
    return abs(participation_ratio(x) - participation_ratio(y))


def effective_rank(z):
    """The rank from the eigenvalues of the smaller of the two Gram matrices."""
    values = np.linalg.eigvalsh(z @ z.T if len(z) < z.shape[1] else z.T @ z)
    shares = np.sqrt(values[values > 1e-13 * values[-1]])
    shares = shares / shares.sum()
    return np.exp(-np.sum(shares * np.log(shares)))


def effective_rank_difference(x, y):
    return abs(effective_rank(x - x.mean(0)) - effective_rank(y - y.mean(0)))
