"""Numbers of one layer: of rows of different texts, and of the path that the tokens of a text take."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import root_scalar
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.studies.layers.columns import GROUPS

BLOCK = 512  # rows whose distances to all others are held at a time
DISTINCT = 0.9  # of the rows, which must have neighbours at a distance
FLAT = 1e-12  # of the largest squared distance, below which two rows are equal


class LayerEstimate(NamedTuple):
    """parts: how far the value goes with each document, or group of them; their squares add up to that of the standard
    error. Empty where that is not known."""

    value: float
    parts: Float[np.ndarray, " m"]

    @property
    def se(self) -> float:
        """Computes the standard error; NaN where it is not known."""
        return float(np.linalg.norm(self.parts)) if len(self.parts) else math.nan


def compare_with_best(estimates: Sequence[LayerEstimate], highest: bool) -> list[float]:
    """Computes the standard error of what parts each estimate from the highest of them, or the lowest, all on the same
    documents: what these do to both alike does not count. NaN where it is not known.

    >>> estimates = [LayerEstimate(1.0, np.array([0.3, 0.4])), LayerEstimate(2.0, np.array([0.3, 0.1]))]
    >>> [round(error, 3) for error in compare_with_best(estimates, highest=True)]
    [0.3, 0.0]
    """
    values = [each.value for each in estimates]
    if np.isnan(values).all():
        return [math.nan] * len(values)
    best = estimates[int((np.nanargmax if highest else np.nanargmin)(values))]
    return [
        LayerEstimate(0.0, each.parts - best.parts).se if len(each.parts) == len(best.parts) else math.nan
        for each in estimates
    ]


UNKNOWN = LayerEstimate(math.nan, np.zeros(0))


class NearestDistances(NamedTuple):
    """Lists the nearest rows of every row, nearest first."""

    rows: Int[Tensor, "n m"]
    values: Float[Tensor, "n m"]


def find_nearest_distances(x: Float[Tensor, "n d"], count: int) -> NearestDistances:
    """Finds the nearest rows of every row, and how far they are, float64."""
    x = x.double()
    x = x - x.mean(0)
    squares, rows, values = x.square().sum(1), [], []
    for start in range(0, len(x), BLOCK):
        some = slice(start, start + BLOCK)
        apart = (squares[some, None] + squares - 2 * x[some] @ x.T).clamp_min(0)
        apart[torch.arange(len(apart)), torch.arange(start, start + len(apart))] = torch.inf
        found = apart.topk(count, dim=1, largest=False)
        rows.append(found.indices)
        values.append(found.values)
    squared = torch.cat(values)
    return NearestDistances(torch.cat(rows), torch.where(squared > FLAT * 4 * squares.max(), squared, 0.0).sqrt())


def estimate_intrinsic_dimension(near: NearestDistances, k: int, texts: Int[np.ndarray, " n"]) -> LayerEstimate:
    """Estimates the intrinsic dimension at the scale of k neighbours: the most likely one by the ratios of the
    distances to neighbour 2k and neighbour k (Gride, Denti et al. 2022); TwoNN (Facco et al. 2017) where k is 1.

    near: more than 2k neighbours, some of which are of texts that are left out. texts: of every row, its text, by which
    the jackknife leaves rows out, in `GROUPS` groups. Its square is above the variance on average (Efron and Stein
    1981), so that the error is on the safe side. Groups are stretches of texts, which may be alike.

    Raises Degenerate where a tenth of the rows have k neighbours at no distance, as of repeated tokens in embeddings.
    """
    place = np.unique(texts, return_inverse=True)[1]
    group = torch.from_numpy(place * min(GROUPS, place.max() + 1) // (place.max() + 1))
    value = _estimate_dimension(near, k, torch.ones_like(group, dtype=torch.bool))
    parts = np.array([_estimate_dimension(near, k, group != left) for left in range(int(group.max()) + 1)])
    scale = math.sqrt((len(parts) - 1) / len(parts))
    return LayerEstimate(value, scale * (parts - parts.mean()) if len(parts) > 1 else parts[:0])


def _estimate_dimension(near: NearestDistances, k: int, kept: Tensor) -> float:
    """Estimates the dimension of the rows that are kept, among themselves."""
    here = kept[near.rows[kept]]
    place = here.cumsum(1)
    values = near.values[kept]
    first, second = (torch.where(here & (place == count), values, 0.0).sum(1) for count in (k, 2 * k))
    known = (first > 0) & (place[:, -1] >= 2 * k)
    if int(known.sum()) < DISTINCT * len(known):
        raise Degenerate(
            f"no intrinsic dimension, got {int((~known).sum())} of {len(known)} rows that are equal to others"
        )
    logs = (second[known] / first[known]).log().numpy()
    if not logs.sum() > 0:
        raise Degenerate("no intrinsic dimension, got neighbours that are all equally far")
    if k == 1:
        return (len(logs) - 1) / float(logs.sum())

    def slope(d: float) -> float:
        return len(logs) / d + (k - 1) * float((logs / -np.expm1(-d * logs)).sum()) - (2 * k - 1) * float(logs.sum())

    logs = logs[logs > 0]
    high = 1.0
    while slope(high) > 0:
        high *= 2
    return float(root_scalar(slope, bracket=(1e-6, high)).root)


def effective_rank(x: Float[Tensor, "n d"]) -> float:
    """Computes exp of the entropy of the shares of variance along the principal directions (Roy and Vetterli 2007):
    from 1 to min(n - 1, d). Raises Degenerate for equal rows."""
    x = x.double()
    x = x - x.mean(0)
    variances = torch.linalg.svdvals(x).square()
    if not variances.sum() > 0:
        raise Degenerate("no effective rank, got equal rows")
    return math.exp(float(torch.special.entr(variances / variances.sum()).sum()))


def compute_prompt_entropies(texts: Float[Tensor, "s t d"]) -> Float[Tensor, " s"]:
    """Computes for each text the entropy of the shares of its tokens' (t, t) products along their principal
    directions, over log min(t, d), so that 1 says that all directions count alike (Skean et al. 2025, prompt entropy);
    NaN for zeros."""
    rows = texts.double()
    shares = torch.linalg.eigvalsh(rows @ rows.mT).clamp_min(0)
    return torch.special.entr(shares / shares.sum(1, keepdim=True)).sum(1) / math.log(min(texts.shape[1:]))


def compute_curvatures(texts: Float[Tensor, "s t d"]) -> Float[Tensor, " s"]:
    """Computes for each text the mean angle in degrees between a step from token to token and the next step (Hosseini
    and Fedorenko 2023): 0 for a straight line, 120 on average for independent rows; NaN where two tokens are equal."""
    steps = texts.double().diff(dim=1)
    steps = steps / steps.norm(dim=2, keepdim=True)
    cosines = (steps[:, 1:] * steps[:, :-1]).sum(2).clamp(-1, 1)
    return torch.rad2deg(cosines.arccos()).mean(1)


def compute_block_influences(before: Float[Tensor, "n d"], after: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """Computes 1 - cosine of what enters a block and what leaves it (Men et al. 2024): 0 where no direction changes."""
    return 1 - torch.nn.functional.cosine_similarity(before.double(), after.double(), dim=1)


def mean_cosine(sums: Float[Tensor, "s d"], counts: Float[Tensor, " s"]) -> float:
    """Computes the mean cosine of two rows of different texts (Ethayarajh 2019): 0 where rows point everywhere.

    sums: of the rows of each text at norm 1. counts: of these rows.
    """
    pairs = counts.sum() ** 2 - counts.square().sum()
    return float((sums.sum(0).square().sum() - sums.square().sum()) / pairs)


def average_over_documents(values: Float[np.ndarray, " s"], documents: Int[np.ndarray, " s"]) -> LayerEstimate:
    """Computes the mean over documents of their texts' means. Documents without a value do nothing to it."""
    known, place = ~np.isnan(values), np.unique(documents, return_inverse=True)[1]
    counts = np.bincount(place[known], minlength=place.max(initial=-1) + 1)
    there, m = counts > 0, int((counts > 0).sum())
    if not m:
        return UNKNOWN
    means = np.bincount(place[known], values[known], len(counts))[there] / counts[there]
    parts = np.zeros(len(counts) if m > 1 else 0)
    if m > 1:
        parts[there] = (means - means.mean()) / math.sqrt(m * (m - 1))
    return LayerEstimate(float(means.mean()), parts)


def compute_same_class_shares(
    near: NearestDistances, k: int, classes: Int[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " n"], float]:
    """Counts for each row the share of its k nearest rows that are of its own class; and what random rows give."""
    codes = torch.from_numpy(classes)
    shares = (codes[near.rows[:, :k]] == codes[:, None]).double().mean(1)
    sizes = np.bincount(classes)[classes]
    return shares.numpy(), float(((sizes - 1) / (len(classes) - 1)).mean())
