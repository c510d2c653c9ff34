"""Slow, obvious versions of the pointwise distances, in numpy float64."""

import numpy as np


def euclidean(x, y):
    return np.mean([np.sqrt(sum((a - b) ** 2)) for a, b in zip(x, y, strict=True)])


def cosine(x, y):
    return np.mean([1 - a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in zip(x, y, strict=True)])


def relative_l2(x, y):
    return np.sqrt(sum((a - b) ** 2 for a, b in zip(x.flat, y.flat, strict=True)) / np.sum(y**2))


def sqnr(x, y):
    return 10 * np.log10(np.sum(y**2) / np.sum((x - y) ** 2))


def largest_difference(x, y):
    return max(abs(a - b) for a, b in zip(x.flat, y.flat, strict=True))


def ulp(x, y):
    spacing = np.spacing(np.maximum(np.abs(x), np.abs(y)).astype(np.float32), dtype=np.float32)
    return max(abs(a - b) / float(unit) for a, b, unit in zip(x.flat, y.flat, spacing.flat, strict=True))
