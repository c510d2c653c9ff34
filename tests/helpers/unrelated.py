"""Representations that have nothing to do with each other, and what the engine prepares of them."""

import numpy as np
import reference
import torch

from repsim_cli import measures
from repsim_cli.activations import segments
from repsim_cli.engine.pairs import compute_all_pairs


def small(name):
    """The measure with settings for few rows."""
    return measures.get(name, **reference.SETTINGS.get(name, {}))


def prepared(name, sides, **settings):
    """What the engine prepares of the sides for the measure, and their values."""
    seen = []
    values = compute_all_pairs({name: small(name)}, sides, observe=lambda *given: seen.append(given[2]), **settings)
    return seen[0], values[name]


def shuffled(n, count, seed):
    """Random orders of n rows that do not depend on each other."""
    rows = segments.find_segments([np.arange(n)], [np.full(n, segments.BOTH)])
    return torch.from_numpy(rows.orders(0, count, [seed]))


def independent(n, seed, count=2):
    """Unrelated representations: one isotropic, one of long tails, one of few dimensions."""
    rng = np.random.default_rng(seed)
    sides = [
        rng.normal(size=(n, 12)),
        np.exp(rng.normal(size=(n, 12))),
        rng.normal(size=(n, 12)) * np.arange(1, 13) ** -1.5,
    ]
    return [torch.from_numpy(side) for side in sides[:count]]
