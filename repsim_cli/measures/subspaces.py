"""Column spaces and regressions: inner products of projectors and ridge smoothers, for all pairs at once.

The inner product of two projectors is the sum of the squared canonical correlations.
"""

import math
from collections.abc import Sequence
from functools import cache, partial

import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.base.registry import measures
from repsim_cli.base.settings import From0
from repsim_cli.measures import moments
from repsim_cli.measures.alignments import fit_least_squares, make_canonical_aligner
from repsim_cli.measures.base import InnerProduct, Measure
from repsim_cli.measures.bases import (
    AFFINE,
    choose_tolerance,
    choose_working_dtype,
    decompose,
    drop_dead_neurons,
    thin_svd,
)
from repsim_cli.measures.cards import Card, Moments
from repsim_cli.measures.features import PreparedFeatures
from repsim_cli.measures.hsic import CENTRED
from repsim_cli.measures.inner import Matrix, Products
from repsim_cli.measures.kernels import Kernel, State
from repsim_cli.measures.moments import SURE, Axes, bound_inverse_eigenvalue, find_whitening
from repsim_cli.measures.rank import SINGLE, compute_rank_tolerance
from repsim_cli.measures.rdm import SHAPE


def make_projector_features(x: Float[Tensor, "n d"]) -> PreparedFeatures:
    """Features of the projector onto the column space of centred x, by the rule of `rank.py`.

    From a Cholesky factor of the neurons' correlations if their condition allows (twice as fast again).
    """
    dtype = choose_working_dtype(x)
    neurons = drop_dead_neurons(x)
    basis, sizes = neurons.values, neurons.sizes
    for _ in range(2):
        gram = basis.T @ basis
        whiten = find_whitening(gram)
        if whiten is None or bound_inverse_eigenvalue(whiten, sizes) > min(
            1 / SURE, compute_rank_tolerance(len(sizes), SINGLE) ** -2
        ):
            break
        basis = basis @ whiten
        if bound_inverse_eigenvalue(whiten, gram.diagonal().sqrt()) < 1 / choose_tolerance(dtype):
            return PreparedFeatures(basis.to(dtype))
        sizes = torch.ones_like(sizes)
    return PreparedFeatures(decompose(neurons, dtype).u.to(dtype))


PROJECTOR = Kernel(features=make_projector_features, copies=1.0)


def read_ranks(states: Sequence[State]) -> Float[Tensor, " r"]:
    return torch.tensor([state.features.values.shape[1] for state in states], dtype=torch.float64)


def sum_squared_correlations(products: Products) -> Matrix:
    """The sum of squared canonical correlations: the inner product of two projectors."""
    return products.cross


def divide_by_smaller_rank(products: Products) -> Matrix:
    most = torch.minimum(read_ranks(products.rows)[:, None], read_ranks(products.columns)[None])
    return products.cross / most.to(products.cross)


def divide_by_larger_rank(products: Products) -> Matrix:
    most = torch.maximum(read_ranks(products.rows)[:, None], read_ranks(products.columns)[None])
    return products.cross / most.to(products.cross)


@measures.register(
    "yanai_cca",
    Card(
        label="Yanai's CCA",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=AFFINE,
        minimum_rows=3,
        cost="n d^2 + d^3 once per layer, n^2/2 per pair",
        source="Yanai 1974 (generalised coefficient of determination); R^2_CCA of Kornblith et al. 2019, table 1",
        note="1: the smaller column space lies in the larger. Unrelated layers score about max(d) / n.",
        refuses_wide=True,
    ),
)
def yanai_cca() -> Measure:
    """Mean squared canonical correlation, sum rho^2 / min(rank x, rank y), in [0, 1].

    Two lines whose correlation is -1/2:

    >>> from repsim_cli import measures
    >>> round(measures.get("yanai_cca")([[0.], [1.], [0.]], [[0.], [0.], [2.]]), 12)
    0.25
    """
    return InnerProduct(
        row=PROJECTOR, column=PROJECTOR, value=divide_by_smaller_rank, aligned=make_canonical_aligner(thin_svd)
    )


