"""Rows for views, and histograms of them."""

import numpy as np
import torch

from repsim_cli.studies.views.histograms import (
    make_distance_histograms,
    measure_distance_spreads,
)


def rows(n, d, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)))


def counted(layers, bins, scale, of=None):
    of = np.ones((1, len(layers[0])), bool) if of is None else of
    return make_distance_histograms(
        layers, of, [measure_distance_spreads(x, of) for x in layers], bins=bins, scale=scale
    )
