"""Entropic Gromov-Wasserstein: a coupling of the rows that an entropy penalty blurs."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.base.registry import measures
from repsim_cli.base.settings import Above0
from repsim_cli.measures.alignments import Coupling as RowCoupling
from repsim_cli.measures.assignment import Coupling
from repsim_cli.measures.base import Measure, Pairwise
from repsim_cli.measures.cards import Card, Slow
from repsim_cli.measures.gromov_descents import compute_gromov_objective
from repsim_cli.measures.gromov_spaces import CostScale, Space, Square, order_pair, permute, prepare_space
from repsim_cli.measures.rdm import SHAPE

STEPS = 1000  # of the outer loop
SINKHORN = 1000  # iterations for one cost


def sinkhorn(cost: Square, epsilon: float, column: np.ndarray) -> tuple[Coupling, np.ndarray]:
    """The coupling T that minimises <cost, T> - epsilon entropy(T), and its column potentials.

    column: potentials to start from. Scalings are absorbed into the potentials every 10 iterations, so that nothing
    under- or overflows.
    """
    n = len(cost)
    u, coupling = np.ones(n), np.empty_like(cost)
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


def compute_entropic_gromov(a: Space, b: Space, *, epsilon: float) -> float:
    """Computes `compute_gromov_objective` of the entropic coupling."""
    left, right = (side.distances for side in order_pair(a, b))
    return compute_gromov_objective(left, right, blur(a, b, epsilon))


def couple_entropic(x: Tensor, y: Tensor, *, cost_scale: CostScale, epsilon: float) -> RowCoupling:
    """The entropic coupling of the rows of x with those of y."""
    a, b = prepare_space(x, cost_scale=cost_scale), prepare_space(y, cost_scale=cost_scale)
    mass = blur(a, b, epsilon)
    return RowCoupling(torch.from_numpy(mass if order_pair(a, b)[0] is a else mass.T), "rows")


def blur(a: Space, b: Space, epsilon: float, steps: int = STEPS) -> Coupling:
    """Finds T = sinkhorn(gradient of the Gromov-Wasserstein objective at T, epsilon) from the uniform coupling, of the
    sides as ordered by `order_pair`. Raises Degenerate where `steps` do not reach it."""
    left, right = (side.distances for side in order_pair(a, b))
    n = len(left)
    constant = 2 * ((left**2).mean(1)[:, None] + (right**2).mean(1)[None])
    coupling, column = np.full((n, n), 1 / n**2), np.zeros(n)
    for _ in range(steps):
        last = coupling
        coupling, column = sinkhorn(constant - 4 * left @ last @ right, epsilon, column)
        if np.linalg.norm(coupling - last) < 1e-11:
            return coupling
    raise Degenerate(f"transport: the entropic coupling did not converge, got epsilon {epsilon}; raise epsilon")


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
        prepare=partial(prepare_space, cost_scale=cost_scale),
        compare=partial(compute_entropic_gromov, epsilon=epsilon),
        permute=permute,
        squares=1,
        aligned=partial(couple_entropic, cost_scale=cost_scale, epsilon=epsilon),
        slow=Slow(products=18.0),
    )
