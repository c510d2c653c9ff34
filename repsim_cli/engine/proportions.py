"""Intervals of shares of rows, where rows of one document or text depend on each other."""

import math

import numpy as np
from jaxtyping import Float, Int
from scipy.special import stdtrit

LEVEL = 0.95


def count_like(counts: Int[np.ndarray, " u"] | Float[np.ndarray, " u"]) -> float:
    """The number of units of one size that would say as much of a mean as these do (Kish). counts: the rows of each
    unit.

    >>> count_like(np.array([3, 3, 3])), round(count_like(np.array([60, 1, 1])), 3)
    (3.0, 1.067)
    """
    return float(counts.sum()) ** 2 / float(np.square(counts.astype(float)).sum())


def count_like_freedom(counts: Int[np.ndarray, " u"] | Float[np.ndarray, " u"]) -> int:
    """Counts the degrees of freedom of an error over units that differ in size: one less than the units of one size
    that would say as much, at least 1.

    >>> count_like_freedom(np.full(12, 20.0)), count_like_freedom(np.array([150.0, *[6.0] * 11]))
    (11, 1)
    """
    return max(int(count_like(counts)) - 1, 1)


def correlate_within(
    hits: Float[np.ndarray, " n"], which: Int[np.ndarray, " n"], counts: Int[np.ndarray, " u"]
) -> float:
    """Estimates the correlation of rows of one unit by the analysis of variance, from 0 to 1.

    which: the unit of every row. counts: the rows of every unit, of two units or more.

    >>> correlate_within(np.array([1., 1, 0, 0]), np.array([0, 0, 1, 1]), np.array([2, 2]))
    1.0
    """
    n, more = len(hits), len(counts) - 1
    means = np.bincount(which, hits) / counts
    within = float(np.square(hits - means[which]).sum()) / max(n - more - 1, 1)
    between = float((counts * np.square(means - hits.mean())).sum()) / more
    size = (n - float(np.square(counts).sum()) / n) / more
    return min(max((between - within) / (between + (size - 1) * within), 0.0), 1.0) if between else 0.0


def count_freedom(parts: Float[np.ndarray, " u"], variances: Float[np.ndarray, " u"]) -> float:
    """Counts the degrees of freedom of the standard error of a share that is estimated from its deviations by unit
    (Bell and McCaffrey 2002).

    parts: of all rows, the share that each unit has. variances: of the units' sums, in any unit.

    Units of one size have one less than there are, and a few long ones fewer:

    >>> round(count_freedom(np.full(4, 0.25), np.ones(4)), 6)
    3.0
    >>> count_freedom(np.array([0.4, 0.4, 0.1, 0.1]), np.array([16.0, 16, 1, 1])) < 2
    True
    """
    a, b = (x / np.sqrt(1 - parts) for x in (parts, variances))
    own, total = variances / (1 - parts), float(variances.sum())
    aa, ab, bb = float(a @ a), float(a @ b), float(b @ b)
    # the covariance of the deviations: own on the diagonal, and less of what all have in common
    common = total * a**2 - 2 * a * b
    square = float(own @ own + 2 * own @ common) + 2 * aa * bb + 2 * ab**2 - 4 * total * ab * aa + total**2 * aa**2
    return max(float((own + common).sum()) ** 2 / square, 1.0) if square > 0 else 1.0


def compute_wilson_interval(
    hits: Float[np.ndarray, " n"], units: Int[np.ndarray, " n"], tries: int = 1
) -> tuple[float, float]:
    """Makes Wilson's 95 % interval of a share of rows, for other texts of the same kind. It counts the independent rows
    that would be as uncertain as these, which depend on each other within a unit, and uses Student's t where units have
    several rows. A single unit counts as one row.

    hits: of every row, 1, 0 or the share of its tries.
    units: the text or document of every row.
    tries: of a row; the interval is never narrower than that of independent rows.

    >>> [round(end, 4) for end in compute_wilson_interval(np.ones(10), np.arange(10))]
    [0.7225, 1.0]
    """
    n, share = len(hits), float(hits.mean())
    which, counts = np.unique(units, return_inverse=True, return_counts=True)[1:]
    alone, most, parts = share * (1 - share), n * tries, counts / n
    if alone <= 0 or len(counts) == 1:
        apart, freedom = count_like(counts), max(count_like(counts) - 1, 1)
    else:  # a long unit draws the share towards itself
        spread = float((np.square(np.bincount(which, hits - share) / n) / (1 - parts)).sum())
        apart = min(alone / spread, most) if spread else most
        freedom = count_freedom(parts, parts * (1 + (counts - 1) * correlate_within(hits, which, counts)))
    # of rows by themselves the spread is known
    z = float(stdtrit(math.inf if len(counts) == n else freedom, (1 + LEVEL) / 2))
    middle = (share + z**2 / (2 * apart)) / (1 + z**2 / apart)
    half = z / (1 + z**2 / apart) * math.sqrt(max(share * (1 - share), 0) / apart + z**2 / (4 * apart**2))
    # of no hit, or of hits alone, that end is exact but for rounding
    return max(middle - half, 0.0) if share > 0 else 0.0, min(middle + half, 1.0) if share < 1 else 1.0
