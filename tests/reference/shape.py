"""Slow, obvious versions of the shape distances, from the papers, in numpy float64."""

import numpy as np


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
