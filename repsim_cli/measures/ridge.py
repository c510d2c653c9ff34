"""Ridge regression of one representation from another, scored on rows that it was not fitted on.

Rows are in folds, of whole documents where these are known. Each fold is predicted from the others, with the penalty
that predicts each of these best from the rest. So every pair of folds is left out once, and what predicts is decomposed
without it: C = V diag(e) V' of the rows that are left, centred. With D their products with what is predicted, a penalty
p has the weights V diag(w) V'D, w = 1 / (e + p), and on other rows, which have the products G and E in place of C and
D, the squared error |y|^2 - 2 w.diag(V'D E'V) + w'((V'D D'V) o (V'G V)) w: no fit is repeated for another penalty.
"""

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.base.registry import measures
from repsim_cli.measures.base import Measure, Pairwise
from repsim_cli.measures.cards import Card
from repsim_cli.measures.inner import Matrix
from repsim_cli.measures.kernels import Documents
from repsim_cli.measures.rdm import SHAPE
from repsim_cli.measures.shape import CentredShape, permute, prepare_shape

NOTHING = 1e-12  # of the squares of all rows, below which the variance of some is rounding
FEWEST = 3  # folds: one is scored, one chooses the penalty, one is fitted on
# over the summed variance of the rows that are fitted; infinite: the mean alone predicts
PENALTIES = torch.tensor([math.inf, *(10 ** (-half / 2) for half in range(-2, 17))], dtype=torch.float64)
Folds = Annotated[int, Field(ge=FEWEST, le=100)]
Fold = Int[Tensor, " _"]  # the numbers of its rows


def split_into_folds(n: int, count: int, documents: Documents | None) -> list[Fold]:
    """The rows of every fold: whole documents, the largest first to the fold of the fewest rows; without documents
    blocks of rows that follow each other. Raises Degenerate where there are fewer than three documents."""
    if documents is None:
        return list(torch.arange(n).tensor_split(count))
    sizes = documents.bincount()
    if len(sizes) < FEWEST:
        raise Degenerate(f"rows of {FEWEST} documents or more are needed, got {len(sizes)}; give more documents")
    rows, fold = [0] * min(count, len(sizes)), torch.zeros_like(sizes)
    for document in sizes.argsort(descending=True, stable=True).tolist():
        fold[document] = rows.index(min(rows))
        rows[int(fold[document])] += int(sizes[document])
    return [(fold[documents] == f).nonzero()[:, 0] for f in range(len(rows))]


class FoldSums(NamedTuple):
    """Of the rows of every fold: the rows, their sums and how many there are."""

    rows: list[Float[Tensor, "_ d"]]
    sums: Float[Tensor, "f d"]
    counts: Float[Tensor, " f"]


def sum_folds(x: CentredShape, folds: Sequence[Fold]) -> FoldSums:
    rows = [x.rows[fold].double() for fold in folds]
    return FoldSums(rows, torch.stack([part.sum(0) for part in rows]), rows[0].new_tensor([*map(len, rows)]))


class Left(NamedTuple):
    """The decomposition of the rows that are left without one fold or two. out: these. kept: the other folds.

    weights: w of every penalty. moments: by fold that is out, V'GV of its rows about the mean of those that are left.
    """

    out: tuple[int, ...]
    kept: list[int]
    mean: Float[Tensor, " d"]
    vectors: Float[Tensor, "d d"]
    weights: Float[Tensor, "p d"]
    moments: list[Float[Tensor, "d d"]]


def decompose_folds(x: FoldSums) -> list[Left]:
    """Decomposes the covariance without each fold, and without each two of them."""
    squares, every = [part.T @ part for part in x.rows], range(len(x.rows))
    found = []
    for out in [*itertools.combinations(every, 1), *itertools.combinations(every, 2)]:
        kept = [f for f in every if f not in out]
        mean = x.sums[kept].sum(0) / x.counts[kept].sum()
        covariance = sum(squares[f] for f in kept) - x.counts[kept].sum() * torch.outer(mean, mean)
        values, vectors = torch.linalg.eigh(covariance)
        values = values.clamp_min(0)
        # of rows that do not vary there is nothing to fit: the mean alone predicts
        varies = values.sum() > NOTHING * sum(part.trace() for part in squares)
        weights = (
            1 / (values + PENALTIES.to(values)[:, None] * values.sum())
            if varies
            else values.new_zeros(len(PENALTIES), len(values))
        )
        moments = [vectors.T @ centre_products(squares[f], x, f, mean, x, mean) @ vectors for f in out]
        found.append(Left(out, kept, mean, vectors, weights, moments))
    return found


