"""Slow, obvious versions of the dissimilarity measures, from the papers, in numpy float64."""

import numpy as np
import scipy.linalg
import scipy.stats

CONVENTIONS = {
    "rsm_norm_difference": lambda entry: {} if entry["centred"] else None,
    "stress": lambda entry: {} if entry["rescaled"] is False else None,
    "riemannian": lambda entry: {"ridge": entry["ridge"]} if "trace 1" in entry["matrix"] else None,
}


def above(square):
    return square[np.triu_indices(len(square), 1)]


def distances(z):
    return np.array([[np.linalg.norm(a - b) for b in z] for a in z])


def unit(z):
    z = z - z.mean(0)
    return z / np.linalg.norm(z)


def rsa(x, y):
    return scipy.stats.spearmanr(above(1 - np.corrcoef(x)), above(1 - np.corrcoef(y)))[0]


def rsa_euclidean(x, y):
    return scipy.stats.spearmanr(above(distances(x)), above(distances(y)))[0]


def rsm_norm_difference(x, y):
    return np.linalg.norm(above(distances(unit(x)) - distances(unit(y))))


def stress(x, y):
    return np.sqrt(np.mean(above(distances(x) - distances(y)) ** 2))


def distance_correlation(x, y):
    def centred(z):
        d = distances(z)
        return d - d.mean(0) - d.mean(1)[:, None] + d.mean()

    a, b = centred(x), centred(y)
    return np.sqrt(np.mean(a * b) / np.sqrt(np.mean(a * a) * np.mean(b * b)))


def riemannian(x, y, ridge=1e-3):
    a, b = (unit(z) @ unit(z).T + ridge * np.eye(len(z)) for z in (x, y))
    return np.sqrt(np.sum(np.log(scipy.linalg.eigvals(np.linalg.solve(a, b)).real) ** 2))
