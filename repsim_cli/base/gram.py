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
    """Cuts all features into strips of as many as fit into the processor's cache. x: (n, d)."""
    size = max(CACHED // len(x), NARROW)
    return (slice(start, start + size) for start in range(0, x.shape[1], size))


def squared_norms(x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """|x_i|^2 of every row, float64; each is summed in x's precision, which is several times faster."""
    return torch.linalg.vector_norm(x, dim=1).double().square()


def split_square(rows: slice) -> Iterator[tuple[slice, slice]]:
    """The square on the diagonal, as squares of at most DIAGONAL rows and the tiles above them."""
    if rows.stop - rows.start <= DIAGONAL:
        yield rows, rows
    else:
        middle = (rows.start + rows.stop) // 2
        upper, lower = slice(rows.start, middle), slice(middle, rows.stop)
        yield from split_square(upper)
        yield upper, lower
        yield from split_square(lower)


def gram_matrix(x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """x @ x.T."""
    x = x.contiguous()
    gram = x.new_empty(len(x), len(x))
    for rows, columns in split_square(slice(0, len(x))):
        multiply_into(gram[rows, columns], x[rows], x[columns])
        if rows != columns:
            gram[columns, rows] = gram[rows, columns].T
    return gram


def multiply_into(out: Float[Tensor, "a b"], x: Float[Tensor, "a d"], y: Float[Tensor, "b d"]) -> None:
    """Puts x @ y.T of contiguous rows into out."""
    product = onednn_product() if x.dtype == torch.float32 and x.device.type == "cpu" else None
    if product is None:
        torch.mm(x, y.T, out=out)
    else:
        out.copy_(product(x, y, None))


@cache
def onednn_product() -> Callable[[Tensor, Tensor, Tensor | None], Tensor] | None:
    """x @ y.T + bias of contiguous float32 rows by oneDNN, on AMD's processors with AVX-512; None elsewhere.

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
