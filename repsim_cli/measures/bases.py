"""Orthonormal bases of column spaces, from a thin SVD per representation, centred, in float64; no covariance matrix is
inverted.
"""

from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from repsim_cli.measures import moments, rank
from repsim_cli.measures.cards import Invariance
from repsim_cli.measures.centring import choose_power_of_two
from repsim_cli.measures.rdm import SHAPE

AFFINE: frozenset[Invariance] = frozenset({*SHAPE, "invertible_linear", "scaling_of_neurons"})
NEURONS: frozenset[Invariance] = SHAPE - {"orthogonal"}
CORRELATIONS: frozenset[Invariance] = frozenset({*NEURONS, "scaling_of_neurons"})
Variance = Annotated[float, Field(gt=0, le=1)]


def choose_working_dtype(x: Tensor) -> torch.dtype:
    """The precision of products over pairs: that of x, float32 for half-precision input."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class LiveNeurons(NamedTuple):
    """The neurons of a representation that are not dead.

    values: centred, float64, over `choose_power_of_two`. sizes: their norms as stored, offset included.
    eps: the precision they were stored in. kept: their numbers in the representation.
    """

    values: Float[Tensor, "n k"]
    sizes: Float[Tensor, " k"]
    eps: float
    kept: Int[Tensor, " k"]


def drop_dead_neurons(x: Float[Tensor, "n d"]) -> LiveNeurons:
    """The neurons, without dead ones, which cause a warning. Raises Degenerate where no neuron is left."""
    eps = rank.find_stored_precision(rank.mark_single_precision(x))
    x = x.double()
    x = x / choose_power_of_two(x)
    means = x.mean(0)
    x = x - means
    lengths = torch.linalg.vector_norm(x, dim=0)
    sizes = torch.hypot(lengths, len(x) ** 0.5 * means)
    varying = rank.find_varying(lengths, sizes, eps)
    kept = varying.nonzero()[:, 0]
    return (
        LiveNeurons(x, sizes, eps, kept)
        if bool(varying.all())
        else LiveNeurons(x[:, varying], sizes[varying], eps, kept)
    )


class Basis(NamedTuple):
    """Thin SVD of a centred representation: an orthonormal basis by descending variance, singular values, u'x.

    dtype: the precision of products over pairs.
    """

    u: Float[Tensor, "n k"]
    s: Float[Tensor, " k"]
    loadings: Float[Tensor, "k d"]
    dtype: torch.dtype


def choose_tolerance(dtype: torch.dtype) -> float:
    """The share of the largest eigenvalue of x'x below which the others are too small for the basis x V / s: it is then
    not orthonormal to the precision of products over pairs, 1e-12 (float64) or 1e-9 (float32).
    """
    return 1e-4 if dtype == torch.float64 else 1e-7


def thin_svd(x: Float[Tensor, "n d"]) -> Basis:
    """The thin SVD of the neurons and directions that count by the rule of `rank.py`."""
    return decompose(drop_dead_neurons(x), choose_working_dtype(x))


def decompose(x: LiveNeurons, dtype: torch.dtype) -> Basis:
    """The thin SVD from the eigenvectors of x'x where these resolve all directions that count (twice as fast), refined
    if necessary. Either way, the basis spans the columns of x up to rounding.
    """
    n, d = x.values.shape
    if n > d:
        axes = moments.find_principal_axes(moments.Second(x.values.T @ x.values, x.sizes, n, x.eps))
        if x.eps == rank.SINGLE or len(axes.s) == d:
            u, loadings = x.values @ axes.whiten, axes.loadings
            if axes.spread < choose_tolerance(dtype):
                # a second orthonormalisation, which keeps the span of the leading columns
                factor = torch.linalg.cholesky(u.T @ u)
                u = torch.linalg.solve_triangular(factor, u.T, upper=False).T
                loadings = factor.T @ loadings
            return Basis(u, axes.s, loadings, dtype)
    units = x.values / x.sizes
    if x.eps == rank.SINGLE:
        squares, u = torch.linalg.eigh(units @ units.T)
        s = squares.clamp_min(0).sqrt()
    else:
        u, s, _ = torch.linalg.svd(units, full_matrices=False)
    u = u[:, s > rank.compute_rank_tolerance(d, x.eps)]
    u = u @ moments.find_order(u.T @ x.values)
    loadings = u.T @ x.values
    return Basis(u, torch.linalg.vector_norm(loadings, dim=1), loadings, dtype)


def permute(basis: Basis, order: Tensor) -> Basis:
    return basis._replace(u=basis.u[order])


def keep_leading(basis: Basis, variance: float) -> Basis:
    """The fewest directions that hold this share of the variance; all that count for a share of 1."""
    k = moments.count_kept_directions(basis.s, variance)
    return Basis(basis.u[:, :k], basis.s[:k], basis.loadings[:k], basis.dtype)


def nuclear_norm(m: Float[Tensor, "k l"]) -> float:
    """The sum of the singular values, in float64.

    For a float32 m from the eigenvalues of m m', unless their error in the sum exceeds the rounding of float32: an
    eigenvalue is accurate to about eps of the largest, its root sigma to eps / sigma.
    """
    single = m.dtype != torch.float64
    m = m.double()
    if single:
        eigenvalues = torch.linalg.eigvalsh(m @ m.T if len(m) <= m.shape[1] else m.T @ m).clamp_min(0)
        sigma = eigenvalues.sqrt()
        rounding = 4 * torch.finfo(torch.float64).eps * eigenvalues[-1]
        error = torch.minimum(rounding / (2 * sigma), rounding.sqrt()).sum()
        if error <= 1e-7 * sigma.sum():
            return float(sigma.sum())
    return float(torch.linalg.svdvals(m).sum())


def correlate_bases(a: Basis, b: Basis) -> Float[Tensor, "k l"]:
    """U_a'U_b; its singular values are the canonical correlations."""
    dtype = torch.promote_types(a.dtype, b.dtype)
    return a.u.to(dtype).T @ b.u.to(dtype)
