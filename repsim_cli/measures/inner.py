"""Inner products of one symmetric (n, n) matrix per representation, for all pairs at once.

There are two kinds of such matrices. A `Kernel` is computed tile by tile from the Gram matrix of features, so that no
(n, n) matrix is held; a Gram tile serves every kernel of the same features. Where its features tell inner products, and
rows are many beside them, no cell is computed (`products.py`). A `Packed` matrix needs all cells first
(ranks), or is compared cell by cell (distances); its cells i < j are held.
All pairs of all representations are then a single product per tile, summed in float64.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from repsim_cli.base.gram import DIAGONAL, choose_diagonal, multiply_halves, multiply_into, split_square
from repsim_cli.measures.features import (
    AnyFeatures,
    StackedRows,
    compute_gram_tile,
)
from repsim_cli.measures.kernels import AnyKernel, Kernel, Packed, State, stack_states
from repsim_cli.measures.products import compute_products_of_features

STRIP = 1 << 13  # terms of a float32 sum
ALIGNED = 16  # numbers
ROWS = 64  # representations in a block of the product, of which only the upper half is computed
Matrix = Float[Tensor, "a b"]


class Products(NamedTuple):
    """The inner products behind a value: cross[a, b] = <M_a, N_b>, and the squared norms <M_a, M_a>, <N_b, N_b>.

    For measures with a single kernel, M = N; with two, there are no squared norms (empty). rows, columns: the states.
    """

    cross: Matrix
    row_squares: Float[Tensor, " a"]
    column_squares: Float[Tensor, " b"]
    rows: Sequence[State]
    columns: Sequence[State]


Wanted = Sequence[tuple[AnyKernel, AnyKernel]]
Watch = Callable[[int, slice, slice | None, Mapping[AnyKernel, Tensor]], None]


def compute_inner_products(
    wanted: Wanted, states: Mapping[AnyKernel, Sequence[State]], n: int, tile: int, watch: Watch | None = None
) -> list[Matrix]:
    """cross[a, b] = <M_a, N_b> over all (n, n) cells, float64, for every wanted pair of kernels (M, N).

    watch(weight, rows, columns, blocks), where there is one: is given every tile of each `Kernel`, (representations,
    cells), and every part of the diagonal, which has no columns and is 0 in the tiles.
    """
    sums: dict[tuple[AnyKernel, AnyKernel], Tensor] = {}
    for pair in dict.fromkeys(wanted) if watch is None else ():
        if (cross := compute_products_of_features(*pair, states, n)) is not None:
            sums[pair] = cross
    tiled = [pair for pair in dict.fromkeys(wanted) if pair not in sums]
    for kind in (Kernel, Packed):
        mine = {kernel: states[kernel] for pair in tiled for kernel in pair if isinstance(kernel, kind)}
        if not mine:
            continue
        for weight, rows, columns, block in _compute_blocks(kind, mine, n, tile):
            if kind is Kernel and watch is not None:
                watch(weight, rows, columns, block)
            for row, column in tiled:
                if row in block:
                    part = weight * _compute_row_products(block[row], block[column])
                    sums[row, column] = sums[row, column] + part if (row, column) in sums else part
    return [sums[pair] for pair in wanted]


Blocks = Iterator[tuple[int, slice, slice | None, dict[AnyKernel, Tensor]]]


def _compute_blocks(kind: type, states: Mapping[Any, Sequence[State]], n: int, tile: int) -> Blocks:
    if kind is Packed:
        return _stack_packed_slices(states, n, tile)
    device = next(iter(states.values()))[0].features.block(slice(1)).device
    return _compute_tiles(states, n, tile, choose_diagonal(min(tile, n), device))


def _compute_tiles(states: Mapping[Any, Sequence[State]], n: int, tile: int, diagonal: int = DIAGONAL) -> Blocks:
    """Computes, for every tile on or above the diagonal, its weight, its place, and (representations, cells) of each
    kernel."""
    like = next(iter(states.values()))[0].features.block(slice(1))
    by_features = _group_by_features(states, like.device)
    side = min(tile, n)
    buffers = {kernel: _buffer(len(of), n, tile, like, diagonal) for kernel, of in states.items()}
    stacks = {make: stack_states(kernels, states) for make, kernels in by_features.items()}
    for start in range(0, n, side):
        band = slice(start, min(start + side, n))
        # computed once for all tiles of these rows
        held = {
            make: [stack.features.block(band) if stack.features.gram is None else None for stack in of]
            for make, of in stacks.items()
        }
        for rows, columns in split_band_into_tiles(band, n, diagonal):
            shape = (rows.stop - rows.start, columns.stop - columns.start)
            cells = shape[0] * shape[1]
            blocks = {kernel: buffer[:, :cells] for kernel, buffer in buffers.items()}
            for make, (first, *others) in by_features.items():
                for stack, block in zip(stacks[make], held[make], strict=True):
                    gram = stack.view(blocks[first], shape)
                    _fill_gram(gram, stack.features, block, band, rows, columns)
                    for kernel in others:
                        stack.view(blocks[kernel], shape).copy_(gram)
                    for kernel in (first, *others):
                        _make(kernel, stack.fits[kernel], stack.view(blocks[kernel], shape), rows, columns)
            if rows == columns:
                yield 1, rows, None, {kernel: _cut_diagonal(block, shape[0]) for kernel, block in blocks.items()}
            # a tile above the diagonal also stands for its mirror image
            yield (1 if rows == columns else 2), rows, columns, blocks
        del held  # before the next band, or two would be held


def _group_by_features(kernels: Iterable[Kernel], device: torch.device) -> dict[Any, list[Kernel]]:
    """Groups the kernels of the same features. On a GPU those that are prepared together have features of their own."""
    groups: dict[Any, list[Kernel]] = {}
    for kernel in kernels:
        together = kernel.together if device.type != "cpu" and kernel.documents is None else None
        groups.setdefault((kernel.features, together), []).append(kernel)
    return groups


def _fill_gram(
    out: Float[Tensor, "*l a b"],
    features: AnyFeatures | StackedRows,
    block: Float[Tensor, "*l c d"] | None,
    band: slice,
    rows: slice,
    columns: slice,
) -> None:
    """Puts a tile of Gram matrices into out. block: the features of the rows of the band; None where the matrices are
    known."""
    if block is None:
        known = features.gram
        assert known is not None
        several = not isinstance(known, Tensor)
        out.copy_(torch.stack([gram[rows, columns] for gram in known]) if several else known[rows, columns])
        return
    left = right = block[..., rows.start - band.start : rows.stop - band.start, :]
    if columns.start >= band.stop:
        right = features.block(columns)
    elif columns != rows:
        right = block[..., columns.start - band.start : columns.stop - band.start, :]
    if isinstance(features, StackedRows):
        out.copy_(multiply_halves(left, right))
    else:
        multiply_into(out, left, right)


class Tiles(NamedTuple):
    """All that inner products need of one matrix: its cells tile by tile, and the diagonal, which is 0 among them."""

    cells: Float[Tensor, " cells"]
    diagonal: Float[Tensor, " n"]


def collect_matrix_tiles(kernel: Kernel, state: State, n: int, tile: int) -> Tiles:
    """The matrix of one representation: 2.4 MB in float32 for 1024 rows, whatever the number of features."""
    blocks = (block[kernel][0].clone() for *_, block in _compute_tiles({kernel: [state]}, n, tile))
    cells, diagonal = [], []
    for rows, columns in _split_into_tiles(n, tile):
        if rows == columns:
            diagonal.append(next(blocks))
        cells.append(next(blocks))
    return Tiles(torch.cat(cells), torch.cat(diagonal))


def compute_products_from_tiles(matrices: Sequence[Tiles], n: int, tile: int) -> Matrix:
    """`compute_inner_products` of one kernel, the same bits, from the tiles of every representation."""
    total, start = matrices[0].diagonal.new_zeros(()), 0
    buffer = _buffer(len(matrices), n, tile, matrices[0].cells)
    for rows, columns in _split_into_tiles(n, tile):
        stop = start + (rows.stop - rows.start) * (columns.stop - columns.start)
        if rows == columns:
            diagonal = torch.stack([each.diagonal[rows] for each in matrices])
            total = total + _compute_row_products(diagonal, diagonal)
        block = buffer[:, : stop - start]
        torch.stack([each.cells[start:stop] for each in matrices], out=block)
        total = total + (1 if rows == columns else 2) * _compute_row_products(block, block)
        start = stop
    return total


def _buffer(count: int, n: int, tile: int, like: Tensor, diagonal: int = DIAGONAL) -> Float[Tensor, "count cells"]:
    """Makes room for the largest tile of each representation. Each begins at a multiple of ALIGNED numbers: products of
    the same numbers at other places in memory may differ in their last bit."""
    return like.new_empty(count, count_largest_tile(n, tile, diagonal))


def count_largest_tile(n: int, tile: int, diagonal: int = DIAGONAL) -> int:
    """Counts the cells that a tile has room for, of n rows.

    >>> count_largest_tile(512, 512) / 256**2, count_largest_tile(1024, 512) / 512**2, count_largest_tile(0, 512)
    (1.0, 1.0, 0)
    """
    cells = (
        (rows.stop - rows.start) * (columns.stop - columns.start)
        for rows, columns in _split_into_tiles(min(n, 3 * tile), tile, diagonal)
    )
    return -(-max(cells, default=0) // ALIGNED) * ALIGNED


def count_tile_cells(n: int, tile: int) -> int:
    """Counts the cells of `collect_matrix_tiles`: of pairs of bands, and of the square on the diagonal of each band.

    >>> count_tile_cells(1024, 512) / 1024**2
    0.5625
    """
    side = min(tile, n)
    whole, rest = divmod(n, side)
    between = (n**2 - whole * side**2 - rest**2) // 2
    return between + whole * _count_square_cells(side) + _count_square_cells(rest)


def _count_square_cells(side: int) -> int:
    """Cells of the tiles of `split_square`."""
    if side <= DIAGONAL:
        return side**2
    upper, lower = side // 2, side - side // 2
    return _count_square_cells(upper) + _count_square_cells(lower) + upper * lower


def _split_into_tiles(n: int, tile: int, diagonal: int = DIAGONAL) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of all tiles, in the order of `_compute_tiles`."""
    side = max(1, min(tile, n))
    for start in range(0, n, side):
        yield from split_band_into_tiles(slice(start, min(start + side, n)), n, diagonal)


