"""Single neurons: does each neuron of one representation have a counterpart, or a linear fit, in the other?

Neurons are standardised once; the (d_x, d_y) correlations of several pairs of representations are a single product.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import numpy as np
import scipy
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from repsim_cli.base.registry import measures
from repsim_cli.measures import moments
from repsim_cli.measures.alignments import (
    Align,
    couple_neurons,
    find_best_partners,
    fit_least_squares,
    make_correlation_aligner,
    match_to_best,
    match_to_different,
)
from repsim_cli.measures.base import Measure, Pairwise
from repsim_cli.measures.bases import (
    CORRELATIONS,
    Basis,
    choose_working_dtype,
    correlate_bases,
    drop_dead_neurons,
    permute,
    thin_svd,
)
from repsim_cli.measures.cards import Card, Moments
from repsim_cli.measures.inner import Matrix
from repsim_cli.measures.moments import Axes

_STACKED = 4  # representations on either side of a product


def standardise_neurons(x: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
    """Columns of mean 0 and norm 1, whose products are correlations. Dead neurons are dropped."""
    values = drop_dead_neurons(x).values
    return (values / torch.linalg.vector_norm(values, dim=0)).to(choose_working_dtype(x))


Value = Callable[[Float[Tensor, "k l"]], tuple[float, float]]


def make_correlation_measure(value: Value, aligned: Align | None = None) -> Measure:
    """The measure whose entries (row a, column b) and (row b, column a) are value(correlations of a and b)."""

    def compare(a: Tensor, b: Tensor) -> float:
        return value(a.T @ b)[0]

    def compare_all(rows: Sequence[Tensor], columns: Sequence[Tensor]) -> Matrix:
        values = torch.empty(len(rows), len(columns), dtype=torch.float64)
        for i in range(0, len(rows), _STACKED):
            left = rows[i : i + _STACKED]
            stacked = torch.cat(list(left), 1).T
            for j in range(i if rows is columns else 0, len(columns), _STACKED):
                right = columns[j : j + _STACKED]
                block = stacked @ torch.cat(list(right), 1)
                for a, some in enumerate(block.split([side.shape[1] for side in left]), i):
                    for b, correlations in enumerate(some.split([side.shape[1] for side in right], 1), j):
                        if rows is not columns:
                            values[a, b] = value(correlations)[0]
                        elif a <= b:
                            values[a, b], values[b, a] = value(correlations)
        return values

    def compute_from_covariance(a: Tensor, b: Tensor, covariance: Tensor) -> tuple[float, float]:
        return value((covariance / a[:, None] / b).clamp(-1, 1))

    return Pairwise(
        prepare=standardise_neurons,
        compare=compare,
        compare_all=compare_all,
        moments=Moments(prepare=moments.compute_centred_norms, compare=compute_from_covariance, single=True),
        aligned=aligned,
        wide_squares=8.0,
    )


def average_best_partners(correlations: Float[Tensor, "k l"]) -> tuple[float, float]:
    strengths = correlations.abs()
    # float32 rounding can leave a correlation above 1
    return min(1.0, float(strengths.amax(1).double().mean())), min(1.0, float(strengths.amax(0).double().mean()))


def average_soft_matches(correlations: Float[Tensor, "k l"]) -> tuple[float, float]:
    both = float(correlations.amax(1).double().mean()) / 2 + float(correlations.amax(0).double().mean()) / 2
    return both, both


def average_matched_partners(correlations: Float[Tensor, "k l"]) -> tuple[float, float]:
    """The best matching of the neurons of the narrower side to different neurons of the wider side."""
    cells = correlations.double().cpu().numpy()
    matched = float(cells[scipy.optimize.linear_sum_assignment(cells, maximize=True)].mean())
    return matched, matched


def correlate_by_transport(correlations: Float[Tensor, "k l"]) -> tuple[float, float]:
    """The best transport of uniform mass; between equal numbers of neurons it is a matching."""
    if correlations.shape[0] == correlations.shape[1]:
        return average_matched_partners(correlations)
    from ot import emd  # slow to import

    cells = correlations.double().cpu().numpy()
    moved = float((cells * np.asarray(emd([], [], 1 - cells, numItermax=10_000_000))).sum())
    return moved, moved


@measures.register(
    "neuronsim",
    Card(
        label="neuronsim (best |r|)",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=False,
        is_metric=False,
        invariant_to=CORRELATIONS,
        minimum_rows=3,
        cost="n d^2 per pair",
        source="Wu et al. 2020, appendix A.1 (maxcorr)",
        note="Row a, column b: how well the best neuron of b follows each neuron of a. Chance grows with b's width.",
    ),
)
def neuronsim() -> Measure:
    """Mean over the neurons of x of the largest |Pearson correlation| with a neuron of y, in [0, 1].

    x has one neuron that y's only one follows, and one that is uncorrelated with it:

    >>> from repsim_cli import measures
    >>> x, y = [[2., 1.], [2., -1.], [-2., 1.], [-2., -1.]], [[-1.], [-1.], [1.], [1.]]
    >>> round(measures.get("neuronsim")(x, y), 12), round(measures.get("neuronsim")(y, x), 12)
    (0.5, 1.0)
    """
    return make_correlation_measure(average_best_partners, make_correlation_aligner(match_to_best))


@measures.register(
    "soft_correlation_match",
    Card(
        label="soft correlation match",
        larger_is_closer=True,
        bounds=(-1.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=CORRELATIONS,
        minimum_rows=3,
        cost="n d^2 per pair",
        source="Li et al. 2016, semi-matching of signed correlations, both directions averaged",
        note="1: every neuron has a copy on the other side, up to scale and offset.",
    ),
)
def soft_correlation_match() -> Measure:
    """Mean over neurons of the largest signed correlation with a neuron of the other side, in [-1, 1].

    From x: 1 and 0, from y: 1; their average:

    >>> from repsim_cli import measures
    >>> x, y = [[2., 1.], [2., -1.], [-2., 1.], [-2., -1.]], [[1.], [1.], [-1.], [-1.]]
    >>> round(measures.get("soft_correlation_match")(x, y), 12)
    0.75
    """
    return make_correlation_measure(average_soft_matches, find_best_partners)


@measures.register(
    "hard_correlation_match",
    Card(
        label="hard correlation match",
        larger_is_closer=True,
        bounds=(-1.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=CORRELATIONS,
        minimum_rows=3,
        cost="n d^2 + d^3 per pair",
        source="Li et al. 2016, bipartite matching of signed correlations",
        note="1: the narrower side's neurons all have copies of their own on the wider side.",
    ),
)
def hard_correlation_match() -> Measure:
    """Mean signed correlation of the best one-to-one matching of min(d_x, d_y) neurons, in [-1, 1].

    >>> from repsim_cli import measures
    >>> x, y = [[2., 1.], [2., -1.], [-2., 1.], [-2., -1.]], [[1.], [1.], [-1.], [-1.]]
    >>> round(measures.get("hard_correlation_match")(x, y), 12)
    1.0
    """
    return make_correlation_measure(average_matched_partners, make_correlation_aligner(match_to_different))


@measures.register(
    "soft_matching",
    Card(
        label="soft matching",
        larger_is_closer=True,
        bounds=(-1.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=CORRELATIONS,
        minimum_rows=3,
        cost="n d^2 + d^3 per pair",
        source="Khosla and Williams 2024, correlation form: optimal transport of uniform mass",
        note="1: the same neurons, each as often. With equal widths the same as hard_correlation_match.",
    ),
)
def soft_matching() -> Measure:
    """Mean signed correlation under the best transport between the neurons, each side's of equal mass, in [-1, 1].

    Both neurons of x go to y's only one, with correlations 1 and 0:

    >>> from repsim_cli import measures
    >>> x, y = [[2., 1.], [2., -1.], [-2., 1.], [-2., -1.]], [[1.], [1.], [-1.], [-1.]]
    >>> round(measures.get("soft_matching")(x, y), 12)
    0.5
    """
    return make_correlation_measure(correlate_by_transport, couple_neurons)


Mass = Annotated[float, Field(gt=0, le=1)]


def correlate_by_partial_transport(correlations: Float[Tensor, "k l"], mass: float) -> tuple[float, float]:
    """The best transport of a part of the mass; what is left of a side goes to a neuron beside the other's."""
    if mass == 1:
        return correlate_by_transport(correlations)
    from ot import emd  # slow to import

    cells = correlations.double().cpu().numpy()
    costs = np.zeros(tuple(size + 1 for size in cells.shape))
    costs[:-1, :-1], costs[-1, -1] = 1 - cells, 4  # what is left of both sides is not matched with each other
    rows, columns = (np.append(np.full(size, 1 / size), 1 - mass) for size in cells.shape)
    moved = np.asarray(emd(rows, columns, costs, numItermax=10_000_000))[:-1, :-1]
    value = float((cells * moved).sum() / moved.sum())
    return value, value


