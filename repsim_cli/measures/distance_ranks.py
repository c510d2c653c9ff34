"""Ranks of the distances between rows: ties within rounding, and of very many cells by bins."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.measures.features import PreparedFeatures

_EXACT_RANKS = 1 << 16  # more cells than this are ranked by bins in float32
_TIE = {torch.float64: 1e-12, torch.float32: 1e-6}  # distances this close are equal up to the rounding of arithmetic
_TAIL = 0.025  # share of cells at either end that is ranked exactly
_BINS = 1 << 16
_FEW_TIES = 8  # stretches of bins that may hold ties, of more all cells are ranked exactly
_HEAVY = 2e-3  # share of cells in a bin from which they may be ties that matter, and are ranked exactly


def rank_distances(cells: Float[Tensor, " cells"], blur: float = 0.0) -> PreparedFeatures:
    """Centred mid-ranks of unit variance, of distances between rows whose root mean squared norm is 1.

    blur: the distance by which the rounding of the stored rows may move a cell.

    Distances that differ by rounding alone tie. More than 2^16 float32 cells are sorted into 2^16 bins, whose members
    tie too, and ranked exactly in the outer 2.5 % at either end, where a few far rows would make the bins too wide, and
    where many cells share a bin, whose edge could divide a tie. This changes a rank correlation by less than 1e-6.
    """
    tie = max(_TIE[cells.dtype], blur)
    fine = max(_TIE[cells.dtype], min(blur, _TIE[torch.float32]))
    low, high = 0.0, 0.0
    if len(cells) > _EXACT_RANKS and cells.dtype == torch.float32:
        # numpy partitions, torch would sort
        low, high = np.quantile(cells[:: len(cells) // 10_000].cpu().numpy(), [_TAIL, 1 - _TAIL]).tolist()
    width = (high - low) / (_BINS - 1)
    if width <= tie:
        ranked = rank_exactly(cells, tie, fine)
    else:
        bins = cells.sub(low).mul_(1 / width).clamp_(0, _BINS - 1).int()
        counts = torch.bincount(bins, minlength=_BINS)
        before = counts.cumsum(0) - counts
        # the outer bins are, too; a tie may end in the next bin
        heavy = torch.nn.functional.max_pool1d((counts > _HEAVY * len(cells)).double()[None], 3, 1, 1)[0].cpu().numpy()
        edges = np.diff(heavy, prepend=0, append=0).nonzero()[0].reshape(-1, 2).tolist()
        if len(edges) > _FEW_TIES:
            return standardise_ranks(rank_exactly(cells, tie, fine), cells.dtype)
        ranked = (before + (counts.double() + 1) / 2).index_select(0, bins)
        for start, stop in edges:
            some = ((bins >= start).logical_and_(bins < stop) if start else bins < stop).nonzero()[:, 0]
            ranked[some] = int(before[start]) + rank_exactly(cells[some], tie, fine)
    return standardise_ranks(ranked, cells.dtype)


def standardise_ranks(ranked: Float[Tensor, " cells"], dtype: torch.dtype) -> PreparedFeatures:
    """Centres the ranks and scales them to unit variance. Raises Degenerate where all are equal."""
    ranked = ranked - (len(ranked) + 1) / 2
    deviation = float(torch.linalg.vector_norm(ranked)) / len(ranked) ** 0.5
    if deviation == 0:
        raise Degenerate("all distances between rows are equal, got one value; there is nothing to rank")
    return PreparedFeatures((ranked / deviation).to(dtype))


def rank_exactly(cells: Float[Tensor, " cells"], tie: float, fine: float) -> Float[Tensor, " cells"]:
    """Mid-ranks from 1, float64. A run of cells, each within `tie` of the next, is one tie if the whole of it is no
    wider; in a wider run, where cells lie close everywhere, only those within a step of `fine` are tied."""
    values = cells.cpu().numpy()
    order = values.argsort()
    values = values[order]
    first = np.concatenate([[True], np.diff(values) > tie])
    starts, run = first.nonzero()[0], first.cumsum() - 1
    lowest, highest = values[starts], values[np.append(starts[1:], len(values)) - 1]
    step = np.where((highest - lowest > tie)[run], np.floor((values - lowest[run]) / fine), 0)
    starts = np.append((first | np.concatenate([[False], np.diff(step) != 0])).nonzero()[0], len(values))
    ranked = np.empty(len(values))
    ranked[order] = np.repeat((starts[:-1] + starts[1:] + 1) / 2, np.diff(starts))
    return torch.from_numpy(ranked).to(cells.device)
