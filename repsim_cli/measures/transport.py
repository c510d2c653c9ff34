"""Optimal transport between the rows of two representations, which need no pairing: couplings with uniform weights.

Co-optimal transport is not convex: a value is the best of several starts, as for `gromov_wasserstein`.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.base.registry import measures
from repsim_cli.base.settings import Seed, Share, Small
from repsim_cli.measures.alignments import Coupling as OfOneKind
from repsim_cli.measures.alignments import Couplings
from repsim_cli.measures.assignment import Coupling, find_exact_coupling, make_coupling, read_matching
from repsim_cli.measures.base import Measure, Pairwise
from repsim_cli.measures.cards import Card, Slow
from repsim_cli.measures.gromov import LOCAL
from repsim_cli.measures.gromov_descents import SETTLED, STEPS, compute_gromov_objective, descend
from repsim_cli.measures.gromov_search import descend_from_starts, draw_mixed_couplings
from repsim_cli.measures.gromov_spaces import (
    BLOCKED,
    CostScale,
    Space,
    order_pair,
    order_rows_alike,
    permute,
    prepare_space,
)
from repsim_cli.measures.rdm import recompute_close_distances

QUANTILES = 33


def compute_coot_objective(x: np.ndarray, y: np.ndarray, samples: Coupling, features: Coupling) -> float:
    """The sum of (x_ip - y_jq)^2 S_ij F_pq."""
    rows, columns = read_matching(samples), read_matching(features)
    if rows is not None and columns is not None:
        return float(np.mean((x - y[np.ix_(rows, columns)]) ** 2))
    squares = samples.sum(1) @ x**2 @ features.sum(1) + samples.sum(0) @ y**2 @ features.sum(0)
    return max(0.0, float(squares - 2 * np.sum((x.T @ samples @ y) * features)))


def make_start_couplings(n: int, starts: int, seed: int) -> Iterator[Coupling]:
    """The uniform coupling, then mixtures."""
    yield from [np.full((n, n), 1 / n**2)][: starts - 1]
    yield from draw_mixed_couplings(n, starts - 2, seed)


def match_by_values(a: Space, b: Space) -> Iterator[Coupling]:
    """Rows matched by their means, and of few rows also by their values in order, and after neurons were matched so."""
    # uniform features, which match the rows by their means, are cheap to try
    yield find_exact_coupling(-2 * a.rows.mean(1)[:, None] * b.rows.mean(1)[None])
    if len(a.rows) >= BLOCKED:
        return
    yield find_exact_coupling(-(take_quantiles(a.rows) @ take_quantiles(b.rows).T))
    features = find_exact_coupling(-(take_quantiles(a.rows.T) @ take_quantiles(b.rows.T).T))
    yield find_exact_coupling(-2 * a.rows @ features @ b.rows.T)


def take_quantiles(rows: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n QUANTILES"]:
    """QUANTILES of the values of each row, in order."""
    return np.quantile(rows, np.linspace(0, 1, QUANTILES), axis=1).T


class Solution(NamedTuple):
    value: float
    samples: Coupling
    features: Coupling


def alternate(a: Space, b: Space, samples: Coupling, alpha: float) -> Solution:
    """Finds the least augmented objective, alternating between the best coupling of features and that of rows; never
    above that of the start with its best coupling of features."""
    left, right, x, y = a.distances, b.distances, a.rows, b.rows
    features = find_exact_coupling(-2 * x.T @ samples @ y)
    start = Solution(add_objectives(a, b, samples, features, alpha), samples, features)
    best = start._replace(value=np.inf)
    for step in range(STEPS):
        features = find_exact_coupling(-2 * x.T @ samples @ y) if step else features
        cost = x**2 @ features.sum(1)[:, None] + (y**2 @ features.sum(0))[None] - 2 * x @ features @ y.T
        samples = (
            descend(samples, left, right, alpha, (1 - alpha) * cost).coupling if alpha else find_exact_coupling(cost)
        )
        value = add_objectives(a, b, samples, features, alpha)
        settled = value >= best.value - SETTLED * best.value
        if value < best.value:
            best = Solution(value, samples, features)
        if settled:
            break
    return min(best, start, key=lambda end: end.value)


def add_objectives(a: Space, b: Space, samples: Coupling, features: Coupling, alpha: float) -> float:
    rows = alpha * compute_gromov_objective(a.distances, b.distances, samples) if alpha else 0.0
    return rows + (1 - alpha) * compute_coot_objective(a.rows, b.rows, samples, features)


def compare_augmented(a: Space, b: Space, **settings: Any) -> float:
    return find_best_augmented(*order_pair(a, b), **settings).value


def find_best_augmented(a: Space, b: Space, *, alpha: float, starts: int, seed: int) -> Solution:
    """The best of all starts, of sides as `order_pair` gives them."""
    pair = order_rows_alike(a, b)
    a, b = pair.a, pair.b
    by_distances = [end.coupling for end in descend_from_starts(a, b, pair.paired, start="best", restarts=0, seed=seed)]
    paired = make_coupling(pair.paired)
    tried = (*match_by_values(a, b), *by_distances, paired, *make_start_couplings(len(a.rows), starts, seed))
    best = min((alternate(a, b, start, alpha) for start in tried), key=lambda end: end.value)
    return best._replace(samples=pair.restore_order(best.samples))


def couple_rows_and_neurons(x: Tensor, y: Tensor, *, cost_scale: CostScale, **settings: Any) -> Couplings:
    """The couplings of the rows and of the neurons of the least objective."""
    a, b = prepare_space(x, cost_scale=cost_scale), prepare_space(y, cost_scale=cost_scale)
    left, right = order_pair(a, b)
    found = find_best_augmented(left, right, **settings)
    masses = (torch.from_numpy(np.asarray(mass)) for mass in (found.samples, found.features))
    rows, neurons = (mass if left is a else mass.T for mass in masses)
    return Couplings(rows=OfOneKind(rows, "rows"), neurons=OfOneKind(neurons, "neurons"))


def convert_to_double(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    return x.double()


def compute_assignment_distance(a: Float[Tensor, "n d"], b: Float[Tensor, "n d"]) -> float:
    cost = compute_cross_distances(a, b)
    return float(np.sum(find_exact_coupling(cost) * cost))


def assign_rows(x: Float[Tensor, "n d"], y: Float[Tensor, "n d"]) -> OfOneKind:
    """The coupling of the rows of least mean distance."""
    return OfOneKind(torch.from_numpy(np.asarray(find_exact_coupling(compute_cross_distances(x, y)))), "rows")


def compute_cross_distances(a: Float[Tensor, "n d"], b: Float[Tensor, "n d"]) -> Float[np.ndarray, "n n"]:
    """Computes the Euclidean distances from each row of a to each of b."""
    n = len(a)
    both = torch.cat([a, b])
    both = both - both.mean(0)
    norms = both.square().sum(1)
    squared = torch.addmm(norms[:n, None] + norms[None, n:], both[:n], both[n:].T, alpha=-2)
    return recompute_close_distances(squared, norms, both, slice(0, n), slice(n, 2 * n)).sqrt_().cpu().numpy()


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
        takes_constant=True,
    ),
)
def wasserstein() -> Measure:
    """Least mean Euclidean distance from the rows of x to the rows of y, matched one to one.

    Best in the other order: 0 to 1 and 5 to 5.

    >>> from repsim_cli import measures
    >>> measures.get("wasserstein")([[0.], [5.]], [[5.], [1.]])
    0.5
    """
    return Pairwise(
        prepare=convert_to_double,
        compare=compute_assignment_distance,
        aligned=assign_rows,
        slow=Slow(products=1.5),
        copies=2.0,
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
        note=LOCAL + "In squared units of the activations. 0: equal up to the order of rows and of neurons. Of fewer "
        "than 250 rows their order matters, as their own pairing is one of the starts: shuffled layers of small models "
        "are over 0.1 % above the paired ones in 2 to 17 % of trials at 20 to 100 rows, by 2 % at most.",
        takes_constant=True,
    ),
)
def coot(*, starts: Small = 2, seed: Seed = 0) -> Measure:
    """Least mean squared difference of activations over couplings S of the rows and F of the neurons.

    The value is sum (x_ip - y_jq)^2 S_ij F_pq.

    starts: how many starts: the rows' own pairing, the uniform coupling, then random permutations; always the rows
        matched by their means and by their distances, as `gromov_wasserstein` ends by default, and of fewer than 250
        rows by their values in order and by neurons matched so.
    seed: of the permutations.

    Rows and neurons come in another order:

    >>> from repsim_cli import measures
    >>> measures.get("coot")([[1., 2.], [3., 5.]], [[5., 3.], [2., 1.]])
    0.0
    """
    return build_augmented(alpha=0.0, cost_scale="none", starts=starts, seed=seed)


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
        cost="about 5 steps of gromov_wasserstein + d^3 log d per start and pair (n = 200, d = 256: 0.25 s)",
        source="Demetci et al. 2024; the objective, not its feature part alone",
        note=LOCAL + "Activations are in their own units, distances scaled: scale the activations to balance them. "
        "0: equal up to the order of rows and of neurons. Of fewer than 250 rows their order matters, as their own "
        "pairing is one of the starts: shuffled layers of small models are more than 0.1 % above the paired ones in "
        "4 to 31 % of trials at 20 to 100 rows, by 5 % at most.",
        takes_constant=True,
    ),
)
def augmented_gromov_wasserstein(
    *,
    alpha: Share = 0.5,
    cost_scale: CostScale = "mean",
    starts: Small = 2,
    seed: Seed = 0,
) -> Measure:
    """alpha times Gromov-Wasserstein plus (1 - alpha) times co-optimal transport, for one coupling of the rows.

    alpha: the weight of Gromov-Wasserstein; 1 - alpha is that of co-optimal transport.
    cost_scale: what the costs of each side are divided by: their `mean`, their `max`, or nothing (`none`).
    starts: how many starts: the rows' own pairing, the uniform coupling, then random permutations; always the rows
        matched by their means and by their distances, as `gromov_wasserstein` ends by default (its value is never
        below the one here with an alpha of 1), and of fewer than 250 rows by their values in order and by neurons
        matched so.
    seed: of the permutations.

    Rows and neurons come in another order:

    >>> from repsim_cli import measures
    >>> measures.get("augmented_gromov_wasserstein")([[1., 2.], [3., 5.]], [[5., 3.], [2., 1.]])
    0.0
    """
    return build_augmented(alpha=alpha, cost_scale=cost_scale, starts=starts, seed=seed)


def build_augmented(*, cost_scale: CostScale, alpha: float, starts: int, seed: int) -> Measure:
    return Pairwise(
        prepare=partial(prepare_space, cost_scale=cost_scale),
        compare=partial(compare_augmented, alpha=alpha, starts=starts, seed=seed),
        permute=permute,
        squares=1,
        aligned=partial(couple_rows_and_neurons, cost_scale=cost_scale, alpha=alpha, starts=starts, seed=seed),
        slow=Slow(products=starts * (58.0 if alpha else 24.0)),
    )
