"""What the rows of the other sides alone tell of a side, latent by latent: near 0 where sides have nothing in common.

The decoder of a latent has a norm on every side even if the sides are independent of each other, since one code stands
for chance pairings of their rows. So the code is made again with the rows of one side drawn from elsewhere, and its
latents are held against the rows that this side has.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.special import stdtrit
from torch import Tensor

from repsim_cli.engine.exchanges import draw_document_orders
from repsim_cli.studies.dictionaries.crosscoders import Crosscoder

DRAWS = 8  # random pairings
LEVEL = 0.01  # of chance


class SharesFromOthers(NamedTuple):
    """How strong latents are on a side when the code reads the other sides alone.

    values: by side and latent; NaN where it is never active. drawn: the same in random pairings, where the code reads
    rows of other documents, draw by draw."""

    values: Float[np.ndarray, "s m"]
    drawn: Float[np.ndarray, "k s m"]

    def find_median(self, latents: Bool[np.ndarray, " m"]) -> tuple[float, float] | None:
        """Finds the median over some latents and all sides, and up to where chance brings it."""
        if not np.isfinite(self.values[:, latents]).any():
            return None
        drawn = [float(np.nanmedian(each[:, latents])) for each in self.drawn]
        reach = stdtrit(len(drawn) - 1, 1 - LEVEL) * np.std(drawn, ddof=1) * np.sqrt(1 + 1 / len(drawn))
        return float(np.nanmedian(self.values[:, latents])), float(np.mean(drawn) + reach)


def compute_shares_from_others(
    crosscoder: Crosscoder,
    rows: Sequence[Float[Tensor, "n d"]],
    documents: Int[np.ndarray, " n"],
    seed: int,
    size: int,
) -> SharesFromOthers:
    """Computes, by side and latent, how strong the latent is in the rows of the side when the code reads the other
    sides alone, as a share of its strength when the code reads all sides. 0 is its mean strength in DRAWS random
    pairings, when the code reads rows of other documents: of the side itself not those of the other sides, as where it
    reads the others alone, since which latents are active together is part of their strength.

    The strength is the coefficient, by least squares, of the latent's code times its direction on the side, in the
    rows of the side less what all other latents give.

    rows: of every side, paired.
    documents: of the rows, which trade places as wholes.
    size: how many rows are read at a time.
    """
    paired = torch.arange(len(documents))
    orders = [torch.from_numpy(order) for order in draw_document_orders(documents, DRAWS, seed)]
    values, drawn = [], []
    for side, own in enumerate(rows):

        def measure(of_others: Tensor, of_own: Tensor, side: int = side, own: Tensor = own) -> Float[Tensor, " m"]:
            read = [(x, of_own if at == side else of_others) for at, x in enumerate(rows)]
            return _measure_strengths(crosscoder, side, own, read, size)

        every, others = measure(paired, paired), measure(paired, orders[0])
        neither = torch.stack([measure(*two) for two in zip(orders, [*orders[1:], orders[0]], strict=True)])
        middle = neither.mean(0)
        values.append((others - middle) / (every - middle))
        drawn.append((neither - middle) / (every - middle))
    found = SharesFromOthers(torch.stack(values).numpy(), torch.stack(drawn, 1).numpy())
    return SharesFromOthers(*(np.where(np.isfinite(each), each, np.nan) for each in found))


def _measure_strengths(
    crosscoder: Crosscoder,
    side: int,
    own: Float[Tensor, "n d"],
    read: Sequence[tuple[Float[Tensor, "n d"], Int[Tensor, " n"]]],
    size: int,
) -> Float[Tensor, " m"]:
    """Measures the strength of each latent on a side, as `compute_shares_from_others` defines it.

    read: the rows of every side, and in which order the code reads them beside those of `own`."""
    direction = crosscoder.decoder[side]
    along, energy = torch.zeros(2, crosscoder.width, dtype=torch.float64)
    for start in range(0, len(own), size):
        some = slice(start, start + size)
        code = crosscoder.encode([x[order[some]] for x, order in read])
        left = own[some] - (code @ direction + crosscoder.bias[side])
        along += (code * (left @ direction.T)).double().sum(0)
        energy += code.double().square().sum(0)
    return along / (energy * direction.double().square().sum(1)) + 1
