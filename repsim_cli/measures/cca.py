"""Canonical correlations and regressions: what the column spaces of two representations have in common.

All start from one thin SVD per representation, centred, in float64; no covariance matrix is ever inverted. The
canonical correlations of x and y are the singular values of U_x'U_y. Measures that need only the sum of their squares
are inner products of projectors, for all pairs at once; the others take one (k_x, k_y) matrix per pair.
"""

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from repsim_cli.errors import Degenerate
from repsim_cli.measures import moments
from repsim_cli.measures.base import Card, Invariance, Measure, Moments
from repsim_cli.measures.hsic import CENTRED
from repsim_cli.measures.inner import Features, Inner, Kernel, Matrix, Products, State
from repsim_cli.measures.moments import SURE, Axes
from repsim_cli.measures.rdm import SHAPE
from repsim_cli.registry import measures

AFFINE: frozenset[Invariance] = frozenset({*SHAPE, "invertible_linear"})
NEURONS: frozenset[Invariance] = SHAPE - {"orthogonal"}

Variance = Annotated[float, Field(gt=0, le=1)]


def working(x: Tensor) -> torch.dtype:
    """The precision of products over pairs: x's own, float32 for half-precision input."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def alive(x: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
    """x centred, in float64, without its dead (constant) neurons, of which it warns.

    Raises Degenerate where no neuron is left.
    """
    varying = moments.varying(*x.aminmax(dim=0))
    x = (x if bool(varying.all()) else x[:, varying]).double()
    return x - x.mean(0)


class Basis(NamedTuple):
    """Thin SVD of a centred representation: an orthonormal basis by falling variance, singular values, u'x.

    dtype: the precision of products over pairs.
    """

    u: Float[Tensor, "n k"]
    s: Float[Tensor, " k"]
    loadings: Float[Tensor, "k d"]
    dtype: torch.dtype


def tolerated(dtype: torch.dtype) -> float:
    """Eigenvalues of x'x below this share of the largest leave a basis of x V / s less orthonormal than the
    precision of products over pairs can tell: 1e-12 (float64), 1e-9 (float32).
    """
    return 1e-4 if dtype == torch.float64 else 1e-7


def thin_svd(x: Float[Tensor, "n d"]) -> Basis:
    """Directions below max(n, d) eps of the largest singular value are none. Dead neurons are dropped.

    By the eigenvectors of x'x where its condition allows (twice as fast), refined where they need it: the basis spans
    the columns of x to rounding either way.
    """
    dtype = working(x)
    return decomposed(alive(x), dtype)


def decomposed(x: Float[Tensor, "n d"], dtype: torch.dtype) -> Basis:
    n, d = x.shape
    if n > d:
        values, vectors = torch.linalg.eigh(x.T @ x)
        if values[0] > SURE * values[-1]:
            v = vectors.flip(1)
            u = x @ v
            s = torch.linalg.vector_norm(u, dim=0)
            u, loadings = u / s, s[:, None] * v.T
            if values[0] < tolerated(dtype) * values[-1]:
                # a second orthonormalisation, which keeps the span of the leading columns
                factor = torch.linalg.cholesky(u.T @ u)
                u = torch.linalg.solve_triangular(factor, u.T, upper=False).T
                loadings = factor.T @ loadings
            return Basis(u, s, loadings, dtype)
    u, s, vt = torch.linalg.svd(x, full_matrices=False)
    rank = int((s > max(n, d) * torch.finfo(s.dtype).eps * s[0]).sum())
    return Basis(u[:, :rank], s[:rank], s[:rank, None] * vt[:rank], dtype)


def permuted(basis: Basis, order: Tensor) -> Basis:
    return basis._replace(u=basis.u[order])


def leading(basis: Basis, variance: float) -> Basis:
    """The fewest directions that hold this share of the variance."""
    shares = basis.s.square().cumsum(0) / basis.s.square().sum()
    k = int((shares < variance).sum()) + 1
    return Basis(basis.u[:, :k], basis.s[:k], basis.loadings[:k], basis.dtype)


def nuclear_norm(m: Float[Tensor, "k l"]) -> float:
    """The sum of the singular values, in float64.

    For a float32 m by the eigenvalues of m m', unless these leave more than float32's rounding in the sum: an
    eigenvalue is good to about eps of the largest, which is eps / sigma in its root sigma.
    """
    single = m.dtype != torch.float64
    m = m.double()
    if single:
        eigenvalues = torch.linalg.eigvalsh(m @ m.T if len(m) <= m.shape[1] else m.T @ m).clamp_min(0)
        sigma = eigenvalues.sqrt()
        rounding = 4 * torch.finfo(torch.float64).eps * eigenvalues[-1]
        error = torch.minimum(rounding / (2 * sigma), rounding.sqrt()).sum()
        if error <= 1e-7 * sigma.sum():
            return float(sigma.sum())
    return float(torch.linalg.svdvals(m).sum())


def overlap(a: Basis, b: Basis) -> Float[Tensor, "k l"]:
    """U_a'U_b, whose singular values are the canonical correlations."""
    dtype = torch.promote_types(a.dtype, b.dtype)
    return a.u.to(dtype).T @ b.u.to(dtype)


