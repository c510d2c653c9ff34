"""What second moments tell of a representation, for measures whose rows are more than can be held.

A covariance here is x'x of centred x (n, d): a sum over rows, float64.
"""

import warnings
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.errors import Degenerate
from repsim_cli.measures.base import MeasureWarning
from repsim_cli.measures.rank import DOUBLE, SINGLE, floor

SURE = 1e-11  # eigenvalues of x'x above this share of the largest are no rounding


class Second(NamedTuple):
    """Second moments of one representation.

    sizes: the neurons' norms as stored, offset included. eps: the precision that they were stored in.
    """

    covariance: Float[Tensor, "d d"]
    sizes: Float[Tensor, " d"]
    rows: int
    eps: float


def lengths(x: Second) -> Float[Tensor, " d"]:
    """Norms of the centred neurons, which make correlations of covariances."""
    return x.covariance.diagonal().sqrt()


def size(x: Second) -> float:
    """The Frobenius norm of the covariance."""
    if float(x.covariance.trace()) <= float((DOUBLE * x.sizes).square().sum()):
        raise Degenerate("all rows are equal, got a constant representation; drop this layer or change the data")
    return float(torch.linalg.matrix_norm(x.covariance))


class Axes(NamedTuple):
    """The left singular vectors u = x @ whiten of a centred representation of `rows` rows, by falling variance.

    s: singular values. loadings: u'x. spread: rounding leaves u orthonormal to about eps / spread.
    """

    whiten: Float[Tensor, "d k"]
    s: Float[Tensor, " k"]
    loadings: Float[Tensor, "k d"]
    rows: int
    spread: float


def axes(x: Second) -> Axes:
    """The directions that count by the rule of `rank.py` for float32, below which second moments tell nothing.

    Warns where the rows were stored in float64, so that what is left out may be more than rounding.
    """
    found = principal(x)
    if x.eps < SINGLE and len(found.s) < len(x.sizes):
        warnings.warn(
            "directions were left out whose variance second moments cannot tell from rounding, got "
            f"{len(x.sizes) - len(found.s)} of {len(x.sizes)}; use the estimate full",
            MeasureWarning,
            stacklevel=2,
        )
    return found


def principal(x: Second) -> Axes:
    least = floor(len(x.sizes), SINGLE) ** 2
    whiten = whitening(x.covariance)
    if whiten is not None and condition(whiten, x.sizes) < 1 / least:
        values, vectors = torch.linalg.eigh(x.covariance)
        if values[0] > SURE * values[-1]:
            s, v = values.flip(0).sqrt(), vectors.flip(1)
            return Axes(v / s, s, s[:, None] * v.T, x.rows, float(values[0] / values[-1]))
    # the rank by neurons of one size, then the order by variance within that space
    values, vectors = torch.linalg.eigh(x.covariance / x.sizes / x.sizes[:, None])
    counted = values > least
    whiten = vectors[:, counted] / values[counted].sqrt() / x.sizes[:, None]
    loadings = whiten.T @ x.covariance
    turn = ordering(loadings)
    loadings = turn.T @ loadings
    s = torch.linalg.vector_norm(loadings, dim=1)
    return Axes(whiten @ turn, s, loadings, x.rows, float(values[counted][0] / values[-1]))


def ordering(loadings: Float[Tensor, "k d"]) -> Float[Tensor, "k k"]:
    """The rotation of an orthonormal basis of these loadings that orders it by falling variance."""
    return torch.linalg.eigh(loadings @ loadings.T).eigenvectors.flip(1)


def whitening(covariance: Float[Tensor, "d d"]) -> Float[Tensor, "d d"] | None:
    """Triangular W with W'CW = 1, by a Cholesky factor of the neurons' correlations; None where it has none."""
    units = covariance.diagonal().rsqrt()
    factor, failed = torch.linalg.cholesky_ex(covariance * units * units[:, None])
    if failed:
        return None
    inverse = torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False)
    return (inverse * units).T


def condition(whiten: Float[Tensor, "d d"], sizes: Float[Tensor, " d"]) -> float:
    """At least one over the smallest eigenvalue of the covariance of neurons divided by these sizes."""
    return float((whiten * sizes[:, None]).square().sum())


def leading(one: Axes, variance: float) -> Axes:
    """The fewest directions that hold this share of the variance; of the whole, all that count."""
    k = kept(one.s, variance)
    return one._replace(whiten=one.whiten[:, :k], s=one.s[:k], loadings=one.loadings[:k])


def kept(s: Float[Tensor, " k"], variance: float) -> int:
    """How many of the falling singular values s hold this share of the variance, or all of them for 1."""
    shares = s.square().cumsum(0) / s.square().sum()
    return len(s) if variance == 1 else int((shares < variance).sum()) + 1


def overlap(a: Axes, b: Axes, covariance: Float[Tensor, "d_a d_b"]) -> Float[Tensor, "k l"]:
    """U_a'U_b, whose singular values are the canonical correlations."""
    return a.whiten.T @ covariance @ b.whiten
