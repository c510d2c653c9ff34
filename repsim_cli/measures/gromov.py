"""Gromov-Wasserstein: the rows of two representations matched by the distances among them, with uniform weights.

The problem is not convex: a value is the best of several starts, an upper bound on the minimum, computed from its
coupling in float64. Both sides are ordered first, so that (x, y) and (y, x) take the same steps.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.base.registry import measures
from repsim_cli.base.settings import Positive, Seed, Share, Tries
from repsim_cli.measures.alignments import Coupling as RowCoupling
from repsim_cli.measures.assignment import TIE, assign
from repsim_cli.measures.base import Measure, Pairwise
from repsim_cli.measures.cards import Audit, Beyond, Card, Detail, Slow, Solved
from repsim_cli.measures.gromov_clouds import (
    BLOCKS,
    Assigned,
    Cloud,
    estimate_cloud_operations,
    find_best_assignment,
    lower_bound,
    permute_cloud,
    prepare_cloud,
)
from repsim_cli.measures.gromov_descents import SINGLE, compute_gromov_objective
from repsim_cli.measures.gromov_search import Gromov, GromovStart, find_best_gromov, name_starts
from repsim_cli.measures.gromov_spaces import CostScale, Space, Square, order_pair, permute, prepare_space
from repsim_cli.measures.rdm import SHAPE
from repsim_cli.measures.room import check_room

AUDIT = 1e-9  # relative difference from POT's objective, from its start
ABOVE = 0.05  # the same of blocks, which may miss the minimum of POT's start
AUDITED = 2000  # rows at most: of more POT takes minutes for a pair
LOCAL = "The best of several starts: an upper bound. "


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


Sides = Space | Cloud


def prepare_side(
    x: Float[Tensor, "n d"], *, cost_scale: CostScale, held_rows: int, bounds: bool = False, blocks: bool = False
) -> Sides:
    """The distances of all rows; of more than held_rows the rows alone, with a warning."""
    if len(x) > held_rows:
        return prepare_cloud(x, cost_scale=cost_scale)
    return prepare_space(x, cost_scale=cost_scale, bounds=bounds, blocks=blocks)


def permute_side(state: Sides, order: Int[Tensor, " n"]) -> Sides:
    return permute_cloud(state, order) if isinstance(state, Cloud) else permute(state, order)


def find_best_solution(a: Sides, b: Sides, *, start: GromovStart, restarts: int, seed: int) -> Gromov | Assigned:
    if isinstance(a, Cloud) and isinstance(b, Cloud):
        return find_best_assignment(a, b, start=start, restarts=restarts, seed=seed)
    assert isinstance(a, Space)
    assert isinstance(b, Space)
    return find_best_gromov(a, b, start=start, restarts=restarts, seed=seed)


def compute_gromov_wasserstein(a: Sides, b: Sides, *, start: GromovStart, restarts: int, seed: int) -> float:
    return find_best_solution(a, b, start=start, restarts=restarts, seed=seed).value


def couple(
    x: Tensor, y: Tensor, *, cost_scale: CostScale, held_rows: int, start: GromovStart, restarts: int, seed: int
) -> RowCoupling:
    """The coupling of the rows of x with those of y of the least objective."""
    check_room("gromov_wasserstein", 2.0, len(x))
    a, b = (prepare_side(side, cost_scale=cost_scale, held_rows=held_rows) for side in (x, y))
    mass = np.asarray(find_best_solution(a, b, start=start, restarts=restarts, seed=seed).coupling)
    return RowCoupling(torch.from_numpy(mass if order_pair(a, b)[0] is a else mass.T), "rows")


def solve_gromov_pair(a: Sides, b: Sides, *, start: GromovStart, restarts: int, seed: int, bounds: bool) -> Solved:
    """The pair; details: steps, for each start 1 if it won and 0 otherwise, and the two lower bounds."""
    found = find_best_solution(a, b, start=start, restarts=restarts, seed=seed)
    won = (float(found.start == name) for name in name_starts(start, restarts))
    below = (min(bound, found.value) for bound in bound_from_below(*order_pair(a, b))) if bounds else ()
    return Solved(found.value, (float(found.steps), *won, *below))


def bound_from_below(a: Sides, b: Sides) -> tuple[float, float]:
    """The two of `lower_bounds`; of rows whose distances are not held, one that is below the third, twice."""
    if isinstance(a, Cloud) and isinstance(b, Cloud):
        bound = lower_bound(a, b)
        return bound, bound
    assert isinstance(a, Space)
    assert isinstance(b, Space)
    return lower_bounds(a, b)


def solve_by_pot(a: Space, b: Space) -> Solved:
    """The objective of the coupling that POT finds from its default start; detail: whether costs are tied."""
    from ot.gromov import gromov_wasserstein as solve  # importing POT takes most of a second

    left, right = order_pair(a, b)
    uniform = np.full(len(left.rows), 1 / len(left.rows))
    coupling = solve(left.distances, right.distances, uniform, uniform, loss_fun="square_loss")
    assert isinstance(coupling, np.ndarray)
    value = compute_gromov_objective(left.distances, right.distances, coupling)
    return Solved(value, (float(has_ties(left.distances) or has_ties(right.distances)),))


def is_small_for_pot(state: Sides) -> bool:
    return isinstance(state, Space) and len(state.rows) <= AUDITED


def has_ties(distances: Square) -> bool:
    """Tells whether more than 1 % of the distances equal the next larger one up to rounding."""
    ordered = np.sort(distances[np.triu_indices(len(distances), 1)])
    return float(np.mean(np.diff(ordered) <= TIE * ordered[-1])) > 0.01 if len(ordered) > 1 else True


def is_equal_to_pot(value: float, reference: float) -> bool:
    return abs(value - reference) <= AUDIT * reference


def is_hardly_above_pot(value: float, reference: float) -> bool:
    return value <= (1 + ABOVE) * reference


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
        "and order of the rows. Equal rows have distances 0. Of fewer than 250 rows their order matters, as their "
        "own pairing is one of the starts: shuffled layers of small models are over 0.1 % above the paired ones in "
        "10 % of trials at 20 and 50 rows and in 25 % at 100, by 12 % at most; noisy copies can be further off.",
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
    held_rows: Positive = 10000,
) -> Measure:
    """Least mean squared difference of distances, sum (D_ik - D'_jl)^2 T_ij T_kl, over couplings T of the rows.

    cost_scale: what the costs of each side are divided by: their `mean`, their `max`, or nothing (`none`).
    start: the rows' own pairing (`identity`), the uniform coupling, where POT starts (`pot`), or `best`: an assignment
        of 62 to 124 blocks of close rows, the best from 26 starts (of 250 rows and more: 50), refined to smaller blocks
        and to all rows. Fewer than 124 rows are their own blocks. The rows' own pairing stands against it, of fewer
        than 250 rows POT's start too. Its assignments are lowered further by descents that `identity` and `pot` do
        without.
    restarts: further starts, from random permutations of all rows.
    seed: of the permutations.
    bounds: compute two lower bounds for every pair of a run.
    audit: the share of a run's pairs (at least 1, at most 40; none of more than 2000 rows) that POT solves too. With
        few tied distances, the start `pot` agrees with POT within 1e-9; `best` is not above it with fewer than 250
        rows. With more it can be (at 1000 rows in 4 % of the pairs, `benchmarks/starts.py`); the audit fails above 5 %.
        `identity` alone is not audited.
    held_rows: of more rows the distances are not held, and the run warns of it. Up to 2048 blocks of close rows are
        matched as above, then the rows in them; these, the rows' own pairing, or what their places along the principal
        axes of both sides say (a start `principal_axes`, which may also be the blocks' own order), are lowered in
        sweeps over groups of close rows. The value is the objective of that coupling over all rows, a local minimum
        (`benchmarks/gromov_blocks.py`: against the search with all distances, and at 100,000 rows). Both bounds are
        then what mean distances give, which is below the third.

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
        takes=is_small_for_pot,
        reference=solve_by_pot,
        agrees=is_equal_to_pot if alone else is_hardly_above_pot,
        claim="within 1e-9 of" if alone else "at most 5 % above",
    )
    settings: dict[str, Any] = {"start": start, "restarts": restarts, "seed": seed}
    held: dict[str, Any] = {"cost_scale": cost_scale, "held_rows": held_rows}
    details = {"steps": Detail("count", "steps")}
    details |= {f"won_{name}": Detail("won", name.replace("_", " ")) for name in name_starts(start, restarts)}
    if bounds:
        details |= {f"{nth}_bound": Detail("bound", f"{nth} lower bound") for nth in ("second", "third")}
    return Pairwise(
        prepare=partial(prepare_side, **held, bounds=bounds, blocks=start == "best"),
        compare=partial(compute_gromov_wasserstein, **settings),
        permute=permute_side,
        squares=1,
        aligned=partial(couple, **held, **settings),
        slow=Slow(
            solve=partial(solve_gromov_pair, **settings, bounds=bounds),
            details=details,
            audit=checked if start != "identity" else None,
            products=20.0 * (1 + restarts),
            beyond=Beyond(held_rows, min(BLOCKS, held_rows), estimate_cloud_operations),
        ),
    )
