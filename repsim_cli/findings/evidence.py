"""How far a statistic is from its threshold, in standard errors, or from what chance gives, in permutations."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import scipy
from jaxtyping import Float, Int

ROUNDING = 1e-12  # by which equal statistics may differ
EXACT = 200_000  # arrangements of labels up to which all are enumerated
SAMPLED = 9999  # of more, drawn
LEVEL = 0.05  # of a one-sided p
ALL = 5040  # orders up to which all are looked at
DRAWN = 1999  # of more, beside the one that was observed
PLACES = 10_000  # combinations of places up to which all are looked at
GROUPS = 10  # of neighbouring layers or rows that a jackknife leaves out at a time
CELLS = 2_000_000  # permuted cells of a matrix that are held at once

Orders = Int[np.ndarray, "k n"]


@dataclass(frozen=True)
class Evidence:
    """above, below: one-sided p values of a statistic at least as large, and at least as small. smallest: the least p
    that either could have been. se: the standard error that they rest on. how: what they are over, in words."""

    above: float
    below: float
    how: str
    smallest: float = 0.0
    se: float | None = None


def by_error(value: float, threshold: float, se: float, freedom: float | int, how: str) -> Evidence:
    """Student's t of the distance to the threshold. freedom: degrees of freedom of the standard error."""
    gap = value - threshold
    t = gap / se if se else math.copysign(math.inf, gap) if gap else 0.0
    above, below = float(scipy.stats.t.sf(t, freedom)), float(scipy.stats.t.cdf(t, freedom))
    return Evidence(above, below, how, se=se)


def by_units(values: Sequence[float] | np.ndarray, threshold: float, how: str) -> Evidence:
    """The mean of two or more independent values against the threshold."""
    se = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return by_error(float(np.mean(values)), threshold, se, len(values) - 1, how)


def by_lone(value: float, others: Sequence[float], how: str) -> Evidence:
    """One value minus the mean of two or more others, all of which may vary as these do."""
    se = float(np.std(others, ddof=1)) * math.sqrt(1 + 1 / len(others))
    return by_error(value - float(np.mean(others)), 0.0, se, len(others) - 1, how)


def by_jackknife(value: float, threshold: float, left_out: Sequence[float] | np.ndarray, how: str) -> Evidence:
    """left_out: the statistic without each unit, or without each of as many groups of units."""
    count = len(left_out)
    se = float(np.std(left_out)) * math.sqrt(count - 1)
    return by_error(value, threshold, se, count - 1, how)


def by_depths(curve: Float[np.ndarray, " n"], threshold: float) -> Evidence:
    """The mean of a curve over depths that resemble their neighbours: of n such values n (1 - r) / (1 + r) count, r
    their correlation with the next one, where it is positive."""
    off = curve - curve.mean()
    r = float(np.clip(off[:-1] @ off[1:] / (off @ off), 0, 0.9)) if off.any() else 0.0
    count = max(2.0, len(curve) * (1 - r) / (1 + r))
    se = float(np.std(curve, ddof=1)) / math.sqrt(count)
    return by_error(float(curve.mean()), threshold, se, count - 1, f"standard error over {len(curve)} depths")


def by_chance(value: float, others: Float[np.ndarray, " k"], how: str) -> Evidence:
    """others: the statistic under every order of the labels, or under those that were drawn; `value` is one of them."""
    near = ROUNDING * max(1.0, abs(value))

    def beyond(statistic: float) -> tuple[float, float]:
        return float((others >= statistic - near).mean()), float((others <= statistic + near).mean())

    smallest = min(beyond(float(others.max()))[0], beyond(float(others.min()))[1])
    return Evidence(*beyond(value), how, smallest)


def by_sign(count: int, cases: int, how: str) -> Evidence:
    """How many of so many independent cases lie on one side, each as likely as not."""
    above, below = scipy.stats.binom.sf(count - 1, cases, 0.5), scipy.stats.binom.cdf(count, cases, 0.5)
    return Evidence(float(above), float(below), f"{cases} {how}", smallest=0.5**cases)


def arrangements(codes: Int[np.ndarray, " m"], seed: int) -> tuple[Int[np.ndarray, "k m"], bool]:
    """All ways to give the models groups of the same sizes (True), or, of more than 200 000, `codes` and 9999 drawn."""
    sizes = np.bincount(codes)
    if math.factorial(len(codes)) // math.prod(math.factorial(int(size)) for size in sizes) > EXACT:
        rng = np.random.default_rng(seed)
        return np.stack([codes, *(rng.permutation(codes) for _ in range(SAMPLED))]), False
    rows = np.full((1, len(codes)), -1)
    for group, size in enumerate(sizes):
        free = np.nonzero(rows == -1)[1].reshape(len(rows), -1)
        chosen = free[:, np.array(list(itertools.combinations(range(free.shape[1]), int(size))))]
        rows = np.repeat(rows, chosen.shape[1], 0)
        np.put_along_axis(rows, chosen.reshape(len(rows), int(size)), group, 1)
    return rows, True


