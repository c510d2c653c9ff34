"""How far a statistic is from its threshold over independent units, such as models, seeds or tasks: in standard errors,
or by rearranging what was drawn independently. Layers, blocks and rows of one model are not independent units."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations

import numpy as np
import scipy
from jaxtyping import Float, Int

from repsim_cli.base.plain import say_count

ROUNDING = 1e-12  # by which equal statistics may differ
EXACT = 200_000  # arrangements of labels up to which all are enumerated
SAMPLED = 9999  # of more, drawn
LEVEL = 0.05  # of a one-sided p
ALL = 5040  # orders up to which all are looked at
DRAWN = 1999  # of more, beside the one that was observed
FEWEST = 3  # units that a standard error is estimated from
FLIPS = 5  # units of which all on one side have a p below 0.05
DEEP = 6  # layers or checkpoints of a curve whose trend can be told from a smooth curve
HALVES = 8  # layers of a curve of which a half can
COPULA, MOST = 20_000, 1_000_000  # samples that a rank correlation is compared with, and their values
UPPER = 1.645  # standard errors up to the one-sided bound of the correlation of neighbouring steps

Values = Sequence[float] | np.ndarray
Orders = Int[np.ndarray, "k n"]


@dataclass(frozen=True)
class Evidence:
    """above, below: one-sided p values of a statistic at least as large, and at least as small. how: what they are
    over, in words. smallest: the least p that either could have been. se: the standard error that they rest on. units:
    how many independent ones. needs: how many would do, in words. unit: where it is another than the claim's."""

    above: float
    below: float
    how: str
    smallest: float = 0.0
    se: float | None = None
    units: int | None = None
    needs: str = ""
    unit: str = ""


def log_of(value: float | np.floating) -> float:
    """Takes the logarithm of a distance; for 0, of the least positive number. The distances of models differ by
    factors, which a logarithm turns into shifts."""
    return math.log(max(float(value), np.finfo(float).tiny))


def weigh_by_standard_error(
    value: float, threshold: float, se: float, freedom: float | int, how: str, units: int, alike: float | None = None
) -> Evidence:
    """Tests the distance to the threshold by Student's t.

    freedom: degrees of freedom of the standard error.
    alike: p where no unit differs from another, whose error of 0 says nothing; None: that of each as likely on either
        side.
    """
    gap = value - threshold
    if se <= ROUNDING * abs(value):
        p = 0.5**units if alike is None else alike
        above, below = (0.5, 0.5) if not gap else (p, 1 - p) if gap > 0 else (1 - p, p)
        return Evidence(above, below, f"{how}, which do not differ: by their number alone", se=se, units=units)
    t = gap / se
    above, below = (float(scipy.special.stdtr(freedom, side)) for side in (-t, t))
    return Evidence(above, below, how, se=se, units=units)


def report_too_few(units: int, unit: str, least: int = FEWEST) -> Evidence:
    """Gives the evidence of fewer units than `least`: none."""
    return Evidence(1.0, 1.0, say_count(units, unit), smallest=1.0, units=units, needs=say_count(least, unit))


def say_standard_error(units: int, unit: str) -> str:
    return f"standard error over {say_count(units, unit)}"


def weigh_mean(values: Values, threshold: float, unit: str, step: float = 0.0) -> Evidence:
    """Tests the mean of independent values, three or more, against the threshold.

    step: by which two values differ at least where they do, as rank correlations: they are known to within that.
    """
    count = len(values)
    if count < FEWEST:
        return report_too_few(count, unit)
    se = max(float(np.std(values, ddof=1)), step / math.sqrt(12)) / math.sqrt(count)
    return weigh_by_standard_error(
        float(np.mean(values)), threshold, se, count - 1, say_standard_error(count, unit), count
    )


def find_rho_step(count: int) -> float:
    """Finds the smallest step between values of Spearman's rho over `count` values without ties.

    >>> find_rho_step(3)
    0.5
    """
    return 12 / (count**3 - count)


def weigh_mean_difference(first: Values, second: Values, unit: str) -> Evidence:
    """Tests the mean of three or more values minus that of three or more others, by Welch's t."""
    if (least := min(len(first), len(second))) < FEWEST:
        return replace(report_too_few(least, unit), needs=f"{say_count(FEWEST, unit)} of each kind")
    shares = [float(np.var(side, ddof=1)) / len(side) for side in (first, second)]
    spread = sum(share**2 / (len(side) - 1) for share, side in zip(shares, (first, second), strict=True))
    freedom = sum(shares) ** 2 / spread if spread else 1.0
    gap, count = float(np.mean(first) - np.mean(second)), len(first) + len(second)
    alike = 1 / math.comb(count, len(first))  # of all ways to deal the values to the kinds
    return weigh_by_standard_error(
        gap, 0.0, math.sqrt(sum(shares)), freedom, say_standard_error(count, unit), count, alike
    )


