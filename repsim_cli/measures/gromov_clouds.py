"""Gromov-Wasserstein of rows with too many distances to hold: by blocks of rows or along principal axes, then by groups
of rows at a time.

The value is the objective of the coupling that is found, over all pairs of rows, in float32.
"""

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.measures.assignment import Coupling, Matched, assign, make_coupling
from repsim_cli.measures.base import MeasureWarning
from repsim_cli.measures.centring import FLAT, centre
from repsim_cli.measures.gromov_search import GromovStart, search
from repsim_cli.measures.gromov_spaces import CostScale, Space, group_rows_into_blocks, order_pair

BLOCKS = 2048  # at most, two rows each or more
GROUP = 2500  # rows at most that are matched anew at a time
LANDMARKS = 4096  # matched rows; distances to them stand for those to all rows
SWEEPS, RACED = 24, 2  # over all groups of rows; of every start, before the lowest goes on alone
SETTLED = 3e-4  # relative decrease at which sweeps end
SAME = 1e-10  # of the mean squared distance: rows that are matched so need no search
AXES = 32  # along which rows are split into blocks
SIGNED, DIRECTIONS = 12, 6  # axes whose signs third moments say; directions along which groups of rows are close
TILE = 2048

Rows = Float[Tensor, "n d"]
Indices = Int[np.ndarray, " _"]


class Cloud(NamedTuple):
    """Rows without their mean, with a mean distance of 1; the mean distance of each row to all; and the mean of the
    costs, which are distances times that."""

    rows: Float[np.ndarray, "n d"]
    means: Float[np.ndarray, " n"]
    size: float


def prepare_cloud(x: Rows, *, cost_scale: CostScale) -> Cloud:
    """Prepares many rows without holding their distances. Warns that they are compared by blocks."""
    warnings.warn(
        f"{len(x)} rows are more than held_rows: they are matched by blocks and groups of rows, so that the value, the "
        "objective of that coupling, may be above what a search with all distances finds",
        MeasureWarning,
        stacklevel=2,
    )
    rounding = 0.0 if x.dtype == torch.float64 else FLAT
    try:
        unit, scale = centre(x.cpu())
        if scale <= rounding * float(x.abs().max()):
            raise Degenerate("all rows are equal up to rounding")
    except Degenerate:  # equal rows have distances, but no scale
        return Cloud(np.zeros(x.shape, np.float32), np.zeros(len(x)), 0.0)
    rows = unit.float()
    means, largest = torch.zeros(len(rows), dtype=torch.float64), 0.0
    for part in torch.arange(len(rows)).split(TILE):
        for others in rows.split(TILE):
            apart = compute_cross_distances(rows[part], others)
            means[part] += apart.sum(1, dtype=torch.float64)
            largest = max(largest, float(apart.max()))
    mean = float(means.sum()) / len(rows) / (len(rows) - 1)
    size = {"mean": 1.0, "max": mean / largest, "none": mean * scale}[cost_scale]
    return Cloud((rows / mean).numpy(), (means / mean / len(rows)).numpy(), size)