@measures.register(
    "pillai_trace",
    Card(
        label="Pillai's trace",
        larger_is_closer=True,
        bounds=(0.0, None),
        symmetric=True,
        is_metric=False,
        invariant_to=AFFINE,
        minimum_rows=3,
        cost="n d^2 + d^3 once per layer, n^2/2 per pair",
        source="Pillai 1955: sum of squared canonical correlations",
        note="A number of shared dimensions, at most the smaller rank, which a layer has with itself.",
        refuses_wide=True,
    ),
)
def pillai_trace() -> Measure:
    """Sum of the squared canonical correlations, in [0, min(rank x, rank y)].

    >>> from repsim_cli import measures
    >>> round(measures.get("pillai_trace")([[0.], [1.], [0.]], [[0.], [0.], [2.]]), 12)
    0.25
    """
    return InnerProduct(
        row=PROJECTOR, column=PROJECTOR, value=sum_squared_correlations, aligned=make_canonical_aligner(thin_svd)
    )


@measures.register(
    "eigenspace_overlap",
    Card(
        label="eigenspace overlap",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=AFFINE,
        minimum_rows=3,
        cost="n d^2 + d^3 once per layer, n^2/2 per pair",
        source="May et al. 2019, eigenspace overlap score, on centred data",
        note="1: equal column spaces. Unlike yanai_cca, layers of different ranks cannot score 1.",
        refuses_wide=True,
    ),
)
def eigenspace_overlap() -> Measure:
    """|U_x'U_y|^2 / max(rank x, rank y) of centred data, in [0, 1].

    A line against a plane that holds it:

    >>> from repsim_cli import measures
    >>> x, y = [[0.], [1.], [3.], [4.]], [[0., 1.], [1., 0.], [3., 0.], [4., 2.]]
    >>> round(measures.get("eigenspace_overlap")(x, y), 12)
    0.5
    """
    return InnerProduct(
        row=PROJECTOR, column=PROJECTOR, value=divide_by_larger_rank, aligned=make_canonical_aligner(thin_svd)
    )


def compute_share_in_subspace(products: Products) -> Matrix:
    """<K_a, P_b> / tr K_a, where the trace is the number of rows."""
    return products.cross / products.rows[0].features.rows


def explain_by_moments(a: Axes, b: Axes, covariance: Float[Tensor, "d_a d_b"]) -> tuple[float, float]:
    """|x_a'u_b|^2 / |x_a|^2, and |x_b'u_a|^2 / |x_b|^2."""
    of_a, of_b = (covariance @ b.whiten).square().sum(), (a.whiten.T @ covariance).square().sum()
    return min(1.0, float(of_a / a.s.square().sum())), min(1.0, float(of_b / b.s.square().sum()))


@measures.register(
    "linear_regression",
    Card(
        label="linear regression (R^2)",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=False,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=3,
        cost="n d^2 + d^3 once per layer, n^2/2 per pair",
        source="Kornblith et al. 2019, table 1: R^2 of least squares with intercept, in sample",
        note="Row a, column b: the share of a's variance that b explains; b's own coordinates do not matter.",
        refuses_wide=True,
    ),
)
def linear_regression() -> Measure:
    """R^2 of x fitted from y, |U_y' x|^2 / |x|^2 of centred data, in [0, 1].

    y explains the first feature of x, which has 4/5 of its variance, and not the second:

    >>> from repsim_cli import measures
    >>> x, y = [[2., 1.], [2., -1.], [-2., 1.], [-2., -1.]], [[1.], [1.], [-1.], [-1.]]
    >>> round(measures.get("linear_regression")(x, y), 12), round(measures.get("linear_regression")(y, x), 12)
    (0.8, 1.0)
    """
    of_moments = Moments(prepare=moments.find_reliable_axes, compare=explain_by_moments)
    return InnerProduct(
        row=CENTRED, column=PROJECTOR, value=compute_share_in_subspace, moments=of_moments, aligned=fit_least_squares
    )


