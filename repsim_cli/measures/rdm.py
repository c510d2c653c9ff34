"""Representational dissimilarity: the distances between all rows of one representation against those of another.

Distances go by the Gram matrix of centred rows; where that cancels (rows much closer to each other than to the
mean) they are computed from the difference of the rows.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.base.registry import measures
from repsim_cli.base.settings import Above0
from repsim_cli.measures.base import InnerProduct, Measure, Pairwise, divide_by_norms
from repsim_cli.measures.cards import Card, Invariance
from repsim_cli.measures.centring import FEW, centre, centre_rows, choose_power_of_two
from repsim_cli.measures.distance_ranks import rank_distances
from repsim_cli.measures.documents import mark_same_document
from repsim_cli.measures.features import AnyFeatures, PreparedFeatures
from repsim_cli.measures.inner import Matrix, Products
from repsim_cli.measures.kernels import Documents, Kernel, Packed, State
from repsim_cli.measures.rank import SINGLE, find_relative_precision

LeftOut = Bool[Tensor, " cells"]
_BLOCK = 512  # rows of a distance matrix held at a time
_CLOSE = 1e-3  # squared distances below this share of the squared norms are computed from differences
_STORED = 4  # units of the precision in which rows of norm 1 were stored: distances this close may be equal
_SEEN = 256  # rows whose mean stands for that of all


def recompute_close_distances(squared: Tensor, norms: Tensor, x: Tensor, rows: slice, columns: slice) -> Tensor:
    """Squared distances |x_i|^2 + |x_j|^2 - 2 x_i.x_j of a block; where these cancel, from differences."""
    close = squared < _CLOSE * (norms[rows, None] + norms[columns])
    if rows.start == columns.start:
        close.diagonal().fill_(False)
        squared.diagonal().zero_()
    left, right = close.nonzero(as_tuple=True)
    for part in torch.arange(len(left), device=x.device).split(1 << 14):
        i, j = left[part], right[part]
        squared[i, j] = (x[rows.start + i] - x[columns.start + j]).square().sum(1)
    return squared.clamp_min_(0)


def compute_distance_blocks(x: Float[Tensor, "n d"]) -> Iterator[tuple[int, Float[Tensor, "b m"]]]:
    """(first row i, squared distances of rows i.. to rows i..) of centred rows x, block by block."""
    norms = x.square().sum(1)
    for start in range(0, len(x), _BLOCK):
        rows, columns = slice(start, min(start + _BLOCK, len(x))), slice(start, len(x))
        squared = torch.addmm(norms[columns][None], x[rows], x[columns].T, alpha=-2).add_(norms[rows, None])
        yield start, recompute_close_distances(squared, norms, x, rows, columns)


def pack_distances(x: Float[Tensor, "n d"]) -> Float[Tensor, " cells"]:
    """Euclidean distances of centred rows for i < j, row by row."""
    return torch.cat([row[i + 1 :] for _, block in compute_distance_blocks(x) for i, row in enumerate(block)]).sqrt_()


def euclidean(x: Float[Tensor, "n d"]) -> PreparedFeatures:
    """Distances between rows, in units of the root mean squared distance from the mean."""
    x, scale = centre(x)
    return PreparedFeatures(pack_distances(x), scale)


def standardise_rows(x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n 1"]]:
    """Rows of mean 0 and norm 1, in float64: half the squared distance of two is 1 - their Pearson correlation; and the
    norms of the rows as they came, over those without their means."""
    x = x.double()
    x = x / choose_power_of_two(x, 1)
    sizes = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    x = x - x.mean(1, keepdim=True)
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    constant = int((norms <= 1e-13 * sizes).sum())
    if constant:
        centre(x)  # refuses equal rows
        raise Degenerate(f"rows without variance over the features have no correlation, got {constant}; drop them")
    return x / norms, sizes / norms


def rank_correlation_distances(x: Float[Tensor, "n d"], left_out: LeftOut | None = None) -> PreparedFeatures:
    if x.shape[1] < 3:
        raise Degenerate(f"rows need at least 3 features to correlate, got {x.shape[1]}; use rsa_euclidean")
    rows, sizes = standardise_rows(x)
    units, scale = centre(rows)
    size = float(sizes.square().mean().sqrt())
    return rank_row_distances(units, x, estimate_rounding(x, size / scale, 1 / scale), left_out)


def rank_euclidean_distances(x: Float[Tensor, "n d"], left_out: LeftOut | None = None) -> PreparedFeatures:
    units, scale = centre(x.double() if len(x) <= FEW else x)
    offset = float(torch.linalg.vector_norm(x[:: len(x) // _SEEN + 1].double().mean(0) / scale))
    return rank_row_distances(units, x, estimate_rounding(x, math.hypot(1, offset)), left_out)


def rank_row_distances(
    units: Float[Tensor, "n d"], x: Float[Tensor, "n d"], blur: float, left_out: LeftOut | None = None
) -> PreparedFeatures:
    """Ranks the distances of rows and standardises the ranks, in the precision of x. Distances of few rows, where a
    rank weighs more, are in float64. Cells that are left out are 0 and so add nothing."""
    working = torch.float64 if x.dtype == torch.float64 else torch.float32
    cells = pack_distances(units if len(x) <= FEW else units.to(working))
    if left_out is None:
        return PreparedFeatures(rank_distances(cells, blur).values.to(working))
    kept = ~left_out
    # numpy chooses cells several times as fast; the others are let go before the ranks need room
    cells = torch.from_numpy(cells.numpy()[kept.numpy()]) if cells.device.type == "cpu" else cells[kept]
    ranked = rank_distances(cells, blur).values.to(working)
    return PreparedFeatures(ranked.new_zeros(len(kept)).masked_scatter_(kept, ranked))


def estimate_rounding(x: Float[Tensor, "n d"], size: float, least: float = 1.0) -> float:
    """Estimates by how much the precision of the rows may move distances. size: of the rows as they came, in the units
    of the distances; least: without what all of them have in common, as half precision rounds that alike."""
    eps = find_relative_precision(x)
    return _STORED * max(eps * least, min(eps, SINGLE) * size)


class DoubleCentring(NamedTuple):
    """For double-centring distances D to D_ij - m_i - m_j + m: features x, their squared norms, and m_i - m/2."""

    x: Float[Tensor, "n d"]
    norms: Float[Tensor, " n"]
    means: Float[Tensor, " n"]


def fit_double_centring(features: AnyFeatures) -> DoubleCentring:
    x = features.values
    sums = x.new_zeros(len(x), dtype=torch.float64)
    for start, block in compute_distance_blocks(x):
        distances = block.sqrt_()
        sums[start : start + len(block)] += distances.sum(1)
        sums[start + len(block) :] += distances[:, len(block) :].sum(0)
    means = sums / len(x)
    return DoubleCentring(x, x.square().sum(1), (means - means.mean() / 2).to(x.dtype))


def centre_distances(fit: DoubleCentring, gram: Tensor, rows: slice, columns: slice) -> Tensor:
    squared = gram.mul_(-2).add_(fit.norms[rows, None]).add_(fit.norms[columns])
    distances = recompute_close_distances(squared, fit.norms, fit.x, rows, columns).sqrt_()
    return distances.sub_(fit.means[rows, None]).sub_(fit.means[columns])


CORRELATION_RANKS = Packed(cells=rank_correlation_distances)
EUCLIDEAN_RANKS = Packed(cells=rank_euclidean_distances)
DISTANCES = Packed(cells=euclidean)
CENTRED_DISTANCES = Kernel(features=centre_rows, fit=fit_double_centring, cells=centre_distances, copies=1.0)


def make_rank_measure(kernel: Packed) -> InnerProduct:
    """Makes the correlation of ranked distances; also between rows of different documents alone."""

    def make_measure_apart(documents: Documents) -> InnerProduct:
        return make_rank_measure(replace(kernel, left_out=mark_same_document(documents)))

    return InnerProduct(
        row=kernel, column=kernel, value=divide_by_norms, apart=make_measure_apart if kernel.left_out is None else None
    )


def make_norm_difference(unit: Callable[[State], float]) -> InnerProduct:
    """The norm of the difference of packed cells, each scaled: |u_a D_a - u_b D_b| over i < j."""

    def squares(products: Products) -> tuple[Matrix, Matrix]:
        """Squared norms of the differences, and the sums of the squared norms of their terms."""
        rows, columns = (
            torch.tensor([unit(state) for state in side], dtype=torch.float64, device=products.cross.device)
            for side in (products.rows, products.columns)
        )
        sizes = (products.row_squares * rows**2)[:, None] / 2 + (products.column_squares * columns**2)[None] / 2
        return sizes - products.cross * rows[:, None] * columns[None], sizes

    def value(products: Products) -> Matrix:
        return squares(products)[0].clamp_min(0).sqrt()

    def mark_near(products: Products, values: Matrix) -> Tensor:
        return values**2 < 0.01 * squares(products)[1]

    def compute_exactly(a: State, b: State) -> float:
        left, right = (unit(state) * state.features.values.double() for state in (a, b))
        return float(torch.linalg.vector_norm(left - right))

    return InnerProduct(row=DISTANCES, column=DISTANCES, value=value, near=mark_near, exact=compute_exactly)


def compute_frobenius_scale(state: State) -> float:
    """The scale to Frobenius norm 1, since rows have mean squared norm 1 here."""
    return 1 / math.sqrt(count_rows_from_cells(state))


def compute_activation_scale(state: State) -> float:
    """The scale back to the units of the activations, over the root of the number of cells."""
    return state.features.scale / math.sqrt(state.features.rows)


def count_rows_from_cells(state: State) -> int:
    """n, from the n (n - 1) / 2 packed cells."""
    return (1 + math.isqrt(1 + 8 * state.features.rows)) // 2


TIED = "Distances that the precision of the rows cannot tell apart tie; rounded to bfloat16, few do any more."

SHAPE: frozenset[Invariance] = frozenset({"permutation_of_neurons", "orthogonal", "isotropic_scaling", "translation"})


@measures.register(
    "rsa",
    Card(
        label="RSA (correlation, Spearman)",
        larger_is_closer=True,
        bounds=(-1.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=frozenset({"permutation_of_neurons", "isotropic_scaling"}),
        minimum_rows=4,
        cost="n^2 d once per layer, n^2/2 per pair",
        source="Kriegeskorte et al. 2008; 1 - Pearson between rows, Spearman over i < j",
        note="Rows are correlated over the features as they are: an offset of a feature changes the score. " + TIED,
    ),
)
def rsa() -> Measure:
    """Spearman correlation of the rows' correlation distances, in [-1, 1].

    >>> from repsim_cli import measures
    >>> x = [[0., 1., 3.], [1., 0., 5.], [4., 2., 0.], [1., 1., 9.]]
    >>> round(measures.get("rsa")(x, x), 12)
    1.0
    """
    return make_rank_measure(CORRELATION_RANKS)


@measures.register(
    "rsa_euclidean",
    Card(
        label="RSA (Euclidean, Spearman)",
        larger_is_closer=True,
        bounds=(-1.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=4,
        cost="n^2 d once per layer, n^2/2 per pair",
        source="Kriegeskorte et al. 2008; Euclidean distances between rows, Spearman over i < j",
        note="1: the rows' distances come in the same order. " + TIED,
    ),
)
def rsa_euclidean() -> Measure:
    """Spearman correlation of the rows' Euclidean distances, in [-1, 1].

    >>> from repsim_cli import measures
    >>> x = [[0., 0.], [1., 0.], [0., 3.], [5., 5.]]
    >>> round(measures.get("rsa_euclidean")(x, x), 12)
    1.0
    """
    return make_rank_measure(EUCLIDEAN_RANKS)


@measures.register(
    "rsm_norm_difference",
    Card(
        label="RSM norm difference",
        larger_is_closer=False,
        bounds=(0.0, None),
        symmetric=True,
        is_metric=True,
        invariant_to=SHAPE,
        minimum_rows=2,
        cost="n^2 d once per layer, n^2/2 per pair",
        source="Yin and Shen 2018, section 2; distances of centred rows of unit Frobenius norm, l2 over i < j",
        note="0: the rows' distances are equal up to scale. It grows with the root of the number of rows.",
    ),
)
def rsm_norm_difference() -> Measure:
    """Norm of the difference of the rows' Euclidean distances, both representations of unit Frobenius norm.

    >>> from repsim_cli import measures
    >>> measures.get("rsm_norm_difference")([[0., 0.], [1., 0.], [0., 2.]], [[1., 0.], [3., 0.], [1., 4.]]) < 1e-12
    True
    """
    return make_norm_difference(compute_frobenius_scale)


@measures.register(
    "stress",
    Card(
        label="stress",
        larger_is_closer=False,
        bounds=(0.0, None),
        symmetric=True,
        is_metric=True,
        invariant_to=SHAPE - {"isotropic_scaling"},
        minimum_rows=2,
        cost="n^2 d once per layer, n^2/2 per pair",
        source="Kruskal 1964, eq. 1 without its denominator; Lange et al. 2023",
        note="0: the rows' distances are equal. In the units of the activations: unequal scales count.",
    ),
)
def stress() -> Measure:
    """Root mean squared difference of the rows' Euclidean distances.

    Distances (1, 2, 3) against (2, 4, 6): the root of (1 + 4 + 9) / 3.

    >>> from repsim_cli import measures
    >>> round(measures.get("stress")([[0.], [1.], [3.]], [[0.], [2.], [6.]]), 6)
    2.160247
    """
    return make_norm_difference(compute_activation_scale)


def compute_root_cosines(products: Products) -> Matrix:
    return divide_by_norms(products).clamp_min(0).sqrt()


@measures.register(
    "distance_correlation",
    Card(
        label="distance correlation",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=2,
        cost="n^2 d once per layer, n^2/2 per pair",
        source="Szekely et al. 2007, definition 5 (biased V-statistic, root)",
        note="1: equal up to rotation, scale and offset. Biased upwards, the more the fewer the rows.",
        width_limit="distance correlation is inflated when there are not many more rows than features; use more rows",
    ),
)
def distance_correlation() -> Measure:
    """Root of the normalised inner product of double-centred distance matrices, in [0, 1].

    >>> from repsim_cli import measures
    >>> round(measures.get("distance_correlation")([[0.], [1.], [3.]], [[1.], [3.], [7.]]), 12)
    1.0
    """
    return InnerProduct(row=CENTRED_DISTANCES, column=CENTRED_DISTANCES, value=compute_root_cosines)


class WhitenedKernel(NamedTuple):
    """A positive definite kernel of the rows and the inverse of its Cholesky factor."""

    kernel: Float[Tensor, "n n"]
    whitening: Float[Tensor, "n n"]


def whiten_kernel(x: Float[Tensor, "n d"], ridge: float) -> WhitenedKernel:
    x = centre(x)[0].double()
    kernel = x @ x.T / len(x) + ridge * torch.eye(len(x), dtype=torch.float64, device=x.device)
    whitening = torch.linalg.solve_triangular(torch.linalg.cholesky(kernel), torch.eye(len(x)).to(kernel), upper=False)
    return WhitenedKernel(kernel, whitening)


def riemannian_distance(a: WhitenedKernel, b: WhitenedKernel) -> float:
    eigenvalues = torch.linalg.eigvalsh(a.whitening @ b.kernel @ a.whitening.T)
    return float(torch.linalg.vector_norm(eigenvalues.log()))


@measures.register(
    "riemannian",
    Card(
        label="Riemannian distance",
        larger_is_closer=False,
        bounds=(0.0, None),
        symmetric=True,
        is_metric=True,
        invariant_to=SHAPE,
        minimum_rows=2,
        cost="n^3 per layer and per pair",
        source="Shahbazi et al. 2021, eq. 6: affine-invariant distance of the rows' kernels",
        note="0: equal up to rotation, scale and offset. The ridge decides how much small variances count.",
    ),
)
def riemannian(*, ridge: Above0 = 1e-3) -> Measure:
    """|log eig(A^-1 B)|_2 of the rows' centred kernels, each of unit trace plus ridge I.

    ridge: the multiple of the identity that is added to both kernels.

    >>> from repsim_cli import measures
    >>> measures.get("riemannian")([[0.], [1.], [3.]], [[0.], [1.], [3.]]) < 1e-12
    True
    """
    return Pairwise(
        prepare=lambda x: whiten_kernel(x, ridge),
        compare=riemannian_distance,
        permute=lambda state, order: WhitenedKernel(*(matrix[order][:, order] for matrix in state)),
        work=lambda rows: (10.0 * rows**3, 14.0 * rows**3),
        squares=2,
        copies=0.0,
    )
