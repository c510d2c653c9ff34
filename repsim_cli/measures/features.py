"""Holds the features of representations, whose Gram matrices kernels are made of: of one, or several of one shape.

On a GPU a step costs 10 microseconds or more, however small it is, so representations of one shape go together.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.base.gram import multiply_into

TOGETHER = 1 << 28  # cells of representations that are held together


class PreparedFeatures(NamedTuple):
    """A prepared representation; scale: the factor that was divided out.

    For a `Kernel`, values @ values.T is the Gram matrix; for a `Packed` matrix, values are its cells.
    gram: the Gram matrix, where it is known.
    """

    values: Float[Tensor, "n k"] | Float[Tensor, " cells"]
    scale: float = 1.0
    gram: Float[Tensor, "n n"] | None = None

    @property
    def rows(self) -> int:
        return len(self.values)

    @property
    def width(self) -> int:
        return self.values.shape[1]

    def block(self, rows: slice | Tensor) -> Float[Tensor, "b k"]:
        return self.values[rows]


class CentredRows(NamedTuple):
    """The rows of x minus the means, over the scale, computed on demand: no copy is held.

    mean: exact where rows are near it. rest: minus the remainder that its rounding leaves, over the scale.
    norms: the squared norms of the rows. gram: the Gram matrix of few, wide rows.
    """

    x: Float[Tensor, "n d"]
    mean: Float[Tensor, " d"]
    rest: Float[Tensor, " d"]
    scale: float
    norms: Float[Tensor, " n"]
    gram: Float[Tensor, "n n"] | None = None

    @property
    def rows(self) -> int:
        return len(self.x)

    @property
    def width(self) -> int:
        return self.x.shape[1]

    def block(self, rows: slice | Tensor) -> Float[Tensor, "b d"]:
        near = self.x[rows].to(self.mean.dtype) - self.mean
        return torch.add(self.rest, near, alpha=1 / self.scale, out=near)

    @property
    def values(self) -> Float[Tensor, "n d"]:
        return self.block(slice(None))


AnyFeatures = PreparedFeatures | CentredRows


def compute_gram_tile(features: AnyFeatures, rows: slice, columns: slice) -> Float[Tensor, "a b"]:
    """Computes a tile of the Gram matrix, as a copy."""
    if features.gram is not None:
        return features.gram[rows, columns].clone()
    left, right = features.block(rows), features.block(columns)
    gram = left.new_empty(len(left), len(right))
    multiply_into(gram, left, right)
    return gram


class StackedRows(NamedTuple):
    """`CentredRows` of one shape, one above the other: the same, with a dimension before the others."""

    parts: Sequence[CentredRows]
    mean: Float[Tensor, "l 1 d"]
    rest: Float[Tensor, "l 1 d"]
    inverse: Float[Tensor, "l 1 1"]
    norms: Float[Tensor, "l n"]

    @property
    def rows(self) -> int:
        return self.parts[0].rows

    @property
    def gram(self) -> Sequence[Tensor] | None:
        grams = [part.gram for part in self.parts if part.gram is not None]
        return grams or None

    def block(self, rows: slice) -> Float[Tensor, "l b d"]:
        near = torch.stack([part.x[rows] for part in self.parts]).to(self.mean.dtype).sub_(self.mean)
        return torch.addcmul(self.rest, near, self.inverse, out=near)


def stack_rows(parts: Sequence[CentredRows]) -> StackedRows:
    """Puts rows of one shape one above the other."""
    mean, rest, norms = (torch.stack([getattr(part, name) for part in parts]) for name in ("mean", "rest", "norms"))
    inverse = mean.new_tensor([1 / part.scale for part in parts])
    return StackedRows(parts, mean[:, None], rest[:, None], inverse[:, None, None], norms)


def find_stacks(parts: Sequence[AnyFeatures]) -> Iterator[slice]:
    """Cuts the features of representations into runs that may go together; on a CPU each is alone."""
    return cut_into_runs([_find_kind(part) for part in parts])


def cut_into_runs(kinds: Sequence[tuple[torch.Size, *tuple[Any, ...]] | None]) -> Iterator[slice]:
    """Cuts into runs of one kind, of at most TOGETHER cells. kinds: the shape first; None: alone.

    >>> a, b = (torch.Size([4, 2]),), (torch.Size([4, 3]),)
    >>> [(run.start, run.stop) for run in cut_into_runs([a, a, b, None, None])]
    [(0, 2), (2, 3), (3, 4), (4, 5)]
    """
    start = 0
    for i, kind in enumerate(kinds):
        first = kinds[start]
        if i > start and (first is None or kind != first or i - start >= TOGETHER // max(1, first[0].numel())):
            yield slice(start, i)
            start = i
    if kinds:
        yield slice(start, len(kinds))


def _find_kind(part: AnyFeatures) -> tuple[torch.Size, *tuple[Any, ...]] | None:
    """Finds what rows that go together have in common; None for those that go alone."""
    if not isinstance(part, CentredRows) or part.x.device.type == "cpu":
        return None
    return part.x.shape, part.x.dtype, part.gram is None