@measures.register(
    "partial_soft_matching",
    Card(
        label="partial soft matching",
        larger_is_closer=True,
        bounds=(-1.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=CORRELATIONS,
        minimum_rows=3,
        cost="n d^2 + d^3 per pair",
        source="Kapoor et al. 2026, correlation form: partial optimal transport of uniform mass",
        note="1: a share `mass` of each side has the same neurons, each as often, whatever the others do. Chance grows "
        "as the mass falls, since the best are chosen.",
    ),
)
def partial_soft_matching(*, mass: Mass = 0.5) -> Measure:
    """Mean signed correlation of the share of neurons that transport matches best, in [-1, 1].

    mass: this share of each side; the others match nothing. 1: `soft_matching`. A list gives the curve over it: it
        falls where neurons have no counterpart.

    One of two neurons is shared:

    >>> from repsim_cli import measures
    >>> x, y = [[2., 1.], [2., -1.], [-2., 1.], [-2., -1.]], [[1., 1.], [1., -1.], [-1., -1.], [-1., 1.]]
    >>> [round(measures.get("partial_soft_matching", mass=mass)(x, y), 12) for mass in (0.5, 1.0)]
    [1.0, 0.5]
    """
    return make_correlation_measure(partial(correlate_by_partial_transport, mass=mass))


def compute_multiple_correlations(a: Basis, b: Basis) -> tuple[float, float]:
    """Mean over a's neurons of the multiple correlation with all of b's, and the same with a and b exchanged.

    A neuron lies in the basis of its side, so that its part along the other basis is a product of small matrices.
    """
    return explain_neurons(correlate_bases(a, b), a.loadings, b.loadings)


def explain_neurons(
    m: Float[Tensor, "k l"], a: Float[Tensor, "k d_a"], b: Float[Tensor, "l d_b"]
) -> tuple[float, float]:
    """`compute_multiple_correlations` from the overlap of the two bases, and the loadings of neurons on their
    side's."""

    def average_multiple_correlations(m: Tensor, loadings: Tensor) -> float:
        units = loadings / torch.linalg.vector_norm(loadings, dim=0)
        return min(1.0, float(torch.linalg.vector_norm(m @ units.to(m.dtype), dim=0).double().mean()))

    return average_multiple_correlations(m.T, a), average_multiple_correlations(m, b)


def explain_from_moments(a: Axes, b: Axes, covariance: Tensor) -> tuple[float, float]:
    return explain_neurons(moments.correlate_axes(a, b, covariance), a.loadings, b.loadings)


def compute_all_multiple_correlations(rows: Sequence[Basis], columns: Sequence[Basis]) -> Matrix:
    """Computes all pairs; both directions of a pair come from the same product."""
    values = torch.empty(len(rows), len(columns), dtype=torch.float64)
    for i, a in enumerate(rows):
        for j, b in enumerate(columns):
            if rows is not columns:
                values[i, j] = compute_multiple_correlations(a, b)[0]
            elif i <= j:
                values[i, j], values[j, i] = compute_multiple_correlations(a, b)
    return values


@measures.register(
    "mixedsim",
    Card(
        label="mixedsim (r of regression)",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=False,
        is_metric=False,
        invariant_to=CORRELATIONS,
        minimum_rows=3,
        cost="n d^2 + d^3 per layer, n d^2 per pair",
        source="Wu et al. 2020, appendix A.2 (linreg)",
        note="Row a, column b: how well all neurons of b together follow each neuron of a, every neuron alike.",
        refuses_wide=True,
    ),
)
def mixedsim() -> Measure:
    """Mean over the neurons of x of r, the root of R^2 of its least-squares fit from all of y, in [0, 1].

    y explains x's first neuron and nothing of its second:

    >>> from repsim_cli import measures
    >>> x, y = [[2., 1.], [2., -1.], [-2., 1.], [-2., -1.]], [[1.], [1.], [-1.], [-1.]]
    >>> round(measures.get("mixedsim")(x, y), 12), round(measures.get("mixedsim")(y, x), 12)
    (0.5, 1.0)
    """
    return Pairwise(
        prepare=thin_svd,
        copies=2.0,
        maps=1.0,
        wide_squares=8.0,
        compare=lambda a, b: compute_multiple_correlations(a, b)[0],
        compare_all=compute_all_multiple_correlations,
        permute=permute,
        moments=Moments(prepare=moments.find_reliable_axes, compare=explain_from_moments),
        aligned=fit_least_squares,
    )
