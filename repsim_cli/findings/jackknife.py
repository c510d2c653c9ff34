"""Errors and intervals over models, by leaving each one out in turn: the units are models, not pairs of models."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.special
from jaxtyping import Float, Int

Statistics = Float[np.ndarray, "..."] | np.floating[Any]


class StandardErrors(NamedTuple):
    """se: of statistics of any shape. freedom: the degrees of freedom of each, 1 or more."""

    se: Statistics
    freedom: Statistics


def estimate_standard_error(left: Sequence[Float[np.ndarray, "_ ..."]], most: float = math.inf) -> StandardErrors:
    """Estimates the standard error of a statistic from what it is without each model (Efron 1982).

    left: for every group of models the statistic without each of its models. Groups are taken as independent: their
    variances add up, and Satterthwaite's (1946) degrees of freedom lie between those of the smallest
    group and those of all. Where nothing varies, they are those of the smallest group. most: degrees of freedom, where
    it is known what they would be if all models had one spread; few that happen to be alike would be taken for many.
    """
    parts = np.array([np.var(x, axis=0) * (len(x) - 1) for x in left])
    counts = np.array([len(x) for x in left])
    varies = (parts > 0).any(0)
    freedom = np.where(varies, satterthwaite(np.where(varies, parts, 1.0), counts), max(1, counts.min() - 1))
    return StandardErrors(np.sqrt(parts.sum(0)), np.minimum(freedom, most))


def satterthwaite(parts: Float[np.ndarray, "g ..."], counts: Int[np.ndarray, " g"]) -> Float[np.ndarray, "..."]:
    """Computes the degrees of freedom of a sum of variances, each estimated from one model or more. counts: of
    models."""
    freedoms = np.maximum(1, counts - 1).reshape(-1, *[1] * (parts.ndim - 1))
    return np.asarray(parts.sum(0) ** 2 / (parts**2 / freedoms).sum(0))


def compute_t_interval(
    value: Statistics | float,
    error: StandardErrors,
    level: float,
    bounds: Sequence[float | None] = (None, None),
) -> tuple[Statistics, Statistics]:
    """Makes a t interval (low, high) of this level about the value, within the bounds."""
    half = error.se * scipy.special.stdtrit(error.freedom, (1 + level) / 2)
    lowest, highest = (
        infinite if end is None else end for end, infinite in zip(bounds, (-np.inf, np.inf), strict=True)
    )
    return np.maximum(value - half, lowest), np.minimum(value + half, highest)
