"""Gromov-Wasserstein: the rows of two representations matched by the distances among them, with uniform weights.

The problem is not convex: a value is the best of several starts, an upper bound on the minimum, computed from its
coupling in float64. Both sides are ordered first, so that (x, y) and (y, x) take the same steps.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
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

STEPS = 1000  # of a descent, and of the outer Sinkhorn loop
SETTLED = 1e-12  # relative decrease at which a descent ends
SINKHORN = 1000  # iterations for one cost
AUDIT = 1e-9  # relative difference from POT's objective, from its start
ABOVE = 0.05  # the same of the best of samples, which may miss the minimum of POT's start
MANY = 0.7  # share of moved rows above which a whole product is cheaper than its update
# diagonals and tolerances, see `lowered`: of samples and of all rows
SAMPLE, FINE = {0.8: 2e-3}, {0.8: 3e-4, 0.0: 3e-5}
SAMPLED = 125  # rows of the smallest sample, which has less than twice as many
DRAWN = 10  # permutations of its rows that are starts
KEPT_FIRST, KEPT = 6, 2  # how many assignments of this sample and of each larger one are extended
UNIFORM = 500  # the most rows on which the uniform coupling is a start: the more, the longer its descent


class Space(NamedTuple):
    """Distances between the rows, the rows themselves, and, if bounds are requested, all distances in order."""

    distances: Square
    rows: Float[np.ndarray, "n d"]
    ordered: Float[np.ndarray, " cells"]


def space(x: Float[Tensor, "n d"], *, cost_scale: CostScale, bounds: bool = False) -> Space:
    """Euclidean distances, divided by their mean over i < j, by their maximum, or not at all; 0 for equal rows, and for
    float32 rows that differ by rounding alone."""
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
    return Space(unpacked(cells, len(x)).cpu().numpy(), x.cpu().numpy(), ordered.cpu().numpy())


def permuted(state: Space, order: Tensor) -> Space:
    rows = order.cpu().numpy()
    return Space(state.distances[rows][:, rows], state.rows[rows], state.ordered)


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
    number = np.float32 if len(a) >= SAMPLED else np.float64  # with few rows float32 saves no time
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


def from_samples(a: Square, b: Square, seed: int) -> "Gromov":
    """The best of many starts on a sample of the rows, extended to all rows.

    The starts, the rows' own pairing, their mean distances and drawn permutations, are tried on the smallest sample.
    Its best assignments match the rows of the next sample, twice as large, by their distances to the rows already
    matched, and so on; of those of all rows only the lowest is lowered. The mean distances are a start once more, on
    the largest sample of at most `UNIFORM` rows, or on all.
    """
    n, steps, draw = len(a), 0, np.random.default_rng(seed)
    order = draw.permutation(n)
    near = [(side / (side.mean() or 1.0)).astype(np.float32) for side in (a, b)]
    sizes = [n >> halved for halved in reversed(range((n // SAMPLED).bit_length()))]
    uniform = (sizes[0], max(size for size in sizes if size <= UNIFORM))
    last, best = order[:0], list[Trial]()
    for level, size in enumerate(sizes):
        rows = np.sort(order[:size])
        left, right = (side[np.ix_(rows, rows)] for side in (a, b)) if size < n else (a, b)
        starts = []
        for trial in best:
            nearness = near[0][np.ix_(rows, last)] @ near[1][np.ix_(last[trial.matched], rows)]
            starts.append((trial.start, *assign(np.float32(-4 / len(last)) * nearness)))
        if not level:
            starts += [("identity", np.arange(size), None)]
            starts += [("drawn_sample", draw.permutation(size), None) for _ in range(DRAWN)]
        trials = [Trial(name, to, assignment_objective(left, right, to), prices) for name, to, prices in starts]
        if size == n:
            trials = [min(trials, key=lambda trial: trial.value)]
        if size in uniform:
            matched = by_mean_distance(left, right)
            trials.append(Trial("pot", matched, assignment_objective(left, right, matched)))
        if len(trials) > 1:
            found = [lowered(trial, left, right, SAMPLE) for trial in trials]
            trials, steps = [trial for trial, _ in found], steps + sum(more for _, more in found)
        best = sorted(trials, key=lambda trial: trial.value)[: KEPT if level else KEPT_FIRST]
        last = rows
    end, more = lowered(best[0], a, b, FINE)
    return Gromov(end.value, coupling_of(end.matched), end.start, steps + more)


class Gromov(NamedTuple):
    """The best assignment: its objective, coupling (of the sides as ordered by `in_one_order`), start and steps."""

    value: float
    coupling: Coupling
    start: str
    steps: int


def best_gromov(a: Space, b: Space, *, start: GromovStart, restarts: int, seed: int) -> Gromov:
    """The least objective over the starts; steps: the sum over all of them."""
    left, right = (side.distances for side in in_one_order(a, b))
    n, minima, steps = len(left), [], 0
    tried: dict[str, Coupling] = {}
    if start == "best" and n >= 2 * SAMPLED:
        minima.append(from_samples(left, right, seed))
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
            lower, more = lowered(Trial(name, matched, found.value), left, right, FINE)
            steps += more
            found = Gromov(lower.value, coupling_of(lower.matched), name, steps)
        minima.append(found)
    return min(minima, key=lambda minimum: minimum.value)._replace(steps=steps)


def lower_bounds(a: Space, b: Space) -> tuple[float, float]:
    """The second and the third lower bound of Memoli (2011, section 6), squared loss.

    The second matches all distances in order. The third matches rows by their distances; it is never smaller. With
    `SAMPLED` rows or more it is computed in float32: 1e-7 of the mean squared distance is its error.
    """
    n = len(a.distances)
    second = 2 * float(np.sum((a.ordered - b.ordered) ** 2)) / n**2
    size = max(float(side.distances.mean()) for side in (a, b)) or 1.0
    number = np.float32 if n >= SAMPLED else np.float64
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
    paired = ("identity", "pot", "drawn_sample") if start == "best" else (start,)
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
        cost="n^2 d once per layer; per pair about 10 assignments and 5 products of 2 n^3 (n = 1000: 0.4 s)",
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
        250 rows the better of these two; of more rows the best of these two and ten drawn permutations on a sample of
        125 to 249 rows, extended to all, and of the uniform coupling of 250 to 500 rows. Its assignments are lowered
        further by descents that `identity` and `pot` do without.
    restarts: further starts, from random permutations of all rows.
    seed: of the permutations and of the samples.
    bounds: compute two lower bounds for every pair of a run.
    audit: the share of a run's pairs (at least 1, at most 40) that POT solves too. With few tied distances, the start
        `pot` agrees with POT within 1e-9; `best` is not above it with fewer than 250 rows. With more it can be (at
        1000 rows in a fifth of the pairs, by 2.4 % at most); the audit fails above 5 %. `identity`
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
        prepare=partial(space, cost_scale=cost_scale, bounds=bounds),
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