def compute_cross_distances(x: Rows, y: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
    """Computes Euclidean distances from products."""
    norms = x.square().sum(1, keepdim=True) + y.square().sum(1)
    return torch.addmm(norms, x, y.T, alpha=-2).clamp_min_(0).sqrt_()


def permute_cloud(state: Cloud, order: Int[Tensor, " n"]) -> Cloud:
    rows = order.cpu().numpy()
    return state._replace(rows=state.rows[rows], means=state.means[rows])


def lower_bound(a: Cloud, b: Cloud) -> float:
    """Bounds the value by mean distances of rows, matched in order: by convexity never above Memoli's third bound."""
    return float(np.mean((np.sort(a.means) * a.size - np.sort(b.means) * b.size) ** 2))


class Assigned(NamedTuple):
    """The best assignment: its objective, columns by row (of the sides as ordered by `order_pair`), start, steps."""

    value: float
    matched: Matched
    start: str
    steps: int

    @property
    def coupling(self) -> Coupling:
        return make_coupling(self.matched)


class CloudPair(NamedTuple):
    """Two sides whose costs have one scale, and the rows (some) on which objectives are estimated."""

    x: Rows
    y: Rows
    size: float
    some: Indices
    among: Float[Tensor, "s s"]

    def estimate(self, matched: Matched) -> float:
        there = self.y[matched[self.some]]
        return add_squares(self.among - compute_cross_distances(there, there)) / len(self.some) ** 2

    def objective(self, matched: Matched) -> float:
        """Computes the mean squared difference of the distances over all pairs of rows, as they are matched."""
        total, tiles = 0.0, list(zip(self.x.split(TILE), self.y[matched].split(TILE), strict=True))
        for i, (x, y) in enumerate(tiles):
            for j, (others, theirs) in enumerate(tiles[i:]):
                total += (1 + (j > 0)) * add_squares(
                    compute_cross_distances(x, others) - compute_cross_distances(y, theirs)
                )
        return self.size**2 * total / len(matched) ** 2


def add_squares(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2


def find_best_assignment(a: Cloud, b: Cloud, *, start: GromovStart, restarts: int, seed: int) -> Assigned:
    """Finds the lowest assignment: of blocks (start `pot` from where POT starts), of rows along principal axes, of the
    rows' own pairing, and of what these are lowered to by sweeps over groups of rows."""
    a, b = order_pair(a, b)
    own, size = np.arange(len(a.rows)), max(a.size, b.size)
    if not size:
        return Assigned(0.0, own, "identity", 0)
    x, y = (torch.from_numpy(side.rows) * (side.size / size) for side in (a, b))
    draw = np.random.default_rng(seed)
    some = draw.choice(len(x), min(len(x), LANDMARKS), replace=False)
    pair = CloudPair(x, y, size, some, compute_cross_distances(x[some], x[some]))
    axes = [project_onto_axes(side) for side in (x, y)]
    starts, steps = list[tuple[str, Matched]](), 0
    if start != "pot":
        starts.append(("identity", own))
    if start != "identity" and not (starts and pair.estimate(own) <= SAME):
        name, matched, steps = match_by_blocks(x, y, axes, start=start, restarts=restarts, seed=seed)
        starts.append((name, matched))
        if start == "best":
            starts.append(("principal_axes", match_along_axes(axes)))
    ends = []
    for name, matched in starts:
        end, more = lower_by_sweeps(matched, pair, axes, draw, RACED if len(starts) > 1 else SWEEPS)
        ends.append((pair.estimate(end), name, end))
        steps += more
    _, name, end = min(ends, key=lambda end: end[0])
    if len(starts) > 1:
        end, more = lower_by_sweeps(end, pair, axes, draw, SWEEPS - RACED)
        steps += more
    compared = [(name, end), *(one for one in starts[:1] if one[1] is not end)]
    found = [(pair.objective(matched), matched, of) for of, matched in compared]
    value, matched, name = min(found, key=lambda one: one[0])
    return Assigned(value, matched, name, steps)


def project_onto_axes(x: Rows) -> Float[np.ndarray, "n axes"]:
    """Projects rows onto their axes of largest variance."""
    directions = torch.linalg.eigh((x.T @ x).double()).eigenvectors[:, -AXES:]
    return (x @ directions.to(x.dtype)).numpy()


def split(coordinates: Float[np.ndarray, "n axes"], most: int, rows: Indices | None = None) -> list[Indices]:
    """Halves rows at the median along their axis of largest variance until no part has more than `most`; how many
    rows each part has depends on their number alone."""
    rows = np.arange(len(coordinates)) if rows is None else rows
    if len(rows) <= most:
        return [rows]
    here = coordinates[rows] - coordinates[rows].mean(0)
    order = (here @ find_longest_axis(here)).argsort(kind="stable")
    halves = np.sort(order[: len(rows) // 2]), np.sort(order[len(rows) // 2 :])
    return [part for half in halves for part in split(coordinates, most, rows[half])]


def find_longest_axis(here: Float[np.ndarray, "n axes"]) -> Float[np.ndarray, " axes"]:
    return np.linalg.eigh(here.T @ here)[1][:, -1]


class RowBlocks(NamedTuple):
    """Means of blocks, and the mean squared distance of their rows to them."""

    means: Float[Tensor, "m d"]
    spreads: Float[Tensor, " m"]

    def distances_to(self, x: Rows) -> Float[Tensor, "n m"]:
        """Root mean squared distances to the rows of each block."""
        return compute_cross_distances(x, self.means).square_().add_(self.spreads).sqrt_()

    def space(self) -> Space:
        apart = (self.distances_to(self.means).double().square() + self.spreads[:, None]).sqrt().fill_diagonal_(0)
        return group_rows_into_blocks(Space(apart.numpy(), self.means.double().numpy(), np.empty(0)))


def build_row_blocks(x: Rows, parts: Sequence[Indices]) -> RowBlocks:
    means = torch.stack([x[part].mean(0) for part in parts])
    spreads = [(x[part] - mean).square().sum(1).mean() for part, mean in zip(parts, means, strict=True)]
    return RowBlocks(means, torch.stack(spreads))


def match_by_blocks(
    x: Rows, y: Float[Tensor, "n d_y"], axes: Sequence[np.ndarray], *, start: GromovStart, restarts: int, seed: int
) -> tuple[str, Matched, int]:
    """Matches blocks of rows as few rows are, then the rows in each by their distances to all blocks as matched."""
    most = math.ceil(len(x) / 2 ** int(math.log2(min(BLOCKS, max(len(x) // 2, 1)))))
    parts, theirs = (split(side, most) for side in axes)
    left, right = build_row_blocks(x, parts), build_row_blocks(y, theirs)
    numbers = np.arange(len(parts))
    found = search(left.space(), right.space(), numbers, start=start, restarts=restarts, seed=seed)
    there = found.coupling.argmax(1)
    theirs = [theirs[k] for k in there]
    right = RowBlocks(right.means[there], right.spreads[there])
    matched, lost = np.full(len(x), -1), np.ones(len(x), bool)
    for rows, columns in zip(parts, theirs, strict=True):
        to = match_within(left.distances_to(x[rows]), right.distances_to(y[columns]))
        kept = (to < len(columns)).nonzero()[0]
        matched[rows[kept]] = columns[to[kept]]
    lost[matched[matched >= 0]] = False
    rows, columns = np.flatnonzero(matched < 0), np.flatnonzero(lost)
    if len(rows):  # of blocks that have one row more
        matched[rows] = columns[match_within(left.distances_to(x[rows]), right.distances_to(y[columns]))]
    # blocks are numbered as they were split along the axes, so that their own pairing is one of these
    return "principal_axes" if found.start == "identity" else found.start, matched, found.steps


def match_along_axes(axes: Sequence[Float[np.ndarray, "n _"]]) -> Matched:
    """Matches rows by their places along the principal axes of both sides, in order of variance, with the signs by
    which third moments agree best."""
    count = min(SIGNED, *(side.shape[1] for side in axes))
    left, right = (side[:, -count:] for side in axes)
    right = right * choose_signs(compute_third_moments(left) * compute_third_moments(right))
    matched = np.empty(len(left), int)
    for rows, columns in split_alike(left, right, np.arange(len(left)), np.arange(len(left))):
        matched[rows] = columns[match_within(torch.from_numpy(left[rows]), torch.from_numpy(right[columns]))]
    return matched


def compute_third_moments(z: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "k k k"]:
    total = np.zeros((z.shape[1],) * 3)
    for part in np.split(z, range(TILE, len(z), TILE)):
        total += np.einsum("nk,nlm->klm", part, part[:, :, None] * part[:, None], optimize=True)
    return total / len(z)


def choose_signs(agreement: Float[np.ndarray, "k k k"]) -> Float[np.ndarray, " k"]:
    """Chooses of all signs s those with the largest sum of agreement_klm s_k s_l s_m."""
    signs = np.array(list(itertools.product((1, -1), repeat=len(agreement))), np.float32)
    return signs[np.einsum("klm,sk,sl,sm->s", agreement, signs, signs, signs, optimize=True).argmax()]


def split_alike(
    left: Float[np.ndarray, "n k"], right: Float[np.ndarray, "n k"], rows: Indices, columns: Indices
) -> list[tuple[Indices, Indices]]:
    """Halves equally many rows of both sides, at their medians along one axis, until no part has more than `GROUP`."""
    if len(rows) <= GROUP:
        return [(rows, columns)]
    axis, half = find_longest_axis(left[rows] - left[rows].mean(0)), len(rows) // 2
    orders = [part[(side[part] @ axis).argsort(kind="stable")] for side, part in ((left, rows), (right, columns))]
    halves = [[order[:half] for order in orders], [order[half:] for order in orders]]
    return [pair for half in halves for pair in split_alike(left, right, *half)]


def match_within(left: Float[Tensor, "n k"], right: Float[Tensor, "m k"]) -> Int[np.ndarray, " n"]:
    """Matches rows by their distances to k others; numbers from m on stand for none."""
    n, m = len(left), len(right)
    cost = np.zeros((max(n, m),) * 2, np.float32)
    products = left @ right.T
    cost[:n, :m] = (products.max() - products if n == m else -products).numpy()
    return assign(cost)[0][:n]


def group_rows(axes: Sequence[np.ndarray], matched: Matched, turn: int, draw: np.random.Generator) -> list[Indices]:
    """Groups of rows that are close along a few random directions, by turns of the one and of the other side. Long axes
    count most, and the bounds of groups lie elsewhere in every turn."""
    side = axes[turn % 2]
    along = side @ (side.std(0)[:, None] * draw.standard_normal((side.shape[1], DIRECTIONS), np.float32))
    sizes = along.std(0).clip(np.finfo(np.float32).tiny)  # 0 where all rows are equal
    parts = split(along / sizes * np.exp(0.3 * draw.standard_normal(DIRECTIONS, np.float32)), GROUP)
    return [matched.argsort()[part] for part in parts] if turn % 2 else parts


def lower_by_sweeps(
    matched: Matched, pair: CloudPair, axes: Sequence[np.ndarray], draw: np.random.Generator, sweeps: int
) -> tuple[Matched, int]:
    """Lowers an assignment by sweeps, and counts what was solved: the rows of each group exchange the rows they are
    matched with, so that distances to landmarks, matched rows drawn for each sweep, fit best."""
    value, steps = pair.estimate(matched), 0
    for turn in range(sweeps):
        if value <= SAME:
            break
        moved = matched.copy()
        marks = draw.choice(len(matched), min(len(matched), LANDMARKS), replace=False)
        here, there = pair.x[marks], pair.y[matched[marks]]
        for rows in group_rows(axes, matched, turn, draw):
            left, right = (
                compute_cross_distances(pair.x[rows], here),
                compute_cross_distances(pair.y[matched[rows]], there),
            )
            cost = (left @ right.T).mul_(-4 / len(marks)).numpy()
            moved[rows] = matched[rows][assign(cost, np.arange(len(rows)))[0]]
            steps += 1
        found = pair.estimate(moved)
        settled = found > (1 - SETTLED) * value
        if found < value:
            matched, value = moved, found
        if settled:
            break
    return matched, steps


def estimate_cloud_operations(rows: int, width: float) -> tuple[float, float]:
    """Estimates, for plans, the operations of a state and of a pair: its sweeps, its objectives and its blocks."""
    sweeps = 2.0 * SWEEPS * rows * LANDMARKS * (GROUP + 2 * width)
    return rows**2 * (2 * width + 550), sweeps + rows**2 * (4 * width + 600) + 1e11
