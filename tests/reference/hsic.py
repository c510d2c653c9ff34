"""Slow, obvious versions of the HSIC family, from the papers, in numpy float64."""

import itertools
import math

import numpy as np


def cka(x, y):
    n = len(x)
    centre = np.eye(n) - np.ones((n, n)) / n
    k, l = centre @ x @ x.T @ centre, centre @ y @ y.T @ centre
    return np.trace(k @ l) / np.sqrt(np.trace(k @ k) * np.trace(l @ l))


def hsic1(k, l):
    """Song et al. 2012, eq. 5."""
    n = len(k)
    k, l = k.copy(), l.copy()
    np.fill_diagonal(k, 0)
    np.fill_diagonal(l, 0)
    one = np.ones(n)
    terms = np.trace(k @ l) + (one @ k @ one) * (one @ l @ one) / ((n - 1) * (n - 2)) - 2 / (n - 2) * one @ k @ l @ one
    return terms / (n * (n - 3))


def cka_unbiased(x, y):
    k, l = x @ x.T, y @ y.T
    return hsic1(k, l) / np.sqrt(hsic1(k, k) * hsic1(l, l))


def cka_columns(x, y):
    """Means over pairs of features, in pairs of different ones where both are of one side; NaN where these are not alike."""

    def mean(a, b, pairs):
        return np.mean([hsic1(np.outer(a[:, c], a[:, c]), np.outer(b[:, d], b[:, d])) for c, d in pairs])

    def within(a):
        return mean(a, a, itertools.permutations(range(a.shape[1]), 2))

    across = mean(x, y, itertools.product(range(x.shape[1]), range(y.shape[1])))
    of_x, of_y = within(x), within(y)
    return across / np.sqrt(of_x * of_y) if min(of_x, of_y) > 0 else math.nan


def cka_rbf(x, y, bandwidth=1.0):
    def kernel(z):
        distances = np.array([[np.linalg.norm(a - b) for b in z] for a in z])
        sigma = bandwidth * np.median(distances[np.triu_indices(len(z), 1)])
        return np.exp(-(distances**2) / (2 * sigma**2))

    n = len(x)
    centre = np.eye(n) - np.ones((n, n)) / n
    k, l = centre @ kernel(x) @ centre, centre @ kernel(y) @ centre
    return np.sum(k * l) / np.sqrt(np.sum(k * k) * np.sum(l * l))


def cka_angular(x, y):
    return np.arccos(cka(x, y))


def ensd(x, y):
    """Giaffar et al. 2024, from covariances: PR(x) PR(y) |cov(x, y)|^2 / (tr cov(x) tr cov(y))."""

    def ratio(z):
        values = np.linalg.eigvalsh(np.cov(z.T))
        return values.sum() ** 2 / np.sum(values**2)

    x, y = x - x.mean(0), y - y.mean(0)
    return ratio(x) * ratio(y) * np.sum((x.T @ y) ** 2) / (np.sum(x**2) * np.sum(y**2))


def permutations_mean(statistic, x, y):
    """The mean of a statistic over all row permutations of y: the exact permutation null."""
    return np.mean([statistic(x, y[list(order)]) for order in itertools.permutations(range(len(y)))])