def centre_products(
    products: Float[Tensor, "d e"], x: FoldSums, fold: int, x_mean: Tensor, y: FoldSums, y_mean: Tensor
) -> Float[Tensor, "d e"]:
    """The products of the rows of a fold about other means than 0."""
    of_y = y.sums[fold] - x.counts[fold] * y_mean
    return products - torch.outer(x.sums[fold], y_mean) - torch.outer(x_mean, of_y)


def sum_squared_errors(x: FoldSums, y: FoldSums, without: Sequence[Left]) -> dict[tuple[tuple[int, ...], int], Tensor]:
    """Sums the squared errors of y predicted from x, for every penalty; the first is infinite. By (the folds that are
    left out, the one of them that is predicted).
    """
    products = [a.T @ b for a, b in zip(x.rows, y.rows, strict=True)]
    found = {}
    for left in without:
        mean, count = y.sums[left.kept].sum(0), x.counts[left.kept].sum()
        mean = mean / count
        fitted = left.vectors.T @ (sum(products[f] for f in left.kept) - count * torch.outer(left.mean, mean))
        square = fitted @ fitted.T
        for f, moments in zip(left.out, left.moments, strict=True):
            of_fold = left.vectors.T @ centre_products(products[f], x, f, left.mean, y, mean)
            total = (y.rows[f] - mean).square().sum()
            explained = left.weights @ (fitted * of_fold).sum(1)
            found[left.out, f] = total - 2 * explained + ((left.weights @ (square * moments)) * left.weights).sum(1)
    return found


def predict(errors: dict[tuple[tuple[int, ...], int], Tensor], count: int) -> float:
    """1 - the squared error of all folds over that of the mean of the rows that were fitted on."""
    error = total = 0.0
    for f in range(count):
        chosen = int(sum(errors[tuple(sorted((f, g))), g] for g in range(count) if g != f).argmin())  # type: ignore[union-attr]
        error, total = error + float(errors[(f,), f][chosen]), total + float(errors[(f,), f][0])
    return 1 - error / total


def hold_out_all(
    rows: Sequence[CentredShape], columns: Sequence[CentredShape], *, folds: int, documents: Documents | None
) -> Matrix:
    """Predicts all pairs; each column is decomposed once, and its decompositions are held while it predicts."""
    parts = split_into_folds(len(rows[0].rows), folds, documents)
    values = torch.empty(len(rows), len(columns), dtype=torch.float64)
    for b, column in enumerate(columns):
        x = sum_folds(column, parts)
        without = decompose_folds(x)
        for a, row in enumerate(rows):
            values[a, b] = predict(sum_squared_errors(x, sum_folds(row, parts), without), len(parts))
    return values


def make_fold_measure(folds: int, documents: Documents | None = None) -> Pairwise:
    """Makes the measure of how well held-out rows are predicted.

    folds: into how many parts rows are split.
    documents: of each row, where a part holds whole documents; None splits rows.
    """
    compare_all = partial(hold_out_all, folds=folds, documents=documents)
    return Pairwise(
        prepare=prepare_shape,
        compare=lambda a, b: float(compare_all([a], [b])),
        compare_all=compare_all,
        permute=permute,
        minimum_rows=2 * folds,
        apart=partial(make_fold_measure, folds) if documents is None else None,
        cubes=8.0 * folds**2,
        wide_squares=2.0 * folds**2,
    )


@measures.register(
    "ridge",
    Card(
        label="ridge regression (held-out R^2)",
        larger_is_closer=True,
        bounds=(None, 1.0),
        symmetric=False,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=6,
        cost="n d^2 + 4 folds^2 d^3 per pair and direction",
        source="Hoerl and Kennard 1970 (ridge); Stone 1974 (rows that choose the penalty, and others that assess it)",
        note="Row a, column b: the share of a's variance that b predicts in documents that it was not fitted on. "
        "Unrelated layers have 0 or slightly less, whatever their width.",
    ),
)
def ridge(*, folds: Folds = 5) -> Measure:
    """Held-out R^2 of x predicted from y by ridge regression with an intercept, at most 1.

    folds: parts of the rows, each predicted from the others; fewer where there are fewer documents.

    Whole documents are in a fold (extract.pairs=other_documents); where these are not known, or all pairs of rows
    count, folds are blocks of rows that follow each other. The penalty of a fold is chosen on the other folds alone,
    one for all features of x, from 1e-8 to 10 times the summed variance of y, or infinite, which is R^2 = 0.

    A line predicts itself, and nothing of what is unrelated to it:

    >>> from repsim_cli import measures
    >>> x, y = [[0.], [1.], [2.], [3.]] * 5, [[1.], [-1.], [-1.], [1.]] * 5
    >>> round(measures.get("ridge")(x, x), 6), round(measures.get("ridge")(x, y), 6)
    (1.0, 0.0)
    """
    return make_fold_measure(folds)
