"""Rows of documents that are alike within each, and what is left of their cells between documents."""

import numpy as np

UNEQUAL, HALF, EQUAL, ALONE = [1, 2, 3, 4, 2, 1, 3], [6, 2, 1, 3], [4, 4, 4, 4], [1] * 9
LENGTHS = [UNEQUAL, HALF, EQUAL, ALONE]


def sides(lengths, width=4, seed=0, count=2):
    """The documents of rows, in no order, and representations whose rows depend on their document."""
    rng = np.random.default_rng(seed)
    documents = rng.permutation(np.repeat(np.arange(len(lengths)), lengths))
    effects = rng.normal(size=(count, len(lengths), width))
    return documents, [3 + effect[documents] + rng.normal(size=(len(documents), width)) for effect in effects]


def projected(k, documents):
    """The cells of k between documents, without what offsets of rows explain of them, by least squares."""
    n = len(k)
    i, j = np.nonzero(documents[:, None] != documents)
    design = np.zeros((len(i), n))
    design[np.arange(len(i)), i] += 1
    design[np.arange(len(i)), j] += 1
    fitted = design @ np.linalg.lstsq(design, k[i, j], rcond=None)[0]
    left = np.zeros((n, n))
    left[i, j] = k[i, j] - fitted
    return left
