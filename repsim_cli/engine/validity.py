"""Checks whether documents can be exchanged at all, by the means of those that trade places.

A permutation test of documents takes them as independent draws. Where those that follow each other are alike, where
some stand twice, or where their length or label shows in them, on both sides of a comparison, unrelated models look
related.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.engine.estimates import Beside, Key

ORDERS = 40  # of the documents, with which what was found is compared
GLANCES, LOOKED, BATCHES = 10, 1024, 2  # the same, rows and batches, where nothing is tested and each row is a unit
CERTAIN = 4.0  # standard deviations from the mean of these
SHARES = {"serial": 0.1, "label": 0.05, "length": 0.05}  # of the variance between documents, from which it matters
EQUAL = 1e-9  # squared distance of the means of two documents, relative to their variance
MOST = 2048  # documents that are looked through for copies
STEPS = 4.0  # over the root of the documents, above 1: relative variance of differences where likeness ends at borders
COPIED = 0.05  # of the rows: copies that matter where nothing is tested
REASONS = {
    "serial": "{} that follow each other are alike; ",
    "twice": "some {} stand twice; drop the copies",
    "label": "{} of one label are alike; set significance.within=label",
    "length": "{} of one length are alike; take documents of one length, or pool them (extract=pooled)",
    "steps": "{} are alike in blocks, whose borders both sides share and shifts tear; ",
}
SHIFT = "set significance.order=shifts, or give a column that they share as significance.clusters"
CLUSTER = "give a column that those of a block share as significance.clusters"
TELL = (
    "give the documents that they are of: `documents` in a file of stored rows and significance.clusters=document, or "
    "a column of the texts as significance.clusters"
)
TOO_ALIKE = "{} that follow each other are too alike for shifts of so few; give more"
UNPAIRED = (
    "no pairing of the rows that was drawn changes a value, so that random ones are not a null; for a measure of "
    "another package say paired=False, and drop significance"
)
FOUND = (*REASONS, "lags")
LEAST = 25  # documents that shifts need, if those that are alike count as one

Group = Int[np.ndarray, "_ _"]


def measure_dependence(
    x: Float[Tensor, "n d"],
    groups: Sequence[Group],
    properties: Mapping[str, Sequence[np.ndarray]],
    seed: int,
    *,
    count: int = ORDERS,
) -> Float[Tensor, "found 3"]:
    """Measures, by FOUND, how much of the variance between documents it explains beyond chance, the variance of that by
    chance, and the variance between documents; of copies, how many pairs there are; of lags, the sum of the squared
    correlations of documents so far from each other; of steps, what `compare_neighbours` gives.

    groups: the rows of each segment, as numbers in x. properties: by name, for each group, a number per segment.
    count: random orders with which it is compared.
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
        orders = [torch.arange(k), *(torch.from_numpy(rng.permutation(k)) for _ in range(count))]
        sums = {"serial": torch.stack([(means[o[:-1]] * means[o[1:]]).sum() for o in orders])}
        for name, of_groups in properties.items():
            coded = _encode(of_groups[number], name).to(means)
            sums[name] = torch.stack([(coded[order].T @ means).square().sum() for order in orders])
        for name, (observed, *others) in sums.items():
            by_chance = torch.stack(others)
            beyond = torch.stack([observed - by_chance.mean(), by_chance.var(), variance])
            found[FOUND.index(name)] += beyond.cpu()
        found[FOUND.index("twice"), 0] += _count_equal_means(means[:MOST], variance / k)
        for name, value in (
            ("lags", float(find_range(means).square().sum())),
            ("steps", compare_neighbours(means)),
        ):
            found[FOUND.index(name), 0] = max(float(found[FOUND.index(name), 0]), value)
    return found


