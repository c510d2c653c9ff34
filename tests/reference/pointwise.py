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
    sizes = np.maximum(np.abs(x), np.abs(y)).astype(np.float64)
    # of the float32 numbers below, as one that is rounded up may have the next spacing
    below = [
        np.float32(size) if np.float32(size) <= size else np.nextafter(np.float32(size), np.float32(0))
        for size in sizes.flat
    ]
    return max(abs(a - b) / float(np.spacing(size)) for a, b, size in zip(x.flat, y.flat, below, strict=True))
