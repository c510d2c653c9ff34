"""The distances among the rows of a representation, and rows in blocks of close ones, for Gromov-Wasserstein."""

from typing import Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.measures.centring import FLAT, centre
from repsim_cli.measures.inner import unpack
from repsim_cli.measures.rdm import pack_distances

CostScale = Literal["mean", "max", "none"]
Square = Float[np.ndarray, "n n"]
Halves = Int[np.ndarray, "blocks 2"]

COARSEST = 62  # blocks, but less than twice as many
BLOCKED = 250  # of fewer rows the order is made irrelevant, at the cost of more starts
AXES = 3  # of blocks, whose directions and order are starts


class Space(NamedTuple):
    """Distances between the rows, the rows themselves, and, if bounds are requested, all distances in order.

    halves, coarse, axes: as `group_rows_into_blocks` adds them, see there.
    """

    distances: Square
    rows: Float[np.ndarray, "n d"]
    ordered: Float[np.ndarray, " cells"]
    halves: Int[np.ndarray, "pairs 2"] = np.empty((0, 2), int)
    coarse: Float[np.ndarray, " coarse"] = np.empty(0, np.float32)
    axes: Float[np.ndarray, "blocks axes"] = np.empty((0, AXES))


def prepare_space(
    x: Float[Tensor, "n d"], *, cost_scale: CostScale, bounds: bool = False, blocks: bool = False
) -> Space:
    """Euclidean distances, divided by their mean over i < j, by their maximum, or not at all; 0 for equal rows and
    for float32 rows that differ by rounding alone. blocks: with those of `group_rows_into_blocks`. The order of few
    rows changes no bit."""
    rounding = 0.0 if x.dtype == torch.float64 else FLAT
    x = x.double()
    order = order_by_bytes(x.cpu().numpy())
    x = x[torch.from_numpy(order)]
    try:
        unit, scale = centre(x)
        if scale <= rounding * float(x.abs().max()):
            raise Degenerate("all rows are equal up to rounding")
    except Degenerate:  # equal rows have distances, but no scale
        cells = x.new_zeros(len(x) * (len(x) - 1) // 2)
    else:
        cells = pack_distances(unit)
        cells *= {"mean": 1 / float(cells.mean()), "max": 1 / float(cells.max()), "none": scale}[cost_scale]
    ordered = cells.sort().values if bounds else cells[:0]
    state = Space(unpack(cells, len(x)).cpu().numpy(), x.cpu().numpy(), ordered.cpu().numpy())
    state = group_rows_into_blocks(state) if blocks else state
    return state if len(x) >= BLOCKED else permute(state, torch.from_numpy(order.argsort()))


def order_by_bytes(rows: Float[np.ndarray, "n d"]) -> Int[np.ndarray, " n"]:
    """An order of fewer than `BLOCKED` rows that does not depend on the one they come in."""
    if len(rows) >= BLOCKED:
        return np.arange(len(rows))
    return np.array(sorted(range(len(rows)), key=[row.tobytes() for row in rows].__getitem__))


def order_by_mean_distance(state: Space) -> Int[np.ndarray, " n"]:
    """The same that rotations of the rows do not change either: by mean distance."""
    order = order_by_bytes(state.rows)
    return order[state.distances[np.ix_(order, order)].mean(1).argsort(kind="stable")]


def group_rows_into_blocks(state: Space) -> Space:
    """Adds blocks of 2 rows, of 4, and so on, as long as there are `COARSEST` or more.

    halves: of all levels, the finest first, the two rows or blocks in each block; one that is left over is in none.
    coarse: of all levels in the same order, the mean distances between blocks, 0 on the diagonal, of the mean distance.
    axes: the coarsest blocks in the coordinates of largest variance (classical scaling).
    """
    if len(state.axes):
        return state
    size = float(state.distances.mean()) or 1.0
    distances, halves, coarse = state.distances / size, [state.halves], [state.coarse]
    while len(distances) >= 2 * COARSEST:
        halves.append(pair_closest_rows(distances))
        distances = average_column_pairs(average_column_pairs(distances, halves[-1]).T, halves[-1])
        np.fill_diagonal(distances, 0)
        coarse.append(distances.astype(np.float32).ravel())
    return state._replace(
        halves=np.concatenate(halves), coarse=np.concatenate(coarse), axes=compute_principal_coordinates(distances)
    )


def pair_closest_rows(distances: Square) -> Halves:
    """Rows in pairs: the closest two, the closest two of the others, and so on."""
    left, pairs = np.arange(len(distances)), []
    apart = distances.copy()
    np.fill_diagonal(apart, np.inf)
    while len(left) > 1:
        near = apart.argmin(1)
        first = np.flatnonzero((near[near] == np.arange(len(left))) & (np.arange(len(left)) < near))
        pairs.append(np.stack([left[first], left[near[first]]], 1))
        rest = np.setdiff1d(np.arange(len(left)), np.concatenate([first, near[first]]))
        left, apart = left[rest], apart[np.ix_(rest, rest)]
    return np.concatenate(pairs)


def average_column_pairs(distances: Float[np.ndarray, "n m"], pairs: Halves) -> Float[np.ndarray, "n k"]:
    """The mean distances of rows to pairs of columns."""
    return (distances[:, pairs[:, 0]] + distances[:, pairs[:, 1]]) / 2


def compute_principal_coordinates(distances: Square) -> Float[np.ndarray, "n axes"]:
    squares = distances**2
    means = squares.mean(1)
    variances, directions = np.linalg.eigh((means[:, None] + means - means.mean() - squares) / 2)
    largest = directions[:, : -AXES - 1 : -1] * np.sqrt(variances[: -AXES - 1 : -1].clip(0))
    return np.pad(largest, ((0, 0), (0, AXES - largest.shape[1])))


class BlockLevel(NamedTuple):
    """The mean distances between blocks, and of each block the two rows or blocks of the next finer level."""

    distances: Square
    halves: Halves


def list_block_levels(state: Space) -> list[BlockLevel]:
    """The blocks of all sizes, the coarsest first."""
    n, made, used, cells = len(state.distances), list[BlockLevel](), 0, 0
    while n >= 2 * COARSEST:
        n //= 2
        distances = state.coarse[cells : cells + n * n].reshape(n, n)
        made.append(BlockLevel(distances, state.halves[used : used + n]))
        used, cells = used + n, cells + n * n
    return made[::-1]


def permute(state: Space, order: Tensor) -> Space:
    rows = order.cpu().numpy()
    halves = state.halves.copy()
    if len(halves):
        halves[: len(rows) // 2] = rows.argsort()[halves[: len(rows) // 2]]  # those of rows; the others are of blocks
    axes = state.axes[rows] if len(state.axes) == len(rows) else state.axes
    return state._replace(distances=state.distances[rows][:, rows], rows=state.rows[rows], halves=halves, axes=axes)


@runtime_checkable
class HasRows(Protocol):
    @property
    def rows(self) -> np.ndarray: ...


Side = TypeVar("Side", bound=HasRows)


def order_pair(a: Side, b: Side) -> tuple[Side, Side]:
    """The pair in an order that does not depend on which comes first, nor, of few rows, on their order."""
    first, second = sorted(
        (a, b), key=lambda state: (state.rows.shape, state.rows[order_by_bytes(state.rows)].tobytes())
    )
    return first, second


class Ordered(NamedTuple):
    """A pair with the few rows of each side in `order_by_mean_distance`; many rows stay as they are.

    paired: the row of b that is paired with each row of a. places: where each given row now stands.
    """

    a: Space
    b: Space
    paired: Int[np.ndarray, " n"]
    places: list[Int[np.ndarray, " n"]]

    def restore_order(self, coupling: Float[np.ndarray, "n m"]) -> Float[np.ndarray, "n m"]:
        return coupling[np.ix_(*self.places)] if len(coupling) < BLOCKED else coupling


def order_rows_alike(a: Space, b: Space) -> Ordered:
    if len(a.rows) >= BLOCKED:
        rows = np.arange(len(a.rows))
        return Ordered(a, b, rows, [rows, rows])
    orders = [order_by_mean_distance(side) for side in (a, b)]
    places = [order.argsort() for order in orders]
    a, b = (permute(side, torch.from_numpy(order)) for side, order in zip((a, b), orders, strict=True))
    return Ordered(a, b, places[1][orders[0]], places)
