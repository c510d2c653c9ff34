"""Representations by their second moments, for measures on more rows than fit into memory.

A covariance here is x'x of centred x (n, d): a sum over rows, float64.
"""

import warnings
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.measures.base import MeasureWarning
from repsim_cli.measures.rank import DOUBLE, SINGLE, compute_rank_tolerance

SURE = 1e-11  # eigenvalues of x'x above this share of the largest are more than rounding


class Second(NamedTuple):
    """Second moments of a representation.

    sizes: the norms of the neurons as stored, offset included. eps: the precision in which they were stored.
    """

    covariance: Float[Tensor, "d d"]
    sizes: Float[Tensor, " d"]
    rows: int
    eps: float


def compute_centred_norms(x: Second) -> Float[Tensor, " d"]:
    """Norms of the centred neurons, which turn covariances into correlations."""
    return x.covariance.diagonal().sqrt()


def compute_frobenius_norm(x: Second) -> float:
    """The Frobenius norm of the covariance."""
    if float(x.covariance.trace()) <= float((DOUBLE * x.sizes).square().sum()):
        raise Degenerate("all rows are equal, got a constant representation; drop this layer or change the data")
    return float(torch.linalg.matrix_norm(x.covariance))


class Axes(NamedTuple):
    """The left singular vectors u = x @ whiten of a centred representation of `rows` rows, by descending variance.

    s: singular values. loadings: u'x. spread: with rounding, u is orthonormal to about eps / spread.
    """

    whiten: Float[Tensor, "d k"]
    s: Float[Tensor, " k"]
    loadings: Float[Tensor, "k d"]
    rows: int
    spread: float


def find_reliable_axes(x: Second) -> Axes:
    """The directions that count by the rule of `rank.py` for float32; smaller ones are lost in second moments.

    Warns where the rows were stored in float64, since what is left out may be more than rounding. Raises Degenerate
    where none is left.
    """
    directions = find_principal_axes(x)
    if not len(directions.s):
        raise Degenerate(
            "all rows are equal within the rounding of second moments, got no direction; use the estimate full, or "
            "drop this layer"
        )
    if x.eps < SINGLE and len(directions.s) < len(x.sizes):
        warnings.warn(
            "directions were left out whose variance is within the rounding of second moments, got "
            f"{len(x.sizes) - len(directions.s)} of {len(x.sizes)}; use the estimate full",
            MeasureWarning,
            stacklevel=2,
        )
    return directions


def find_principal_axes(x: Second) -> Axes:
    """The directions of the rows, by their variance: of all neurons where their covariance is safely of full rank, else
    those above the rounding of float32, counted with every neuron scaled to equal size."""
    least = compute_rank_tolerance(len(x.sizes), SINGLE) ** 2
    whiten = find_whitening(x.covariance)
    if whiten is not None and bound_inverse_eigenvalue(whiten, x.sizes) < 1 / least:
        values, vectors = torch.linalg.eigh(x.covariance)
        if values[0] > SURE * values[-1]:
            s, v = values.flip(0).sqrt(), vectors.flip(1)
            return Axes(v / s, s, s[:, None] * v.T, x.rows, float(values[0] / values[-1]))
    # the rank from neurons scaled to equal size, then the order by variance within their span
    values, vectors = torch.linalg.eigh(x.covariance / x.sizes / x.sizes[:, None])
    counted = values > least
    whiten = vectors[:, counted] / values[counted].sqrt() / x.sizes[:, None]
    loadings = whiten.T @ x.covariance
    turn = find_order(loadings)
    loadings = turn.T @ loadings
    s = torch.linalg.vector_norm(loadings, dim=1)
    spread = float(values[counted][0] / values[-1]) if counted.any() else 0.0
    return Axes(whiten @ turn, s, loadings, x.rows, spread)


def find_order(loadings: Float[Tensor, "k d"]) -> Float[Tensor, "k k"]:
    """The rotation that orders an orthonormal basis with these loadings by descending variance."""
    return torch.linalg.eigh(loadings @ loadings.T).eigenvectors.flip(1)


def find_whitening(covariance: Float[Tensor, "d d"]) -> Float[Tensor, "d d"] | None:
    """Triangular W with W'CW = 1, from a Cholesky factor of the neurons' correlations; None where there is none."""
    units = covariance.diagonal().rsqrt()
    factor, failed = torch.linalg.cholesky_ex(covariance * units * units[:, None])
    if failed:
        return None
    inverse = torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False)
    return (inverse * units).T


def bound_inverse_eigenvalue(whiten: Float[Tensor, "d d"], sizes: Float[Tensor, " d"]) -> float:
    """An upper bound on 1 / the smallest eigenvalue of the covariance of neurons divided by these sizes."""
    return float((whiten * sizes[:, None]).square().sum())


def keep_leading(directions: Axes, variance: float) -> Axes:
    """The fewest directions that hold this share of the variance; all that count for a share of 1."""
    k = count_kept_directions(directions.s, variance)
    return directions._replace(whiten=directions.whiten[:, :k], s=directions.s[:k], loadings=directions.loadings[:k])


def count_kept_directions(s: Float[Tensor, " k"], variance: float) -> int:
    """Counts the descending singular values s that hold this share of the variance; all for a share of 1."""
    shares = s.square().cumsum(0) / s.square().sum()
    return len(s) if variance == 1 else int((shares < variance).sum()) + 1


def correlate_axes(a: Axes, b: Axes, covariance: Float[Tensor, "d_a d_b"]) -> Float[Tensor, "k l"]:
    """U_a'U_b; its singular values are the canonical correlations."""
    return a.whiten.T @ covariance @ b.whiten
