"""The null of random pairings of inner products in closed form."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.engine.prepared import PreparedProducts
from repsim_cli.measures.features import compute_gram_tile
from repsim_cli.measures.inner import Matrix, unpack
from repsim_cli.measures.kernels import AnyKernel, Packed, State

SMALLEST = 1e-6  # lower limit of p values in closed form
SMALLEST_NORM = 1e-150  # of U: below it a matrix is constant
ROUNDING = 1e-6  # of the mean of a null: a smaller deviation is that of rounding
CERTAIN = -40.0  # z of a value that all pairings reach, whose p is 1


class NullMoments(NamedTuple):
    """What the permutation null of an inner product needs from a symmetric matrix M.

    Off the diagonal, M_ij = U_ij + a_i + a_j + mean, where the rows of U sum to 0.
    norm, trace, cubes: |U|^2, tr U^3 and the sum of U_ij^3.
    rows, fourths: n sum_i (sum_j U_ij^2)^2 / |U|^4 - 1, 0 for rows that weigh the same, and n sum U_ij^4 / |U|^4.
    linear: F, a and the centred diagonal, weighted so that inner products of permuted parts are sums of products.
    constant: the part that does not depend on the order.
    squares: F' (row sums of U_ij^2). form: F' U F.
    """

    norm: float
    trace: float
    cubes: float
    rows: float
    fourths: float
    linear: Float[Tensor, "n 2"]
    constant: Float[Tensor, " 2"]
    squares: Float[Tensor, " 2"]
    form: Float[Tensor, "2 2"]


def compute_null_moments(matrix: Float[Tensor, "n n"]) -> NullMoments:
    """Splits a symmetric matrix into the parts of its rows and what is left, and sums what the null needs of both."""
    n = len(matrix)
    diagonal = matrix.diagonal().double()
    off = matrix.clone()
    off.fill_diagonal_(0)
    sums = off.sum(1, dtype=torch.float64)
    mean = sums.sum() / (n * (n - 1))
    effects = (sums - (n - 1) * mean) / (n - 2)
    off -= (effects + mean / 2).to(off.dtype)[:, None]
    off -= (effects + mean / 2).to(off.dtype)[None]
    off.fill_diagonal_(0)
    squares = off.square()
    weights, norm = squares.sum(1, dtype=torch.float64), float(squares.sum(dtype=torch.float64))
    linear = torch.stack([effects * math.sqrt(2 * (n - 2)), diagonal - diagonal.mean()], 1)
    square = max(norm, SMALLEST_NORM) ** 2
    return NullMoments(
        norm=norm,
        trace=float(((off @ off) * off).sum(dtype=torch.float64)),
        cubes=float((squares * off).sum(dtype=torch.float64)),
        rows=n * float(weights.square().sum()) / square - 1,
        fourths=n * float(squares.square().sum(dtype=torch.float64)) / square,
        linear=linear,
        constant=torch.stack([mean * math.sqrt(n * (n - 1)), diagonal.mean() * math.sqrt(n)]),
        squares=weights @ linear,
        form=linear.T @ (off @ linear.to(off.dtype)).double(),
    )


class Null(NamedTuple):
    """Of the inner products of all pairs if the rows of a side are permuted.

    heaviness: the part of the excess kurtosis that few heavy rows make, beyond that of a Pearson type III variable.
    """

    mean: Matrix
    deviation: Matrix
    skewness: Matrix
    heaviness: Matrix


def compute_closed_form_null(rows: Sequence[NullMoments], columns: Sequence[NullMoments]) -> Null:
    """The permutation null of <M_a, P N_b P'>: mean and variance exact, skewness and heaviness to leading order.

    The U parts and the linear parts are uncorrelated. Their variances: 2 |U|^2 |V|^2 / (n (n - 3)), and for sums
    of f_i g_P(i): |f|^2 |g|^2 / (n - 1) (Hoeffding 1951). A heavy row that meets a heavy row, and an entry of U that
    meets one of V, are the terms of the fourth moment beside those of the spectrum.
    """
    n = len(rows[0].linear)

    def stack(side: Sequence[NullMoments]) -> tuple[Tensor, ...]:
        linear = torch.stack([m.linear for m in side])
        known = [[m.norm, m.trace, m.cubes, m.rows, m.fourths] for m in side]
        scalars = torch.tensor(known, dtype=torch.float64, device=linear.device)
        return (
            *scalars.unbind(1),
            torch.stack([m.constant for m in side]),
            torch.stack([m.squares for m in side]),
            torch.stack([m.form for m in side]).flatten(1),
            torch.einsum("rik,ril->rkl", linear, linear).flatten(1),
            torch.einsum("rik,ril,rim->rklm", linear, linear, linear).flatten(1),
            torch.einsum("rik,ril,rim,rio->rklmo", linear, linear, linear, linear).flatten(1),
        )

    norm, trace, cubes, weights, fourths, constant, squares, form, second, third, fourth = (
        a.view(len(rows), -1) @ b.view(len(columns), -1).T for a, b in zip(stack(rows), stack(columns), strict=True)
    )
    unit = 2 / (n * max(n - 3, 1))  # of three rows U is 0
    variance = unit * norm + second / (n - 1)
    deviation = variance.sqrt()
    quadratic = unit**1.5 * (math.sqrt(8) * trace + math.sqrt(2) * n * cubes)
    mixed = (12 * squares + 6 * form) / (n * (n - 1))
    linear = third * n / ((n - 1) * (n - 2))
    of_pairs = (12 * weights / (n - 1) + 2 * fourths).clamp_min(0).sqrt() * unit * norm / variance
    of_rows = fourth / n - 3 * (second / n) ** 2
    heaviness = (of_pairs + of_rows.clamp_min(0).sqrt() / variance) ** 2  # as if both were large in the same orders
    return Null(constant, deviation, (quadratic + mixed + linear) / deviation**3, heaviness)


def compute_tail_p(z: Matrix, skewness: Matrix, heaviness: Matrix) -> Matrix:
    """P(Z >= z) for a variable with mean 0, variance 1, this skewness, and this excess kurtosis beyond it.

    z becomes the normal value of the same tail under Student's t of this kurtosis, and p is that of Pearson's type III.
    Negative skewness counts as none, since that variable has an end where permutations have none. At least SMALLEST:
    moments do not determine how far a tail reaches.
    """
    degrees = 4 + 6 / heaviness.cpu().clamp(1e-6, None).numpy()
    far = z.cpu().numpy()
    drawn_in = scipy.stats.norm.isf(scipy.stats.t.sf(np.abs(far) * np.sqrt(degrees / (degrees - 2)), degrees))
    p = scipy.stats.pearson3.sf(np.sign(far) * drawn_in, skewness.cpu().clamp_min(0).numpy())
    return torch.from_numpy(np.asarray(p, dtype=np.float64)).clamp_min(SMALLEST)


def score_against_null(prepared: PreparedProducts) -> dict[str, Tensor]:
    """z, skewness and heaviness of the inner products of all pairs under the null, in closed form.

    Where every pairing has the same value, as where all rows of a side are as far apart, all are as close: p is 1.
    """
    measure = prepared.measure
    known = {
        kernel: [
            compute_null_moments(_build_kernel_matrix(kernel, state, prepared.rows))
            for state in prepared.states[kernel]
        ]
        for kernel in dict.fromkeys((measure.row, measure.column))
    }
    null = compute_closed_form_null(known[measure.row], known[measure.column])
    unmoved = null.deviation <= ROUNDING * null.mean.abs()
    z = ((prepared.cross - null.mean) / null.deviation).masked_fill(unmoved, CERTAIN)
    return {
        "z": z,
        "skewness": null.skewness.masked_fill(unmoved, 0),
        "heaviness": null.heaviness.masked_fill(unmoved, 0),
    }


def _build_kernel_matrix(kernel: AnyKernel, state: State, n: int) -> Float[Tensor, "n n"]:
    """The whole (n, n) matrix of a representation."""
    if isinstance(kernel, Packed):
        return unpack(state.features.values, n)
    whole = slice(0, n)
    return kernel.cells(state.fit, compute_gram_tile(state.features, whole, whole), whole, whole)
