"""What is said of the models of a value, from the similarities of single models: each verdict is shown, none assumed.

No verdict rests on a p above the level: what is not shown is `undecided`. So a correction of p for the number of
values, which makes p larger, makes no verdict easier.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy
import scipy.special
from jaxtyping import Float

from repsim_cli.findings.jackknife import StandardErrors, compute_t_interval, estimate_standard_error, satterthwaite

SAME, RELATED, UNTRAINED, UNRELATED, UNCLEAR = "same", "related", "below untrained", "unrelated", "undecided"
WEAKEST = (UNRELATED, UNTRAINED, UNCLEAR, RELATED, SAME)  # a factor has the first that one of its values has
MARGIN = 0.2  # share of the way from untrained twins to seeds that `same` may miss
FEWEST = 3  # models of a value below which their spread is not known
SPREAD, POWER = 0.04, 0.8  # of models, as a share of the way to seeds, with which `same` is to be found this often
MOST = 1000  # models that are tried


class FactorComparison(NamedTuple):
    """One value of a factor under one measure, larger is closer.

    similar: all models, those of the base first. base: how many these are. untrained: untrained models, those in the
    shape of the base first. shapes: how many these are; all of them where both shapes are the same. chance: the mean
    similarity under random pairings; NaN: not known.
    """

    similar: Float[np.ndarray, "m m"]
    base: int
    untrained: Float[np.ndarray, "u u"]
    shapes: int
    chance: float = math.nan


class JudgedFactor(NamedTuple):
    """The similarity of the base and a value with its interval, that of seeds, of untrained twins and of chance, the
    share of the way from the larger of the latter two to seeds, and one-sided p values: more than untrained twins,
    less than these, less than seeds of the base, the same as these, no more than chance.

    NaN: not known of single models, or without chance."""

    similarity: float
    low: float
    high: float
    seeds: Float[np.ndarray, " pairs"]
    untrained: float
    share: float
    above: float
    under: float
    below: float
    alike: float
    apart: float


Means = Float[np.ndarray, "k 4"]
MEANS = ("across", "seeds", "twins", "chance")
ACROSS, SEEDS, TWINS, CHANCE = np.eye(4)  # weights of these means in a contrast


def take_upper_triangle(similar: Float[np.ndarray, "m m"]) -> Float[np.ndarray, " pairs"]:
    return similar[np.triu_indices(len(similar), 1)]


def list_contrasts(margin: float) -> dict[str, list[Float[np.ndarray, " 4"]]]:
    """Lists, by the p values of `JudgedFactor`, the contrasts of means that must all be above 0."""
    near, far = ACROSS - (1 - margin) * SEEDS, margin * SEEDS + (1 - margin) * CHANCE
    return {
        "above": [ACROSS - TWINS],
        "under": [TWINS - ACROSS],
        "below": [SEEDS - ACROSS],
        "alike": [near - margin * TWINS, near - margin * CHANCE, SEEDS - TWINS, SEEDS - CHANCE],
        "apart": [far - ACROSS, SEEDS - CHANCE],
    }


def judge_contrasts(cell: FactorComparison, margin: float = MARGIN, level: float = 0.95) -> JudgedFactor:
    """Tests contrasts of means over pairs of models by Student's t, with errors from the jackknife over the models of
    base, value and twins (see `estimate_standard_error`); of contrasts with seeds, no more degrees of freedom than
    equal spreads have.

    alike: the similarity is more than a share 1 - margin of the way to the seeds, from untrained twins and from chance,
    and seeds are above both. apart: it is less than a share `margin` of the way from chance to seeds, and seeds are
    above chance. Neither is known with fewer than three models. Two single models vary as two untrained twins do."""
    means, left = _compute_comparison_means(cell)
    asked = list_contrasts(margin)
    weights = np.stack([contrast for every in asked.values() for contrast in every], 1)
    unknown = np.isnan(np.concatenate([means[None], *left])).any(0) @ (weights != 0)
    values, error = np.nan_to_num(means) @ weights, estimate_standard_error([np.nan_to_num(x) @ weights for x in left])
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(values == 0, 0.0, values / error.se)
    models = min(cell.base, len(cell.similar) - cell.base)
    freedom = error.freedom
    if models > 1:
        # few models that happen to be alike would be taken for many
        planned = _plan_variance(cell.base, len(cell.similar) - cell.base, margin)[1]
        freedom = np.where((weights[:2] != 0).all(0), np.minimum(freedom, planned), freedom)
    each = np.where(unknown, np.nan, scipy.special.stdtr(freedom, -t))
    ends = np.cumsum([len(every) for every in asked.values()])[:-1]
    p = {name: float(np.fmax.reduce(some)) for name, some in zip(asked, np.split(each, ends), strict=True)}
    if models < FEWEST:
        p |= {"alike": math.nan, "apart": math.nan}
    of_trained = (
        StandardErrors(np.array(math.nan), np.array(1.0))
        if models < 2
        else estimate_standard_error([x[:, 0] for x in left[:2]])
    )
    low, high = compute_t_interval(float(means[0]), of_trained, level)
    floor = float(np.fmax(*means[2:]))
    return JudgedFactor(
        similarity=float(means[0]),
        low=float(low),
        high=float(high),
        seeds=take_upper_triangle(cell.similar[: cell.base, : cell.base]),
        untrained=float(means[2]),
        share=float((means[0] - floor) / (means[1] - floor)) if means[1] > floor else math.nan,
        **p,
    )


def _average_pairs(square: Float[np.ndarray, "m m"]) -> tuple[float, Float[np.ndarray, " m"]]:
    """Takes the mean over pairs, and that without each; NaN where no pair is left."""
    count, off = len(square), square - np.diag(np.diag(square))
    total = off.sum() / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        left = (total - off.sum(1)) / np.float64((count - 1) * (count - 2) / 2)
        return float(total / np.float64(count * (count - 1) / 2)), np.where(count > 2, left, np.nan)


def _average_block(block: Float[np.ndarray, "m n"]) -> tuple[float, Float[np.ndarray, " m"], Float[np.ndarray, " n"]]:
    """Takes the mean, and that without each row, and without each column; NaN where nothing is left."""
    with np.errstate(divide="ignore", invalid="ignore"):
        without = [
            (block.sum() - block.sum(axis)) / np.float64((block.shape[1 - axis] - 1) * block.shape[axis])
            for axis in (1, 0)
        ]
    return float(block.mean()), *without


def _compute_comparison_means(cell: FactorComparison) -> tuple[Float[np.ndarray, " 4"], list[Means]]:
    """Takes the means over pairs of a model of the base and one of the value, of two seeds of the base, of two
    untrained twins (of both shapes, where there are two), and chance; and these without each model of the base, of the
    value, and of each shape of twins. NaN where there is no pair. Of two single models none can be left out: twins then
    vary as a pair of them does beside the mean of all."""
    base, shapes, fresh = cell.base, cell.shapes, cell.untrained
    across, without_base, without_value = _average_block(cell.similar[:base, base:])
    seeds, without_seed = _average_pairs(cell.similar[:base, :base])
    twins, *without_twin = _average_block(fresh[:shapes, shapes:]) if shapes < len(fresh) else _average_pairs(fresh)
    means = np.array([across, seeds, twins, cell.chance])

    def change(count: int, **values: Float[np.ndarray, " k"]) -> Means:
        left = np.tile(means, (count, 1))
        for name, value in values.items():
            left[:, MEANS.index(name)] = value
        return left

    if len(cell.similar) == 2:
        # a mean over pairs of m twins has 2 / m of the variance of a pair, over pairs of two shapes 1 / m by each
        wide = [math.sqrt(1 + len(x) * len(without_twin) / 2) for x in without_twin]
        return means, [change(len(x), twins=twins + (x - twins) * by) for x, by in zip(without_twin, wide, strict=True)]
    return means, [
        change(base, across=without_base, seeds=without_seed),
        change(len(without_value), across=without_value),
        *(change(len(x), twins=x) for x in without_twin),
    ]


def decide_verdicts(p: Mapping[str, Float[np.ndarray, " cells"]], alpha: float) -> list[str]:
    """Decides the verdict of every cell from its corrected p: above `chance`, and those of `JudgedFactor`. NaN: not
    known.

    >>> p = {"chance": [.01, .01, .01, .9, .01], "above": [.01, .01, .9, .9, .3], "under": [.9, .9, .01, .1, .7]}
    >>> p |= {"below": [.4, .01, .01, .01, .01], "alike": [.01, .4, .9, .9, .9], "apart": [.9, .9, .9, .01, .9]}
    >>> decide_verdicts({name: np.array(values) for name, values in p.items()}, 0.05)
    ['same', 'related', 'below untrained', 'unrelated', 'undecided']
    """
    shown = {name: values <= alpha for name, values in p.items()}
    less = shown["below"] | np.isnan(p["below"])  # of single models seeds say nothing
    cases = {
        SAME: shown["alike"] & shown["above"] & shown["chance"],
        RELATED: less & shown["above"] & shown["chance"],
        UNTRAINED: less & shown["under"] & shown["chance"],
        UNRELATED: less & shown["apart"] & ~shown["chance"],
    }
    return np.select([*cases.values()], [*cases], UNCLEAR).tolist()


def correct(p: Sequence[float]) -> Float[np.ndarray, " cells"]:
    """Corrects p for the values of all factors under a measure (Holm 1979); NaN where there is no p.

    >>> correct([0.03, math.nan, 0.01]).tolist()
    [0.03, nan, 0.02]
    """
    adjusted = np.array(p, float)
    known = np.flatnonzero(np.isfinite(adjusted))
    order = known[np.argsort(adjusted[known], kind="stable")]
    steps = np.arange(len(order), 0, -1) * adjusted[order]
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1) if len(order) else steps
    return adjusted


def find_weakest(some: Sequence[str]) -> str:
    return min(some, key=WEAKEST.index)


# ---- before a run ----


def compute_power(seeds: int, models: int, values: int, margin: float, alpha: float) -> float:
    """Computes how often models that are like further seeds are called the same by the first step of Holm's correction:
    each shifts all similarities to it by a normal number whose standard deviation is SPREAD of the way from untrained
    twins to seeds."""
    variance, freedom = _plan_variance(seeds, models, margin)
    least = scipy.stats.t.isf(alpha / values, freedom)
    return float(scipy.stats.nct.sf(least, freedom, margin / SPREAD / math.sqrt(variance)))


def _plan_variance(seeds: int, models: int, margin: float) -> tuple[float, float]:
    """Computes the variance of the contrast of `same` where the variance of a model is 1, and its degrees of
    freedom."""
    counts = np.array([seeds, models])
    parts = np.array([1 - 2 * (1 - margin), 1]) ** 2 / counts
    return float(parts.sum()), float(satterthwaite(parts, counts))


def find_needed(seeds: int, models: int, values: int, margin: float, alpha: float) -> tuple[int, int] | None:
    """Finds the seeds of the base and models of a value with which `same` is found as often as POWER: more models of
    the value if these do, else as many of both; None where what is there does."""
    few, alone = min(seeds, models) < FEWEST, max(seeds, FEWEST)

    def is_found(base: int, others: int) -> bool:
        return compute_power(base, others, values, margin, alpha) >= POWER

    if not few and is_found(seeds, models):
        return None
    for count in range(max(models, FEWEST), MOST):
        if is_found(alone, count):
            return alone, count
    count = next(count for count in range(FEWEST, MOST) if is_found(count, count))
    return max(seeds, count), count
