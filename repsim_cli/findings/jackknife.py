"""Errors and intervals over models, of which each is left out in turn: pairs of models are no units, models are."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.special
from jaxtyping import Float


class Error(NamedTuple):
    """se: of statistics of any shape. freedom: the degrees of freedom of each, 1 or more."""

    se: Float[np.ndarray, "..."]
    freedom: Float[np.ndarray, "..."]


def over_models(left: Sequence[Float[np.ndarray, "m ..."]]) -> Error:
    """Estimates the standard error of a statistic from what it is without each model (Efron 1982).

    left: for every group of models the statistic without each of its models. Groups are taken as independent: their
    variances add up, and Satterthwaite's (1946) degrees of freedom lie between those of the smallest
    group and those of all. Where nothing varies, they are those of the smallest group.
    """
    parts = np.array([np.var(x, axis=0) * (len(x) - 1) for x in left])
    freedoms = np.array([max(1.0, len(x) - 1) for x in left]).reshape(-1, *[1] * (parts.ndim - 1))
    variance, spread = parts.sum(0), (parts**2 / freedoms).sum(0)
    varies = spread > 0
    freedom = np.where(varies, variance**2 / np.where(varies, spread, 1.0), freedoms.min())
    return Error(np.sqrt(variance), freedom)


def interval(
    value: Float[np.ndarray, "..."] | float,
    error: Error,
    level: float,
    bounds: Sequence[float | None] = (None, None),
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """Makes a t interval (low, high) of this level about the value, within the bounds."""
    half = error.se * scipy.special.stdtrit(error.freedom, (1 + level) / 2)
    lowest, highest = (
        infinite if end is None else end for end, infinite in zip(bounds, (-np.inf, np.inf), strict=True)
    )
    return np.maximum(value - half, lowest), np.minimum(value + half, highest)
