"""Quantiles of Student's t without scipy, which a page of a run does not import."""

import math


def find_t_quantile(p: float, freedom: int) -> float:
    """Finds the value that Student's t exceeds with probability p, by bisection on its closed form, so that the page
    needs no scipy.

    p: below 0.5. freedom: degrees of freedom, a whole number.

    >>> round(find_t_quantile(0.025, 8), 6), round(find_t_quantile(1e-6, 3), 3)
    (2.306004, 103.299)
    """
    low, high = 0.0, 1.0
    while _compute_t_tail(high, freedom) > p:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _compute_t_tail(middle, freedom) > p else (low, middle)
    return high


def _compute_t_tail(t: float, freedom: int) -> float:
    """Computes the probability that t is larger (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    odd, term, total = freedom % 2, 1.0, 0.0
    for k in range((freedom - odd) // 2):
        total += term * math.cos(angle) ** (2 * k + odd)
        term *= (2 * k + 1 + odd) / (2 * k + 2 + odd)
    inside = math.sin(angle) * total
    return (1 - (2 / math.pi * (angle + inside) if odd else inside)) / 2
