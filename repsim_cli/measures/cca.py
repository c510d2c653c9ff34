"""Canonical correlations: the singular values of U_x'U_y, of orthonormal bases of the centred columns.

One (k_x, k_y) matrix per pair; what needs only the sum of their squares is in `subspaces.py`.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.base.registry import measures
from repsim_cli.measures import moments
from repsim_cli.measures.alignments import Align, make_canonical_aligner
from repsim_cli.measures.base import Measure, Pairwise
from repsim_cli.measures.bases import (
    AFFINE,
    NEURONS,
    Basis,
    Variance,
    correlate_bases,
    keep_leading,
    nuclear_norm,
    permute,
    thin_svd,
)
from repsim_cli.measures.cards import Card, Moments
from repsim_cli.measures.inner import Matrix
from repsim_cli.measures.moments import SURE, Axes
from repsim_cli.measures.rdm import SHAPE


def compute_mean_canonical_correlation(a: Basis, b: Basis) -> float:
    m = correlate_bases(a, b)
    return min(1.0, nuclear_norm(m) / min(m.shape))


def compute_mean_from_moments(a: Axes, b: Axes, covariance: Tensor) -> tuple[float, float]:
    m = moments.correlate_axes(a, b, covariance)
    value = min(1.0, nuclear_norm(m) / min(m.shape))
    return value, value


@measures.register(
    "mean_cca",
    Card(
        label="mean CCA",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=AFFINE,
        minimum_rows=3,
        cost="n d^2 + d^3 per layer and per pair",
        source="Raghu et al. 2017, section 2 without its SVD step; Hotelling 1936",
        note="1: the smaller column space lies in the larger. Unrelated layers score up to the root of max(d) / n.",
        refuses_wide=True,
    ),
)
def mean_cca() -> Measure:
    """Mean of the min(rank x, rank y) canonical correlations, in [0, 1].

    A line against a plane that holds it: one correlation, 1.

    >>> from repsim_cli import measures
    >>> x, y = [[0.], [1.], [3.], [4.]], [[0., 1.], [1., 0.], [3., 0.], [4., 2.]]
    >>> round(measures.get("mean_cca")(x, y), 12)
    1.0
    """
    return Pairwise(
        prepare=thin_svd,
        copies=2.0,
        maps=1.0,
        wide_squares=8.0,
        compare=compute_mean_canonical_correlation,
        permute=permute,
        moments=Moments(prepare=moments.find_reliable_axes, compare=compute_mean_from_moments),
        aligned=make_canonical_aligner(thin_svd),
    )


def mutual_information(a: Basis, b: Basis) -> float:
    rho = torch.linalg.svdvals(a.u.T @ b.u)
    if float(rho[0]) > 1 - SURE:
        raise Degenerate(
            f"a canonical correlation is 1, got {float(rho[0]):.12f}: the mutual information is infinite; "
            "compare other layers, or use mean_cca"
        )
    return float(-0.5 * torch.log1p(-rho.square()).sum())


@measures.register(
    "gaussian_mutual_information",
    Card(
        label="Gaussian mutual information",
        larger_is_closer=True,
        bounds=(0.0, None),
        symmetric=True,
        is_metric=False,
        invariant_to=AFFINE,
        minimum_rows=3,
        cost="n d^2 + d^3 per layer and per pair",
        source="Gelfand and Yaglom 1957: of jointly Gaussian variables, from their canonical correlations",
        note="Nats. Biased upwards, the more the fewer the rows. Infinite where a direction is shared exactly.",
        refuses_wide=True,
        infinite_to_itself=True,
    ),
)
def gaussian_mutual_information() -> Measure:
    """-1/2 sum log(1 - rho^2) over the canonical correlations rho, in nats, without correction of its bias.

    Two lines of correlation 1/2: -1/2 log(3/4).

    >>> from repsim_cli import measures
    >>> x, y = [[1.], [0.], [-1.], [0.]], [[1.], [3.0 ** 0.5], [-1.], [-(3.0 ** 0.5)]]
    >>> round(measures.get("gaussian_mutual_information")(x, y), 6)
    0.143841
    """
    return Pairwise(
        prepare=thin_svd,
        copies=2.0,
        maps=1.0,
        wide_squares=8.0,
        compare=mutual_information,
        permute=permute,
        aligned=make_canonical_aligner(thin_svd),
    )


@measures.register(
    "svcca",
    Card(
        label="SVCCA",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=3,
        cost="n d^2 per layer, n k^2 + k^3 per pair",
        source="Raghu et al. 2017, section 2: the leading directions of each side, then the mean correlation",
        note="1: the leading directions span the same space. Directions of little variance do not count.",
        width_limit="svcca is inflated when there are not many more rows than directions kept; use more rows",
    ),
)
def svcca(*, variance: Variance = 0.99) -> Measure:
    """Mean canonical correlation of the fewest directions that hold `variance` of each side's variance, in [0, 1].

    variance: the share of each side's variance that the directions hold.

    The second feature of y has 1 / 1000 of its variance and is cut, what is left are two lines at a right angle:

    >>> from repsim_cli import measures
    >>> x, y = [[1.], [1.], [-1.], [-1.]], [[10., 0.1], [-10., 0.1], [10., -0.1], [-10., -0.1]]
    >>> round(measures.get("svcca")(x, y), 12), round(measures.get("svcca", variance=1.0)(x, y), 12)
    (0.0, 1.0)
    """

    def compare(a: Basis, b: Basis) -> float:
        return compute_mean_canonical_correlation(keep_leading(a, variance), keep_leading(b, variance))

    return Pairwise(
        prepare=thin_svd,
        copies=2.0,
        maps=1.0,
        wide_squares=8.0,
        compare=compare,
        permute=permute,
        moments=make_svcca_moments(variance),
        aligned=make_canonical_aligner(lambda x: keep_leading(thin_svd(x), variance)),
    )


def make_svcca_moments(variance: float) -> Moments:
    def compare(a: Axes, b: Axes, covariance: Tensor) -> tuple[float, float]:
        return compute_mean_from_moments(
            moments.keep_leading(a, variance), moments.keep_leading(b, variance), covariance
        )

    return Moments(prepare=moments.find_reliable_axes, compare=compare)


def weigh_canonical_correlations(a: Basis, b: Basis) -> tuple[float, float]:
    """Canonical correlations, weighted by how much of a's neurons lies along their directions, and likewise of b's."""
    return weigh(a.u.T @ b.u, a.loadings, b.loadings, len(a.u))


def weigh(
    m: Float[Tensor, "k l"], a: Float[Tensor, "k d_a"], b: Float[Tensor, "l d_b"], rows: int
) -> tuple[float, float]:
    """`weigh_canonical_correlations` from the overlap of the two bases, and the loadings of neurons on their side's."""
    if sum(m.shape) > rows - 1:
        raise Degenerate(
            f"some canonical correlations are 1 whatever the data, got {m.shape[0]} + {m.shape[1]} directions in "
            f"{rows} rows; "
            "use more rows, or cka_unbiased"
        )
    left, rho, right = torch.linalg.svd(m, full_matrices=False)
    rho = rho.clamp_max(1)
    weights = (left.T @ a).abs().sum(1), (right @ b).abs().sum(1)
    return float(weights[0] @ rho / weights[0].sum()), float(weights[1] @ rho / weights[1].sum())


