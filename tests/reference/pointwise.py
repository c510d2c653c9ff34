"""Slow, obvious versions of the pointwise distances, in numpy float64."""

import numpy as np


def euclidean(x, y):
    return np.mean([np.sqrt(sum((a - b) ** 2)) for a, b in zip(x, y, strict=True)])


def cosine(x, y):
    return np.mean([1 - a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in zip(x, y, strict=True)])