def all_of(parts: Sequence[Evidence], how: str) -> Evidence:
    """That every part lies above its threshold; below: that some part does not, corrected for their number."""
    return Evidence(
        max(part.above for part in parts), min(1.0, len(parts) * min(part.below for part in parts)), how,
        smallest=max(part.smallest for part in parts),
    )  # fmt: skip


def orders(sizes: Sequence[int]) -> tuple[list[Orders], str]:
    """For each of the sets of these sizes, its members in k orders, the sets permuted independently of each other, and
    how many there are, in words: all of them, or of more than 5040 the observed one and 1999 drawn."""
    if math.prod(map(math.factorial, sizes)) <= ALL:
        each = [np.array(list(permutations(range(size)))) for size in sizes]
        at = np.indices([len(permuted) for permuted in each]).reshape(len(each), -1)
        combined = [permuted[places] for permuted, places in zip(each, at, strict=True)]
        return combined, f"{len(combined[0]):,}"
    rng = np.random.default_rng(0)
    drawn = [rng.permuted(np.tile(np.arange(size), (DRAWN, 1)), axis=1) for size in sizes]
    return [np.concatenate([np.arange(len(permuted[0]))[None], permuted]) for permuted in drawn], f"{DRAWN + 1:,} drawn"


def over_places(
    at: Sequence[int], counts: Sequence[int], statistic: Callable[[Int[np.ndarray, "k units"]], np.ndarray], what: str
) -> tuple[float, Evidence]:
    """A statistic of one place in each unit, and its p over every place in each.

    at: the observed places, from 0. counts: how many each unit has. statistic: of k combinations of places, (k,). Of
    more than 10 000 combinations as many are drawn, beside the observed one.
    """
    here, few = np.array([at]), math.prod(counts) <= PLACES
    if few:
        every = np.indices(counts).reshape(len(counts), -1).T
    else:
        every = np.concatenate([here, np.random.default_rng(0).integers(counts, size=(PLACES, len(counts)))])
    value = float(statistic(here)[0])
    return value, by_chance(value, statistic(every), f"{len(every):,} {'' if few else 'drawn '}places {what}")


def ranks(values: Sequence[float | int] | np.ndarray) -> Float[np.ndarray, " n"]:
    """Ranks, centred and of norm 1: the inner product of two is Spearman's rho. NaN where all are equal."""
    ranked = scipy.stats.rankdata(values)
    ranked = ranked - ranked.mean()
    norm = np.linalg.norm(ranked)
    return ranked / norm if norm else np.full(len(ranked), np.nan)


def correlated(sides: Sequence[tuple[np.ndarray, np.ndarray]], what: str) -> tuple[float, Evidence]:
    """Mean over the pairs of sequences of Spearman's rho, and its p over orders of each second sequence."""
    permuted, count = orders([len(x) for x, _ in sides])
    rhos = np.mean([ranks(y)[order] @ ranks(x) for (x, y), order in zip(sides, permuted, strict=True)], axis=0)
    value = float(np.mean([ranks(x) @ ranks(y) for x, y in sides]))
    return value, by_chance(value, rhos, f"{count} orders of {what}")


Square = Float[np.ndarray, "_ _"]  # several of them have sizes of their own


def over_cells(
    squares: Sequence[Square], weights: Callable[[int], Float[np.ndarray, " cells"]]
) -> tuple[float, Evidence]:
    """Mean over the matrices of the weighted sum of their cells above the diagonal, and its p over orders of the layers
    of each. weights(n): of the cells, in the order of np.triu_indices."""
    permuted, count = orders([len(square) for square in squares])

    def sums(square: Square, order: Orders) -> Iterator[np.ndarray]:
        a, b = np.triu_indices(len(square), k=1)
        of_cells = weights(len(square))
        for part in np.array_split(order, -(-len(order) * len(a) // CELLS)):
            yield square[part[:, a], part[:, b]] @ of_cells

    means = np.mean([np.concatenate([*sums(x, order)]) for x, order in zip(squares, permuted, strict=True)], axis=0)
    value = float(np.mean([next(sums(x, np.arange(len(x))[None]))[0] for x in squares]))
    return value, by_chance(value, means, f"{count} orders of the layers of each model")


def thirds(curve: Float[np.ndarray, " n"]) -> tuple[float, Evidence]:
    """Mean of the first third of a curve over depths minus that of its last third, and its p over their orders."""
    third = len(curve) // 3
    weights = np.zeros(len(curve))
    weights[:third], weights[-third:] = 1 / third, -1 / third
    (order,), count = orders([len(curve)])
    value = float(weights @ curve)
    return value, by_chance(value, curve[order] @ weights, f"{count} orders of the layers")


def without(count: int, groups: int = GROUPS) -> list[Int[np.ndarray, " kept"]]:
    """The places that are left without each of so many groups of neighbours, at most one per place."""
    places = np.arange(count)
    return [np.setdiff1d(places, group) for group in np.array_split(places, min(groups, count))]
