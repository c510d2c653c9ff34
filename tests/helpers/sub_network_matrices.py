"""Matrices with planted sub-networks."""

import numpy as np


def mirrored(values):
    values = np.triu(values, 1)
    return values + values.T


def planted(sizes, seed, contrast=4.0, noise=0.15):
    """Distances of layers in groups: those between are `contrast` times those within."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    same = labels[:, None] == labels
    drawn = np.random.default_rng(seed).normal(size=same.shape)
    return labels, mirrored(np.where(same, 1 / contrast, 1.0) * np.exp(noise * drawn))