def _make(kernel: Kernel, fit: Any, gram: Float[Tensor, "a b"], rows: slice, columns: slice) -> None:
    """Turns a tile of the Gram matrix into that of the kernel, in place."""
    made = kernel.cells(fit, gram, rows, columns)
    if made.data_ptr() != gram.data_ptr():
        gram.copy_(made)


def split_band_into_tiles(band: slice, n: int, diagonal: int = DIAGONAL) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of the tiles that cover the cells of a band of rows on and above the diagonal.

    Tiles on the diagonal are small, of this side, since half of their cells are redundant.
    """
    yield from split_square(band, diagonal)
    side = band.stop - band.start
    for other in range(band.stop, n, side):
        yield band, slice(other, min(other + side, n))


def _cut_diagonal(block: Float[Tensor, "r cells"], side: int) -> Float[Tensor, "r side"]:
    """Takes the diagonal out of a square tile, in float64: a row far from the others would dominate the other cells."""
    diagonal = block.unflatten(1, (side, side)).diagonal(dim1=1, dim2=2)
    taken = diagonal.to(torch.float64, copy=True)
    diagonal.zero_()
    return taken


def _stack_packed_slices(states: Mapping[Any, Sequence[State]], n: int, tile: int) -> Blocks:
    """Slices of the packed cells i < j, each of which also stands for its mirror image."""
    size = min(tile, n) ** 2
    for start in range(0, n * (n - 1) // 2, size):
        part = slice(start, start + size)
        cells = {kernel: torch.stack([s.features.values[part] for s in some]) for kernel, some in states.items()}
        yield 2, part, None, cells


def _compute_row_products(a: Float[Tensor, "a cells"], b: Float[Tensor, "b cells"]) -> Matrix:
    """a @ b.T in float64, from sums of at most STRIP terms, which keep their digits in float32."""
    if a is not b:
        return _sum_products(a, b)
    total = a.new_empty(len(a), len(a), dtype=torch.float64)
    for start in range(0, len(a), ROWS):
        block = slice(start, start + ROWS)
        upper = _sum_products(a[block], a[start:])
        total[start:, block], total[block, start:] = upper.T, upper
    return total


def _sum_products(a: Float[Tensor, "a cells"], b: Float[Tensor, "b cells"]) -> Matrix:
    whole = a.shape[1] // STRIP * STRIP
    left, right = (x[:, :whole].unflatten(1, (-1, STRIP)).transpose(0, 1) for x in (a, b))
    total = torch.bmm(left, right.mT).sum(0, dtype=torch.float64)
    return total + (a[:, whole:] @ b[:, whole:].T).double()


def unpack(cells: Shaped[Tensor, " cells"], n: int) -> Shaped[Tensor, "n n"]:
    """The symmetric matrix of packed cells i < j, with zero diagonal."""
    square, above = cells.new_zeros(n, n), torch.ones(n, n, dtype=torch.bool, device=cells.device).triu_(1)
    if cells.device.type == "cpu":
        square.numpy()[above.numpy()] = cells.numpy()  # torch would list the places of all cells first
    else:
        square[above] = cells
    return square + square.T


def tile_packed(states: Mapping[Any, Sequence[State]], n: int, tile: int) -> Blocks:
    """Gives the same as `_compute_tiles`, of packed matrices, whose diagonal is 0."""
    side = min(tile, n)
    bands = [slice(start, min(start + side, n)) for start in range(0, n, side)]
    for a, rows in enumerate(bands):
        for columns in bands[a:]:
            yield (
                1 if rows == columns else 2, rows, columns,
                {
                    kernel: torch.stack([unpack_tile(s.features.values, n, rows, columns).flatten() for s in some])
                    for kernel, some in states.items()
                },
            )  # fmt: skip


def unpack_tile(cells: Float[Tensor, " cells"], n: int, rows: slice, columns: slice) -> Float[Tensor, "a b"]:
    """A tile of the symmetric matrix of packed cells i < j, with zero diagonal."""
    i = torch.arange(rows.start, rows.stop, device=cells.device)[:, None]
    j = torch.arange(columns.start, columns.stop, device=cells.device)[None]
    above, below = torch.minimum(i, j), torch.maximum(i, j)
    # i (n - 1) - i (i - 1) / 2 cells precede row i; on the diagonal any cell, which is masked below
    place = above * (n - 1) - above * (above - 1) // 2 + below - above - 1
    return cells[place.clamp_(0, len(cells) - 1)].masked_fill_(i == j, 0)


def compute_matrix_tile(kernel: AnyKernel, state: State, rows: slice, columns: slice, n: int) -> Float[Tensor, "a b"]:
    """Computes a tile of the matrix of a representation."""
    if isinstance(kernel, Packed):
        return unpack_tile(state.features.values, n, rows, columns)
    return kernel.cells(state.fit, compute_gram_tile(state.features, rows, columns), rows, columns)


def pack_cells(square: Shaped[Tensor, "n n"]) -> Shaped[Tensor, " cells"]:
    """The cells i < j, row by row."""
    above = torch.ones_like(square, dtype=torch.bool).triu_(1)
    # numpy chooses cells several times as fast
    return torch.from_numpy(square.numpy()[above.numpy()]) if square.device.type == "cpu" else square[above]
