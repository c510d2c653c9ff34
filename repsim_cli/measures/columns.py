"""CKA of two populations of neurons; the columns of both sides are samples of them.

K = sum over columns c of x_c x_c'. HSIC of two sides is a sum over pairs of columns, one of each side, whose mean is
an unbiased estimate of the populations' HSIC. HSIC of a side with itself is a sum over pairs of its own columns; the
pairs of a column with itself are left out, as unbiased HSIC leaves out those of a row with itself.
"""

from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.base.registry import measures
from repsim_cli.measures.base import InnerProduct, Measure
from repsim_cli.measures.bases import NEURONS
from repsim_cli.measures.cards import Card
from repsim_cli.measures.centring import centre_rows
from repsim_cli.measures.features import AnyFeatures, CentredRows
from repsim_cli.measures.hsic import (
    Apart,
    centre_tile,
    centre_tile_apart,
    compute_half_offsets,
    compute_offsets_apart,
    solve_offsets,
)
from repsim_cli.measures.inner import Matrix, Products
from repsim_cli.measures.kernels import Documents, Kernel

FEWEST = 2  # columns
LEAST = 1e-5  # share of pairs of different columns in a squared norm, below which float32 products do not tell it
SAME = 1e-5  # relative difference of float32 products of one matrix


class Columns(NamedTuple):
    """What the cells of the U-centred matrix are made of, and its squared norm as sums over pairs of columns, float64.

    different: over pairs of different columns. alone: of each column with itself. count: of columns. documents: of the
    rows, where pairs of rows of one document are left out.
    """

    offsets: Float[Tensor, " n"]
    different: float
    alone: float
    count: int  # pyright: ignore[reportIncompatibleMethodOverride] - nothing counts items of it
    documents: Documents | None = None


def fit_columns(features: AnyFeatures, documents: Documents | None = None) -> Columns:
    """Computes what the pairs of columns of one side need. Raises Degenerate for a single column.

    documents: of each row; None takes every row as a sample of its own.
    """
    x = features.values.double()
    if x.shape[1] < FEWEST:
        raise Degenerate(f"{FEWEST} features or more are needed, got {x.shape[1]}; use cka_unbiased")
    if documents is None:
        assert isinstance(features, CentredRows)
        offsets, norms = compute_half_offsets(features), sum_squares(x)
    else:
        offsets, norms = compute_offsets_apart(features, documents).offsets, sum_squares_apart(x, documents)
    return Columns(offsets, norms.whole - norms.alone, norms.alone, x.shape[1], documents)


class Norms(NamedTuple):
    """Squared norms of U-centred matrices: of all columns together, and the sum of those of single columns."""

    whole: float
    alone: float


def sum_squares(x: Float[Tensor, "n d"]) -> Norms:
    n, squares = len(x), x.square()
    sizes, of_rows, of_columns = squares.sum(), squares.sum(1).square().sum(), squares.sum(0)
    whole = (x.T @ x).square().sum() - of_rows * n / (n - 2) + sizes**2 / ((n - 1) * (n - 2))
    alone = of_columns.square().sum() * (1 + 1 / ((n - 1) * (n - 2))) - squares.square().sum() * n / (n - 2)
    return Norms(float(whole), float(alone))


def sum_squares_apart(x: Float[Tensor, "n d"], documents: Documents) -> Norms:
    """Computes `sum_squares` without the cells of two rows of one document: the squares of the other cells of K, less
    2 a.r, which the offsets a explain."""
    sizes = documents.bincount().double()
    sums, squares = (x.new_zeros(len(sizes), x.shape[1]).index_add_(0, documents, part) for part in (x, x.square()))
    of_rows = -x * sums[documents]
    together = of_rows.sum(1, keepdim=True)
    explained, explained_alone = (
        2 * float((solve_offsets(part, documents, sizes) * part).sum()) for part in (together, of_rows)
    )
    parts = x[documents.argsort(stable=True)].split(documents.bincount().tolist())
    # of the smaller side, whose products have the same norm
    left_out = sum(float((part.T @ part if len(part) > x.shape[1] else part @ part.T).square().sum()) for part in parts)
    alone = float(squares.sum(0).square().sum() - squares.square().sum()) - explained_alone
    return Norms(float((x.T @ x).square().sum()) - left_out - explained, alone)


def centre_gram_tile(fit: Columns, gram: Tensor, rows: slice, columns: slice) -> Tensor:
    if fit.documents is None:
        return centre_tile(fit.offsets, gram, rows, columns)
    return centre_tile_apart(Apart(fit.offsets, fit.documents), gram, rows, columns)


COLUMNS = Kernel(features=centre_rows, fit=fit_columns, cells=centre_gram_tile, offsets=attrgetter("offsets"))


def compute_population_cosine(products: Products) -> Matrix:
    """The cosine of the populations; 1 where both sides are one sample, whose columns pair with themselves."""
    rows, columns = (
        [products.cross.new_tensor([getattr(state.fit, part) for state in states]) for part in Columns._fields[1:4]]
        for states in (products.rows, products.columns)
    )
    for different, alone, _ in (rows, columns):
        shares = different / (different + alone)
        if not (shares > LEAST).all():
            raise Degenerate(
                f"different features have nothing in common, got {shares.min():.3g} of the similarity of all features; "
                "use more rows, more features or cka_unbiased"
            )
    norms = [(different * count / (count - 1)).sqrt() for different, _, count in (rows, columns)]
    same = (rows[1][:, None] - columns[1]).abs() <= SAME * rows[1][:, None]
    for square in (products.row_squares[:, None], products.column_squares[None]):
        same &= (products.cross - square).abs() <= SAME * square
    return (products.cross / norms[0][:, None] / norms[1]).masked_fill(same, 1.0)


def make_measure_apart(documents: Documents) -> Measure:
    kernel = replace(COLUMNS, documents=documents)
    return InnerProduct(row=kernel, column=kernel, value=compute_population_cosine)


@measures.register(
    "cka_columns",
    Card(
        label="CKA (unbiased, of sampled neurons)",
        larger_is_closer=True,
        bounds=(None, None),
        symmetric=True,
        is_metric=False,
        invariant_to=NEURONS,
        minimum_rows=4,
        cost="n^2 d once per layer, n^2/2 per pair",
        source="Chun, Canatar et al. 2025: HSIC1 (Song et al. 2012) over pairs of different features",
        note="For features that are a sample, drawn for each side on its own: some neurons of a layer, some heads, "
        "recordings, random features of a wider model. 1: samples of one population; estimates may exceed it. Not for "
        "all neurons of a layer, which are not a sample (cka_unbiased), nor for layers of one residual stream, which "
        "have the same features. A layer with itself is 1. Unstable where features are few or share little.",
    ),
)
def cka_columns() -> Measure:
    """Linear CKA with unbiased HSIC, of the populations that the features of both sides were drawn from.

    Every HSIC is unbiased over draws of rows and of features; the ratio has a bias of order 1/n + 1/d. Two samples of
    one population score 1 on average, where `cka_unbiased` falls with the number of features.

    >>> from repsim_cli import measures
    >>> x = [[0., 0.], [1., 2.], [2., 3.], [3., 3.], [5., 8.]]
    >>> round(measures.get("cka_columns")(x, x), 12), round(measures.get("cka_columns")(x, [r[::-1] for r in x]), 12)
    (1.0, 1.0)
    """
    return InnerProduct(row=COLUMNS, column=COLUMNS, value=compute_population_cosine, apart=make_measure_apart)
