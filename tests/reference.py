"""Slow, obvious versions of the measures, from the papers, in numpy float64; they share nothing with the package."""

import itertools

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


def procrustes(x, y):
    """The distance itself after the best rotation, found by SVD, of zero-padded sides."""
    width = max(x.shape[1], y.shape[1])
    sides = []
    for z in (x, y):
        z = z - z.mean(0)
        z = z / np.linalg.norm(z)
        sides.append(np.pad(z, ((0, 0), (0, width - z.shape[1]))))
    a, b = sides
    u, _, vt = np.linalg.svd(a.T @ b)
    return np.linalg.norm(a @ u @ vt - b)


def mutual_knn(x, y, k=10):
    def neighbours(z):
        z = z - z.mean(0)
        sets = []
        for i in range(len(z)):
            cosines = [
                (-(z[i] @ z[j]) / (np.linalg.norm(z[i]) * np.linalg.norm(z[j])), j) for j in range(len(z)) if j != i
            ]
            sets.append({j for _, j in sorted(cosines)[:k]})
        return sets

    pairs = zip(neighbours(x), neighbours(y), strict=True)
    return sum(len(a & b) for a, b in pairs) / (k * len(x))


def permutations_mean(statistic, x, y):
    """The mean of a statistic over all row permutations of y: the exact permutation null."""
    return np.mean([statistic(x, y[list(order)]) for order in itertools.permutations(range(len(y)))])
