"""Rows without their mean, of mean squared norm 1, as most measures take them."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.base.gram import cut_feature_strips, gram_matrix, multiply_halves, squared_norms
from repsim_cli.measures.features import CentredRows, cut_into_runs

CACHED = 1 << 17  # cells
ON_DEVICE = 1 << 26  # cells, where the rows are on a GPU
HELD = 2048  # rows, of which a GPU holds the whole Gram matrix
FEW = 512  # rows, of which the whole Gram matrix is held


def centre(x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n d"], float]:
    """x with column means removed and scaled to mean squared row norm 1, and the scale that was divided out.

    In x's precision (float32 for half-precision input): the first pass removes a large common offset, exact up to
    rounding; the second removes what is left, a mean in float64. Raises Degenerate for a constant representation.
    """
    x = x if x.dtype == torch.float64 else x.float()
    unit = float(choose_power_of_two(x))
    if unit != 1:
        x = x / unit
    largest = float(find_largest(x))
    x = x - x.mean(0)
    x -= x.mean(0, dtype=torch.float64).to(x.dtype)
    scale = float(torch.linalg.vector_norm(x, dtype=torch.float64)) / len(x) ** 0.5
    # for a constant column, float64 rounding of the mean leaves this much
    if scale <= 1e-13 * largest:
        raise Degenerate("all rows are equal, got a constant representation; drop this layer or change the data")
    return x.div_(scale), scale * unit


def choose_power_of_two(x: Tensor, dim: int | None = None) -> Tensor:
    """A power of two: divided by it, no square of a number that counts overflows or vanishes. It is at the largest
    number, of all or along a dimension, where that is far from 1."""
    largest = find_largest(x) if dim is None else x.abs().amax(dim, keepdim=True)
    most = -math.log2(torch.finfo(x.dtype).tiny)  # so that it and its inverse are numbers of the type
    exponents = torch.frexp(largest).exponent.double().clamp(-most, most)
    return torch.where(exponents.abs() < most / 8, 0, exponents).exp2().to(x.dtype)


def find_largest(x: Tensor) -> Float[Tensor, ""]:
    """Finds the largest absolute value, without a copy of all."""
    least, most = x.aminmax()
    return torch.maximum(-least, most)


# share of the largest entry: rows closer than this differ by the rounding of float32 alone
FLAT = 1e-5


def split_rows_for_cache(x: Shaped[Tensor, "n d"]) -> Iterator[slice]:
    """Cuts the rows into slices that fit into the processor's cache; on a GPU into large ones."""
    size = max(1, (CACHED if x.device.type == "cpu" else ON_DEVICE) // x.shape[1])
    return (slice(start, start + size) for start in range(0, len(x), size))


def centre_together(xs: Sequence[Float[Tensor, "n _d"]]) -> list[CentredRows | Degenerate]:
    """`centre_rows` of several representations, each or why it cannot be. Those of one shape take few steps together,
    so that a GPU neither starts steps for each nor is waited for. The Gram matrices of few rows are made too, by
    `multiply_halves`."""
    runs = list(cut_into_runs([(x.shape, x.dtype) for x in xs]))
    started = [_start_run(xs[run]) for run in runs]
    sizes = torch.cat([torch.stack([run.norms.mean(1).sqrt(), run.offsets]) for run in started], 1).tolist()
    made: list[CentredRows | Degenerate] = []
    for at, run in zip(runs, started, strict=True):
        made += _finish_run(xs[at], run, *(part[at] for part in sizes))
    return made


class _Run(NamedTuple):
    """Representations of one shape, before their scales are known. rests: what the rounding of the means leaves."""

    means: Float[Tensor, "l d"]
    rests: Float[Tensor, "l d"]
    norms: Float[Tensor, "l n"]
    offsets: Float[Tensor, " l"]
    grams: Float[Tensor, "l n n"] | None


def _start_run(xs: Sequence[Float[Tensor, "n d"]]) -> _Run:
    near = torch.stack(tuple(xs)).to(torch.promote_types(xs[0].dtype, torch.float32))
    means = near.mean(1)
    rests = near.sub_(means[:, None]).mean(1)
    norms = torch.linalg.vector_norm(near.sub_(rests[:, None]), dim=2).double().square()
    grams = None
    if near.shape[1] <= HELD:
        grams = multiply_halves(near, near)
        grams.diagonal(dim1=1, dim2=2).copy_(norms)
    return _Run(means, rests, norms, torch.linalg.vector_norm(means, dim=1).double(), grams)


def _finish_run(
    xs: Sequence[Float[Tensor, "n d"]], run: _Run, sizes: Sequence[float], offsets: Sequence[float]
) -> Iterator[CentredRows | Degenerate]:
    dtype, plain = run.means.dtype, [_is_plain(size, offset) for size, offset in zip(sizes, offsets, strict=True)]
    scales = [_round_to_exact_inverse(size, dtype) if well else 1.0 for size, well in zip(sizes, plain, strict=True)]
    by = run.norms.new_tensor(scales)[:, None]
    rests, norms = run.rests / -by.to(dtype), run.norms / by**2
    grams = [None] * len(xs) if run.grams is None else run.grams.div_(by[..., None].to(dtype) ** 2).unbind()
    of_each = zip(xs, run.means.unbind(), rests.unbind(), scales, norms.unbind(), grams, strict=True)
    for given, well in zip(of_each, plain, strict=True):
        try:
            yield CentredRows(*given) if well else centre_rows(given[0])
        except Degenerate as error:
            yield error


def _is_plain(size: float, offset: float) -> bool:
    """Says whether rows of this root mean square norm differ enough beside the norm of their mean for squares to do."""
    return 1e-12 < size < 1e15 and size > 1e-4 * offset


def centre_rows(x: Float[Tensor, "n d"]) -> CentredRows:
    """`centre` rows without a copy, as features of every kernel on their Gram matrix."""
    n, dtype = len(x), torch.promote_types(x.dtype, torch.float32)
    if n <= min(x.shape[1], FEW) and (wide := _centre_wide(x)) is not None:
        return wide
    sums, largest = x.new_zeros(x.shape[1], dtype=torch.float64), 0.0
    for rows in split_rows_for_cache(x):
        block = x[rows].to(dtype)
        sums += block.sum(0)
        largest = max(largest, *(abs(float(end)) for end in block.aminmax()))
    mean, sums = (sums / n).to(dtype), torch.zeros_like(sums)
    for rows in split_rows_for_cache(x):
        sums += (x[rows].to(dtype) - mean).sum(0)
    rest = sums / n
    # in units of the largest entry, whose square neither overflows nor vanishes
    least = 4 * torch.finfo(dtype).tiny  # the inverse of less may overflow
    unit = _round_to_exact_inverse(max(largest, least), dtype)
    given = CentredRows(x, mean, (-rest / unit).to(dtype), unit, x.new_empty(0, dtype=torch.float64))
    norms = torch.cat([squared_norms(given.block(rows)) for rows in split_rows_for_cache(x)])
    size = math.sqrt(float(norms.sum()) / n)
    # for a constant column, float64 rounding of the mean leaves this much
    if size <= 1e-13 or size * unit < least:
        raise Degenerate("all rows are equal, got a constant representation; drop this layer or change the data")
    scale = _round_to_exact_inverse(size * unit, dtype)
    return CentredRows(x, mean, (-rest / scale).to(dtype), scale, norms * (unit / scale) ** 2)


def _centre_wide(x: Float[Tensor, "n d"]) -> CentredRows | None:
    """Centres few rows of many features, and makes their Gram matrix, strip by strip, so that they are read once.

    None where rows differ by little beside their mean, or by so much or little that squares would not do.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    means, rests, gram = [], [], None
    for strip in cut_feature_strips(x):
        part = x[:, strip].to(dtype)
        means.append(part.mean(0))
        near = part - means[-1]
        rests.append(near.mean(0))
        product = gram_matrix(near.sub_(rests[-1]))
        gram = product if gram is None else gram.double() + product
    assert gram is not None
    mean, norms = torch.cat(means), gram.diagonal().double()
    size = math.sqrt(max(float(norms.mean()), 0.0))
    if not _is_plain(size, float(torch.linalg.vector_norm(mean))):
        return None
    scale = _round_to_exact_inverse(size, dtype)
    return CentredRows(x, mean, torch.cat(rests) / -scale, scale, norms / scale**2, gram.div_(scale**2).to(dtype))


def _round_to_exact_inverse(scale: float, dtype: torch.dtype) -> float:
    """The nearest scale whose inverse, by which rows are multiplied, is a number of the type."""
    return scale if dtype == torch.float64 else 1 / float(np.float32(1 / scale))


def compute_rounding_floor(n: int, dtype: torch.dtype) -> float:
    """Self-products of (n, n) matrices of `centre` rows below this are rounding and count as 0.

    Rounding is eps |x_i|^2 per cell, and |x_i|^2 at most n, in a single row: eps^2 n^3 in total.
    """
    return 100 * torch.finfo(dtype).eps ** 2 * n**3
