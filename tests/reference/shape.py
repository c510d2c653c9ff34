"""Slow, obvious versions of the shape distances, from the papers, in numpy float64."""

import numpy as np

from reference.neurons import best_matching

CONVENTIONS = {
    "permutation_procrustes": lambda entry: {} if entry["centred"] and entry["scaled"] else None,
    "aligned_cosine": lambda entry: {} if entry["centred"] else None,
}


def padded(x, y, unit=True):
    """The two sides centred, of unit Frobenius norm, and filled up with zeros to one width."""
    width = max(x.shape[1], y.shape[1])
    sides = []
    for z in (x, y):
        z = z - z.mean(0)
        z = z / np.linalg.norm(z) if unit else z
        sides.append(np.pad(z, ((0, 0), (0, width - z.shape[1]))))
    return sides


def rotated(a, b):
    """a after the rotation that brings it nearest to b, found by SVD."""
    u, _, vt = np.linalg.svd(a.T @ b)
    return a @ u @ vt


def procrustes(x, y):
    a, b = padded(x, y)
    return np.linalg.norm(rotated(a, b) - b)


def procrustes_size_and_shape(x, y):
    a, b = padded(x, y, unit=False)
    return np.linalg.norm(rotated(a, b) - b)


def shape_angular(x, y):
    a, b = padded(x, y)
    return np.arccos(np.sum(rotated(a, b) * b))


def bures_similarity(x, y):
    """The fidelity of the covariances' factors: the root of (x'y)(x'y)', by its eigenvalues."""
    a, b = padded(x, y)
    m = a.T @ b if x.shape[1] <= y.shape[1] else b.T @ a
    m = m[: min(x.shape[1], y.shape[1])]
    return np.sqrt(np.linalg.eigvalsh(m @ m.T)).sum()


def permutation_procrustes(x, y):
    a, b = padded(x, y)
    return np.sqrt(2 - 2 * best_matching(a.T @ b))


def aligned_cosine(x, y):
    a, b = padded(x, y, unit=False)
    pairs = zip(rotated(a, b), b, strict=True)
    return np.mean([p @ q / np.linalg.norm(p) / np.linalg.norm(q) for p, q in pairs])
