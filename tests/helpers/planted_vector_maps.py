"""Rows with a planted map between them."""

import numpy as np

D, FITTED, HELD = 16, 200, 400


def planted(noise, seed, n=FITTED + HELD):
    """Rows, the same rows rotated, moved and with noise in every number, and the rotated rows without noise."""
    rng = np.random.default_rng(seed)
    x, turn = rng.normal(size=(n, D)), np.linalg.qr(rng.normal(size=(D, D)))[0]
    clean = x @ turn + 2
    return x, clean + noise * rng.normal(size=(n, D)), clean
