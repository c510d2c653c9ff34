"""What a measure of attention maps is: sums over batches of sentences, and what follows from them for all layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.activations.maps import AttentionMaps
from repsim_cli.base.arrays import convert_to_tensor
from repsim_cli.base.errors import Degenerate
from repsim_cli.measures.base import Measure
from repsim_cli.measures.cards import Labels, Totals, Unit
from repsim_cli.measures.inner import Matrix


@dataclass(frozen=True, kw_only=True)
class OfAttention(Measure):
    """A measure of attention maps, for all layers at once from sums over batches of sentences.

    sums(maps): float64 tensors by name, which add up over batches; measures with the same function share them.
    unit: what it averages over; sums()["count"] counts them.
    layers(totals, layers): all pairs of layers.
    heads(totals): similarity of every head with every head, where the measure matches heads.
    """

    unit: Unit
    sums: Callable[[AttentionMaps], dict[str, Tensor]]
    layers: Callable[[Totals, Sequence[slice]], Matrix]
    heads: Callable[[Totals], Float[Tensor, "h h"]] | None = None

    def __call__(self, x: Any, y: Any, labels: Labels = None) -> float:
        if len(x) != len(y):
            raise Degenerate(
                f"{self.name}: x and y must have one array of maps per sentence, got {len(x)} and {len(y)}; pair them"
            )
        sides = [
            [self._maps(maps, f"{name}, sentence {i}") for i, maps in enumerate(side)]
            for name, side in (("x", x), ("y", y))
        ]
        layers: list[slice] = []
        sentences = []
        for i, (a, b) in enumerate(zip(*sides, strict=True)):
            if a.shape[1:] != b.shape[1:]:
                raise Degenerate(
                    f"{self.name}: different words in sentence {i}, got maps {tuple(a.shape)} and {tuple(b.shape)}; "
                    "compare the same words"
                )
            places = [slice(0, len(a)), slice(len(a), len(a) + len(b))]
            if layers and places != layers:
                raise Degenerate(
                    f"{self.name}: different heads in sentence {i} than before, got {len(a)} and {len(b)}; give all"
                )
            layers = places
            sentences.append(torch.cat([a, b]))
        if not sentences:
            raise Degenerate(f"{self.name}: no sentence, got empty lists; give one array of maps per sentence")
        maps = AttentionMaps(
            torch.cat([both.flatten(1) for both in sentences], 1), [s.shape[1] for s in sentences], layers
        )
        try:
            totals = self.sums(maps)
            self.check_count(totals)
            return float(self.layers(totals, layers)[0, 1])
        except Degenerate as error:
            raise Degenerate(f"{self.name}: {error}") from None

    @staticmethod
    def _maps(maps: Any, what: str) -> Float[Tensor, "h t t"]:
        weights = convert_to_tensor(what, maps).double()
        if weights.ndim != 3 or weights.shape[1] != weights.shape[2] or 0 in weights.shape:
            raise Degenerate(f"{what}: not maps (heads, T, T), got {tuple(weights.shape)}; give T x T per head")
        off = float((weights.sum(2) - 1).abs().max())
        if not off < 1e-3 or weights.min() < 0:
            raise Degenerate(
                f"{what}: not attention weights, got a smallest weight of {float(weights.min()):.3g} and a row whose "
                f"sum is {off:.3g} from 1; renormalise the rows"
            )
        return weights

    def check_count(self, totals: Totals) -> None:
        """Raises Degenerate where the sums are of too few sentences, words or cells."""
        if int(totals["count"]) < self.rows_needed:
            raise Degenerate(
                f"needs at least {self.rows_needed} {self.unit}, got {int(totals['count'])}; give more text"
            )
