"""What second moments tell of a representation, for measures whose rows are more than can be held.

A covariance here is x'x of centred x (n, d): a sum over rows, float64.
"""

import warnings
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from repsim_cli.errors import Degenerate
from repsim_cli.measures.base import MeasureWarning

CONSTANT = 1e-13  # a neuron that varies less than this share of its size is constant: float64 rounding
SURE = 1e-11  # eigenvalues of x'x above this share of the largest are no rounding


def varying(low: Float[Tensor, " d"], high: Float[Tensor, " d"]) -> Bool[Tensor, " d"]:
    """Which neurons are not dead (constant), from the least and largest value of each; it warns of those that are.

    Raises Degenerate where no neuron is left.
    """
    alive = (high.double() - low.double()) > CONSTANT * torch.maximum(high.abs(), low.abs()).double()
    dead = int((~alive).sum())
    if dead == len(alive):
        raise Degenerate("all rows are equal, got a constant representation; drop this layer or change the data")
    if dead:
        warnings.warn(
            f"dead neurons were dropped, got {dead} of {len(alive)} without variance", MeasureWarning, stacklevel=3
        )
    return alive


def lengths(covariance: Float[Tensor, "d d"], rows: int) -> Float[Tensor, " d"]:
    """Norms of the centred neurons, which make correlations of covariances."""
    return covariance.diagonal().sqrt()


def size(covariance: Float[Tensor, "d d"], rows: int) -> float:
    """The Frobenius norm."""
    return float(torch.linalg.matrix_norm(covariance))


class Axes(NamedTuple):
    """The left singular vectors u = x @ whiten of a centred representation of `rows` rows, by falling variance.

    s: singular values. loadings: u'x.
    """

    whiten: Float[Tensor, "d k"]
    s: Float[Tensor, " k"]
    loadings: Float[Tensor, "k d"]
    rows: int


def axes(covariance: Float[Tensor, "d d"], rows: int) -> Axes:
    """Directions whose variance cannot be told from rounding are left out, with a warning."""
    values, vectors = torch.linalg.eigh(covariance)
    values, vectors = values.flip(0), vectors.flip(1)
    rank = int((values > SURE * values[0]).sum())
    if rank < len(values):
        warnings.warn(
            "directions were left out whose variance second moments cannot tell from rounding, got "
            f"{len(values) - rank} of {len(values)}",
            MeasureWarning,
            stacklevel=2,
        )
    s, v = values[:rank].sqrt(), vectors[:, :rank]
    return Axes(v / s, s, s[:, None] * v.T, rows)


def leading(one: Axes, variance: float) -> Axes:
    """The fewest directions that hold this share of the variance."""
    shares = one.s.square().cumsum(0) / one.s.square().sum()
    k = int((shares < variance).sum()) + 1
    return Axes(one.whiten[:, :k], one.s[:k], one.loadings[:k], one.rows)


def overlap(a: Axes, b: Axes, covariance: Float[Tensor, "d_a d_b"]) -> Float[Tensor, "k l"]:
    """U_a'U_b, whose singular values are the canonical correlations."""
    return a.whiten.T @ covariance @ b.whiten
