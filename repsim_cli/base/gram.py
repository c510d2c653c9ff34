"""Products x @ x.T, of which about half is computed, norms of rows, and wide rows strip by strip."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

CACHED = 1 << 17  # cells of a strip
NARROW = 512  # features that a strip has at least: products of fewer are slow
DIAGONAL = 128  # rows of a tile on the diagonal


def cut_feature_strips(x: Float[Tensor, "n d"]) -> Iterator[slice]:
    """Cuts all features into strips of as many as fit into the processor's cache; on a GPU, one strip. x: (n, d)."""
    size = max(CACHED // len(x), NARROW) if x.device.type == "cpu" else x.shape[1]
    return (slice(start, start + size) for start in range(0, x.shape[1], size))


def squared_norms(x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """|x_i|^2 of every row, float64; each is summed in x's precision, which is several times faster."""
    return torch.linalg.vector_norm(x, dim=1).double().square()


def split_square(rows: slice, side: int = DIAGONAL) -> Iterator[tuple[slice, slice]]:
    """The square on the diagonal, as squares of at most this many rows and the tiles above them."""
    if rows.stop - rows.start <= side:
        yield rows, rows
    else:
        middle = (rows.start + rows.stop) // 2
        upper, lower = slice(rows.start, middle), slice(middle, rows.stop)
        yield from split_square(upper, side)
        yield upper, lower
        yield from split_square(lower, side)


def choose_diagonal(rows: int, device: torch.device) -> int:
    """Chooses the side of the squares on the diagonal: on a GPU a step costs more than half of the cells."""
    return DIAGONAL if device.type == "cpu" else max(rows, 1)


def gram_matrix(x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """x @ x.T."""
    x = x.contiguous()
    gram = x.new_empty(len(x), len(x))
    for rows, columns in split_square(slice(0, len(x)), choose_diagonal(len(x), x.device)):
        multiply_into(gram[rows, columns], left := x[rows], left if rows == columns else x[columns])
        if rows != columns:
            gram[columns, rows] = gram[rows, columns].T
    return gram


def multiply_into(out: Float[Tensor, "*l a b"], x: Float[Tensor, "*l a d"], y: Float[Tensor, "*l b d"]) -> None:
    """Puts x @ y.T of contiguous rows into out, in their precision."""
    product = find_onednn_product() if x.dtype == torch.float32 and x.device.type == "cpu" else None
    if product is None:
        torch.matmul(x, y.mT, out=out)
    else:
        out.copy_(product(x, y, None))


def multiply_halves(x: Float[Tensor, "l a d"], y: Float[Tensor, "l b d"]) -> Float[Tensor, "l a b"]:
    """Multiplies x @ y.T of several pairs.

    Where a GPU can, float32 is multiplied in halves of 16 bits, which is faster, keeps 16 of the 24 bits of every
    number and sums in float32: enough for sums over all cells, as CKA takes them, and not for the order of single
    cells, which tells the nearest rows.
    """
    wide = find_wide_product(x.device) if x.dtype == torch.float32 else None
    if wide is None:
        return x @ y.mT
    upper, lower = split_into_halves(x)
    others = (upper, lower) if y is x else split_into_halves(y)
    return wide(upper, others[0]).add_(wide(upper, others[1])).add_(wide(lower, others[0]))


def split_into_halves(x: Float[Tensor, "*l n d"]) -> tuple[Float[Tensor, "*l n d"], Float[Tensor, "*l n d"]]:
    """Splits float32 into two of bfloat16, whose sum has 16 of its 24 bits."""
    upper = x.bfloat16()
    return upper, torch.sub(x, upper, out=torch.empty_like(upper))


@cache
def find_wide_product(device: torch.device) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Finds x @ y.T of several bfloat16 in float32, where the card and torch (2.8) have it; else None."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return None

    def multiply(x: Tensor, y: Tensor) -> Tensor:
        return torch.bmm(x, y.mT, out_dtype=torch.float32)

    some = torch.ones(1, 16, 16, dtype=torch.bfloat16, device=device)
    try:
        multiply(some, some)
    except (TypeError, RuntimeError):
        return None
    return multiply


@cache
def find_onednn_product() -> Callable[[Tensor, Tensor, Tensor | None], Tensor] | None:
    """Finds x @ y.T + bias of contiguous float32 rows by oneDNN, on AMD's processors with AVX-512; None elsewhere.

    MKL, which torch uses otherwise, has kernels of half the width for these processors. The rounding of oneDNN is up to
    four times as large: 4e-8 of the largest cells, in the root mean square.
    """
    info = Path("/proc/cpuinfo")
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not info.is_file():
        return None
    if "AuthenticAMD" not in info.read_text(errors="replace"):
        return None
    try:
        fused = torch.ops.mkldnn._linear_pointwise.default  # torch.compile's linear layer: no other has this kernel
        rows = torch.eye(2)
        fused(rows, rows, None, "none", [], "")
    except (AttributeError, RuntimeError):  # it may be another in other versions
        return None
    return lambda x, y, bias: fused(x, y, bias, "none", [], "")
