"""Which neurons and directions of a representation count: the rule of all measures that leave some out.

Numbers stored with relative precision eps have a relative error of up to eps / 2. Divide each of the d neurons by its
norm over the rows, offset included. Then the errors of all neurons have the same bound, and together they change no
singular value of the centred neurons by more than eps / 2 sqrt(d) (Weyl's inequality). Up to twice that, eps sqrt(d),
counts as rounding: a neuron of such a norm is dead, a direction of such a singular value does not count. The rule
depends neither on the units of a neuron nor on the number of rows.

eps is that of float32 (1.2e-7) for rows stored in float32 or less, even if they are float64 now; otherwise 1e-13, the
float64 rounding of a constant. Half precision is treated as float32: its rounding is as large as small directions of
the signal, and no threshold separates the two.

Layers after a LayerNorm need the rule: their neurons, over the weights, sum to zero, and float32 leaves 1e-7 instead.
"""

import math
import warnings

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.measures.base import MeasureWarning

SINGLE = torch.finfo(torch.float32).eps
DOUBLE = 1e-13


def mark_single_precision(x: Float[Tensor, "n d"]) -> Bool[Tensor, " d"]:
    """Marks the neurons that consist of float32 numbers."""
    return (x == x.float()).all(0) if x.dtype == torch.float64 else x.new_ones(x.shape[1], dtype=torch.bool)


def find_stored_precision(single: Bool[Tensor, " d"]) -> float:
    """The precision in which a layer was stored: that of float32 if at least half of its neurons consist of float32
    numbers, so that neither its current type nor the units of a single neuron decide."""
    return SINGLE if 2 * int(single.sum()) >= len(single) else DOUBLE


def find_relative_precision(x: Float[Tensor, "n d"]) -> float:
    """Finds the relative precision of the numbers, whatever their type is now: that of bfloat16 or float16 where these
    hold all of them, of float32 by the rule above, else of float64.

    Numbers on a grid, as whole ones are, are not rounded ones: they count as float32.
    """
    if x.dtype == torch.float64 and find_stored_precision(mark_single_precision(x)) != SINGLE:
        return torch.finfo(x.dtype).eps
    halves = (
        dtype for dtype in (torch.bfloat16, torch.float16) if all(_is_rounded(part, dtype) for part in (x[:8], x))
    )
    return next((torch.finfo(dtype).eps for dtype in halves if not _is_on_grid(x, dtype)), SINGLE)


def _is_rounded(x: Tensor, dtype: torch.dtype) -> bool:
    return torch.equal(x.to(dtype).to(x.dtype), x)


def _is_on_grid(x: Tensor, dtype: torch.dtype) -> bool:
    """Tells whether all numbers are multiples of the last digit of the largest."""
    digit = torch.finfo(dtype).eps / 2 * 2.0 ** int(torch.frexp(x.abs().max().double()).exponent)
    return bool((x.double().remainder(digit) == 0).all())


def compute_rank_tolerance(d: int, eps: float) -> float:
    """The largest singular value of d neurons of norm 1 that counts as rounding.

    >>> round(compute_rank_tolerance(384, SINGLE) * 1e6, 2)
    2.34
    """
    return eps * math.sqrt(d)


def find_varying(lengths: Float[Tensor, " d"], sizes: Float[Tensor, " d"], eps: float) -> Bool[Tensor, " d"]:
    """Marks the neurons that are not dead, by their norms when centred and as stored. Warns of dead neurons.

    Raises Degenerate where no neuron is left.
    """
    alive = lengths > compute_rank_tolerance(len(sizes), eps) * sizes
    dead = int((~alive).sum())
    if dead == len(alive):
        raise Degenerate("all rows are equal, got a constant representation; drop this layer or change the data")
    if dead:
        warnings.warn(
            f"dead neurons were dropped, got {dead} of {len(alive)} without variance", MeasureWarning, stacklevel=3
        )
    return alive
