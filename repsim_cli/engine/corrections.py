"""p values corrected for the cells of a map: family-wise, and as the false discovery rate."""

import itertools
from collections.abc import Sequence

import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.measures import Card
from repsim_cli.measures.inner import (
    Matrix,
)


def corrected(
    p: Matrix, tested: Matrix, null: Float[Tensor, "k r r"] | None, card: Card, places: Sequence[slice]
) -> tuple[Matrix, Matrix]:
    """p corrected for the cells of a map, that is, of the layers of two models: family-wise, and as the false discovery
    rate at which a cell is counted as a discovery (Benjamini and Hochberg 1995).

    null: for the step-down max-T; without it, Holm's correction. Each pair of layers counts once, and a layer with
    itself, which is no test, keeps its p.
    """
    family, rate = p.clone(), p.clone()
    sign = 1 if card.larger_is_closer else -1
    for (i, row), (j, column) in itertools.product(enumerate(places), repeat=2):
        if card.symmetric and j < i:
            continue
        cells = tested[row, column].isfinite().cpu()
        if i == j:
            cells &= ~torch.eye(len(cells), dtype=torch.bool)
            cells = cells.triu() if card.symmetric else cells
        if not cells.any():
            continue
        raw = p[row, column][cells]
        rate[row, column][cells] = torch.from_numpy(scipy.stats.false_discovery_control(raw.numpy()))
        if null is None:
            family[row, column][cells] = holm_adjusted(raw)
        else:
            family[row, column][cells] = max_t(sign * tested[row, column][cells], sign * null[:, row, column][:, cells])
    if card.symmetric:
        upper = torch.ones_like(p, dtype=torch.bool).triu()
        family, rate = (torch.where(upper, half, half.mT) for half in (family, rate))
    return family, rate


def holm_adjusted(p: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """Holm's (1979) step-down correction, valid under any dependence.

    >>> holm_adjusted(torch.tensor([0.03, 0.01, 0.02]))
    tensor([0.0400, 0.0300, 0.0400])
    """
    order = p.argsort(stable=True)
    left = torch.arange(len(p), 0, -1)
    adjusted = torch.empty_like(p)
    adjusted[order] = (left * p[order]).cummax(0).values.clamp_max(1)
    return adjusted


def max_t(observed: Float[Tensor, " m"], null: Float[Tensor, "k m"]) -> Float[Tensor, " m"]:
    """p values of m cells corrected for each other: step-down max-T from the joint null (Westfall and Young 1993,
    algorithm 4.1). Larger is closer.

    Each cell is standardised by the mean and the deviation of its values, observed and drawn together, so that cells
    with a wide null do not decide alone. A cell is compared with the largest of the cells that are no closer than it.
    """
    both = torch.cat([observed[None], null])
    both = both - both.mean(0)
    both /= both.square().mean(0).sqrt().clamp_min(torch.finfo(both.dtype).tiny)
    order = both[0].argsort(descending=True, stable=True)
    ordered = both[:, order]
    largest = ordered[1:].flip(1).cummax(1).values.flip(1)
    counts = (largest >= ordered[0] - 1e-9).sum(0)  # equal values may differ by rounding
    adjusted = torch.empty_like(observed)
    adjusted[order] = ((1 + counts).to(observed.dtype) / (1 + len(null))).cummax(0).values
    return adjusted
