"""Orthonormal bases of column spaces, by one thin SVD per representation, centred, in float64; no covariance matrix is
ever inverted.
"""

from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from repsim_cli.measures import moments
from repsim_cli.measures.base import Invariance
from repsim_cli.measures.moments import SURE
from repsim_cli.measures.rdm import SHAPE

AFFINE: frozenset[Invariance] = frozenset({*SHAPE, "invertible_linear"})
NEURONS: frozenset[Invariance] = SHAPE - {"orthogonal"}
Variance = Annotated[float, Field(gt=0, le=1)]


def working(x: Tensor) -> torch.dtype:
    """The precision of products over pairs: x's own, float32 for half-precision input."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def alive(x: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
    """x centred, in float64, without its dead (constant) neurons, of which it warns.

    Raises Degenerate where no neuron is left.
    """
    varying = moments.varying(*x.aminmax(dim=0))
    x = (x if bool(varying.all()) else x[:, varying]).double()
    return x - x.mean(0)


class Basis(NamedTuple):
    """Thin SVD of a centred representation: an orthonormal basis by falling variance, singular values, u'x.

    dtype: the precision of products over pairs.
    """

    u: Float[Tensor, "n k"]
    s: Float[Tensor, " k"]
    loadings: Float[Tensor, "k d"]
    dtype: torch.dtype


def tolerated(dtype: torch.dtype) -> float:
    """Eigenvalues of x'x below this share of the largest leave a basis of x V / s less orthonormal than the
    precision of products over pairs can tell: 1e-12 (float64), 1e-9 (float32).
    """
    return 1e-4 if dtype == torch.float64 else 1e-7


def thin_svd(x: Float[Tensor, "n d"]) -> Basis:
    """Directions below max(n, d) eps of the largest singular value are none. Dead neurons are dropped.

    By the eigenvectors of x'x where its condition allows (twice as fast), refined where they need it: the basis spans
    the columns of x to rounding either way.
    """
    dtype = working(x)
    return decomposed(alive(x), dtype)


def decomposed(x: Float[Tensor, "n d"], dtype: torch.dtype) -> Basis:
    n, d = x.shape
    if n > d:
        values, vectors = torch.linalg.eigh(x.T @ x)
        if values[0] > SURE * values[-1]:
            v = vectors.flip(1)
            u = x @ v
            s = torch.linalg.vector_norm(u, dim=0)
            u, loadings = u / s, s[:, None] * v.T
            if values[0] < tolerated(dtype) * values[-1]:
                # a second orthonormalisation, which keeps the span of the leading columns
                factor = torch.linalg.cholesky(u.T @ u)
                u = torch.linalg.solve_triangular(factor, u.T, upper=False).T
                loadings = factor.T @ loadings
            return Basis(u, s, loadings, dtype)
    u, s, vt = torch.linalg.svd(x, full_matrices=False)
    rank = int((s > max(n, d) * torch.finfo(s.dtype).eps * s[0]).sum())
    return Basis(u[:, :rank], s[:rank], s[:rank, None] * vt[:rank], dtype)


def permuted(basis: Basis, order: Tensor) -> Basis:
    return basis._replace(u=basis.u[order])


def leading(basis: Basis, variance: float) -> Basis:
    """The fewest directions that hold this share of the variance."""
    shares = basis.s.square().cumsum(0) / basis.s.square().sum()
    k = int((shares < variance).sum()) + 1
    return Basis(basis.u[:, :k], basis.s[:k], basis.loadings[:k], basis.dtype)


def nuclear_norm(m: Float[Tensor, "k l"]) -> float:
    """The sum of the singular values, in float64.

    For a float32 m by the eigenvalues of m m', unless these leave more than float32's rounding in the sum: an
    eigenvalue is good to about eps of the largest, which is eps / sigma in its root sigma.
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


def overlap(a: Basis, b: Basis) -> Float[Tensor, "k l"]:
    """U_a'U_b, whose singular values are the canonical correlations."""
    dtype = torch.promote_types(a.dtype, b.dtype)
    return a.u.to(dtype).T @ b.u.to(dtype)
