"""CKA and related measures: normalised inner products of centred or U-centred Gram matrices.

Unbiased HSIC as a plain inner product: the U-centred Gram matrix (Szekely and Rizzo 2014) of features with zero
column means is K_ij - r_i/(n-2) - r_j/(n-2) + t/((n-1)(n-2)) off the diagonal and 0 on it, with r_i = -|x_i|^2
the row sums of K without its diagonal, and t their sum. It costs no more than K and avoids the cancellation of the
three-term formula.

Without the pairs of rows of one document it is the projection of K without these cells on the complement of all
a_i + a_j without them. With m_d rows in document d, r_i = -x_i.S_d the row sums of what is left of K (S_d: the sum of
the rows of its document), r_d their sum over the document, T the sum of all offsets a_i and T_d that over a document,
(n - m_d) a_i + T - T_d = r_i, of which the sum over a document is (n - 2 m_d) T_d + m_d T = r_d.
"""

import functools
import math
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.base.registry import measures
from repsim_cli.base.settings import Above0
from repsim_cli.measures import moments
from repsim_cli.measures.base import InnerProduct, Measure, OfHsic, check_self_products, divide_by_norms
from repsim_cli.measures.cards import Card, Moments
from repsim_cli.measures.centring import centre_rows, centre_together
from repsim_cli.measures.features import AnyFeatures, CentredRows, StackedRows
from repsim_cli.measures.inner import Matrix, Products
from repsim_cli.measures.kernels import Documents, Kernel, State
from repsim_cli.measures.platonic import FEATURES, SEEN, Rows
from repsim_cli.measures.products import BLOCK, sum_rows_apart
from repsim_cli.measures.rdm import SHAPE, compute_distance_blocks

FEWEST = 3  # documents of whose rows pairs can be left out

CENTRED = Kernel(features=centre_rows, together=centre_together)


def compute_half_offsets(features: CentredRows | StackedRows) -> Float[Tensor, "*l n"]:
    """The o with U_ij = K_ij + o_i + o_j off the diagonal."""
    n = features.rows
    row_sums = -features.norms
    return (row_sums.sum(-1, keepdim=True) / (2 * (n - 1) * (n - 2)) - row_sums / (n - 2)).to(features.mean.dtype)


def centre_tile(
    offsets: Float[Tensor, "*l n"], gram: Float[Tensor, "*l a b"], rows: slice, columns: slice
) -> Float[Tensor, "*l a b"]:
    gram.add_(offsets[..., rows, None]).add_(offsets[..., None, columns])
    if rows == columns:
        gram.diagonal(dim1=-2, dim2=-1).zero_()
    return gram


