"""Inner products of one symmetric (n, n) matrix per representation, for all pairs at once.

There are two kinds of such matrices. A `Kernel` is computed tile by tile from the Gram matrix of features, so that no
(n, n) matrix is held; a Gram tile serves every kernel of the same features. A `Packed` matrix needs all cells first
(ranks), or is compared cell by cell (distances); its cells i < j are held.
All pairs of all representations are then a single product per tile, summed in float64.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from repsim_cli.base.gram import DIAGONAL, multiply_into, split_square

STRIP = 1 << 13  # terms of a float32 sum
ALIGNED = 16  # numbers
ROWS = 64  # representations in a block of the product, of which only the upper half is computed
Matrix = Float[Tensor, "a b"]
Documents = Int[Tensor, " n"]  # of every row, from 0


class PreparedFeatures(NamedTuple):
    """A prepared representation; scale: the factor that was divided out.

    For a `Kernel`, values @ values.T is the Gram matrix; for a `Packed` matrix, values are its cells.
    gram: the Gram matrix, where it is known.
    """

    values: Float[Tensor, "n k"] | Float[Tensor, " cells"]
    scale: float = 1.0
    gram: Float[Tensor, "n n"] | None = None

    @property
    def rows(self) -> int:
        return len(self.values)

    def block(self, rows: slice) -> Float[Tensor, "b k"]:
        return self.values[rows]


class CentredRows(NamedTuple):
    """The rows of x minus the means, over the scale, computed on demand: no copy is held.

    mean: exact where rows are near it. rest: minus the remainder that its rounding leaves, over the scale.
    norms: the squared norms of the rows. gram: the Gram matrix of few, wide rows.
    """

    x: Float[Tensor, "n d"]
    mean: Float[Tensor, " d"]
    rest: Float[Tensor, " d"]
    scale: float
    norms: Float[Tensor, " n"]
    gram: Float[Tensor, "n n"] | None = None

    @property
    def rows(self) -> int:
        return len(self.x)

    def block(self, rows: slice) -> Float[Tensor, "b d"]:
        near = self.x[rows].to(self.mean.dtype) - self.mean
        return torch.add(self.rest, near, alpha=1 / self.scale, out=near)

    @property
    def values(self) -> Float[Tensor, "n d"]:
        return self.block(slice(None))


AnyFeatures = PreparedFeatures | CentredRows


def compute_gram_tile(features: AnyFeatures, rows: slice, columns: slice) -> Float[Tensor, "a b"]:
    """Computes a tile of the Gram matrix, as a copy."""
    if features.gram is not None:
        return features.gram[rows, columns].clone()
    return features.block(rows) @ features.block(columns).T


def keep_gram(fit: Any, gram: Tensor, rows: slice, columns: slice) -> Tensor:
    return gram


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A symmetric (n, n) matrix M per representation, from the Gram matrix of its features.

    features(x): runs once per representation, for all kernels that share the function.
    fit(features): what the cells need from the whole matrix (row sums, a bandwidth); its tensors have an entry per row.
    cells(fit, gram, rows, columns): the tile of M from that of the Gram matrix, which it may overwrite.
    whole: whether the fit temporarily holds an (n, n) matrix.
    documents: of the rows whose pairs are left out; the fit then takes them too, and is made anew for other orders of
        the rows. Kernels that differ in them alone are equal, since a batch of rows has one list of documents.
    """

    features: Callable[[Tensor], AnyFeatures]
    fit: Callable[..., Any] = lambda features: None
    cells: Callable[[Any, Tensor, slice, slice], Tensor] = keep_gram
    whole: bool = False
    documents: Documents | None = field(default=None, compare=False)

    def fit_to(self, features: AnyFeatures) -> Any:
        return self.fit(features) if self.documents is None else self.fit(features, self.documents)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A symmetric (n, n) matrix with zero diagonal per representation: cells(x) -> its cells i < j, row by row.

    left_out: which cells are of two rows of one document, where these are left out; cells(x, left_out) are 0 there. As
        with the documents of a `Kernel`, matrices that differ in this alone are equal.
    """

    cells: Callable[..., PreparedFeatures]
    left_out: Bool[Tensor, " cells"] | None = field(default=None, compare=False)

    def make(self, x: Tensor) -> PreparedFeatures:
        return self.cells(x) if self.left_out is None else self.cells(x, self.left_out)


AnyKernel = Kernel | Packed


class State(NamedTuple):
    """A representation prepared for a kernel."""

    features: AnyFeatures
    fit: Any = None


class Products(NamedTuple):
    """The inner products behind a value: cross[a, b] = <M_a, N_b>, and the squared norms <M_a, M_a>, <N_b, N_b>.

    For measures with a single kernel, M = N; with two, there are no squared norms (empty). rows, columns: the states.
    """

    cross: Matrix
    row_squares: Float[Tensor, " a"]
    column_squares: Float[Tensor, " b"]
    rows: Sequence[State]
    columns: Sequence[State]


def prepare_states(kernels: Sequence[AnyKernel], x: Tensor, made: dict[Any, Any]) -> dict[AnyKernel, State]:
    """x prepared for every kernel; `make` collects features that several kernels share."""
    states: dict[AnyKernel, State] = {}
    for kernel in kernels:
        make = kernel.cells if isinstance(kernel, Packed) else kernel.features
        if make not in made:
            made[make] = kernel.make(x) if isinstance(kernel, Packed) else make(x)
        states[kernel] = State(made[make], None if isinstance(kernel, Packed) else kernel.fit_to(made[make]))
    return states


Wanted = Sequence[tuple[AnyKernel, AnyKernel]]
Watch = Callable[[int, slice, slice | None, Mapping[AnyKernel, Tensor]], None]


def compute_inner_products(
    wanted: Wanted, states: Mapping[AnyKernel, Sequence[State]], n: int, tile: int, watch: Watch = lambda *_: None
) -> list[Matrix]:
    """cross[a, b] = <M_a, N_b> over all (n, n) cells, float64, for every wanted pair of kernels (M, N).

    watch(weight, rows, columns, blocks): is given every tile of each `Kernel`, (representations, cells), and every part
    of the diagonal, which has no columns and is 0 in the tiles.
    """
    sums: dict[tuple[AnyKernel, AnyKernel], Tensor] = {}
    for kind, blocks in ((Kernel, _compute_tiles), (Packed, _stack_packed_slices)):
        mine = {kernel: states[kernel] for pair in wanted for kernel in pair if isinstance(kernel, kind)}
        if not mine:
            continue
        for weight, rows, columns, block in blocks(mine, n, tile):
            if kind is Kernel:
                watch(weight, rows, columns, block)
            for row, column in dict.fromkeys(wanted):
                if row in block:
                    part = weight * _compute_row_products(block[row], block[column])
                    sums[row, column] = sums[row, column] + part if (row, column) in sums else part
    return [sums[pair] for pair in wanted]


Blocks = Iterator[tuple[int, slice, slice | None, dict[AnyKernel, Tensor]]]


def _compute_tiles(states: Mapping[Any, Sequence[State]], n: int, tile: int) -> Blocks:
    """Computes, for every tile on or above the diagonal, its weight, its place, and (representations, cells) of each
    kernel."""
    by_features: dict[Any, list[Kernel]] = {}
    for kernel in states:
        by_features.setdefault(kernel.features, []).append(kernel)
    like = next(iter(states.values()))[0].features.block(slice(1))
    side = min(tile, n)
    buffers = {kernel: _buffer(len(of), n, tile, like) for kernel, of in states.items()}
    for start in range(0, n, side):
        band = slice(start, min(start + side, n))
        # computed once for all tiles of these rows
        held = {
            make: [state.features.block(band) if state.features.gram is None else None for state in states[of[0]]]
            for make, of in by_features.items()
        }
        for rows, columns in split_band_into_tiles(band, n):
            shape = (rows.stop - rows.start, columns.stop - columns.start)
            cells = shape[0] * shape[1]
            blocks = {kernel: buffer[:, :cells] for kernel, buffer in buffers.items()}
            for make, (first, *others) in by_features.items():
                for r, block in enumerate(held[make]):
                    gram, features = blocks[first][r].view(shape), states[first][r].features
                    if block is None:
                        assert features.gram is not None
                        gram.copy_(features.gram[rows, columns])
                    else:
                        left = block[rows.start - start : rows.stop - start]
                        if columns.start < band.stop:
                            right = block[columns.start - start : columns.stop - start]
                        else:
                            right = features.block(columns)
                        multiply_into(gram, left, right)
                    for kernel in others:
                        blocks[kernel][r].view(shape).copy_(gram)
                    for kernel in (first, *others):
                        _make(kernel, states[kernel][r].fit, blocks[kernel][r].view(shape), rows, columns)
            if rows == columns:
                yield 1, rows, None, {kernel: _cut_diagonal(block, shape[0]) for kernel, block in blocks.items()}
            # a tile above the diagonal also stands for its mirror image
            yield (1 if rows == columns else 2), rows, columns, blocks
        del held  # before the next band, or two would be held


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


def _buffer(count: int, n: int, tile: int, like: Tensor) -> Float[Tensor, "count cells"]:
    """Makes room for the largest tile of each representation. Each begins at a multiple of ALIGNED numbers: products of
    the same numbers at other places in memory may differ in their last bit."""
    cells = max(
        (rows.stop - rows.start) * (columns.stop - columns.start) for rows, columns in _split_into_tiles(n, tile)
    )
    return like.new_empty(count, -(-cells // ALIGNED) * ALIGNED)


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


def _split_into_tiles(n: int, tile: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of all tiles, in the order of `_compute_tiles`."""
    side = min(tile, n)
    for start in range(0, n, side):
        yield from split_band_into_tiles(slice(start, min(start + side, n)), n)


def _make(kernel: Kernel, fit: Any, gram: Float[Tensor, "a b"], rows: slice, columns: slice) -> None:
    """Turns a tile of the Gram matrix into that of the kernel, in place."""
    made = kernel.cells(fit, gram, rows, columns)
    if made.data_ptr() != gram.data_ptr():
        gram.copy_(made)


def split_band_into_tiles(band: slice, n: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of the tiles that cover the cells of a band of rows on and above the diagonal.

    Tiles on the diagonal are small, since half of their cells are redundant.
    """
    yield from split_square(band)
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
    square = cells.new_zeros(n, n)
    square[torch.ones(n, n, dtype=torch.bool, device=cells.device).triu(1)] = cells
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


def pack(square: Shaped[Tensor, "n n"]) -> Shaped[Tensor, " cells"]:
    """The cells i < j, row by row."""
    above = torch.ones_like(square, dtype=torch.bool).triu_(1)
    # numpy chooses cells several times as fast
    return torch.from_numpy(square.numpy()[above.numpy()]) if square.device.type == "cpu" else square[above]
