"""Intervals of shares of rows, where rows of one document or text depend on each other."""

import math

import numpy as np
from jaxtyping import Float, Int

Z = 1.959964  # the normal quantile of a 95 % interval


def compute_wilson_interval(
    hits: Float[np.ndarray, " n"], units: Int[np.ndarray, " n"], tries: int = 1
) -> tuple[float, float]:
    """Makes Wilson's 95 % interval of a share of rows, for other texts of the kind among as many, with the number of
    rows that would be as uncertain if rows of a unit did not depend on each other.

    hits: of every row, 1, 0 or the share of its tries.
    units: the text or document of every row.
    tries: of a row; rows are never taken for surer than as many rows that depend on nothing.

    >>> [round(end, 4) for end in compute_wilson_interval(np.ones(10), np.arange(10))]
    [0.7225, 1.0]
    """
    n, share = len(hits), float(hits.mean())
    sums = np.bincount(np.unique(units, return_inverse=True)[1], hits - share)
    spread, alone = float(np.square(sums).sum()), n * share * (1 - share)
    count = len(sums) / (len(sums) - 1) if len(sums) > 1 else 1.0
    most = n * tries
    apart = len(sums) if alone <= 0 else min(n * alone / (count * spread), most) if spread else most
    middle = (share + Z**2 / (2 * apart)) / (1 + Z**2 / apart)
    half = Z / (1 + Z**2 / apart) * math.sqrt(max(share * (1 - share), 0) / apart + Z**2 / (4 * apart**2))
    # of no hit, or of hits alone, that end is exact but for rounding
    return max(middle - half, 0.0) if share > 0 else 0.0, min(middle + half, 1.0) if share < 1 else 1.0