def make_projection_weighted(variance: float | None, aligned: Align | None = None) -> Measure:
    """variance: the share of variance that the kept directions hold; None keeps all. aligned: its map."""

    def truncate(basis: Basis) -> Basis:
        return basis if variance is None else keep_leading(basis, variance)

    def compare(a: Basis, b: Basis) -> float:
        return weigh_canonical_correlations(truncate(a), truncate(b))[0]

    def compare_all(rows: Sequence[Basis], columns: Sequence[Basis]) -> Matrix:
        """Compares all pairs; both directions of a pair come from the same SVD."""
        left = [truncate(basis) for basis in rows]
        right = left if rows is columns else [truncate(basis) for basis in columns]
        values = torch.empty(len(left), len(right), dtype=torch.float64)
        for i, a in enumerate(left):
            for j, b in enumerate(right):
                if left is not right:
                    values[i, j] = weigh_canonical_correlations(a, b)[0]
                elif i <= j:
                    values[i, j], values[j, i] = weigh_canonical_correlations(a, b)
        return values

    return Pairwise(
        prepare=thin_svd,
        copies=2.0,
        maps=1.0,
        wide_squares=8.0,
        compare=compare,
        compare_all=compare_all,
        permute=permute,
        aligned=aligned,
        moments=make_projection_weighted_moments(variance),
    )


def make_projection_weighted_moments(variance: float | None) -> Moments:
    def compare(a: Axes, b: Axes, covariance: Tensor) -> tuple[float, float]:
        left, right = (axes if variance is None else moments.keep_leading(axes, variance) for axes in (a, b))
        return weigh(moments.correlate_axes(left, right, covariance), left.loadings, right.loadings, a.rows)

    return Moments(prepare=moments.find_reliable_axes, compare=compare)


@measures.register(
    "pwcca",
    Card(
        label="PWCCA",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=False,
        is_metric=False,
        invariant_to=NEURONS,
        minimum_rows=4,
        cost="n d^2 + d^3 per layer and per pair",
        source="Morcos et al. 2018, projection-weighted mean over the directions that have a partner",
        note="Row a, column b: weighted by a. Undefined where the ranks add up to more than n - 1.",
        refuses_wide=True,
    ),
)
def pwcca() -> Measure:
    """Mean canonical correlation, direction i of x weighted by sum_j |<h_i, x_j>| over x's neurons, in [0, 1].

    >>> from repsim_cli import measures
    >>> round(measures.get("pwcca")([[0.], [1.], [3.], [4.]], [[8.], [6.], [2.], [0.]]), 12)
    1.0
    """
    return make_projection_weighted(None, aligned=make_canonical_aligner(thin_svd))


@measures.register(
    "pwsim",
    Card(
        label="pwsim (PWCCA after truncation)",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=False,
        is_metric=False,
        invariant_to=NEURONS,
        minimum_rows=4,
        cost="n d^2 per layer, n k^2 + k^3 per pair",
        source="Wu et al. 2020, appendix A.3",
        note="Row a, column b: weighted by a. Undefined where both sides keep more than n - 1 directions; where "
        "several correlations are 1, their weights hang on rounding (differences of 1e-3).",
    ),
)
def pwsim(*, variance: Variance = 0.99) -> Measure:
    """PWCCA of the fewest directions that hold `variance` of each side's variance; weights over all neurons.

    variance: the share of each side's variance that the directions hold.

    >>> from repsim_cli import measures
    >>> round(measures.get("pwsim")([[0.], [1.], [3.], [4.]], [[8.], [6.], [2.], [0.]]), 12)
    1.0
    """
    return make_projection_weighted(
        variance, aligned=make_canonical_aligner(lambda x: keep_leading(thin_svd(x), variance))
    )
