"""Descents to local minima of transport problems, Gromov-Wasserstein among them, from given starts."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import numpy as np
from scipy.linalg.blas import get_blas_funcs

from repsim_cli.measures.assignment import Coupling, Matched, Prices, assign, make_coupling, read_matching
from repsim_cli.measures.gromov_spaces import Square

STEPS = 1000  # of a descent
SETTLED = 1e-12  # relative decrease at which a descent ends
MANY = 0.7  # share of moved rows above which a whole product is cheaper than its update
SINGLE = 125  # rows from which float32 saves time
# diagonals and tolerances, see `lower_further`: of blocks, of few rows, and of many
COARSE, FEW, MANY_ROWS = {0.8: 2e-3}, {0.8: 3e-4, 0.0: 3e-5}, {0.8: 3e-4, 0.4: 1e-4, 0.0: 3e-5}


def compute_gromov_objective(a: Square, b: Square, coupling: Coupling) -> float:
    """The sum of (a_ik - b_jl)^2 T_ij T_kl; from differences, which do not cancel, where T is a permutation."""
    matched = read_matching(coupling)
    if matched is not None:
        return compute_assignment_objective(a, b, matched)
    left, right = coupling.sum(1), coupling.sum(0)
    return max(0.0, float(left @ a**2 @ left + right @ b**2 @ right - 2 * np.sum((a @ coupling @ b) * coupling)))


def compute_assignment_objective(a: Square, b: Square, matched: Matched) -> float:
    return float(np.mean((a - b[np.ix_(matched, matched)]) ** 2))


class Optimum(NamedTuple):
    """A local minimum of a transport problem, and the number of assignments solved on the way."""

    coupling: Coupling
    steps: int


def descend(start: Coupling, a: Square, b: Square, alpha: float = 1.0, linear: np.ndarray | float = 0.0) -> Optimum:
    """Minimises alpha `compute_gromov_objective`(T) + <linear, T> by conditional gradient with exact line search."""
    size = alpha * float((a**2).mean() + (b**2).mean()) + float(np.abs(linear).mean())
    return _descend(start, a, b, alpha, linear, -SETTLED * size, 0)


def _descend(
    start: Coupling, a: Square, b: Square, alpha: float, linear: np.ndarray | float, enough: float, steps: int
) -> Optimum:
    matched = read_matching(start)
    if matched is not None:
        return _reassign(matched, a, b, alpha, linear, enough, steps)
    coupling, product = start, a @ start @ b
    while steps < STEPS:
        gradient = linear - 4 * alpha * product
        best, _ = assign(gradient)
        steps += 1
        step = make_coupling(best) - coupling
        step_product = a[:, best.argsort()] @ b / len(a) - product
        length, change = search_along_line(
            float(np.sum(gradient * step)), -2 * alpha * float(np.sum(step_product * step))
        )
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
    for step in islice(take_reassignment_steps(matched, a, b, alpha, linear), STEPS - steps):
        steps += 1
        length, change = search_along_line(step.slope, step.curve)
        if change >= enough:
            break
        if length < 1:
            between = (1 - length) * make_coupling(matched) + length * make_coupling(step.matched)
            return _descend(between, a, b, alpha, linear, enough, steps)
        matched = step.matched
    return Optimum(make_coupling(matched), steps)


class DescentStep(NamedTuple):
    """From an assignment to the best one for its gradient, along which the objective is slope t + curve t^2.

    gradient: at the end of the step, until the next one changes it.
    """

    matched: Matched
    prices: Prices | None
    slope: float
    curve: float
    gradient: Square


def take_reassignment_steps(
    matched: Matched,
    a: Square,
    b: Square,
    alpha: float = 1.0,
    linear: np.ndarray | float = 0.0,
    *,
    prices: Prices | None = None,
    gradient: Square | None = None,
) -> Iterator[DescentStep]:
    """Steps, each from the end of the last, STEPS at most; prices and gradient: at the start, if known."""
    n = len(a)
    rows, share = np.arange(n), 1.0
    scaled = a * a.dtype.type(-4 * alpha / n)
    if gradient is None:
        gradient = np.ascontiguousarray(linear + scaled @ b[matched])
    (add_product,) = get_blas_funcs(("gemm",), (gradient,))
    for _ in range(STEPS):
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
        yield DescentStep(best, prices, slope, (there[0] - there[1]) / n / 2 - slope / 2, gradient)
        matched = best


def search_along_line(slope: float, curve: float) -> tuple[float, float]:
    """The t up to 1 that minimises slope t + curve t^2, and the minimum."""
    length = min(1.0, -slope / (2 * curve)) if curve > 0 else 1.0
    return length, slope * length + curve * length**2


class Trial(NamedTuple):
    """An assignment that a start led to, its objective, and the column prices of a similar problem, if known."""

    start: str
    matched: Matched
    value: float
    prices: Prices | None = None


def lower_further(trial: Trial, a: Square, b: Square, diagonals: Mapping[float, float]) -> tuple[Trial, int]:
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
        for step in take_reassignment_steps(matched, left, right, prices=prices, gradient=gradient):
            steps += 1
            change = (step.slope + step.curve) * means[0] * means[1]
            if change < 0:
                matched, prices = step.matched, step.prices
            gradient = step.gradient if (step.matched == matched).all() else None
            if change >= -tolerance * trial.value:
                break
    value = compute_assignment_objective(a, b, matched)
    return (Trial(trial.start, matched, value, prices) if value < trial.value else trial), steps
