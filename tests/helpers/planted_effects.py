"""Effects that are planted for claims: their signs, and noise."""

from collections.abc import Callable

import numpy as np

TRUTH, FALSEHOOD, NOISE = 1, -1, 0  # the sign of a planted effect
Make = Callable[[int, np.random.Generator], tuple]


def symmetric(rng, size, noise=0.05):
    values = rng.normal(0, noise, (size, size))
    return (values + values.T) / 2


def apart(values):
    values = np.abs(values)
    np.fill_diagonal(values, 0)
    return values
