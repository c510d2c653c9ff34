"""Optimal transport between the rows of two representations, which need no pairing: couplings with uniform weights.

The Gromov-Wasserstein family is not convex: a value is the best of several starts, an upper bound on the minimum, and
is computed anew from its coupling, in float64. Both sides are put in one order first, so that (x, y) and (y, x) take
the same steps.
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from repsim_cli.errors import Degenerate
from repsim_cli.measures.base import Card, Measure, centred
from repsim_cli.measures.inner import unpacked
from repsim_cli.measures.rdm import SHAPE, mend_close, packed_distances
from repsim_cli.measures.statistics import varied
from repsim_cli.registry import measures
from repsim_cli.settings import Positive

CostScale = Literal["mean", "max", "none"]
Coupling = Float[np.ndarray, "_ _"]
Square = Float[np.ndarray, "n n"]

_PIVOTS = 100_000_000  # of the network simplex
_STEPS = 1000  # of the conditional gradient, the alternation, and the outer Sinkhorn loop
_SINKHORN = 1000  # iterations for one cost
_SETTLED = 1e-12  # relative decrease at which a descent ends


class Space(NamedTuple):
    """Distances between the rows, and the rows themselves."""

    distances: Square
    rows: Float[np.ndarray, "n d"]


def space(x: Float[Tensor, "n d"], *, cost_scale: CostScale) -> Space:
    """Euclidean distances, divided by their mean over i < j, by their maximum, or by nothing."""
    unit, scale = centred(x.double())
    cells = packed_distances(unit)
    cells *= {"mean": 1 / float(cells.mean()), "max": 1 / float(cells.max()), "none": scale}[cost_scale]
    return Space(unpacked(cells, len(x)).cpu().numpy(), x.double().cpu().numpy())


def permuted(state: Space, order: Tensor) -> Space:
    rows = order.cpu().numpy()
    return Space(state.distances[rows][:, rows], state.rows[rows])


def in_one_order(a: Space, b: Space) -> tuple[Space, Space]:
    """The same two, whichever came first."""
    first, second = sorted((a, b), key=lambda state: (state.rows.shape, state.rows.tobytes()))
    return first, second


def plan(cost: Float[np.ndarray, "n m"]) -> Coupling:
    """The exact coupling of least cost with uniform weights."""
    from ot.lp import emd  # importing POT takes most of a second

    n, m = cost.shape
    # the solver returns an empty plan where all costs are negative
    coupling, log = emd(np.full(n, 1 / n), np.full(m, 1 / m), cost - cost.min(), numItermax=_PIVOTS, log=True)
    if log["warning"] is not None:
        raise Degenerate(f"transport: no optimal coupling, got '{log['warning']}' for {n} x {m} rows; use fewer rows")
    return coupling


def matching(coupling: Coupling) -> np.ndarray | None:
    """The permutation p with all weight on the cells (i, p[i]), if the coupling is one."""
    rows, columns = coupling.nonzero()
    one_each = len(rows) == len(coupling) == coupling.shape[1] and len(set(columns)) == len(rows)
    return columns if one_each and (rows == np.arange(len(rows))).all() else None


def gromov_objective(a: Square, b: Square, coupling: Coupling) -> float:
    """sum (a_ik - b_jl)^2 T_ij T_kl, from differences where T is a permutation: nothing cancels there."""
    matched = matching(coupling)
    if matched is not None:
        return float(np.mean((a - b[np.ix_(matched, matched)]) ** 2))
    left, right = coupling.sum(1), coupling.sum(0)
    return max(0.0, float(left @ a**2 @ left + right @ b**2 @ right - 2 * np.sum((a @ coupling @ b) * coupling)))


def coot_objective(x: np.ndarray, y: np.ndarray, samples: Coupling, features: Coupling) -> float:
    """sum (x_ip - y_jq)^2 S_ij F_pq."""
    rows, columns = matching(samples), matching(features)
    if rows is not None and columns is not None:
        return float(np.mean((x - y[np.ix_(rows, columns)]) ** 2))
    own = samples.sum(1) @ x**2 @ features.sum(1) + samples.sum(0) @ y**2 @ features.sum(0)
    return max(0.0, float(own - 2 * np.sum((x.T @ samples @ y) * features)))


def descend(start: Coupling, a: Square, b: Square, alpha: float = 1.0, linear: np.ndarray | float = 0.0) -> Coupling:
    """Conditional gradient with exact line search for alpha gromov_objective(T) + <linear, T>: a local minimum."""
    coupling, product = start, a @ start @ b
    size = alpha * float((a**2).mean() + (b**2).mean()) + float(np.abs(linear).mean())
    for _ in range(_STEPS):
        gradient = linear - 4 * alpha * product
        vertex = plan(gradient)
        step, step_product = vertex - coupling, a @ vertex @ b - product
        slope, curve = float(np.sum(gradient * step)), -2 * alpha * float(np.sum(step_product * step))
        length = min(1.0, -slope / (2 * curve)) if curve > 0 else 1.0
        if slope * length + curve * length**2 >= -_SETTLED * size:
            break
        # a whole step ends at the vertex to the last bit
        coupling = vertex if length == 1 else coupling + length * step
        product = product + length * step_product
    return coupling


def couplings(n: int, starts: int, seed: int) -> Iterator[Coupling]:
    """The pairing of the rows, the uniform coupling, then halfway mixtures of it with drawn permutations."""
    identity, uniform = np.eye(n) / n, np.full((n, n), 1 / n**2)
    draw = np.random.default_rng(seed)
    for start in range(starts):
        yield (identity, uniform)[start] if start < 2 else (identity[draw.permutation(n)] + uniform) / 2


def gromov(a: Space, b: Space, *, starts: int, seed: int) -> float:
    left, right = (side.distances for side in in_one_order(a, b))
    return min(
        gromov_objective(left, right, descend(start, left, right)) for start in couplings(len(left), starts, seed)
    )


def alternate(a: Space, b: Space, samples: Coupling, alpha: float) -> float:
    """The augmented objective at the end of best features for the rows, best rows for the features, and so on."""
    (left, x), (right, y) = a, b
    value = np.inf
    for _ in range(_STEPS):
        features = plan(-2 * x.T @ samples @ y)
        cost = x**2 @ features.sum(1)[:, None] + (y**2 @ features.sum(0))[None] - 2 * x @ features @ y.T
        samples = descend(samples, left, right, alpha, (1 - alpha) * cost) if alpha else plan(cost)
        last, value = value, augmented_objective(a, b, samples, features, alpha)
        if value >= last - _SETTLED * last:
            break
    return min(last, value)


def augmented_objective(a: Space, b: Space, samples: Coupling, features: Coupling, alpha: float) -> float:
    rows = alpha * gromov_objective(a.distances, b.distances, samples) if alpha else 0.0
    return rows + (1 - alpha) * coot_objective(a.rows, b.rows, samples, features)


def augmented(a: Space, b: Space, *, alpha: float, starts: int, seed: int) -> float:
    a, b = in_one_order(a, b)
    # uniform features, which cost nothing to try: rows by their means
    by_means = plan(-2 * a.rows.mean(1)[:, None] * b.rows.mean(1)[None])
    return min(alternate(a, b, start, alpha) for start in [by_means, *couplings(len(a.rows), starts, seed)])


def sinkhorn(cost: Square, epsilon: float, column: np.ndarray) -> tuple[Coupling, np.ndarray]:
    """The coupling of least <cost, T> - epsilon entropy(T), and its column potentials; starts from such potentials.

    Scalings go back into the potentials every 10 iterations, so that nothing under- or overflows.
    """
    n = len(cost)
    row = (cost - column).min(1)
    column = column + (cost - column - row[:, None]).min(0)
    for _ in range(_SINKHORN // 10):
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
    """gromov_objective where T = sinkhorn(its gradient at T, epsilon), reached from the uniform coupling."""
    left, right = (side.distances for side in in_one_order(a, b))
    n = len(left)
    constant = 2 * ((left**2).mean(1)[:, None] + (right**2).mean(1)[None])
    coupling, column = np.full((n, n), 1 / n**2), np.zeros(n)
    for _ in range(_STEPS):
        last = coupling
        coupling, column = sinkhorn(constant - 4 * left @ last @ right, epsilon, column)
        if np.linalg.norm(coupling - last) < 1e-11:
            return gromov_objective(left, right, coupling)
    raise Degenerate(f"transport: the entropic coupling did not settle, got epsilon {epsilon}; raise epsilon")


def assignment_distance(a: Float[Tensor, "n d"], b: Float[Tensor, "n d"]) -> float:
    n = len(a)
    both = torch.cat([a, b])
    both = both - both.mean(0)
    norms = both.square().sum(1)
    squared = torch.addmm(norms[:n, None] + norms[None, n:], both[:n], both[n:].T, alpha=-2)
    cost = mend_close(squared, norms, both, slice(0, n), slice(n, 2 * n)).sqrt_().cpu().numpy()
    return float(np.sum(plan(cost) * cost))


@measures.register(
    "wasserstein",
    Card(
        label="Wasserstein distance",
        larger_is_closer=False,
        bounds=(0.0, None),
        symmetric=True,
        is_metric=True,
        invariant_to=frozenset(),
        minimum_rows=2,
        paired=False,
        cost="n^2 d + n^3 log n per pair",
        source="Villani 2009, definition 6.1, order 1, Euclidean cost; network simplex of POT (Flamary et al. 2021)",
        equal_widths=True,
        note="In the units of the activations; neuron i is compared with neuron i. The rows need no pairing.",
    ),
)
def wasserstein() -> Measure:
    """Least mean Euclidean distance from the rows of x to the rows of y, matched one to one.

    Best in the other order: 0 to 1 and 5 to 5.

    >>> from repsim_cli import measures
    >>> measures.get("wasserstein")([[0.], [5.]], [[5.], [1.]])
    0.5
    """
    return Measure(prepare=varied, compare=assignment_distance)


_STARTS = "A local minimum, the best of several starts: an upper bound. "


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
        cost="n^2 d once per layer; about 10 steps of 2 n^3 + n^3 log n per start and pair (n = 1000: seconds)",
        source="Memoli 2011, squared loss (not its root); conditional gradient (Vayer et al. 2019)",
        note=_STARTS + "0: equal up to rotation, offset, scale (unless cost_scale is none) and order of the rows.",
    ),
)
def gromov_wasserstein(*, cost_scale: CostScale = "mean", starts: Positive = 2, seed: int = 0) -> Measure:
    """Least mean squared difference of distances, sum (D_ik - D'_jl)^2 T_ij T_kl, over couplings T of the rows.

    starts: the rows' pairing, the uniform coupling, and from the third on permutations drawn under the seed.
    Distances 1, 2, 3 and 4, 8, 12 over their means are the same, in another order of the rows:

    >>> from repsim_cli import measures
    >>> round(measures.get("gromov_wasserstein")([[0.], [1.], [3.]], [[12.], [0.], [8.]]), 12)
    0.0
    """
    return Measure(
        prepare=partial(space, cost_scale=cost_scale),
        compare=partial(gromov, starts=starts, seed=seed),
        permute=permuted,
        squares=1,
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
        "larger than gromov_wasserstein.",
    ),
)
def gromov_wasserstein_entropic(
    *, cost_scale: CostScale = "mean", epsilon: Annotated[float, Field(gt=0)] = 0.5
) -> Measure:
    """sum (D_ik - D'_jl)^2 T_ij T_kl at the coupling T that an entropy penalty epsilon blurs.

    With a large epsilon T is uniform. Distances 0 and 1: they differ by 1 in half of the cases.

    >>> from repsim_cli import measures
    >>> round(measures.get("gromov_wasserstein_entropic", epsilon=1e6)([[0.], [1.]], [[0.], [1.]]), 6)
    0.5
    """
    return Measure(
        prepare=partial(space, cost_scale=cost_scale),
        compare=partial(gromov_entropic, epsilon=epsilon),
        permute=permuted,
        squares=1,
    )


@measures.register(
    "coot",
    Card(
        label="co-optimal transport",
        larger_is_closer=False,
        bounds=(0.0, None),
        symmetric=True,
        is_metric=False,
        invariant_to=frozenset({"permutation_of_neurons"}),
        minimum_rows=2,
        paired=False,
        cost="about 5 steps of 2 n^2 d + n^3 log n + d^3 log d per start and pair",
        source="Redko et al. 2020, squared loss; block coordinate descent",
        note=_STARTS + "In squared units of the activations. 0: equal up to the order of rows and of neurons.",
    ),
)
def coot(*, starts: Positive = 2, seed: int = 0) -> Measure:
    """Least mean squared difference of activations over couplings S of the rows and F of the neurons.

    sum (x_ip - y_jq)^2 S_ij F_pq. starts: the rows' pairing, the uniform coupling, and from the third on permutations
    drawn under the seed; beside them the rows matched by their means. Rows and neurons come in another order:

    >>> from repsim_cli import measures
    >>> measures.get("coot")([[1., 2.], [3., 5.]], [[5., 3.], [2., 1.]])
    0.0
    """
    return augmented_measure(alpha=0.0, cost_scale="none", starts=starts, seed=seed)


@measures.register(
    "augmented_gromov_wasserstein",
    Card(
        label="augmented Gromov-Wasserstein",
        larger_is_closer=False,
        bounds=(0.0, None),
        symmetric=True,
        is_metric=False,
        invariant_to=frozenset({"permutation_of_neurons"}),
        minimum_rows=2,
        paired=False,
        cost="about 5 steps of gromov_wasserstein + d^3 log d per start and pair",
        source="Demetci et al. 2024; the objective, not its feature part alone",
        note=_STARTS + "Activations are in their own units, distances scaled: scale the activations to balance them. "
        "0: equal up to the order of rows and of neurons.",
    ),
)
def augmented_gromov_wasserstein(
    *,
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5,
    cost_scale: CostScale = "mean",
    starts: Positive = 2,
    seed: int = 0,
) -> Measure:
    """alpha times Gromov-Wasserstein plus (1 - alpha) times co-optimal transport, for one coupling of the rows.

    Starts as for `coot`. Rows and neurons come in another order:

    >>> from repsim_cli import measures
    >>> measures.get("augmented_gromov_wasserstein")([[1., 2.], [3., 5.]], [[5., 3.], [2., 1.]])
    0.0
    """
    return augmented_measure(alpha=alpha, cost_scale=cost_scale, starts=starts, seed=seed)


def augmented_measure(*, cost_scale: CostScale, **settings: Any) -> Measure:
    return Measure(
        prepare=partial(space, cost_scale=cost_scale),
        compare=partial(augmented, **settings),
        permute=permuted,
        squares=1,
    )
