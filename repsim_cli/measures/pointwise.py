"""Pointwise distances: how far apart paired rows are, in the same coordinates; nothing is aligned or centred."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.base.registry import measures
from repsim_cli.measures.base import Measure, Pairwise
from repsim_cli.measures.bases import choose_working_dtype
from repsim_cli.measures.cards import Card
from repsim_cli.measures.inner import Matrix

_BLOCK = 64  # rows held at a time, of all representations
_CLOSE = 1e-3  # distances below this share of their terms are computed from differences


def check_varying(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """x in the precision of products over pairs. Raises Degenerate where all rows are equal."""
    x = x.to(choose_working_dtype(x))
    if torch.equal(x[0], x[-1]) and bool((x == x[0]).all()):
        raise Degenerate("all rows are equal, got a constant representation; drop this layer or change the data")
    return x


def convert_to_working_dtype(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    return x.to(choose_working_dtype(x))


def euclidean_distance(a: Float[Tensor, "n d"], b: Float[Tensor, "n d"]) -> float:
    return float(torch.linalg.vector_norm(a.double() - b.double(), dim=1).mean())


def compute_all_euclidean_distances(rows: Sequence[Tensor], columns: Sequence[Tensor]) -> Matrix:
    """Computes all pairs by blocks of rows, as |a|^2 + |b|^2 - 2 ab, where each row is taken relative to its mean over
    all representations."""
    total = torch.zeros(len(rows), len(columns), dtype=torch.float64, device=rows[0].device)
    for start in range(0, len(rows[0]), _BLOCK):
        part = slice(start, start + _BLOCK)
        left = torch.stack([x[part] for x in rows], 1)
        middle = left.mean(1, keepdim=True)
        left -= middle
        right = left if rows is columns else torch.stack([x[part] for x in columns], 1) - middle
        norms = left.square().sum(2)[:, :, None] + right.square().sum(2)[:, None]
        squared = torch.baddbmm(norms, left, right.mT, alpha=-2)
        close = squared < _CLOSE * norms
        if rows is columns:
            squared.diagonal(dim1=1, dim2=2).zero_()
            close.diagonal(dim1=1, dim2=2).fill_(False)
        for some in close.nonzero().split(1 << 14):
            i, a, b = some.unbind(1)
            squared[i, a, b] = (left[i, a] - right[i, b]).square().sum(1)
        total += squared.sqrt_().sum(0, dtype=torch.float64)
    return total / len(rows[0])


@measures.register(
    "euclidean",
    Card(
        label="mean Euclidean distance",
        larger_is_closer=False,
        bounds=(0.0, None),
        symmetric=True,
        is_metric=True,
        invariant_to=frozenset(),
        minimum_rows=2,
        cost="n d per pair",
        source="mean over rows of |x_i - y_i|",
        note="0: equal, in the same coordinates; a metric. In the units of the activations.",
        equal_widths=True,
        takes_constant=True,
    ),
)
def euclidean() -> Measure:
    """Mean Euclidean distance of the paired rows, neither centred nor scaled; equal widths only.

    Distances 5 and 0:

    >>> from repsim_cli import measures
    >>> measures.get("euclidean")([[0., 0.], [1., 2.]], [[3., 4.], [1., 2.]])
    2.5
    """
    return Pairwise(
        prepare=convert_to_working_dtype,
        compare=euclidean_distance,
        compare_all=compute_all_euclidean_distances,
        copies=0.0,
    )


class Directed(NamedTuple):
    """Rows, each by a power of two of its own, and 1 / their norms."""

    rows: Float[Tensor, "n d"]
    inverse: Float[Tensor, "n 1"]


def direct(x: Float[Tensor, "n d"]) -> Directed:
    x = check_varying(x)
    # exact, so that squares neither vanish nor overflow; the power of two itself is a number of the type
    exponents = torch.frexp(x.abs().amax(1, keepdim=True)).exponent
    x = torch.ldexp(x, (-exponents).clamp_max(round(-math.log2(torch.finfo(x.dtype).tiny))))
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    zero = int((norms == 0).sum())
    if zero:
        raise Degenerate(f"rows of zeros have no direction, got {zero}; drop these rows or use euclidean")
    return Directed(x, 1 / norms)


def cosine_distance(a: Directed, b: Directed) -> float:
    """Computes the mean distance from the differences of the unit rows, which is accurate for small distances."""
    both = [side.rows.double() for side in (a, b)]
    x, y = (rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True) for rows in both)
    return float((x - y).square().sum(1).mean() / 2)


def compute_all_cosine_distances(rows: Sequence[Directed], columns: Sequence[Directed]) -> Matrix:
    """Computes all pairs: the mean cosine of paired rows is a product over all cells of the unit rows."""
    total = torch.zeros(len(rows), len(columns), dtype=torch.float64, device=rows[0].rows.device)

    def unit(side: Sequence[Directed], part: slice) -> Float[Tensor, "r cells"]:
        return torch.stack([state.rows[part] * state.inverse[part] for state in side]).flatten(1)

    n = len(rows[0].rows)
    for start in range(0, n, _BLOCK):
        part = slice(start, start + _BLOCK)
        left = unit(rows, part)
        total += left @ (left if rows is columns else unit(columns, part)).T
    values = 1 - total / n
    if rows is columns:
        values.fill_diagonal_(0)
    for i, j in (values < _CLOSE).nonzero().tolist():
        if rows[i] is not columns[j]:
            values[i, j] = cosine_distance(rows[i], columns[j]) if i < j or rows is not columns else values[j, i]
    return values


@measures.register(
    "cosine",
    Card(
        label="mean cosine distance",
        larger_is_closer=False,
        bounds=(0.0, 2.0),
        symmetric=True,
        is_metric=False,
        invariant_to=frozenset({"isotropic_scaling"}),
        minimum_rows=2,
        cost="n d per pair",
        source="mean over rows of 1 - cos(x_i, y_i)",
        note="0: every row has the same direction, in the same coordinates. Not centred: a common offset of the rows "
        "makes all layers close.",
        equal_widths=True,
    ),
)
def cosine() -> Measure:
    """Mean cosine distance of the paired rows, not centred, in [0, 2]; equal widths only.

    Rows at a right angle and rows of one direction:

    >>> from repsim_cli import measures
    >>> round(measures.get("cosine")([[1., 0.], [1., 2.]], [[0., 3.], [2., 4.]]), 12)
    0.5
    """
    return Pairwise(
        prepare=direct,
        compare=cosine_distance,
        compare_all=compute_all_cosine_distances,
        permute=lambda state, order: Directed(state.rows[order], state.inverse[order]),
    )
