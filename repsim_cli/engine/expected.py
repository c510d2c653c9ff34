"""The mean of <A, B> over random pairings of the units of B with those of A, none in place, for all pairs at once.

Rows of one place in different units (`activations/exchange.py`) take each other's place, and rows of one unit go on
together. Two rows i, j of different units meet, on average, the mean cell of the same two places in two other units;
two rows of one unit that of the same places in another one. So sums by place, collected while the tiles of the matrices
pass, give the mean over all pairings without drawing any.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from repsim_cli.activations.exchange import Exchange
from repsim_cli.measures.inner import Matrix, compute_inner_products, tile_packed
from repsim_cli.measures.kernels import AnyKernel, Packed, State
from repsim_cli.measures.products import compute_diagonals, compute_products_of_features

ROOM = 2.5e8  # bytes of sums by place: rarer places than fit are left out
LEAST = 0.2  # share of the squares of a matrix that must be known
Pair = tuple[AnyKernel, AnyKernel]


class RowPlaces(NamedTuple):
    """The rows of a batch by unit and place, and how a cell of two places is weighted.

    unit: of every row. place: of every row, the last where no other unit has it. count: of places. across: by the
    places of two rows of different units, pairs of rows over the pairs of pairs that may meet. together: of rows of one
    unit, one over the number of other units that have both. whole: whether every cell has others to meet.
    """

    unit: Int[Tensor, " n"]
    place: Int[Tensor, " n"]
    count: int  # pyright: ignore[reportIncompatibleMethodOverride] - nothing counts items of it
    across: Float[Tensor, "p p"]
    together: Float[Tensor, "p p"]
    whole: bool


def index_row_places(units: Exchange, representations: int, device: torch.device | str = "cpu") -> RowPlaces | None:
    """Indexes the rows of a batch by unit and place; None where no row has a partner.

    Rows at rarer places than fit into ROOM count as without a partner.
    """
    _, unit = np.unique(units.units, return_inverse=True)
    _, place, shared = np.unique(units.places, return_inverse=True, return_counts=True)
    most = max(1, int(ROOM / (4 * len(unit) * representations)))
    kept = np.argsort(-shared, kind="stable")[:most]
    kept = kept[shared[kept] > 1]
    if not len(kept):
        return None
    number = np.full(len(shared), len(kept))
    number[kept] = np.arange(len(kept))
    place, count = number[place], len(kept) + 1
    has = np.zeros((unit.max() + 1, count))
    has[unit, place] = 1
    has[:, -1] = 0  # rows without a partner
    of_place, both = has.sum(0), has.T @ has
    pairs = of_place[:, None] * of_place - both  # of rows of different units
    squares = has.T @ (of_place - has) ** 2
    meeting = pairs**2 - squares - squares.T + pairs
    across = np.divide(pairs, meeting, out=np.zeros_like(pairs), where=meeting > 0)
    together = np.divide(1.0, both - 1, out=np.zeros_like(both), where=both > 1)
    inner = slice(0, -1)
    whole = bool((across[inner, inner] > 0).all() and (together[inner, inner] > 0)[both[inner, inner] > 0].all())
    units_of, place_of, across, together = (torch.from_numpy(x).to(device) for x in (unit, place, across, together))
    return RowPlaces(units_of, place_of, count, across, together, whole and len(kept) == len(shared))


class CellSums(NamedTuple):
    """Sums of the cells of all representations: by the place of a row and the other row, and by two places of one unit;
    the squares of all cells, and of those that have others to meet."""

    rows: Float[Tensor, "r p n"]
    within: Float[Tensor, "r pp"]
    squares: Float[Tensor, "r 2"]


class Tile(NamedTuple):
    """The place of a tile. times: 2 for one that also stands for its mirror image. same: which cells are of rows of one
    unit. weight: by which the product of a cell with itself is weighted; 0 where it has no others to meet."""

    rows: slice
    columns: slice
    times: int
    same: Bool[Tensor, "a b"]
    weight: Float[Tensor, "a b"]


def build_weighted_tile(places: RowPlaces, rows: slice, columns: slice, times: int = 1) -> Tile:
    """Finds which cells of a tile meet others, and how they are weighted."""
    same = places.unit[rows, None] == places.unit[columns]
    at = places.place[rows, None], places.place[columns]
    return Tile(rows, columns, times, same, torch.where(same, -places.together[at], places.across[at]))


def make_empty_sums(representations: int, places: RowPlaces, device: torch.device) -> CellSums:
    """Makes sums of no cells yet."""
    rows = torch.zeros(representations, places.count, len(places.unit), device=device)
    within = torch.zeros(representations, places.count**2, dtype=torch.float64, device=device)
    return CellSums(rows, within, within.new_zeros(representations, 2))


def add(
    sums: CellSums, block: Float[Tensor, "r a b"], tile: Tile, places: RowPlaces, room: Float[Tensor, "r b a"]
) -> None:
    """Adds a tile of symmetric matrices. room: for its mirror image."""
    at_rows, at_columns = places.place[tile.rows], places.place[tile.columns]
    i, j = tile.same.nonzero().T
    own = block.flatten(1).index_select(1, i * block.shape[2] + j)
    sides = [(tile.columns, j, at_columns, i, at_rows, block)] if tile.times > 1 else []
    sides += [(tile.rows, i, at_rows, j, at_columns, room.copy_(block.mT))]
    for into, first, at_first, second, at_second, cells in sides:
        # whole rows are added, which are next to each other
        sums.rows[:, :, into].index_add_(1, at_second, cells.float())
        _add_cells(sums.rows.flatten(1), at_second[second] * len(places.unit) + into.start + first, -own.float())
        _add_cells(sums.within, at_first[first] * places.count + at_second[second], own.double())


def _add_cells(into: Float[Tensor, "r n"], at: Int[Tensor, " cells"], cells: Float[Tensor, "r cells"]) -> None:
    """Adds single cells in their order, several times as fast as `index_add_` does."""
    into.scatter_add_(1, at.expand(len(into), -1), cells)


def add_diagonal(sums: CellSums, diagonal: Float[Tensor, "r a"], rows: slice, places: RowPlaces) -> None:
    """Adds a part of the diagonal of the matrices."""
    at = places.place[rows]
    sums.within.index_add_(1, at * places.count + at, diagonal.double())
    if not places.whole:
        sums.squares.add_(sum_cell_squares(diagonal, (places.together[at, at] == 0).nonzero()[:, 0]))


def sum_cell_squares(cells: Float[Tensor, "r cells"], alone: Int[Tensor, " some"]) -> Float[Tensor, "r 2"]:
    """Sums the squares of all cells, and of those but these, which have no others to meet."""
    every = torch.linalg.vector_norm(cells, dim=1).double().square()
    return torch.stack([every, every - torch.linalg.vector_norm(cells[:, alone], dim=1).double().square()], 1)


def compute_mean_products(a: CellSums, b: CellSums, direct: Matrix, places: RowPlaces) -> Matrix:
    """Computes the mean inner products, scaled to all cells where some meet no others; NaN where these hold most.

    direct: the weighted sums of products of cells with themselves.
    """

    def sum_by_place(sums: CellSums) -> Tensor:
        empty_sum = sums.within.new_zeros(places.count, places.count)
        of_each = [empty_sum.index_add(1, places.place, each.double()) for each in sums.rows]
        return torch.stack(of_each).flatten(1)

    first = sum_by_place(a)
    second = first if b is a else sum_by_place(b)
    root = places.across[:, places.place].sqrt().to(a.rows)
    left = (a.rows * root).flatten(1)
    of_rows = (left @ (left if b is a else (b.rows * root).flatten(1)).T).double()
    cross = direct - 2 * of_rows + (first * places.across.flatten()) @ second.T
    cross += (a.within * places.together.flatten()) @ b.within.T
    return scale_to_cells(cross, a.squares, b.squares, places).cpu()


def scale_to_cells(cross: Matrix, a: Float[Tensor, "r 2"], b: Float[Tensor, "c 2"], places: RowPlaces) -> Matrix:
    """Scales means to all cells, from the squares of all cells and of those that meet others."""
    if places.whole:
        return cross
    shares = [(squares[:, 1] / squares[:, 0].clamp_min(1e-300)).sqrt() for squares in (a, b)]
    scale = shares[0][:, None] * shares[1]
    return torch.where(scale >= LEAST, cross / scale, math.nan)


class Collector:
    """Collects, while the tiles of kernels pass, what the means over pairings need."""

    def __init__(self, places: RowPlaces, wanted: Sequence[Pair]):
        self.places, self.wanted = places, list(dict.fromkeys(wanted))
        self.sums: dict[AnyKernel, CellSums] = {}
        self.direct: dict[Pair, Tensor] = {}
        # one buffer for all tiles, since memory that is given back is faulted in anew
        self.room: dict[torch.dtype, Tensor] = {}

    def __call__(
        self, times: int, rows: slice, columns: slice | None, blocks: Mapping[AnyKernel, Float[Tensor, "r cells"]]
    ) -> None:
        """Takes a tile of all kernels of all representations. columns: None for a diagonal, which is 0 in the tiles."""
        places = self.places
        for kernel, block in blocks.items():
            if kernel not in self.sums:
                self.sums[kernel] = make_empty_sums(len(block), places, block.device)
        if columns is None:
            at = places.place[rows]
            weight = -places.together[at, at]
            for kernel, block in blocks.items():
                add_diagonal(self.sums[kernel], block, rows, places)
        else:
            tile = build_weighted_tile(places, rows, columns, times)
            weight = tile.weight.flatten()
            alone = (weight == 0).nonzero()[:, 0]
            for kernel, block in blocks.items():
                square = block.unflatten(1, tile.same.shape)
                add(self.sums[kernel], square, tile, places, self._lend(block).view(square.mT.shape))
                if not places.whole:
                    self.sums[kernel].squares.add_(sum_cell_squares(block, alone), alpha=times)
        for row, column in self.wanted:
            if row in blocks:
                weighted = torch.mul(blocks[row], weight.to(blocks[row]), out=self._lend(blocks[row]))
                part = times * (weighted @ blocks[column].T).double()
                pair = row, column
                self.direct[pair] = self.direct[pair] + part if pair in self.direct else part

    def _lend(self, block: Float[Tensor, "r cells"]) -> Float[Tensor, "r cells"]:
        """Lends memory of the shape of a block, which the next block uses again."""
        if (room := self.room.get(block.dtype)) is None or room.numel() < block.numel():
            room = self.room[block.dtype] = block.new_empty(block.numel())
        return room[: block.numel()].view(block.shape)

    def means(self) -> dict[Pair, Matrix]:
        """Computes the mean inner products of all representations, by pair of kernels."""
        return {
            (row, column): compute_mean_products(self.sums[row], self.sums[column], direct, self.places)
            for (row, column), direct in self.direct.items()
        }


def compute_products_and_means(
    wanted: Sequence[Pair], states: Mapping[AnyKernel, Sequence[State]], n: int, tile: int, places: RowPlaces | None
) -> tuple[list[Matrix], dict[Pair, Matrix]]:
    """Computes the inner products of every wanted pair of kernels, and their means over random pairings of these
    places, where there are any."""
    if not wanted or places is None:
        return (compute_inner_products(wanted, states, n, tile) if wanted else []), {}
    crosses, means = dict[Pair, Matrix](), dict[Pair, Matrix]()
    for pair in dict.fromkeys(wanted) if _is_row_a_unit(places) else ():
        if (cross := compute_products_of_features(*pair, states, n)) is not None:
            rows, columns = (compute_diagonals(kernel, states[kernel]) for kernel in pair)
            crosses[pair], means[pair] = cross, _compute_mean_of_rows(cross, rows, columns, places).cpu()
    if left := [pair for pair in dict.fromkeys(wanted) if pair not in crosses]:
        collector = Collector(places, left)
        crosses |= dict(zip(left, compute_inner_products(left, states, n, tile, watch=collector), strict=True))
        packed = {kernel: states[kernel] for pair in left for kernel in pair if isinstance(kernel, Packed)}
        for part in tile_packed(packed, n, tile) if packed else ():
            collector(*part)
        means |= collector.means()
    return [crosses[pair] for pair in wanted], means


def _is_row_a_unit(places: RowPlaces) -> bool:
    """Tells whether every row may take the place of every other one."""
    return places.whole and places.count == 2 and len(places.unit.unique()) == len(places.unit)


def _compute_mean_of_rows(
    cross: Matrix, rows: Float[Tensor, "a n"], columns: Float[Tensor, "b n"], places: RowPlaces
) -> Matrix:
    """Computes the mean where every row may take the place of every other one, and those of the matrices add up to 0.

    rows, columns: diagonals of the matrices.
    """
    together = rows @ columns.T
    apart = rows.sum(1)[:, None] * columns.sum(1)
    # off the diagonal, rows add up to what is minus their diagonal
    return places.across[0, 0] * (cross + apart - 3 * together) + places.together[0, 0] * (apart - together)