def read_offsets(fit: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return fit


U_CENTRED = Kernel(
    features=centre_rows, fit=compute_half_offsets, cells=centre_tile, together=centre_together, offsets=read_offsets
)


def _change_features(kernel: Kernel, rows: Rows) -> Kernel:
    """Gives a kernel other rows, which go one by one."""
    return kernel if rows == "centred" else replace(kernel, features=FEATURES[rows], together=None)


class Apart(NamedTuple):
    """The o with U_ij = K_ij + o_i + o_j where rows are of different documents."""

    offsets: Float[Tensor, " n"]
    documents: Documents


def compute_offsets_apart(features: AnyFeatures, documents: Documents) -> Apart:
    """Computes the offsets of features without column means. Raises Degenerate for fewer than three documents: the
    pairs that are left do not determine the offsets."""
    sizes = documents.bincount().double()
    if len(sizes) < FEWEST:
        raise Degenerate(
            f"pairs of rows of {FEWEST} documents or more are needed, got {len(sizes)}; give more documents"
        )
    of_rows = sum_rows_apart(features, documents)
    offsets = solve_offsets(of_rows[:, None], documents, sizes)[:, 0]
    return Apart(-offsets.to(features.block(slice(1)).dtype), documents)


def solve_offsets(
    of_rows: Float[Tensor, "n k"], documents: Documents, sizes: Float[Tensor, " documents"]
) -> Float[Tensor, "n k"]:
    """Solves for the offsets a_i of the row sums of k matrices; a document may have half of the rows."""
    n, sizes = len(documents), sizes[:, None]
    of_documents = of_rows.new_zeros(len(sizes), of_rows.shape[1]).index_add_(0, documents, of_rows)
    left = n - 2 * sizes
    half = (left[:, 0] == 0).nonzero()[:, 0]
    if len(half):
        total = (of_documents[half] / sizes[half])[:1]
    else:
        total = (of_documents / left).sum(0, keepdim=True) / (1 + (sizes / left).sum())
    each = (of_documents - sizes * total) / left
    if len(half):
        each[half] = 0
        each[half] = total - each.sum(0)
    return (of_rows - total + each[documents]) / (n - sizes[documents])


def centre_tile_apart(fit: Apart, gram: Tensor, rows: slice, columns: slice) -> Tensor:
    """Centres a tile of the Gram matrix in place, with 0 where two rows are of one document."""
    gram.add_(fit.offsets[rows, None]).add_(fit.offsets[columns])
    first, second = fit.documents[rows], fit.documents[columns]
    if rows != columns and first.max() < second.min():  # no document is in both, as usual of rows in order
        return gram
    return gram.masked_fill_(first[:, None] == second, 0)


U_CENTRED_APART = Kernel(
    features=centre_rows, fit=compute_offsets_apart, cells=centre_tile_apart, offsets=attrgetter("offsets")
)


def compute_cka_from_covariance(a: float, b: float, covariance: Float[Tensor, "d_a d_b"]) -> tuple[float, float]:
    """<xx', yy'> = |x'y|^2 of centred x, y, normalised; both directions."""
    value = min(1.0, float(covariance.square().sum()) / (a * b))
    return value, value


OF_COVARIANCES = Moments(
    prepare=moments.compute_frobenius_norm, compare=compute_cka_from_covariance, drops_dead=False, single=True
)


@measures.register(
    "cka",
    Card(
        label="CKA (biased)",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=2,
        cost="n^2 d once per layer, n^2/2 per pair",
        source="Kornblith et al. 2019, eq. 3 with a linear kernel; HSIC of Gretton et al. 2005",
        width_limit="biased CKA is inflated when there are not many more rows than features; "
        "use cka_unbiased or more rows",
        note="1: equal up to rotation, scale and offset. Biased upwards, the more the fewer the rows.",
    ),
)
def cka(*, rows: Rows = "centred") -> Measure:
    """Linear CKA with biased HSIC: <K, L> / (|K| |L|) of centred Gram matrices, in [0, 1].

    rows: `centred`; or `platonic`, as Huh et al. (2024) take them: values clamped at the 0.95 quantile of the layer's
        absolute values, rows scaled to norm 1, and then centred. Offsets and rotations change that.

    Two points of three rows: x = (0, 1, 0), y = (0, 0, 2) give centred Grams whose cosine is 1/4.

    >>> from repsim_cli import measures
    >>> round(measures.get("cka")([[0.], [1.], [0.]], [[0.], [0.], [2.]]), 12)
    0.25
    """
    kernel, of_moments = _change_features(CENTRED, rows), OF_COVARIANCES if rows == "centred" else None
    return OfHsic(
        row=kernel,
        column=kernel,
        value=divide_by_norms,
        terms=lambda n: (n - 1) ** 2,
        moments=of_moments,
        sees=SEEN[rows],
    )


@measures.register(
    "cka_unbiased",
    Card(
        label="CKA (unbiased)",
        larger_is_closer=True,
        bounds=(None, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=4,
        cost="n^2 d once per layer, n^2/2 per pair",
        source="Song et al. 2012, eq. 5 (HSIC1), in the normalisation of Kornblith et al. 2019, eq. 3",
        note="1: equal up to rotation, scale and offset; 0 on average for unrelated layers, if rows are independent or "
        "paired across documents (extract.pairs); may be negative.",
    ),
)
def cka_unbiased(*, rows: Rows = "centred") -> Measure:
    """Linear CKA with unbiased HSIC (HSIC1): at most 1, 0 in the mean under independence, never clamped.

    rows: `centred`; or `platonic`, as of `cka`.

    The HSICs are unbiased; their ratio has a bias of order 1/n. Needs at least 4 rows.

    >>> from repsim_cli import measures
    >>> x = [[0., 0.], [1., 0.], [0., 2.], [3., 1.]]
    >>> round(measures.get("cka_unbiased")(x, x), 12)
    1.0
    """
    kernel, apart = _change_features(U_CENTRED, rows), functools.partial(make_cka_across_documents, rows=rows)
    return OfHsic(
        row=kernel, column=kernel, value=divide_by_norms, terms=lambda n: n * (n - 3), apart=apart, sees=SEEN[rows]
    )


def make_cka_across_documents(documents: Documents, *, rows: Rows) -> Measure:
    """Makes `cka_unbiased` over pairs of rows of different documents."""
    kernel = replace(U_CENTRED_APART, features=FEATURES[rows], documents=documents)
    same = float(documents.bincount().square().sum())
    return OfHsic(row=kernel, column=kernel, value=divide_by_norms, terms=lambda n: n**2 - same - 2 * n)


class Gaussian(NamedTuple):
    """A double-centred Gaussian kernel exp(-D^2 / (2 sigma^2)): squared norms, -1/(2 sigma^2), row means m_i - m/2.

    rows: the rows about another point than their mean, where that is far from most of them.
    """

    norms: Float[Tensor, " n"]
    factor: float
    means: Float[Tensor, " n"]
    rows: Float[Tensor, "n d"] | None


def fit_gaussian(features: AnyFeatures, bandwidth: float) -> Gaussian:
    """Fits the Gaussian kernel whose sigma is `bandwidth` times the median of the distances over i < j."""
    x = features.values
    moved = centre_on_inner_half(x)
    x = x if moved is None else moved
    squared, cells = x.new_empty(len(x), len(x)), []
    for start, block in compute_distance_blocks(x):
        rows = slice(start, start + len(block))
        cells += [row[i + 1 :] for i, row in enumerate(block)]
        squared[rows, start:], squared[start:, rows] = block, block.T
    median = compute_median_root(torch.cat(cells))
    if not median:
        raise Degenerate("half of the distances between rows are 0, got a bandwidth of 0; drop duplicate rows")
    factor = -1 / (2 * (bandwidth * median) ** 2)
    # torch sums float32 rows into float64 many times slower; the rounding of a mean vanishes with the centring
    means = squared.mul_(factor).exp_().mean(1).double()
    return Gaussian(x.square().sum(1), factor, (means - means.mean() / 2).to(x.dtype), moved)


def centre_on_inner_half(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"] | None:
    """The rows about the mean of their inner half; None where that changes little. A row far from all others draws the
    mean away from them, so that the squares in their distances would cancel."""
    norms = x.square().sum(1)
    middle = norms.median()
    inner = x[norms <= middle].mean(0)
    return x - inner if bool(inner.square().sum() > middle / 2) else None


def compute_median_root(squared: Float[Tensor, " cells"]) -> float:
    """The median of the roots; for an even number, the mean of the middle two."""
    middle = sorted({(len(squared) - 1) // 2, len(squared) // 2})
    cells = np.partition(squared.cpu().numpy(), middle)
    return float(np.sqrt(cells[middle], dtype=np.float64).mean())


def compute_gaussian_cells(fit: Gaussian, gram: Tensor, rows: slice, columns: slice) -> Tensor:
    if fit.rows is not None:
        torch.mm(fit.rows[rows], fit.rows[columns].T, out=gram)
    squared = gram.mul_(-2).add_(fit.norms[rows, None]).add_(fit.norms[columns]).clamp_min_(0)
    if rows == columns:
        squared.diagonal().zero_()
    return squared.mul_(fit.factor).exp_().sub_(fit.means[rows, None]).sub_(fit.means[columns])


@functools.cache
def make_gaussian_kernel(bandwidth: float) -> Kernel:
    fit = functools.partial(fit_gaussian, bandwidth=bandwidth)
    return Kernel(features=centre_rows, fit=fit, cells=compute_gaussian_cells, whole=True)


@measures.register(
    "cka_rbf",
    Card(
        label="CKA (RBF, biased)",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=2,
        cost="2 n^2 d once per layer, n^2/2 per pair",
        source="Kornblith et al. 2019, eq. 3 with a Gaussian kernel; sigma: bandwidth times the median distance, i < j",
        note="1: equal up to rotation, scale and offset. Weighs near rows more than cka does. Biased upwards.",
        width_limit="biased CKA is inflated when there are not many more rows than features; use more rows",
    ),
)
def cka_rbf(*, bandwidth: Above0 = 1.0) -> Measure:
    """CKA with the kernel exp(-D^2 / (2 sigma^2)), sigma a multiple of the median of the rows' distances, in [0, 1].

    bandwidth: sigma over the median; Kornblith et al. (2019) compare 0.2, 0.4 and 0.8.

    >>> from repsim_cli import measures
    >>> round(measures.get("cka_rbf")([[0.], [1.], [3.]], [[1.], [3.], [7.]]), 12)
    1.0
    """
    kernel = make_gaussian_kernel(bandwidth)
    return InnerProduct(row=kernel, column=kernel, value=divide_by_norms)


def compute_angles(products: Products) -> Matrix:
    return divide_by_norms(products).clamp(-1, 1).arccos()


def mark_small_angles(products: Products, values: Matrix) -> Tensor:
    """arccos loses half of the digits near 1."""
    return values < 0.1


def compute_exact_angle(a: State, b: State) -> float:
    """The angle of two Gram matrices from the norm of their difference as unit vectors."""
    x, y = (state.features.values.double() for state in (a, b))
    lengths = [float(torch.linalg.matrix_norm(z.T @ z if z.shape[1] < len(z) else z @ z.T)) for z in (x, y)]
    squares = 0.0
    for i, j in zip(x.split(BLOCK), y.split(BLOCK), strict=True):
        squares += float((i @ x.T / lengths[0] - j @ y.T / lengths[1]).square().sum())
    return 2 * math.asin(min(1.0, math.sqrt(squares) / 2))


@measures.register(
    "cka_angular",
    Card(
        label="angular CKA",
        larger_is_closer=False,
        bounds=(0.0, math.pi / 2),
        symmetric=True,
        is_metric=True,
        invariant_to=SHAPE,
        minimum_rows=2,
        cost="n^2 d once per layer, n^2/2 per pair",
        source="Williams et al. 2021, section 2: arccos of (biased, linear) CKA",
        note="Radians; 0: equal up to rotation, scale and offset. A metric on Gram matrices.",
        width_limit="biased CKA is inflated when there are not many more rows than features; use more rows",
    ),
)
def cka_angular() -> Measure:
    """arccos of `cka`: the angle between the centred Gram matrices, in [0, pi/2].

    >>> from repsim_cli import measures
    >>> round(measures.get("cka_angular")([[0.], [1.], [0.]], [[0.], [0.], [2.]]), 6)
    1.318116
    """
    return InnerProduct(
        row=CENTRED, column=CENTRED, value=compute_angles, near=mark_small_angles, exact=compute_exact_angle
    )


def count_shared_dimensions(products: Products) -> Matrix:
    """PR(x) PR(y) <K, L> / (tr K tr L), PR = (tr K)^2 / |K|^2; tr K is the number of rows here."""
    check_self_products(products)
    traces = products.rows[0].features.rows ** 2
    return traces * products.cross / products.row_squares[:, None] / products.column_squares[None]


@measures.register(
    "ensd",
    Card(
        label="ENSD",
        larger_is_closer=True,
        bounds=(0.0, None),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=2,
        cost="n^2 d once per layer, n^2/2 per pair",
        source="Giaffar et al. 2024: effective number of shared dimensions",
        note="A number of dimensions; of a layer with itself it is its participation ratio.",
    ),
)
def ensd() -> Measure:
    """Effective number of shared dimensions, PR(x) PR(y) tr(K L) / (tr K tr L), centred.

    Both sides are lines, whose participation ratio is 1, so it is their CKA:

    >>> from repsim_cli import measures
    >>> round(measures.get("ensd")([[0.], [1.], [0.]], [[0.], [0.], [2.]]), 12)
    0.25
    """
    return InnerProduct(row=CENTRED, column=CENTRED, value=count_shared_dimensions)