def weigh_lone_value(value: float, others: Values, unit: str) -> Evidence:
    """Tests one value minus the mean of three or more others, taking all to vary as the others do."""
    count = len(others)
    if count < FEWEST:
        return report_too_few(count, unit)
    se, how = float(np.std(others, ddof=1)) * math.sqrt(1 + 1 / count), f"spread of {say_count(count, unit)}"
    alike = 1 / (count + 1)  # of all places among the others
    return weigh_by_standard_error(value - float(np.mean(others)), 0.0, se, count - 1, how, count, alike)


def negate_evidence(evidence: Evidence) -> Evidence:
    """Turns the evidence into that of minus the statistic."""
    return replace(evidence, above=evidence.below, below=evidence.above)


def weigh_by_jackknife(value: float, threshold: float, left_out: Values, unit: str, step: float = 0.0) -> Evidence:
    """Tests a statistic against the threshold, with the standard error of the jackknife over units.

    left_out: the statistic without each of three or more units, NaN where it has no value. step: as in `weigh_mean`.
    """
    count = len(left_out)
    if count < FEWEST or not np.isfinite(left_out).all():
        return report_too_few(count, unit, max(FEWEST, count + 1))
    se = max(float(np.std(left_out)) * math.sqrt(count - 1), step / math.sqrt(12 * count))
    return weigh_by_standard_error(value, threshold, se, count - 1, say_standard_error(count, unit), count)


def weigh_against_null(value: float, others: Float[np.ndarray, " k"], how: str, units: int, needs: str) -> Evidence:
    """Tests a value against those of other arrangements of the units.

    others: the statistic under every arrangement, or under those that were drawn; `value` is one of them.
    """
    near = ROUNDING * max(1.0, abs(value))

    def compute_tails(statistic: float) -> tuple[float, float]:
        return float((others >= statistic - near).mean()), float((others <= statistic + near).mean())

    smallest = min(compute_tails(float(others.max()))[0], compute_tails(float(others.min()))[1])
    return Evidence(*compute_tails(value), how, smallest, units=units, needs=needs)


def weigh_by_sign_test(count: int, cases: int, unit: str) -> Evidence:
    """Tests in how many of five or more units something is so, against so in every second one."""
    above, below = scipy.stats.binom.sf(count - 1, cases, 0.5), scipy.stats.binom.cdf(count, cases, 0.5)
    how = f"{say_count(cases, unit)}, each as likely so as not"
    return Evidence(
        float(above), float(below), how, smallest=0.5**cases, units=cases, needs=say_count(FLIPS, unit)
    )  # fmt: skip


def weigh_rank_correlation(x: Values, y: Values, threshold: float, unit: str) -> tuple[float, Evidence]:
    """Spearman's rho over independent units, against a true one of the threshold: p from samples as large, with the
    same ties, of a normal distribution of two variables with that rank correlation."""
    places, count = normalise_ranks(x), len(x)
    value = float(places @ normalise_ranks(y))
    null = _sample_rhos(tuple(np.sort(places).tolist()), threshold)
    smallest, needs = _compute_extreme_p(null), ""
    if smallest > LEVEL:
        needs = say_count(
            next(n for n in itertools.count(count) if _compute_extreme_p(_list_untied(n, threshold)) <= LEVEL), unit
        )
    found = weigh_against_null(
        value, null, f"{say_count(count, unit)} against a true rho of {threshold:g}", count, needs
    )
    return value, replace(found, smallest=smallest)