def compare_neighbours(means: Float[Tensor, "k d"]) -> float:
    """Compares the relative variance of the squared differences of neighbours with that of documents far apart.

    It is 1 where likeness fades, as of a series, and more where it ends at borders, over which neighbours differ by far
    more.
    """
    k = len(means)
    far = [lag for lag in (k // 4, k // 3, k // 2 - 1) if lag > 1]
    if not far:
        return 1.0
    near, apart = (torch.cat([(means[lag:] - means[:-lag]).square().sum(1) for lag in lags]) for lags in ((1,), far))
    relative = [float(each.var() / each.mean().square().clamp_min(1e-300)) for each in (near, apart)]
    return relative[0] / max(relative[1], 1e-12)


def find_range(means: Float[Tensor, "k d"]) -> Float[Tensor, " l"]:
    """Computes the autocorrelation of the means of documents at lags of 1, 2, ... up to a quarter of their number; 0
    where it is negative.

    Centring on the mean of all documents lowers the autocorrelation of documents that stay alike over long lags, by the
    amount by which it falls below 0 at longer lags: this is added back.
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
    found: Float[Tensor, "r found 3"],
    batches: int,
    places: Sequence[slice],
    *,
    documents: float,
    shifted: bool = False,
    by_row: bool = False,
    copies: float = 0.0,
) -> list[str]:
    """Says why the null does not hold: by what two models have, or the only one.

    found: means over batches, by representation. documents: of a batch. shifted: whether they move on together. by_row:
    whether each row is one. copies: the largest number of equal pairs that does not matter.

    A null holds where one side alone depends on it. Shifts keep that neighbours are alike, if enough documents are left
    that are not, and if likeness fades with the distance; blocks with borders stand on each other unless shifted.
    """
    beyond, variance, whole = found.unbind(2)
    certain = beyond * batches**0.5 > CERTAIN * variance.sqrt()
    shares = beyond / whole.clamp_min(1e-300)
    at = {name: FOUND.index(name) for name in FOUND}
    fault = torch.zeros_like(beyond, dtype=torch.bool)
    for name, least in SHARES.items():
        fault[:, at[name]] = certain[:, at[name]] & (shares[:, at[name]] > least)
    fault[:, at["twice"]] = beyond[:, at["twice"]] > copies
    if shifted:
        fault[:, at["steps"]] = fault[:, at["serial"]] & (beyond[:, at["steps"]] > 1 + STEPS / documents**0.5)
        fault[:, at["serial"]] = documents / (1 + 2 * beyond[:, at["lags"]]) < LEAST
    models = torch.stack([fault[place].any(0) for place in places]).sum(0)
    needed = min(2, len(places))
    names = [name for name, count in zip(FOUND, models.tolist(), strict=True) if count >= needed]
    to_do = {"serial": TELL if by_row else SHIFT, "steps": TELL if by_row else CLUSTER}
    said = [TOO_ALIKE if name == "serial" and shifted else REASONS[name] + to_do.get(name, "") for name in names]
    return [reason.format("rows" if by_row else "documents") for reason in said]


def make_rows_observer(labels: Iterable[str], rows: Callable[[int], np.ndarray], seed: int) -> Beside:
    """Makes what observes, of the first rows of some batches, what `measure_dependence` does, where each row is a unit
    of its own. labels: of the measures. rows: the numbers of a batch's rows."""
    labels = list(labels)

    def observe(batch: int, representations: Any, *_: Any) -> Mapping[Key, Tensor]:
        if batch >= BATCHES:
            return {}
        found = glance_at_rows(representations, len(rows(batch)), seed)
        return {(label, "depends"): found for label in labels}

    return observe


def glance_at_rows(representations: Iterable[Any], count: int, seed: int) -> Float[Tensor, "r found 3"]:
    """Measures what `measure_dependence` does, on the first LOOKED of `count` rows at most, each a unit of its own."""
    group = np.arange(min(count, LOOKED))[:, None]
    return torch.stack([measure_dependence(x, [group], {}, seed, count=GLANCES) for x in representations])


def are_neighbours_alike(rows: Sequence[Float[Tensor, "n _"]], seed: int) -> bool:
    """Tells whether rows that follow each other are alike in every one of some representations of the same rows, so
    that none of them is a unit of its own. Copies do not count."""
    found, count = glance_at_rows(rows, len(rows[0]), seed), float(min(len(rows[0]), LOOKED))
    places = [slice(i, i + 1) for i in range(len(rows))]
    return bool(explain_invalid_null(found, 1, places, documents=count, by_row=True, copies=float("inf")))


def is_unmoved(observed: Float[Tensor, "r c"], drawn: Float[Tensor, "k r c"]) -> bool:
    """Tells whether the values under all pairings that were drawn are those that were observed, to the rounding of
    sums of float32 in another order."""
    known = observed.isfinite() & drawn.isfinite().all(0)
    if not known.any():
        return False
    moved, largest = (drawn - observed).abs().amax(0)[known].max(), observed[known].abs().max()
    return bool(largest > 0 and moved <= 1e-5 * largest)
