"""The features of representations, whose Gram matrices kernels are made of: of one, or of several of one shape.

On a GPU what is done has a price of 10 microseconds however small it is, so representations of one shape go together.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

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

    def block(self, rows: slice) -> Float[Tensor, "b k"]:
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

    def block(self, rows: slice) -> Float[Tensor, "b d"]:
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
    return features.block(rows) @ features.block(columns).T


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
    """Cuts the features of representations into runs of one shape that may go together; on a CPU each is alone."""
    start = 0
    for i in range(1, len(parts) + 1):
        if i == len(parts) or not _may_join(parts[start], parts[i], i - start + 1):
            yield slice(start, i)
            start = i


def _may_join(first: AnyFeatures, other: AnyFeatures, count: int) -> bool:
    if not (isinstance(first, CentredRows) and isinstance(other, CentredRows)) or first.x.device.type == "cpu":
        return False
    same = first.x.shape == other.x.shape and first.x.dtype == other.x.dtype
    return same and (first.gram is None) == (other.gram is None) and count * first.x.numel() <= TOGETHER
