"""Which neurons and which directions of a representation count: one rule for all measures that leave any out.

Numbers stored with relative precision eps are off by up to eps / 2 of themselves. Divide each of the d neurons by its
norm over the rows, offset included: then the errors of all neurons have the same bound, and together they move no
singular value of the centred neurons by more than eps / 2 sqrt(d) (Weyl's inequality). Up to twice that, eps sqrt(d),
is rounding: a neuron of such a norm is dead, a direction of such a singular value does not count. The rule depends
neither on the units of a neuron nor on the number of rows.

eps is float32's (1.2e-7) for rows that were stored in float32 or less, also where they are float64 now; else 1e-13,
for what rounding in float64 leaves of a constant. Half precision counts as float32: its rounding is as large as small
directions of the signal, so that no floor parts them.

A layer after a LayerNorm needs it: its neurons, over the weights, sum to zero, and float32 leaves 1e-7 there.
"""

import math
import warnings

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from repsim_cli.errors import Degenerate
from repsim_cli.measures.base import MeasureWarning

SINGLE = torch.finfo(torch.float32).eps
DOUBLE = 1e-13


def of_single(x: Float[Tensor, "n d"]) -> Bool[Tensor, " d"]:
    """Which neurons hold float32 numbers alone."""
    return (x == x.float()).all(0) if x.dtype == torch.float64 else x.new_ones(x.shape[1], dtype=torch.bool)


def stored(single: Bool[Tensor, " d"]) -> float:
    """The precision that a layer was stored in: float32's where at least half of its neurons hold float32 numbers
    alone, so that neither the type it is read as nor the units of one neuron decide."""
    return SINGLE if 2 * int(single.sum()) >= len(single) else DOUBLE


def floor(d: int, eps: float) -> float:
    """The largest singular value that is rounding, of d neurons of norm 1.

    >>> round(floor(384, SINGLE) * 1e6, 2)
    2.34
    """
    return eps * math.sqrt(d)


def varying(lengths: Float[Tensor, " d"], sizes: Float[Tensor, " d"], eps: float) -> Bool[Tensor, " d"]:
    """Which neurons are not dead, from their norms when centred and as stored; it warns of those that are.

    Raises Degenerate where no neuron is left.
    """
    alive = lengths > floor(len(sizes), eps) * sizes
    dead = int((~alive).sum())
    if dead == len(alive):
        raise Degenerate("all rows are equal, got a constant representation; drop this layer or change the data")
    if dead:
        warnings.warn(
            f"dead neurons were dropped, got {dead} of {len(alive)} without variance", MeasureWarning, stacklevel=3
        )
    return alive