def make_smoother_features(x: Float[Tensor, "n d"], lam: float) -> PreparedFeatures:
    """Features of the ridge smoother X (C + lam)^-1 X' / n of centred x of unit total variance."""
    if lam == 0 and len(x) <= x.shape[1]:
        raise Degenerate(
            f"gulp with lam=0 needs more rows than features, got {len(x)} rows of {x.shape[1]} features, for which "
            "any data would score the same; use more rows, or lam > 0"
        )
    if lam == 0:
        return make_projector_features(x)
    basis = thin_svd(x)
    variances = basis.s.square() / basis.s.square().sum()
    return PreparedFeatures((basis.u * (variances / (variances + lam)).sqrt()).to(basis.dtype))


def compute_squared_smoother_norms(states: Sequence[State]) -> Float[Tensor, " r"]:
    """Squared norms of the smoothers, whose features have orthogonal columns."""
    return torch.stack([state.features.values.double().square().sum(0).square().sum() for state in states])


def compute_squared_differences(products: Products) -> tuple[Matrix, Matrix]:
    """Squared norms of the differences of smoothers, and the sums of the squared norms of their terms."""
    sizes = (
        compute_squared_smoother_norms(products.rows)[:, None] + compute_squared_smoother_norms(products.columns)[None]
    )
    return sizes - 2 * products.cross, sizes


@cache
def make_smoother_kernel(lam: float) -> Kernel:
    """A kernel per lam, shared by the measures of the same lam."""
    return Kernel(features=partial(make_smoother_features, lam=lam), copies=1.0)


def compute_smoother_distances(products: Products) -> Matrix:
    return compute_squared_differences(products)[0].clamp_min(0).sqrt()


def mark_near_smoothers(products: Products, values: Matrix) -> Tensor:
    """The cells whose difference has lost digits to cancellation."""
    return values**2 < 0.01 * compute_squared_differences(products)[1]


def compute_exact_smoother_distance(a: State, b: State) -> float:
    """|A A' - B B'|, from its cells."""
    if a is b:
        return 0.0
    x, y = (state.features.values.double() for state in (a, b))
    blocks = zip(x.split(512), y.split(512), strict=True)
    return math.sqrt(sum(float((i @ x.T - j @ y.T).square().sum()) for i, j in blocks))


@measures.register(
    "gulp",
    Card(
        label="GULP distance",
        larger_is_closer=False,
        bounds=(0.0, None),
        symmetric=True,
        is_metric=True,
        invariant_to=AFFINE,
        minimum_rows=3,
        cost="n d^2 + d^3 once per layer, n^2/2 per pair",
        source="Boix-Adsera et al. 2022, GULP distance (the root), unit total variance",
        note="0: ridge regressions on both predict the same, whatever the target. With lam > 0 directions of little "
        "variance count less, and invertible maps change the distance; lam = 0 needs more rows than features.",
    ),
)
def gulp(*, lam: From0 = 0.0) -> Measure:
    """Largest difference of ridge predictions: |G_x - G_y| of the smoothers G = X (C + lam)^-1 X' / n.

    lam: the ridge penalty; with 0 the smoothers are projectors.

    Projectors onto two lines whose correlation is -1/2, root of 1 + 1 - 2 / 4:

    >>> from repsim_cli import measures
    >>> round(measures.get("gulp")([[0.], [1.], [0.]], [[0.], [0.], [2.]]), 6)
    1.224745
    """
    kernel, sees = make_smoother_kernel(lam), AFFINE - SHAPE if lam else frozenset()
    return InnerProduct(
        row=kernel,
        column=kernel,
        value=compute_smoother_distances,
        near=mark_near_smoothers,
        exact=compute_exact_smoother_distance,
        sees=sees,
    )
