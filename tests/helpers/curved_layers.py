"""Layers whose rows lie along a curve, and many of them."""

import numpy as np
import torch

from repsim_cli.measures import (
    gromov_spaces,
)


def curve(n=60, layers=4):
    """Layers of a smooth map, and one of an unrelated one: near and far representations."""
    rng = np.random.default_rng(1)
    found = [rng.normal(size=(n, 6))]
    for _ in range(layers - 2):
        found.append(np.tanh(found[-1] @ rng.normal(size=(6, 6))))
    return [
        gromov_spaces.prepare_space(torch.from_numpy(x), cost_scale="mean", bounds=True)
        for x in (*found, rng.normal(size=(n, 9)))
    ]


def large(seed, n=300, d=6):
    """Two representations of so many rows that blocks are matched first."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return x, np.tanh(x @ rng.normal(size=(d, d))) + 0.3 * rng.normal(size=(n, d))
