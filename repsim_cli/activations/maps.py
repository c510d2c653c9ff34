"""Attention maps of some sentences, all heads of all layers together."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Maps(NamedTuple):
    """Attention of h heads on some sentences, without padding.

    cells: the T x T map of every sentence (query by key, rows sum to 1), row by row, one sentence after the other.
    lengths: the words T of every sentence. layers: which heads are of one layer.
    """

    cells: Float[Tensor, "h c"]
    lengths: Sequence[int]
    layers: Sequence[slice]

    def sentences(self) -> Iterator[Float[Tensor, "h t t"]]:
        """The maps of one sentence after the other."""
        for part, t in zip(self.cells.split([t * t for t in self.lengths], dim=1), self.lengths, strict=True):
            yield part.unflatten(1, (t, t))