@cache
def _sample_rhos(places: tuple[float, ...], threshold: float) -> Float[np.ndarray, " k"]:
    """Spearman's rho of samples whose true one is the threshold. places: the ranks of one side, the lowest first."""
    rng = np.random.default_rng(0)
    x, noise = rng.standard_normal((2, min(COPULA, MOST // len(places)), len(places)))
    r = 2 * math.sin(math.pi * threshold / 6)  # of normal variables
    y = r * x + math.sqrt(1 - r * r) * noise
    found = np.take_along_axis(y, x.argsort(1), 1).argsort(1).argsort(1)
    norm = math.sqrt(len(places) * (len(places) ** 2 - 1) / 12)
    return (found - (len(places) - 1) / 2) @ np.array(places) / norm


def _list_untied(count: int, threshold: float) -> Float[np.ndarray, " k"]:
    return _sample_rhos(tuple(normalise_ranks(range(count)).tolist()), threshold)


def _compute_extreme_p(null: Float[np.ndarray, " k"]) -> float:
    """The p of the most extreme value, on the side where it is larger; where that is not small, no claim can hold or
    fail."""
    return float(max((null >= null.max() - ROUNDING).mean(), (null <= null.min() + ROUNDING).mean()))


def require_shared_trend(
    evidence: Evidence, curves: Sequence[np.ndarray], threshold: float = 0.0, half: int | None = None
) -> Evidence:
    """Weakens evidence over units whose curves may all follow one smooth curve: what they share must be steady, too.

    curves: of every unit, over its layers or checkpoints, rising where the statistic is positive: values and no ranks,
    which make a straight line of any bend. Models of one suite,
    or of one base, share what made their curves, so that all of them rise or none. p is the larger one of that over
    units and that of the mean curve. Below a positive threshold the units alone tell, and above a negative one.
    half: the first (0) or the last (1) of the curve, which alone is to be steady; None: all of it.
    """
    size, least = min(len(curve) for curve in curves), DEEP if half is None else HALVES
    if size < least:
        how = f"curves of {size} points"
        return replace(evidence, above=1.0, below=1.0, how=how, smallest=1.0, needs=f"{least} layers or checkpoints")
    at = np.linspace(0, 1, size)
    mean = np.mean([np.interp(at, np.linspace(0, 1, len(y)), y) for y in curves], axis=0)
    rises, falls = compute_trend_p(mean) if half is None else compute_trends_p(mean, 2)[half]
    above, below = max(evidence.above, rises), max(evidence.below, falls)
    return replace(
        evidence,
        above=above if threshold >= 0 else evidence.above,
        below=below if threshold <= 0 else evidence.below,
        how=f"{evidence.how}, and steps of the curve that they share",
    )


def compute_trend_p(curve: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """One-sided p of a rise, and of a fall, of a single curve that may wander."""
    (both,) = compute_trends_p(curve, 1)
    return both


def compute_trends_p(curve: Float[np.ndarray, " n"], parts: int) -> list[tuple[float, float]]:
    """One-sided p of a rise, and of a fall, of each of `parts` equal parts of a single curve that may wander: Student's
    t of its mean step, whose spread is that of all parts.

    The steps of a curve that wanders at random have the mean 0. Of n steps that resemble the next ones n (1 - r) /
    (1 + r) count, r the upper bound of their correlation: the steps of a smooth bend resemble each other, those of a
    straight line with noise do not.
    """
    pieces = np.array_split(np.diff(curve), parts)
    off = np.concatenate([steps - steps.mean() for steps in pieces])
    spread, count = float(off @ off), len(off)
    r = float(off[:-1] @ off[1:]) / spread if spread else -1.0
    r = min(max(r + UPPER / math.sqrt(count), 0.0), 0.9)
    counts = max(parts + 1.0, count * (1 - r) / (1 + r))
    found = []
    for steps in pieces:
        se = math.sqrt(spread / (count - parts) / (counts * len(steps) / count))
        each = weigh_by_standard_error(float(steps.mean()), 0.0, se, counts - parts, "", count)
        found.append((each.above, each.below))
    return found


def list_group_arrangements(codes: Int[np.ndarray, " m"], seed: int) -> tuple[Int[np.ndarray, "k m"], bool]:
    """Lists all ways to give the models groups of the same sizes (True), or, where these are more than 200 000, `codes`
    and 9999 drawn ones (False)."""
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


def require_all_parts(parts: Sequence[Evidence]) -> Evidence:
    """Joins evidence over the same units. above: that every part lies above its threshold. below: that some part does
    not, corrected for their number."""
    return replace(
        parts[0],
        above=max(part.above for part in parts),
        below=min(1.0, len(parts) * min(part.below for part in parts)),
    )


def list_permutations(sizes: Sequence[int]) -> tuple[list[Orders], str]:
    """Lists k orders of the members of each set, the sets permuted independently of each other. sizes: of the sets.

    The second value says in words how many orders there are: all of them, or where these are more than 5040, the
    observed one and 1999 drawn.
    """
    if math.prod(map(math.factorial, sizes)) <= ALL:
        each = [np.array(list(permutations(range(size)))) for size in sizes]
        at = np.indices([len(permuted) for permuted in each]).reshape(len(each), -1)
        combined = [permuted[places] for permuted, places in zip(each, at, strict=True)]
        return combined, f"{len(combined[0]):,}"
    rng = np.random.default_rng(0)
    drawn = [rng.permuted(np.tile(np.arange(size), (DRAWN, 1)), axis=1) for size in sizes]
    return [np.concatenate([np.arange(len(permuted[0]))[None], permuted]) for permuted in drawn], f"{DRAWN + 1:,} drawn"


def normalise(values: Values) -> Float[np.ndarray, " n"]:
    """Centres values and brings them to norm 1, so that curves of several units count alike; zeros where all are
    equal."""
    apart = np.asarray(values, float) - np.mean(values)
    return apart / (np.linalg.norm(apart) or 1.0)


def normalise_ranks(values: Sequence[float | int] | range | np.ndarray) -> Float[np.ndarray, " n"]:
    """Ranks, centred and of norm 1: the inner product of two is Spearman's rho. NaN where all are equal."""
    ranked = scipy.stats.rankdata(values)
    ranked = ranked - ranked.mean()
    norm = np.linalg.norm(ranked)
    return ranked / norm if norm else np.full(len(ranked), np.nan)


def compare_outer_thirds(curve: Float[np.ndarray, " n"]) -> float:
    """Mean of the first third of a curve over depths minus that of its last third."""
    third = len(curve) // 3
    return float(np.mean(curve[:third]) - np.mean(curve[-third:]))
