"""What the blocks of a model change, gathered batch by batch: its size by token, and its mean."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from repsim_cli.runs.content import CARRIED, OWN


@dataclass
class Gathered:
    """Numbers of one model.

    own, carried: (blocks, n), by batch. sums: over tokens, the change of the stream over its norm in the base,
    (blocks, d), float64. squares: the squared norms of these changes, and of their sums over each text, (blocks, 2).
    within: pairs of tokens of one text.
    """

    own: list[Tensor] = field(default_factory=list)
    carried: list[Tensor] = field(default_factory=list)
    sums: Any = 0.0
    squares: Any = 0.0
    within: int = 0

    def add(
        self, base: Sequence[Tensor], alone: Sequence[Tensor], tuned: Sequence[Tensor], sizes: Sequence[int]
    ) -> None:
        """Adds the rows that leave each block. base: B(x). alone: T(x), the model on the base's input. tuned: T(x').
        sizes: the rows of each text."""
        own, carried, sums, squares = [], [], [], []
        for b, t, free in zip(base, alone, tuned, strict=True):
            b, t, free = (x.to(b.device).double() for x in (b, t, free))
            norms = b.norm(dim=1, keepdim=True)
            change = ((free - b) / norms).nan_to_num(0.0, 0.0, 0.0)  # a row of zeros has no relative change
            own.append(((t - b).norm(dim=1) / norms[:, 0]).where(norms[:, 0] > 0, torch.nan).float().cpu())
            carried.append(((free - t).norm(dim=1) / norms[:, 0]).where(norms[:, 0] > 0, torch.nan).float().cpu())
            of_texts = torch.stack([part.sum(0) for part in change.split(list(sizes))])
            sums.append(of_texts.sum(0).cpu())
            squares.append(torch.stack([change.square().sum(), of_texts.square().sum()]).cpu())
        self.own.append(torch.stack(own))
        self.carried.append(torch.stack(carried))
        self.sums = self.sums + torch.stack(sums)
        self.squares = self.squares + torch.stack(squares)
        self.within += sum(size**2 for size in sizes)

    def tensors(self) -> dict[str, Tensor]:
        """OWN, CARRIED: (blocks, n). direction: the mean change, (blocks, d). share: of the change, what tokens of
        different texts have in common: the mean of its inner products over their pairs, over its mean squared norm; NaN
        of one text."""
        own, carried = torch.cat(self.own, 1), torch.cat(self.carried, 1)
        n = own.shape[1]
        of_pairs = (self.sums.square().sum(1) - self.squares[:, 1]) / (n**2 - self.within)
        share = of_pairs / (self.squares[:, 0] / n)
        return {OWN: own, CARRIED: carried, "direction": self.sums / n, "share": share}
