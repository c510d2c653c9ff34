"""Two representations that share factors."""

import numpy as np


def draw(seed: int, n: int = 40, d: int = 7, shared: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Two representations that share some factors, with offsets and unequal scales."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(n, shared))

    def side(width):
        x = factors @ rng.normal(size=(shared, width)) + 0.7 * rng.normal(size=(n, width))
        return x * np.exp(rng.normal(size=width)) + rng.normal(size=width)

    return side(d), side(d)
