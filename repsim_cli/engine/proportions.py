"""Intervals of shares of rows, where rows of one document or text depend on each other."""

import math

import numpy as np
from jaxtyping import Float, Int
from scipy.special import stdtrit

LEVEL = 0.95


def count_like(counts: Int[np.ndarray, " u"]) -> float:
    """Counts how many units of one size would say as much of a mean as units with so many rows each (Kish).

    >>> count_like(np.array([3, 3, 3])), round(count_like(np.array([60, 1, 1])), 3)
    (3.0, 1.067)
    """
    return float(counts.sum()) ** 2 / float(np.square(counts.astype(float)).sum())


def compute_wilson_interval(
    hits: Float[np.ndarray, " n"], units: Int[np.ndarray, " n"], tries: int = 1
) -> tuple[float, float]:
    """Makes Wilson's 95 % interval of a share of rows, for other texts of the kind among as many, with the number of
    rows that would be as uncertain if rows of a unit did not depend on each other, and Student's t where units
    have several rows.

    hits: of every row, 1, 0 or the share of its tries.
    units: the text or document of every row.
    tries: of a row; rows are never taken for surer than as many rows that depend on nothing.

    >>> [round(end, 4) for end in compute_wilson_interval(np.ones(10), np.arange(10))]
    [0.7225, 1.0]
    """
    n, share = len(hits), float(hits.mean())
    which, counts = np.unique(units, return_inverse=True, return_counts=True)[1:]
    spread, alone = float(np.square(np.bincount(which, hits - share)).sum()), n * share * (1 - share)
    many = count_like(counts)
    few = many / (many - 1) if many > 1 else 1.0
    most = n * tries
    apart = many if alone <= 0 else min(n * alone / (few * spread), most) if spread else most
    freedom = math.inf if len(counts) == n else max(many - 1, 1)  # of rows by themselves the spread is known
    z = float(stdtrit(freedom, (1 + LEVEL) / 2))
    middle = (share + z**2 / (2 * apart)) / (1 + z**2 / apart)
    half = z / (1 + z**2 / apart) * math.sqrt(max(share * (1 - share), 0) / apart + z**2 / (4 * apart**2))
    # of no hit, or of hits alone, that end is exact but for rounding
    return max(middle - half, 0.0) if share > 0 else 0.0, min(middle + half, 1.0) if share < 1 else 1.0
