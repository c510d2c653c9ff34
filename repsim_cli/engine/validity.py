"""Checks whether documents can be exchanged at all, by the means of those that trade places.

A permutation test of documents takes them as independent draws. Where those that follow each other are alike, where
some stand twice, or where their length or label shows in them, on both sides of a comparison, unrelated models look
related.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

ORDERS = 40  # of the documents, with which what was found is compared
CERTAIN = 4.0  # standard deviations from the mean of these
SHARES = {"serial": 0.1, "label": 0.05, "length": 0.05}  # of the variance between documents, from which it matters
EQUAL = 1e-9  # squared distance of the means of two documents, relative to their variance
MOST = 2048  # documents that are looked through for copies
REASONS = {
    "serial": "documents that follow each other are alike; set significance.order=shifts, or give a column that they "
    "share as significance.clusters",
    "twice": "some documents stand twice; drop the copies",
    "label": "documents of one label are alike; set significance.within=label",
    "length": "documents of one length are alike; take documents of one length, or pool them (extract=pooled)",
}
TOO_ALIKE = "documents that follow each other are too alike for shifts of so few; give more documents"
UNPAIRED = (
    "no pairing of the rows that was drawn changes a value, so that random ones are no null; of a measure of another "
    "package say paired=False, and drop significance"
)
FOUND = (*REASONS, "lags")
LEAST = 25  # documents that shifts need, if those that are alike count as one

Group = Int[np.ndarray, "k l"]


def measure_dependence(
    x: Float[Tensor, "n d"], groups: Sequence[Group], properties: Mapping[str, Sequence[np.ndarray]], seed: int
) -> Float[Tensor, "found 3"]:
    """Measures, by FOUND, how much of the variance between documents it explains beyond chance, the variance of that by
    chance, and the variance between documents; of copies, how many pairs there are; of lags, the sum of the squared
    correlations of documents so far from each other.

    groups: the rows of each segment, as numbers in x. properties: by name, for each group, a number per segment.
    """
    rng = np.random.default_rng(seed)
    found = torch.zeros(len(FOUND), 3, dtype=torch.float64)
    for number, group in enumerate(groups):
        k, length = group.shape
        if k < 3:
            continue
        means = x[torch.from_numpy(group.ravel()).to(x.device)].double().view(k, length, -1).mean(1)
        means -= means.mean(0)
        variance = means.square().sum()
        if not variance > 0:  # a constant layer says nothing
            continue
        orders = [torch.arange(k), *(torch.from_numpy(rng.permutation(k)) for _ in range(ORDERS))]
        sums = {"serial": torch.stack([(means[o[:-1]] * means[o[1:]]).sum() for o in orders])}
        for name, of_groups in properties.items():
            coded = _encode(of_groups[number], name).to(means)
            sums[name] = torch.stack([(coded[order].T @ means).square().sum() for order in orders])
        for name, (observed, *others) in sums.items():
            by_chance = torch.stack(others)
            beyond = torch.stack([observed - by_chance.mean(), by_chance.var(), variance])
            found[FOUND.index(name)] += beyond.cpu()
        found[FOUND.index("twice"), 0] += _count_equal_means(means[:MOST], variance / k)
        found[FOUND.index("lags"), 0] = max(
            float(found[FOUND.index("lags"), 0]), float(find_range(means).square().sum())
        )
    return found


def find_range(means: Float[Tensor, "k d"]) -> Float[Tensor, " l"]:
    """Finds how alike documents are that are 1, 2, ... apart, up to a quarter of their number; 0 where they are not.

    Centred on their own mean, documents that stay alike for long seem less alike, by what those further apart fall
    below zero: it is added again.
    """
    k = len(means)
    spectrum = torch.fft.rfft(means, n=2 * k, dim=0).abs().square().sum(1)
    apart = torch.fft.irfft(spectrum, n=2 * k)[: k // 2 + 1] / torch.arange(k, k - k // 2 - 1, -1).to(means)
    beyond = apart[k // 4 + 1 :]
    apart = apart - (beyond.mean().clamp_max(0) if len(beyond) else 0)
    return apart[1 : k // 4 + 1].clamp_min(0) / apart[0]


def _count_equal_means(means: Float[Tensor, "k d"], variance: Tensor) -> float:
    """Counts the pairs of documents that have the same mean."""
    squares = means.square().sum(1)
    apart = squares[:, None] + squares - 2 * means @ means.T
    return float((apart.triu(1) + torch.ones_like(apart).tril() * variance <= EQUAL * variance).sum())


def _encode(values: np.ndarray, name: str) -> Float[Tensor, "k c"]:
    """Makes orthogonal columns that span what the property can explain."""
    if name == "label":
        columns = (values[:, None] == np.unique(values)).astype(float)
        columns /= np.sqrt(columns.sum(0))
    else:
        columns = np.argsort(np.argsort(values, kind="stable"), kind="stable")[:, None].astype(float)
        columns -= columns.mean(0)
        columns /= max(float(np.linalg.norm(columns)), 1e-12)
    return torch.from_numpy(columns)


def explain_invalid_null(
    found: Float[Tensor, "r found 3"], batches: int, places: Sequence[slice], order: str, documents: float
) -> list[str]:
    """Says why the null does not hold: by what two models have, or the only one.

    found: means over batches, by representation. documents: of a batch.

    A null holds where one side alone depends on it. Shifts keep that neighbours are alike, if enough documents are left
    that are not.
    """
    beyond, variance, whole = found.unbind(2)
    certain = beyond * batches**0.5 > CERTAIN * variance.sqrt()
    shares = beyond / whole.clamp_min(1e-300)
    least = torch.tensor([SHARES.get(name, 0.0) for name in FOUND])
    fault = torch.where(torch.tensor([name in SHARES for name in FOUND]), certain & (shares > least), beyond > 0)
    fault[:, FOUND.index("lags")] = False
    if order == "shifts":
        fault[:, FOUND.index("serial")] = documents / (1 + 2 * beyond[:, FOUND.index("lags")]) < LEAST
    models = torch.stack([fault[place].any(0) for place in places]).sum(0)
    needed = min(2, len(places))
    names = [name for name, count in zip(FOUND, models.tolist(), strict=True) if count >= needed]
    return [TOO_ALIKE if name == "serial" and order == "shifts" else REASONS[name] for name in names]


def is_unmoved(observed: Float[Tensor, "r c"], drawn: Float[Tensor, "k r c"]) -> bool:
    """Tells whether the values under all pairings that were drawn are those that were observed, to the rounding of
    sums of float32 in another order."""
    known = observed.isfinite() & drawn.isfinite().all(0)
    if not known.any():
        return False
    moved, largest = (drawn - observed).abs().amax(0)[known].max(), observed[known].abs().max()
    return bool(largest > 0 and moved <= 1e-5 * largest)