def mean_correlation(a: Basis, b: Basis) -> float:
    m = overlap(a, b)
    return min(1.0, nuclear_norm(m) / min(m.shape))


def mean_of_moments(a: Axes, b: Axes, covariance: Tensor) -> tuple[float, float]:
    m = moments.overlap(a, b, covariance)
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
    return Measure(
        prepare=thin_svd,
        compare=mean_correlation,
        permute=permuted,
        moments=Moments(prepare=moments.axes, compare=mean_of_moments),
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
    return Measure(prepare=thin_svd, compare=mutual_information, permute=permuted)


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

    The second feature of y has 1 / 1000 of its variance and is cut, what is left are two lines at a right angle:

    >>> from repsim_cli import measures
    >>> x, y = [[1.], [1.], [-1.], [-1.]], [[10., 0.1], [-10., 0.1], [10., -0.1], [-10., -0.1]]
    >>> round(measures.get("svcca")(x, y), 12), round(measures.get("svcca", variance=1.0)(x, y), 12)
    (0.0, 1.0)
    """

    def compare(a: Basis, b: Basis) -> float:
        return mean_correlation(leading(a, variance), leading(b, variance))

    def of_moments(a: Axes, b: Axes, covariance: Tensor) -> tuple[float, float]:
        return mean_of_moments(moments.leading(a, variance), moments.leading(b, variance), covariance)

    return Measure(
        prepare=thin_svd,
        compare=compare,
        permute=permuted,
        moments=Moments(prepare=moments.axes, compare=of_moments),
    )


def projections(a: Basis, b: Basis) -> tuple[float, float]:
    """Canonical correlations weighted by how much of a's neurons lies along their directions, and with b's."""
    return weighted(a.u.T @ b.u, a.loadings, b.loadings, len(a.u))


def weighted(
    m: Float[Tensor, "k l"], a: Float[Tensor, "k d_a"], b: Float[Tensor, "l d_b"], rows: int
) -> tuple[float, float]:
    """`projections` from the overlap of the two bases and the neurons' loadings on their own side's."""
    if sum(m.shape) > rows - 1:
        raise Degenerate(
            f"some canonical correlations are 1 whatever the data, got {m.shape[0]} + {m.shape[1]} directions in "
            f"{rows} rows; "
            "use more rows, or svcca or cka_unbiased"
        )
    left, rho, right = torch.linalg.svd(m, full_matrices=False)
    rho = rho.clamp_max(1)
    weights = (left.T @ a).abs().sum(1), (right @ b).abs().sum(1)
    return float(weights[0] @ rho / weights[0].sum()), float(weights[1] @ rho / weights[1].sum())


def projection_weighted(variance: float | None) -> Measure:
    """variance: the share that the directions kept hold; None: all are kept."""

    def truncated(basis: Basis) -> Basis:
        return basis if variance is None else leading(basis, variance)

    def of_moments(a: Axes, b: Axes, covariance: Tensor) -> tuple[float, float]:
        left, right = (one if variance is None else moments.leading(one, variance) for one in (a, b))
        return weighted(moments.overlap(left, right, covariance), left.loadings, right.loadings, a.rows)

    def compare(a: Basis, b: Basis) -> float:
        return projections(truncated(a), truncated(b))[0]

    def compare_all(rows: Sequence[Basis], columns: Sequence[Basis]) -> Matrix:
        """Both directions of a pair come from one SVD."""
        left = [truncated(basis) for basis in rows]
        right = left if rows is columns else [truncated(basis) for basis in columns]
        values = torch.empty(len(left), len(right), dtype=torch.float64)
        for i, a in enumerate(left):
            for j, b in enumerate(right):
                if left is not right:
                    values[i, j] = projections(a, b)[0]
                elif i <= j:
                    values[i, j], values[j, i] = projections(a, b)
        return values

    return Measure(
        prepare=thin_svd,
        compare=compare,
        compare_all=compare_all,
        permute=permuted,
        moments=Moments(prepare=moments.axes, compare=of_moments),
    )


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
    return projection_weighted(None)


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
        note="Row a, column b: weighted by a. Undefined where both sides keep more than n - 1 directions.",
    ),
)
def pwsim(*, variance: Variance = 0.99) -> Measure:
    """PWCCA of the fewest directions that hold `variance` of each side's variance; weights over all neurons.

    >>> from repsim_cli import measures
    >>> round(measures.get("pwsim")([[0.], [1.], [3.], [4.]], [[8.], [6.], [2.], [0.]]), 12)
    1.0
    """
    return projection_weighted(variance)


def orthonormal(x: Float[Tensor, "n d"]) -> Features:
    """Features of the projector onto the column space of centred x.

    By a Cholesky factor of the neurons' correlations where their condition allows (another twice as fast).
    """
    dtype = working(x)
    x = basis = alive(x)
    for _ in range(2):
        gram = basis.T @ basis
        units = gram.diagonal().rsqrt()
        factor, failed = torch.linalg.cholesky_ex(gram * units * units[:, None])
        inverse = torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False)
        # at least one over the smallest eigenvalue, and of the largest at most the number of neurons
        condition = float(inverse.square().sum())
        if failed or condition > 1 / SURE:
            break
        basis = basis @ (inverse * units).T
        if condition < 1 / tolerated(dtype):
            return Features(basis.to(dtype))
    return Features(decomposed(x, dtype).u.to(dtype))


PROJECTOR = Kernel(features=orthonormal)


def ranks(states: Sequence[State]) -> Float[Tensor, " r"]:
    return torch.tensor([state.features.values.shape[1] for state in states], dtype=torch.float64)


def squared_correlations(products: Products) -> Matrix:
    """The sum of squared canonical correlations: the inner product of two projectors."""
    return products.cross


def over_smaller(products: Products) -> Matrix:
    most = torch.minimum(ranks(products.rows)[:, None], ranks(products.columns)[None])
    return products.cross / most.to(products.cross)


def over_larger(products: Products) -> Matrix:
    most = torch.maximum(ranks(products.rows)[:, None], ranks(products.columns)[None])
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
    return Measure(inner=Inner(row=PROJECTOR, column=PROJECTOR, value=over_smaller))


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
    return Measure(inner=Inner(row=PROJECTOR, column=PROJECTOR, value=squared_correlations))


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
        note="1: equal column spaces. Unlike yanai_cca, layers of different widths cannot score 1.",
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
    return Measure(inner=Inner(row=PROJECTOR, column=PROJECTOR, value=over_larger))


def explained(products: Products) -> Matrix:
    """<K_a, P_b> / tr K_a; the trace is the number of rows."""
    return products.cross / len(products.rows[0].features.values)


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
    return Measure(inner=Inner(row=CENTRED, column=PROJECTOR, value=explained))


def shrunk(x: Float[Tensor, "n d"], lam: float) -> Features:
    """Features of the ridge smoother X (C + lam)^-1 X' / n of centred x of unit total variance."""
    if lam == 0 and len(x) <= x.shape[1]:
        raise Degenerate(
            f"gulp with lam=0 needs more rows than features, got {len(x)} rows of {x.shape[1]} features, for which "
            "any data would score the same; use more rows, or lam > 0"
        )
    basis = thin_svd(x)
    variances = basis.s.square() / basis.s.square().sum()
    return Features((basis.u * (variances / (variances + lam)).sqrt()).to(basis.dtype))


def own(states: Sequence[State]) -> Float[Tensor, " r"]:
    """Squared norms of the smoothers: the columns of their features are orthogonal."""
    return torch.stack([state.features.values.double().square().sum(0).square().sum() for state in states])


def squares(products: Products) -> tuple[Matrix, Matrix]:
    """Squared norms of the smoothers' differences, and of what they are differences of."""
    own_sums = own(products.rows)[:, None] + own(products.columns)[None]
    return own_sums - 2 * products.cross, own_sums


@cache
def smoother(lam: float) -> Kernel:
    """One kernel per lam, so that measures of the same lam share it."""
    return Kernel(features=partial(shrunk, lam=lam))


def smoother_distance(products: Products) -> Matrix:
    return squares(products)[0].clamp_min(0).sqrt()


def smoothers_near(products: Products, values: Matrix) -> Tensor:
    """Where the difference has lost digits to cancellation."""
    return values**2 < 0.01 * squares(products)[1]


def smoother_difference(a: State, b: State) -> float:
    """|A A' - B B'| from its cells."""
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
def gulp(*, lam: Annotated[float, Field(ge=0)] = 0.0) -> Measure:
    """Largest difference of ridge predictions: |G_x - G_y| of the smoothers G = X (C + lam)^-1 X' / n.

    With lam = 0 these are projectors: here onto two lines whose correlation is -1/2, root of 1 + 1 - 2 / 4.

    >>> from repsim_cli import measures
    >>> round(measures.get("gulp")([[0.], [1.], [0.]], [[0.], [0.], [2.]]), 6)
    1.224745
    """
    kernel = smoother(lam)
    return Measure(
        inner=Inner(row=kernel, column=kernel, value=smoother_distance, near=smoothers_near, exact=smoother_difference)
    )
