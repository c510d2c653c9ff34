"""Rows as the scores of the platonic representation hypothesis take them (Huh et al. 2024), which are not centred."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.measures.cards import Invariance
from repsim_cli.measures.centring import centre, centre_rows, choose_power_of_two
from repsim_cli.measures.features import CentredRows

Rows = Literal["centred", "platonic"]
QUANTILE = 0.95
# what a measure of such rows sees although its card says that it ignores it: an offset, and features by the clamp
SEEN: dict[str, frozenset[Invariance]] = {
    "centred": frozenset(),
    "platonic": frozenset({"translation", "orthogonal"}),
}


def clamp_units(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """The values of a layer clamped at the 0.95 quantile of their absolute values, then rows of norm 1, float64. Raises
    Degenerate for a constant representation, and where the quantile is 0."""
    centre(x)
    x = x.double()
    x = x / choose_power_of_two(x)
    limit = float(x.abs().flatten().kthvalue(int(QUANTILE * x.numel()) + 1).values)
    if not limit:
        raise Degenerate(f"{100 * QUANTILE:.0f} % of the values are 0, got a limit of 0; set rows=centred")
    x = x.clamp(-limit, limit)
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    # + 0.0 removes negative zeros, so that equal rows have equal bits
    return torch.where(norms > 0, x / norms.clamp_min(torch.finfo(x.dtype).tiny), 0.0) + 0.0


def centre_clamped(x: Float[Tensor, "n d"]) -> CentredRows:
    """Features for kernels, which centre what was clamped."""
    return centre_rows(clamp_units(x).to(torch.promote_types(x.dtype, torch.float32)))


FEATURES = {"centred": centre_rows, "platonic": centre_clamped}
