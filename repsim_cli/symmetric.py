"""Products x @ x.T, of which about half is computed, and wide rows strip by strip."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

CACHED = 1 << 17  # cells of a strip
NARROW = 512  # features that a strip has at least: products of fewer are slow
DIAGONAL = 128  # rows of a tile on the diagonal


def strips(x: Float[Tensor, "n d"]) -> Iterator[slice]:
    """All features, as many at a time as fit into the processor's cache."""
    size = max(CACHED // len(x), NARROW)
    return (slice(start, start + size) for start in range(0, x.shape[1], size))


def halved(rows: slice) -> Iterator[tuple[slice, slice]]:
    """The square on the diagonal, as squares of at most DIAGONAL rows and the tiles above them."""
    if rows.stop - rows.start <= DIAGONAL:
        yield rows, rows
    else:
        middle = (rows.start + rows.stop) // 2
        upper, lower = slice(rows.start, middle), slice(middle, rows.stop)
        yield from halved(upper)
        yield upper, lower
        yield from halved(lower)


def gram_matrix(x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """x @ x.T."""
    gram = x.new_empty(len(x), len(x))
    for rows, columns in halved(slice(0, len(x))):
        torch.mm(x[rows], x[columns].T, out=gram[rows, columns])
        if rows != columns:
            gram[columns, rows] = gram[rows, columns].T
    return gram
