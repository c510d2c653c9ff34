"""Attention maps of a batch of sentences, all heads of all layers together."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class AttentionMaps(NamedTuple):
    """Attention of h heads on a batch of sentences, without padding.

    cells: the T x T maps (query by key, rows sum to 1) of the sentences, flattened row by row and concatenated.
    lengths: the number of words T of every sentence.
    layers: the heads of every layer.
    """

    cells: Float[Tensor, "h c"]
    lengths: Sequence[int]
    layers: Sequence[slice]

    def sentences(self) -> Iterator[Float[Tensor, "h t t"]]:
        """The maps of every sentence in turn."""
        for part, t in zip(self.cells.split([t * t for t in self.lengths], dim=1), self.lengths, strict=True):
            yield part.unflatten(1, (t, t))
