"""Where searches for the least Gromov-Wasserstein objective start, and what blocks of close rows find."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from repsim_cli.measures.assignment import Coupling, Matched, Prices, assign, make_coupling, read_matching
from repsim_cli.measures.gromov_descents import (
    COARSE,
    FEW,
    MANY_ROWS,
    Trial,
    compute_assignment_objective,
    compute_gromov_objective,
    descend,
    lower_further,
)
from repsim_cli.measures.gromov_spaces import (
    AXES,
    BLOCKED,
    BlockLevel,
    Halves,
    Space,
    Square,
    average_column_pairs,
    group_rows_into_blocks,
    list_block_levels,
    order_pair,
    order_rows_alike,
)

GromovStart = Literal["best", "pot", "identity"]

KEPT, THINNED = (
    20,
    3,
)  # of the coarsest assignments so many are refined (of few rows a third), of finer ones a third
LOWERED = 8  # assignments of few rows that are lowered
REPRESENTED = 250  # rows at most on which the rows' own pairing is lowered


def draw_mixed_couplings(n: int, count: int, seed: int) -> Iterator[Coupling]:
    """Draws permutations, and gives the coupling halfway between the uniform one and each."""
    draw = np.random.default_rng(seed)
    for _ in range(count):
        yield (make_coupling(draw.permutation(n)) + 1 / n**2) / 2


def match_by_mean_distance(a: Square, b: Square) -> Matched:
    """The end of the first step from the uniform coupling: the gradient there has rank 1, so that rows are matched in
    the order of their mean distances."""
    matched = np.empty(len(a), int)
    matched[a.mean(1).argsort(kind="stable")] = b.mean(1).argsort(kind="stable")
    return matched


def match_by(left: Float[np.ndarray, "n k"], right: Float[np.ndarray, "n k"]) -> tuple[Matched, Prices | None]:
    """Matches rows by their distances to k rows that are matched already."""
    sides = ((side / (side.mean() or 1.0)).astype(np.float32) for side in (left, right))
    return assign(np.float32(-4 / left.shape[1]) * (next(sides) @ next(sides).T))


def list_coarse_starts(a: Space, b: Space, left: Square, right: Square) -> Iterator[tuple[str, Matched]]:
    """Assignments of the coarsest blocks: by mean distances, by all distances in order, and by coordinates, with
    axes in all directions and orders (of few rows, orders in which no more than two neighbours trade places)."""
    yield "pot", match_by_mean_distance(left, right)
    yield "profiles", assign(-np.sort(left, axis=1) @ np.sort(right, axis=1).T)[0]
    for order in itertools.islice(itertools.permutations(range(AXES)), AXES if len(a.rows) < BLOCKED else None):
        for signs in itertools.product((1, -1), repeat=AXES):
            yield "principal_axes", assign(-a.axes @ (b.axes[:, order] * signs).T)[0]


def assign_by_blocks(a: Space, b: Space) -> tuple[list[Trial], int]:
    """Assignments of all rows, and the number of steps: of blocks of rows, refined to ever smaller blocks and to rows.

    Both sides are cut into the same number of blocks of close rows. The objective of mean distances between blocks is
    that of couplings that are constant within blocks; the fewer blocks, the fewer minima. The best results of many
    starts on the coarsest blocks are refined: halves of blocks are matched by their distances to all blocks as matched,
    and lowered. Fewer than twice `COARSEST` rows are their own blocks, and not lowered.
    """
    few = len(a.rows) < BLOCKED
    sides = list(zip(list_block_levels(a), list_block_levels(b), strict=True))
    finer = [*((left.distances, right.distances) for left, right in sides), (a.distances, b.distances)]
    trials = [
        Trial(name, to, compute_assignment_objective(*finer[0], to)) for name, to in list_coarse_starts(a, b, *finer[0])
    ]
    steps = len(trials)
    for k, (left, right) in enumerate(sides):
        tried = list_distinct(trials)[:KEPT] if few else trials
        ends = [lower_further(trial, left.distances, right.distances, COARSE) for trial in tried]
        lowest = list_distinct(trial for trial, _ in ends)[: max(KEPT // THINNED ** (k + few), 1)]
        trials = [refine(trial, left.halves, right.halves, *finer[k + 1]) for trial in lowest]
        steps += sum(more for _, more in ends) + len(trials)
    return trials, steps


def list_distinct(trials: Iterable[Trial]) -> list[Trial]:
    """Lists each assignment once, that of the lowest value first."""
    return sorted({trial.matched.tobytes(): trial for trial in trials}.values(), key=lambda trial: trial.value)


def search_few_rows(a: Space, b: Space) -> tuple[Trial, int]:
    """The lowest end of the lowest assignments."""
    trials, steps = assign_by_blocks(a, b)
    ends = [lower_further(trial, a.distances, b.distances, FEW) for trial in list_distinct(trials)[:LOWERED]]
    return list_distinct(end for end, _ in ends)[0], steps + sum(more for _, more in ends)


def search_many_rows(a: Space, b: Space) -> tuple[Trial, int]:
    """The lowest of blocks, of the rows' own pairing, and of what this is lowered to on some rows (a half of each of
    `REPRESENTED` blocks at most), lowered on all rows."""
    trials, steps = assign_by_blocks(a, b)
    best, more = choose_against_identity(
        min(trials, key=lambda trial: trial.value), a.distances, b.distances, list_block_levels(a)
    )
    end, last = lower_further(best, a.distances, b.distances, MANY_ROWS)
    return end, steps + more + last


def refine(trial: Trial, left: Halves, right: Halves, a: Square, b: Square) -> Trial:
    """An assignment of blocks as one of their halves, which have distances a and b."""
    to, prices = match_by(average_column_pairs(a, left), average_column_pairs(b, right)[:, trial.matched])
    return Trial(trial.start, to, compute_assignment_objective(a, b, to), prices)


def choose_against_identity(best: Trial, a: Square, b: Square, blocks: Sequence[BlockLevel]) -> tuple[Trial, int]:
    """The best of an assignment, the rows' own pairing, and what it is lowered to on a row of each block, extended to
    all rows; and the number of steps. It is extended only where it is lower on these rows, on which it should be."""
    rows = np.arange(len(a))
    best = min(best, Trial("identity", rows, compute_assignment_objective(a, b, rows)), key=lambda trial: trial.value)
    for level in reversed(blocks):
        if len(rows) <= REPRESENTED:
            break
        rows = rows[level.halves[:, 0]]
    left, right, here = a[np.ix_(rows, rows)], b[np.ix_(rows, rows)], np.arange(len(rows))
    end, steps = lower_further(
        Trial("identity", here, compute_assignment_objective(left, right, here)), left, right, COARSE
    )
    if end.value >= best.value:
        return best, steps
    to, prices = match_by(a[:, rows], b[:, rows[end.matched]])
    extended = Trial("identity", to, compute_assignment_objective(a, b, to), prices)
    return min(best, extended, key=lambda trial: trial.value), steps + 1


class Gromov(NamedTuple):
    """The best assignment: its objective, coupling (of the sides as ordered by `order_pair`), start and steps."""

    value: float
    coupling: Coupling
    start: str
    steps: int


def find_best_gromov(a: Space, b: Space, *, start: GromovStart, restarts: int, seed: int) -> Gromov:
    """The least objective over the starts; steps: the sum over all of them."""
    pair = order_rows_alike(*order_pair(a, b))
    found = search(pair.a, pair.b, pair.paired, start=start, restarts=restarts, seed=seed)
    return found._replace(coupling=pair.restore_order(found.coupling))


def search(a: Space, b: Space, paired: Matched, *, start: GromovStart, restarts: int, seed: int) -> Gromov:
    """The lowest of `descend_from_starts`; steps: of all."""
    found = descend_from_starts(a, b, paired, start=start, restarts=restarts, seed=seed)
    return min(found, key=lambda end: end.value)._replace(steps=sum(end.steps for end in found))


def descend_from_starts(
    a: Space, b: Space, paired: Matched, *, start: GromovStart, restarts: int, seed: int
) -> list[Gromov]:
    """Descends from each start. paired: the rows' own pairing, which `best` tries too, so that no value is above what
    it leads to."""
    left, right, few = a.distances, b.distances, len(a.rows) < BLOCKED
    made = list[Gromov]()
    lower = None
    if start == "best":
        lower = FEW if few else MANY_ROWS
        found, steps = (search_few_rows if few else search_many_rows)(
            group_rows_into_blocks(a), group_rows_into_blocks(b)
        )
        made.append(Gromov(found.value, make_coupling(found.matched), found.start, steps))
    if start == "pot" or (start == "best" and few):
        made.append(finish_descent("pot", make_coupling(match_by_mean_distance(left, right)), left, right, lower))
    if start == "identity" or (start == "best" and few):
        made.append(finish_descent("identity", make_coupling(paired), left, right, lower))
    for k, coupling in enumerate(draw_mixed_couplings(len(left), restarts, seed)):
        made.append(finish_descent(f"drawn_{k}", coupling, left, right, lower))
    return made


def finish_descent(
    name: str, coupling: Coupling, left: Square, right: Square, diagonals: Mapping[float, float] | None
) -> Gromov:
    """The end of a descent; with diagonals, of `lower_further` where it is an assignment."""
    end = descend(coupling, left, right)
    found = Gromov(compute_gromov_objective(left, right, end.coupling), end.coupling, name, end.steps)
    matched = read_matching(end.coupling)
    if diagonals is None or matched is None:
        return found
    lower, more = lower_further(Trial(name, matched, found.value), left, right, diagonals)
    return Gromov(lower.value, make_coupling(lower.matched), name, end.steps + more)


def name_starts(start: GromovStart, restarts: int) -> tuple[str, ...]:
    """The names of the starts, in the order of the trials."""
    paired = ("identity", "pot", "profiles", "principal_axes") if start == "best" else (start,)
    return (*paired, *(f"drawn_{k}" for k in range(restarts)))
