"""Gromov-Wasserstein: the rows of two representations matched by the distances among them, with uniform weights.

The problem is not convex: a value is the best of several starts, an upper bound on the minimum, computed from its
coupling in float64. Both sides are ordered first, so that (x, y) and (y, x) take the same steps.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.linalg.blas import get_blas_funcs
from torch import Tensor

from repsim_cli.errors import Degenerate
from repsim_cli.measures.alignments import Coupling as RowCoupling
from repsim_cli.measures.assignment import TIE, Coupling, Matched, Prices, assign, coupling_of, matching
from repsim_cli.measures.base import FLAT, Audit, Card, Detail, Measure, Pairwise, Slow, Solved, centred
from repsim_cli.measures.inner import unpacked
from repsim_cli.measures.rdm import SHAPE, packed_distances
from repsim_cli.registry import measures
from repsim_cli.settings import Above0, Seed, Share, Tries

CostScale = Literal["mean", "max", "none"]
GromovStart = Literal["best", "pot", "identity"]
Square = Float[np.ndarray, "n n"]
Halves = Int[np.ndarray, "blocks 2"]

STEPS = 1000  # of a descent, and of the outer Sinkhorn loop
SETTLED = 1e-12  # relative decrease at which a descent ends
SINKHORN = 1000  # iterations for one cost
AUDIT = 1e-9  # relative difference from POT's objective, from its start
ABOVE = 0.05  # the same of blocks, which may miss the minimum of POT's start
MANY = 0.7  # share of moved rows above which a whole product is cheaper than its update
SINGLE = 125  # rows from which float32 saves time
# diagonals and tolerances, see `lowered`: of blocks, of few rows, and of many
COARSE, FEW, MANY_ROWS = {0.8: 2e-3}, {0.8: 3e-4, 0.0: 3e-5}, {0.8: 3e-4, 0.4: 1e-4, 0.0: 3e-5}
COARSEST = 62  # blocks, but less than twice as many
BLOCKED = 250  # of fewer rows no blocks are made
AXES = 3  # of blocks, whose directions and order are starts
KEPT, THINNED = 20, 3  # of the coarsest assignments so many are refined, of each finer level a third of these
REPRESENTED = 250  # rows at most on which the rows' own pairing is lowered


class Space(NamedTuple):
    """Distances between the rows, the rows themselves, and, if bounds are requested, all distances in order.

    halves, coarse, axes: as `blocked` adds them, see there.
    """

    distances: Square
    rows: Float[np.ndarray, "n d"]
    ordered: Float[np.ndarray, " cells"]
    halves: Int[np.ndarray, "pairs 2"] = np.empty((0, 2), int)
    coarse: Float[np.ndarray, " coarse"] = np.empty(0, np.float32)
    axes: Float[np.ndarray, "blocks axes"] = np.empty((0, AXES))


def space(x: Float[Tensor, "n d"], *, cost_scale: CostScale, bounds: bool = False, blocks: bool = False) -> Space:
    """Euclidean distances, divided by their mean over i < j, by their maximum, or not at all; 0 for equal rows, and for
    float32 rows that differ by rounding alone. blocks: many rows are `blocked`."""
    rounding = 0.0 if x.dtype == torch.float64 else FLAT
    x = x.double()
    try:
        unit, scale = centred(x)
        if scale <= rounding * float(x.abs().max()):
            raise Degenerate("all rows are equal up to rounding")
    except Degenerate:  # equal rows have distances, but no scale
        cells = x.new_zeros(len(x) * (len(x) - 1) // 2)
    else:
        cells = packed_distances(unit)
        cells *= {"mean": 1 / float(cells.mean()), "max": 1 / float(cells.max()), "none": scale}[cost_scale]
    ordered = cells.sort().values if bounds else cells[:0]
    state = Space(unpacked(cells, len(x)).cpu().numpy(), x.cpu().numpy(), ordered.cpu().numpy())
    return blocked(state) if blocks and len(x) >= BLOCKED else state


def blocked(state: Space) -> Space:
    """With its rows in blocks of 2, of 4, and so on, as far as there are `COARSEST`.

    halves: of all levels, the finest first, the two rows or blocks in each block; one that is left over is in none.
    coarse: of all levels in the same order, the mean distances between blocks, 0 on the diagonal, of the mean distance.
    axes: the coarsest blocks in the coordinates of largest variance (classical scaling).
    """
    if len(state.halves):
        return state
    size = float(state.distances.mean()) or 1.0
    distances, halves, coarse = state.distances / size, [], []
    while len(distances) >= 2 * COARSEST:
        halves.append(closest_pairs(distances))
        distances = between(between(distances, halves[-1]).T, halves[-1])
        np.fill_diagonal(distances, 0)
        coarse.append(distances.astype(np.float32).ravel())
    return state._replace(halves=np.concatenate(halves), coarse=np.concatenate(coarse), axes=coordinates(distances))


def closest_pairs(distances: Square) -> Halves:
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


def between(distances: Float[np.ndarray, "n m"], pairs: Halves) -> Float[np.ndarray, "n k"]:
    """The mean distances of rows to pairs of columns."""
    return (distances[:, pairs[:, 0]] + distances[:, pairs[:, 1]]) / 2


def coordinates(distances: Square) -> Float[np.ndarray, "n axes"]:
    squares = distances**2
    means = squares.mean(1)
    variances, directions = np.linalg.eigh((means[:, None] + means - means.mean() - squares) / 2)
    return directions[:, : -AXES - 1 : -1] * np.sqrt(variances[: -AXES - 1 : -1].clip(0))


class Level(NamedTuple):
    """The mean distances between blocks, and of each block the two rows or blocks of the next finer level."""

    distances: Square
    halves: Halves


def levels(state: Space) -> list[Level]:
    """The blocks of all sizes, the coarsest first."""
    n, made, used, cells = len(state.distances), list[Level](), 0, 0
    while n >= 2 * COARSEST:
        n //= 2
        distances = state.coarse[cells : cells + n * n].reshape(n, n)
        made.append(Level(distances, state.halves[used : used + n]))
        used, cells = used + n, cells + n * n
    return made[::-1]


def permuted(state: Space, order: Tensor) -> Space:
    rows = order.cpu().numpy()
    halves = state.halves.copy()
    halves[: len(rows) // 2] = rows.argsort()[halves[: len(rows) // 2]]  # those of rows; the others are of blocks
    return state._replace(distances=state.distances[rows][:, rows], rows=state.rows[rows], halves=halves)


def in_one_order(a: Space, b: Space) -> tuple[Space, Space]:
    """The pair in an order that does not depend on which comes first."""
    first, second = sorted((a, b), key=lambda state: (state.rows.shape, state.rows.tobytes()))
    return first, second


def gromov_objective(a: Square, b: Square, coupling: Coupling) -> float:
    """The sum of (a_ik - b_jl)^2 T_ij T_kl; from differences, which do not cancel, where T is a permutation."""
    matched = matching(coupling)
    if matched is not None:
        return assignment_objective(a, b, matched)
    left, right = coupling.sum(1), coupling.sum(0)
    return max(0.0, float(left @ a**2 @ left + right @ b**2 @ right - 2 * np.sum((a @ coupling @ b) * coupling)))


def assignment_objective(a: Square, b: Square, matched: Matched) -> float:
    return float(np.mean((a - b[np.ix_(matched, matched)]) ** 2))


class Optimum(NamedTuple):
    """A local minimum of a transport problem, and the number of assignments solved on the way."""

    coupling: Coupling
    steps: int


def descend(start: Coupling, a: Square, b: Square, alpha: float = 1.0, linear: np.ndarray | float = 0.0) -> Optimum:
    """Conditional gradient with exact line search for alpha gromov_objective(T) + <linear, T>."""
    size = alpha * float((a**2).mean() + (b**2).mean()) + float(np.abs(linear).mean())
    return _descend(start, a, b, alpha, linear, -SETTLED * size, 0)


def _descend(
    start: Coupling, a: Square, b: Square, alpha: float, linear: np.ndarray | float, enough: float, steps: int
) -> Optimum:
    matched = matching(start)
    if matched is not None:
        return _reassign(matched, a, b, alpha, linear, enough, steps)
    coupling, product = start, a @ start @ b
    while steps < STEPS:
        gradient = linear - 4 * alpha * product
        best, _ = assign(gradient)
        steps += 1
        step = coupling_of(best) - coupling
        step_product = a[:, best.argsort()] @ b / len(a) - product
        length, change = line_search(float(np.sum(gradient * step)), -2 * alpha * float(np.sum(step_product * step)))
        if change >= enough:
            break
        if length == 1:
            return _reassign(best, a, b, alpha, linear, enough, steps)
        coupling = coupling + length * step
        product = product + length * step_product
    return Optimum(coupling, steps)


def _reassign(
    matched: Matched, a: Square, b: Square, alpha: float, linear: np.ndarray | float, enough: float, steps: int
) -> Optimum:
    """The descent from an assignment. Euclidean distances make the objective concave (Maron and Lipman 2018): whole
    steps are best, so that every step ends at an assignment. Otherwise the general descent continues from there."""
    for step in reassignments(matched, a, b, alpha, linear, count=STEPS - steps):
        steps += 1
        length, change = line_search(step.slope, step.curve)
        if change >= enough:
            break
        if length < 1:
            between = (1 - length) * coupling_of(matched) + length * coupling_of(step.matched)
            return _descend(between, a, b, alpha, linear, enough, steps)
        matched = step.matched
    return Optimum(coupling_of(matched), steps)


class Step(NamedTuple):
    """From an assignment to the best one for its gradient, along which the objective is slope t + curve t^2.

    gradient: at the end of the step, until the next one changes it.
    """

    matched: Matched
    prices: Prices | None
    slope: float
    curve: float
    gradient: Square


def reassignments(
    matched: Matched,
    a: Square,
    b: Square,
    alpha: float = 1.0,
    linear: np.ndarray | float = 0.0,
    *,
    count: int = STEPS,
    prices: Prices | None = None,
    gradient: Square | None = None,
) -> Iterator[Step]:
    """Steps, each from the end of the last; prices and gradient: at the start, if known."""
    n = len(a)
    rows, share = np.arange(n), 1.0
    scaled = a * a.dtype.type(-4 * alpha / n)
    if gradient is None:
        gradient = np.ascontiguousarray(linear + scaled @ b[matched])
    (add_product,) = get_blas_funcs(("gemm",), (gradient,))
    for _ in range(count):
        best, prices = assign(gradient, matched, prices, share)
        moved = np.flatnonzero(best != matched)
        share = len(moved) / n
        here = [gradient[rows, columns].sum(dtype=float) for columns in (best, matched)]
        if share < MANY:
            # gradient += scaled[:, moved] @ (...), in place
            change = (b[best[moved]] - b[matched[moved]]).T
            add_product(1.0, change, scaled[moved].T, 1.0, gradient.T, trans_b=1, overwrite_c=1)
        else:
            gradient = np.ascontiguousarray(linear + scaled @ b[best])
        there = [gradient[rows, columns].sum(dtype=float) for columns in (best, matched)]
        slope = (here[0] - here[1]) / n
        yield Step(best, prices, slope, (there[0] - there[1]) / n / 2 - slope / 2, gradient)
        matched = best


def line_search(slope: float, curve: float) -> tuple[float, float]:
    """The t up to 1 that minimises slope t + curve t^2, and the minimum."""
    length = min(1.0, -slope / (2 * curve)) if curve > 0 else 1.0
    return length, slope * length + curve * length**2


def mixtures(n: int, count: int, seed: int) -> Iterator[Coupling]:
    """Halfway between the uniform coupling and drawn permutations."""
    draw = np.random.default_rng(seed)
    for _ in range(count):
        yield (coupling_of(draw.permutation(n)) + 1 / n**2) / 2


def by_mean_distance(a: Square, b: Square) -> Matched:
    """The end of the first step from the uniform coupling: the gradient there has rank 1, so that rows are matched in
    the order of their mean distances."""
    matched = np.empty(len(a), int)
    matched[a.mean(1).argsort(kind="stable")] = b.mean(1).argsort(kind="stable")
    return matched


class Trial(NamedTuple):
    """An assignment that a start led to, its objective, and the column prices of a similar problem, if known."""

    start: str
    matched: Matched
    value: float
    prices: Prices | None = None


def lowered(trial: Trial, a: Square, b: Square, diagonals: Mapping[float, float]) -> tuple[Trial, int]:
    """The end of descents from an assignment with distances of every row to itself, and the number of steps.

    An equal diagonal adds a constant to the objective of assignments, and makes it less concave between them, so that
    the gradient predicts the objective of the next assignment better: less concave relaxations have fewer and lower
    minima (Zaslavskiy et al. 2009). Steps are whole, and taken as long as they decrease the objective.

    diagonals: the distance of a row to itself, of the mean distance, and the relative decrease at which its descent
    ends.
    """
    means = [float(side.mean()) for side in (a, b)]
    if not all(means):
        return trial, 0  # the objective is the same for all assignments
    number = np.float32 if len(a) >= SINGLE else np.float64  # with few rows float32 saves no time
    left, right = ((side / mean).astype(number) for side, mean in zip((a, b), means, strict=True))
    matched, prices, gradient, steps = trial.matched, trial.prices, None, 0
    for share, tolerance in diagonals.items():
        if gradient is not None:
            more = number(share - left[0, 0])
            gradient -= 4 / len(a) * more * (left[:, matched.argsort()] + right[matched])
            gradient[np.arange(len(a)), matched] -= 4 / len(a) * more**2
        for side in (left, right):
            np.fill_diagonal(side, share)
        for step in reassignments(matched, left, right, prices=prices, gradient=gradient):
            steps += 1
            change = (step.slope + step.curve) * means[0] * means[1]
            if change < 0:
                matched, prices = step.matched, step.prices
            gradient = step.gradient if (step.matched == matched).all() else None
            if change >= -tolerance * trial.value:
                break
    value = assignment_objective(a, b, matched)
    return (Trial(trial.start, matched, value, prices) if value < trial.value else trial), steps


def matched_by(left: Float[np.ndarray, "n k"], right: Float[np.ndarray, "n k"]) -> tuple[Matched, Prices | None]:
    """Rows are matched by their distances to k that are matched already."""
    sides = ((side / (side.mean() or 1.0)).astype(np.float32) for side in (left, right))
    return assign(np.float32(-4 / left.shape[1]) * (next(sides) @ next(sides).T))


def coarse_starts(a: Space, b: Space, left: Square, right: Square) -> Iterator[tuple[str, Matched]]:
    """Assignments of the coarsest blocks: by mean distances, by all distances in order, and by coordinates, with
    axes in all orders and directions."""
    yield "pot", by_mean_distance(left, right)
    yield "profiles", assign(-np.sort(left, axis=1) @ np.sort(right, axis=1).T)[0]
    for order in itertools.permutations(range(AXES)):
        for signs in itertools.product((1, -1), repeat=AXES):
            yield "principal_axes", assign(-a.axes @ (b.axes[:, order] * signs).T)[0]


def from_blocks(a: Space, b: Space) -> "Gromov":
    """An assignment of blocks of rows, refined to ever smaller blocks and to all rows.

    The rows of each side are in blocks of close rows, as many on both sides. The objective of mean distances between
    blocks is that of couplings that are constant in blocks, and few blocks have fewer minima. Of many starts on the
    coarsest blocks the lowest ends are refined: halves of blocks are matched by their distances to all blocks as
    matched, and lowered. Against them stand the rows' own pairing and what it is lowered to on some rows (a half of
    each of `REPRESENTED` blocks at most). The lowest is lowered on all rows.
    """
    a, b = blocked(a), blocked(b)
    sides = list(zip(levels(a), levels(b), strict=True))
    finer = [*((left.distances, right.distances) for left, right in sides), (a.distances, b.distances)]
    trials = [Trial(name, to, assignment_objective(*finer[0], to)) for name, to in coarse_starts(a, b, *finer[0])]
    steps = 0
    for k, (left, right) in enumerate(sides):
        ends = [lowered(trial, left.distances, right.distances, COARSE) for trial in trials]
        steps += len(trials) + sum(more for _, more in ends)
        distinct = {trial.matched.tobytes(): trial for trial, _ in ends}
        lowest = sorted(distinct.values(), key=lambda trial: trial.value)[: max(KEPT // THINNED**k, 1)]
        trials = [refined(trial, left.halves, right.halves, *finer[k + 1]) for trial in lowest]
    best = min(trials, key=lambda trial: trial.value)
    best, more = against_identity(best, a.distances, b.distances, [left for left, _ in sides])
    end, last = lowered(best, a.distances, b.distances, MANY_ROWS)
    return Gromov(end.value, coupling_of(end.matched), end.start, steps + len(trials) + more + last)


def refined(trial: Trial, left: Halves, right: Halves, a: Square, b: Square) -> Trial:
    """An assignment of blocks as one of their halves, which have distances a and b."""
    to, prices = matched_by(between(a, left), between(b, right)[:, trial.matched])
    return Trial(trial.start, to, assignment_objective(a, b, to), prices)


def against_identity(best: Trial, a: Square, b: Square, blocks: Sequence[Level]) -> tuple[Trial, int]:
    """The best of an assignment, the rows' own pairing, and what it is lowered to on a row of each block, extended to
    all rows; and the number of steps. It is extended only where it is lower on these rows, on which it should be."""
    rows = np.arange(len(a))
    best = min(best, Trial("identity", rows, assignment_objective(a, b, rows)), key=lambda trial: trial.value)
    for level in reversed(blocks):
        if len(rows) <= REPRESENTED:
            break
        rows = rows[level.halves[:, 0]]
    left, right, here = a[np.ix_(rows, rows)], b[np.ix_(rows, rows)], np.arange(len(rows))
    end, steps = lowered(Trial("identity", here, assignment_objective(left, right, here)), left, right, COARSE)
    if end.value >= best.value:
        return best, steps
    to, prices = matched_by(a[:, rows], b[:, rows[end.matched]])
    extended = Trial("identity", to, assignment_objective(a, b, to), prices)
    return min(best, extended, key=lambda trial: trial.value), steps + 1


class Gromov(NamedTuple):
    """The best assignment: its objective, coupling (of the sides as ordered by `in_one_order`), start and steps."""

    value: float
    coupling: Coupling
    start: str
    steps: int


def best_gromov(a: Space, b: Space, *, start: GromovStart, restarts: int, seed: int) -> Gromov:
    """The least objective over the starts; steps: the sum over all of them."""
    first, second = in_one_order(a, b)
    left, right = first.distances, second.distances
    n, minima, steps = len(left), [], 0
    tried: dict[str, Coupling] = {}
    if start == "best" and n >= BLOCKED:
        minima.append(from_blocks(first, second))
        steps = minima[0].steps
    else:
        if start != "pot":
            tried["identity"] = coupling_of(np.arange(n))
        if start != "identity":
            tried["pot"] = coupling_of(by_mean_distance(left, right))
    tried |= {f"drawn_{k}": coupling for k, coupling in enumerate(mixtures(n, restarts, seed))}
    for name, coupling in tried.items():
        end = descend(coupling, left, right)
        steps += end.steps
        found = Gromov(gromov_objective(left, right, end.coupling), end.coupling, name, steps)
        matched = matching(end.coupling)
        if start == "best" and matched is not None:
            lower, more = lowered(Trial(name, matched, found.value), left, right, FEW if n < BLOCKED else MANY_ROWS)
            steps += more
            found = Gromov(lower.value, coupling_of(lower.matched), name, steps)
        minima.append(found)
    return min(minima, key=lambda minimum: minimum.value)._replace(steps=steps)


def lower_bounds(a: Space, b: Space) -> tuple[float, float]:
    """The second and the third lower bound of Memoli (2011, section 6), squared loss.

    The second matches all distances in order. The third matches rows by their distances; it is never smaller. With
    `SINGLE` rows or more it is computed in float32: 1e-7 of the mean squared distance is its error.
    """
    n = len(a.distances)
    second = 2 * float(np.sum((a.ordered - b.ordered) ** 2)) / n**2
    size = max(float(side.distances.mean()) for side in (a, b)) or 1.0
    number = np.float32 if n >= SINGLE else np.float64
    profiles = [np.sort((side.distances / size).astype(number), axis=1) for side in (a, b)]
    matched, _ = assign(-profiles[0] @ profiles[1].T)  # the squares of a profile cost the same wherever it is matched
    third = float(np.mean((profiles[0] - profiles[1][matched]) ** 2, dtype=float)) * size**2
    return second, max(second, third)


def gromov(a: Space, b: Space, *, start: GromovStart, restarts: int, seed: int) -> float:
    return best_gromov(a, b, start=start, restarts=restarts, seed=seed).value


def coupled(
    x: Tensor, y: Tensor, *, cost_scale: CostScale, start: GromovStart, restarts: int, seed: int
) -> RowCoupling:
    """The coupling of the rows of x with those of y of the least objective."""
    a, b = space(x, cost_scale=cost_scale), space(y, cost_scale=cost_scale)
    mass = np.asarray(best_gromov(a, b, start=start, restarts=restarts, seed=seed).coupling)
    return RowCoupling(torch.from_numpy(mass if in_one_order(a, b)[0] is a else mass.T), "rows")


def starts(start: GromovStart, restarts: int) -> tuple[str, ...]:
    """The names of the starts, in the order of the trials."""
    paired = ("identity", "pot", "profiles", "principal_axes") if start == "best" else (start,)
    return (*paired, *(f"drawn_{k}" for k in range(restarts)))


def gromov_solved(a: Space, b: Space, *, start: GromovStart, restarts: int, seed: int, bounds: bool) -> Solved:
    """The pair; details: steps, for each start 1 if it won and 0 otherwise, and the two lower bounds."""
    best = best_gromov(a, b, start=start, restarts=restarts, seed=seed)
    left, right = in_one_order(a, b)
    won = (float(best.start == name) for name in starts(start, restarts))
    below = (min(bound, best.value) for bound in lower_bounds(left, right)) if bounds else ()
    details = (float(best.steps), *won, *below)
    return Solved(best.value, details)


def by_pot(a: Space, b: Space) -> Solved:
    """The objective of the coupling that POT finds from its default start; detail: whether costs are tied."""
    from ot.gromov import gromov_wasserstein as solve  # importing POT takes most of a second

    left, right = in_one_order(a, b)
    uniform = np.full(len(left.rows), 1 / len(left.rows))
    coupling = solve(left.distances, right.distances, uniform, uniform, loss_fun="square_loss")
    assert isinstance(coupling, np.ndarray)
    value = gromov_objective(left.distances, right.distances, coupling)
    return Solved(value, (float(tied(left.distances) or tied(right.distances)),))


def tied(distances: Square) -> bool:
    """Whether more than 1 % of the distances equal the next larger one up to rounding."""
    ordered = np.sort(distances[np.triu_indices(len(distances), 1)])
    return float(np.mean(np.diff(ordered) <= TIE * ordered[-1])) > 0.01 if len(ordered) > 1 else True


def equal_to_pot(value: float, reference: float) -> bool:
    return abs(value - reference) <= AUDIT * reference


def hardly_above_pot(value: float, reference: float) -> bool:
    return value <= (1 + ABOVE) * reference


def sinkhorn(cost: Square, epsilon: float, column: np.ndarray) -> tuple[Coupling, np.ndarray]:
    """The coupling T that minimises <cost, T> - epsilon entropy(T), and its column potentials.

    column: potentials to start from. Scalings are absorbed into the potentials every 10 iterations, so that nothing
    under- or overflows.
    """
    n = len(cost)
    row = (cost - column).min(1)
    column = column + (cost - column - row[:, None]).min(0)
    for _ in range(SINKHORN // 10):
        kernel, v = np.exp((row[:, None] + column - cost) / epsilon), np.ones(n)
        for _ in range(10):
            u = 1 / (n * (kernel @ v))
            v = 1 / (n * (u @ kernel))
        row, column = row + epsilon * np.log(u), column + epsilon * np.log(v)
        coupling = u[:, None] * kernel * v
        if np.abs(coupling.sum(1) - 1 / n).sum() < 1e-11:
            break
    return coupling, column


def gromov_entropic(a: Space, b: Space, *, epsilon: float) -> float:
    """gromov_objective of the entropic coupling."""
    left, right = (side.distances for side in in_one_order(a, b))
    return gromov_objective(left, right, blurred(a, b, epsilon))


def coupled_entropic(x: Tensor, y: Tensor, *, cost_scale: CostScale, epsilon: float) -> RowCoupling:
    """The entropic coupling of the rows of x with those of y."""
    a, b = space(x, cost_scale=cost_scale), space(y, cost_scale=cost_scale)
    mass = blurred(a, b, epsilon)
    return RowCoupling(torch.from_numpy(mass if in_one_order(a, b)[0] is a else mass.T), "rows")


def blurred(a: Space, b: Space, epsilon: float) -> Coupling:
    """T = sinkhorn(gradient of gromov_objective at T, epsilon), reached from the uniform coupling, of the sides as
    ordered by `in_one_order`. Raises Degenerate where it is not reached."""
    left, right = (side.distances for side in in_one_order(a, b))
    n = len(left)
    constant = 2 * ((left**2).mean(1)[:, None] + (right**2).mean(1)[None])
    coupling, column = np.full((n, n), 1 / n**2), np.zeros(n)
    for _ in range(STEPS):
        last = coupling
        coupling, column = sinkhorn(constant - 4 * left @ last @ right, epsilon, column)
        if np.linalg.norm(coupling - last) < 1e-11:
            return coupling
    raise Degenerate(f"transport: the entropic coupling did not converge, got epsilon {epsilon}; raise epsilon")


LOCAL = "The best of several starts: an upper bound. "


@measures.register(
    "gromov_wasserstein",
    Card(
        label="Gromov-Wasserstein",
        larger_is_closer=False,
        bounds=(0.0, None),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=2,
        paired=False,
        cost="n^2 d once per layer; per pair about 10 assignments and 5 products of 2 n^3 (n = 1000: 0.3 s)",
        source="Memoli 2011, squared loss (not its root); conditional gradient (Vayer et al. 2019)",
        note=LOCAL + "More starts are often lower. 0: equal up to rotation, offset, scale (unless cost_scale is none) "
        "and order of the rows. Equal rows have distances 0.",
        takes_constant=True,
    ),
)
def gromov_wasserstein(
    *,
    cost_scale: CostScale = "mean",
    start: GromovStart = "best",
    restarts: Tries = 0,
    seed: Seed = 0,
    bounds: bool = True,
    audit: Share = 0.02,
) -> Measure:
    """Least mean squared difference of distances, sum (D_ik - D'_jl)^2 T_ij T_kl, over couplings T of the rows.

    cost_scale: what the costs of each side are divided by: their `mean`, their `max`, or nothing (`none`).
    start: the rows' own pairing (`identity`), the uniform coupling, where POT starts (`pot`), or `best`: of fewer than
        250 rows the better of these two; of more rows the better of the rows' own pairing and an assignment of 62 to
        124 blocks of close rows, the best from 50 starts, refined to smaller blocks and to all rows. Its assignments
        are lowered further by descents that `identity` and `pot` do without.
    restarts: further starts, from random permutations of all rows.
    seed: of the permutations.
    bounds: compute two lower bounds for every pair of a run.
    audit: the share of a run's pairs (at least 1, at most 40) that POT solves too. With few tied distances, the start
        `pot` agrees with POT within 1e-9; `best` is not above it with fewer than 250 rows. With more it can be (at
        1000 rows in 4 % of the pairs, `benchmarks/starts.py`); the audit fails above 5 %. `identity`
        alone is not audited.

    A run records of every pair which start won and how many assignments were solved. A value is an upper bound on the
    minimum. More starts sometimes find a lower one, and which of two layers is nearer may change. Tied distances leave
    the assignments of a descent open, so that it may end above POT's or below.

    Against equal rows, whose distances are 0, it is the mean squared distance. Distances 1, 2, 3 and 4, 8, 12 over
    their means are the same, in another order of the rows:

    >>> from repsim_cli import measures
    >>> round(measures.get("gromov_wasserstein")([[0.], [1.], [3.]], [[12.], [0.], [8.]]), 12)
    0.0
    """
    alone = start == "pot" and not restarts
    checked = Audit(
        share=audit,
        solver="POT",
        reference=by_pot,
        agrees=equal_to_pot if alone else hardly_above_pot,
        claim="within 1e-9 of" if alone else "at most 5 % above",
    )
    settings: dict[str, Any] = {"start": start, "restarts": restarts, "seed": seed}
    details = {"steps": Detail("count", "steps")}
    details |= {f"won_{name}": Detail("won", name.replace("_", " ")) for name in starts(start, restarts)}
    if bounds:
        details |= {f"{nth}_bound": Detail("bound", f"{nth} lower bound") for nth in ("second", "third")}
    return Pairwise(
        prepare=partial(space, cost_scale=cost_scale, bounds=bounds, blocks=start == "best"),
        compare=partial(gromov, **settings),
        permute=permuted,
        squares=1,
        aligned=partial(coupled, cost_scale=cost_scale, **settings),
        slow=Slow(
            solve=partial(gromov_solved, **settings, bounds=bounds),
            details=details,
            audit=checked if start != "identity" else None,
            products=20.0 * (1 + restarts),
        ),
    )


@measures.register(
    "gromov_wasserstein_entropic",
    Card(
        label="Gromov-Wasserstein (entropic)",
        larger_is_closer=False,
        bounds=(None, None),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=2,
        paired=False,
        cost="n^2 d once per layer; about 50 steps of 2 n^3 + 100 n^2 per pair",
        source="Peyre et al. 2016: projected gradient; the value is without the entropy term",
        note="From the uniform coupling; above 0 also for equal layers, the more the larger epsilon is. Smoother and "
        "larger than gromov_wasserstein. Equal rows have distances 0.",
        takes_constant=True,
    ),
)
def gromov_wasserstein_entropic(*, cost_scale: CostScale = "mean", epsilon: Above0 = 0.5) -> Measure:
    """sum (D_ik - D'_jl)^2 T_ij T_kl at the coupling T that an entropy penalty epsilon blurs.

    cost_scale: what the costs of each side are divided by: their `mean`, their `max`, or nothing (`none`).
    epsilon: the weight of the entropy; larger values blur the coupling.

    With a large epsilon T is uniform. Distances 0 and 1: they differ by 1 in half of the cases.

    >>> from repsim_cli import measures
    >>> round(measures.get("gromov_wasserstein_entropic", epsilon=1e6)([[0.], [1.]], [[0.], [1.]]), 6)
    0.5
    """
    return Pairwise(
        prepare=partial(space, cost_scale=cost_scale),
        compare=partial(gromov_entropic, epsilon=epsilon),
        permute=permuted,
        squares=1,
        aligned=partial(coupled_entropic, cost_scale=cost_scale, epsilon=epsilon),
        slow=Slow(products=18.0),
    )
