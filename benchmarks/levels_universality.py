"""Promises of universality: its verdicts, bands over models, intervals of one sample, and of a rank correlation."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import scipy
import torch
from levels import Promise

from repsim_cli import measures
from repsim_cli.engine import significance
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.engine.proportions import count_like_freedom
from repsim_cli.findings.groups import Depths, make_curves
from repsim_cli.studies.grounding.finding_resi import correlate_with_interval
from repsim_cli.studies.grounding.grading import Case, grade_all, list_standings
from repsim_cli.studies.grounding.scores import Models
from repsim_cli.studies.likelihoods.distances import compute_likelihood_distances, find_likelihood_interval
from repsim_cli.studies.universality import rule

ALPHA, LEVEL = 0.05, 0.95
DRAWS, SAMPLES = 2000, 1000
SEEDS, UNTRAINED, NOISE = 0.8, 0.3, 0.01  # similarities, and the standard deviation of a pair
Draw = Callable[[np.random.Generator], float]


def similar(rng: np.random.Generator, means: np.ndarray, of_models: np.ndarray) -> np.ndarray:
    """Means of pairs, shifted by both models' own numbers and by one of the pair."""
    shifts, pairs = rng.normal(size=len(means)) * of_models, rng.normal(size=means.shape) * NOISE
    return means + shifts[:, None] + shifts + (pairs + pairs.T) / 2**0.5


def compared(
    rng: np.random.Generator, seeds: int, models: int, at: float, spread: float, chance: float = 0.0, wide: float = 1.0
) -> rule.FactorComparison:
    """Models of a value whose similarity with the base is `at`; they spread `wide` times as much as seeds."""
    means = np.full((seeds + models, seeds + models), SEEDS)
    means[:seeds, seeds:] = means[seeds:, :seeds] = at
    widths = np.repeat([spread, wide * spread], [seeds, models])
    return rule.FactorComparison(
        similar(rng, means, widths), seeds, similar(rng, np.full((3, 3), UNTRAINED), np.full(3, NOISE)), 3, chance
    )


def said(
    rng: np.random.Generator, verdict: str, values: int, chance: float, first: float, others: float, **of
) -> float:
    """Says whether the first of so many values has the verdict: 1 or 0. chance: p against it."""
    judged = [rule.judge_contrasts(compared(rng, at=first if i == 0 else others, **of)) for i in range(values)]
    p = {name: rule.correct([getattr(one, name) for one in judged]) for name in rule.list_contrasts(rule.MARGIN)}
    return float(rule.decide_verdicts({**p, "chance": np.full(values, chance)}, ALPHA)[0] == verdict)


def p_of(rng: np.random.Generator, name: str, **of) -> float:
    return float(getattr(rule.judge_contrasts(compared(rng, **of)), name) <= ALPHA)


def share(way: float) -> float:
    return UNTRAINED + way * (SEEDS - UNTRAINED)


def verdicts() -> list[Promise]:
    promises = []
    for seeds, models in ((3, 3), (5, 5), (8, 3), (10, 10)):
        for spread in (0.02, 0.05):
            of = {"seeds": seeds, "models": models, "spread": spread}
            where = f"{seeds} seeds, {models} models, sd {spread}"
            edge, alike = (partial(p_of, name="alike", at=share(way), **of) for way in (0.8, 1.0))
            promises.append(Promise("same, at 0.8 of the way", where, "level", ALPHA, DRAWS, edge))
            if spread == 0.02:
                promises.append(Promise("same, true seeds", where, "power", 0.8, 400, alike))
            below = partial(p_of, name="below", at=SEEDS, **of)
            promises.append(Promise("less than seeds, true seeds", where, "level", ALPHA, DRAWS, below))
    of = {"seeds": 8, "models": 3, "spread": 0.02}
    wide = partial(p_of, name="alike", at=share(0.8), wide=3.0, **of)
    promises.append(
        Promise("same, at 0.8 of the way", "8 seeds, 3 models of thrice the sd", "level", ALPHA, DRAWS, wide)
    )
    # at 0.2 of the way from chance to seeds
    apart = partial(p_of, name="apart", at=0.16, **of)
    promises.append(
        Promise("unrelated, at 0.2 of the way from chance", "8 seeds, 3 models", "level", ALPHA, DRAWS, apart)
    )
    above = partial(p_of, name="above", at=UNTRAINED, **of)
    promises.append(Promise("more than untrained, as twins", "8 seeds, 3 models", "level", ALPHA, DRAWS, above))
    of = {"seeds": 8, "models": 4, "spread": 0.02, "others": SEEDS, "values": 15}
    found = (
        (rule.SAME, 0.01, SEEDS),
        (rule.RELATED, 0.01, share(0.5)),
        (rule.UNTRAINED, 0.01, 0.1),
        (rule.UNRELATED, 0.7, 0.02),
    )
    for verdict, chance, first in found:
        draw = partial(said, verdict=verdict, chance=chance, first=first, **of)
        promises.append(
            Promise(f"verdict {verdict}, at {first:g}", "15 values, 8 seeds, 4 models", "power", 0.8, 100, draw)
        )
    lone = partial(said, verdict=rule.SAME, chance=0.01, first=share(0.4), **of)
    promises.append(Promise("same, at 0.4 of the way", "1 of 15 values, 8 seeds, 4 models", "level", ALPHA, 200, lone))
    return promises


def single(rng: np.random.Generator, shapes: int) -> float:
    """Two models more that are like untrained twins of one shape, or of two."""
    count = 3 * shapes
    every = similar(rng, np.full((count + 2, count + 2), UNTRAINED), np.full(count + 2, 0.02))
    cell = rule.FactorComparison(every[count:, count:], 1, every[:count, :count], 3)
    return float(rule.judge_contrasts(cell).above <= ALPHA)


def banded(rng: np.random.Generator, sizes: tuple[int, ...], kind: int, noise: float, wide: float = 1.0) -> float:
    """Says whether the band holds the mean: 1 or 0. Values are sums of one number of each model and of the pair.
    wide: spread of the last group.
    """
    count = sum(sizes)
    shifts, pairs = rng.normal(size=(count, 1)), noise * rng.normal(size=(count, count, 1))
    shifts[-sizes[-1] :] *= wide
    values = shifts[:, None] + shifts + pairs + pairs.swapaxes(0, 1)
    groups = {str(i): [f"{i}.{j}" for j in range(size)] for i, size in enumerate(sizes)}
    depths = Depths(groups, values, np.ones(1), larger_is_closer=True)
    made = list(make_curves("q", "Q", "p", ["0"], depths, level=LEVEL).values())
    band = made[kind].bands["models"]
    return float(np.array(band.low)[0] <= 0 <= np.array(band.high)[0])


def bands() -> list[Promise]:
    promises = []
    for count in (3, 4, 5, 7, 10):
        for noise in (0.0, 0.5):
            pairs = "and of pairs" if noise else "alone"
            for sizes, kind, what in (((count,), 0, "of a group"), ((count, count), 1, "of two groups")):
                where = f"{count} models, effects of models {pairs}"
                draw = partial(banded, sizes=sizes, kind=kind, noise=noise)
                promises.append(Promise(f"band over models, pairs {what}", where, "cover", LEVEL, 2000, draw))
    for sizes, wide in (((10, 3), 1.0), ((20, 3), 1.0), ((10, 3), 3.0)):
        unequal = partial(banded, sizes=sizes, kind=1, noise=0.0, wide=wide)
        where = f"{sizes[0]} and {sizes[1]} models" + (" of thrice the spread" if wide > 1 else "")
        promises.append(Promise("band over models, pairs of two groups", where, "cover", LEVEL, 2000, unequal))
    return promises


def sample(rng: np.random.Generator, documents: int, between: float, heavy: float) -> list[torch.Tensor]:
    """Two related representations of documents of ten rows. between: the variance between documents. heavy: standard
    deviation of the logarithm of a document's norm."""
    clusters, sides = np.repeat(np.arange(documents), 10), []
    for _ in range(2):
        own, rows = rng.normal(size=(documents, 20))[clusters], rng.normal(size=(len(clusters), 20))
        scale = np.exp(heavy * rng.normal(size=documents))[clusters, None]
        sides.append(scale * (between**0.5 * own + (1 - between) ** 0.5 * rows) / np.sqrt(1 + np.arange(20)))
    return [torch.from_numpy(sides[0]), torch.from_numpy(0.7 * sides[0] + 0.51**0.5 * sides[1])]


def jackknifed(
    rng: np.random.Generator,
    documents: int,
    between: float,
    heavy: float,
    known: dict[tuple[float, ...], float],
    samples: int = SAMPLES,
) -> float:
    """Says whether the t interval holds the mean of `samples` samples of as many documents, drawn once: 1 or 0."""

    def value(of: np.random.Generator, observe: Callable) -> float:
        made = compute_all_pairs({"cka": measures.get("cka")}, sample(of, documents, between, heavy), observe=observe)
        return float(made["cka"][0, 1])

    key, seen = (documents, between, heavy), []
    if key not in known:
        of = np.random.default_rng(1)
        known[key] = float(np.mean([value(of, lambda *_: None) for _ in range(samples)]))
    found = value(rng, lambda *given: seen.append(given[2:4]))
    error = float(significance.jackknife(*seen[0], np.repeat(np.arange(documents), 10))[0, 1])
    return float(abs(found - known[key]) <= scipy.stats.t.ppf((1 + LEVEL) / 2, documents - 1) * error)


def jackknife_means() -> list[Promise]:
    return [
        Promise(
            "jackknife t of CKA, of the mean of as many documents",
            f"{documents} documents, {between:g} of the variance between them" + (", heavy" if heavy else ""),
            "cover",
            LEVEL,
            SAMPLES,
            partial(jackknifed, documents=documents, between=between, heavy=heavy, known={}),
        )
        for documents in (5, 10, 20, 60)
        for between, heavy in ((0.5, 0.0), (0.0, 0.0))
    ]


def ahead(rng: np.random.Generator, models: int) -> float:
    """Draws ten measures of noise; the share of the others that a measure is ahead of."""
    alone, shape = np.zeros(models, int), (models, models, 4, 4)
    of = {f"noise {i}": Models(similar=rng.normal(size=shape), groups=alone, apart={}) for i in range(10)}
    case = Case("rows", "seeds", "resid_post", {"": [f"m{i}" for i in range(models)]}, of, {})
    return float(np.mean([standing.ahead or 0 for standing in list_standings(list(grade_all(case)), 0.95)])) / 9


def likely(rng: np.random.Generator, texts: Sequence[int], between: float = 0.0) -> float:
    """Says whether the interval of a distance by likelihoods holds the true one, 0.5. texts: of each document.
    between: the share of the variance between documents."""
    documents = np.repeat(np.arange(len(texts)), texts)
    alike, differences = rng.normal(size=len(texts))[documents], rng.normal(size=len(documents))
    differences = between**0.5 * alike + (1 - between) ** 0.5 * differences
    found = compute_likelihood_distances(np.stack([differences, 0 * differences]), documents)
    low, high = find_likelihood_interval(found.values[0, 1], found.se[0, 1], count_like_freedom(np.array(texts)), LEVEL)
    return float(low <= 0.5 <= high)


def correlated(rng: np.random.Generator, count: int, correlation: float) -> float:
    x, noise = rng.normal(size=(2, count))
    _, low, high = correlate_with_interval(x, correlation * x + (1 - correlation**2) ** 0.5 * noise, LEVEL)
    true = 6 / np.pi * np.arcsin(correlation / 2)
    return float(low is not None and high is not None and low <= true <= high)


PROMISES: list[Promise] = [
    *verdicts(),
    *(
        Promise("more than untrained, two single models", f"twins of {what}", "level", ALPHA, DRAWS,
                partial(single, shapes=shapes))
        for shapes, what in ((1, "one shape"), (2, "two shapes"))
    ),
    *bands(),
    *jackknife_means(),
    *(
        Promise("interval of a distance by likelihoods", f"{documents} documents of {texts} texts", "cover", LEVEL,
                2000, partial(likely, texts=(texts,) * documents))
        for documents, texts in ((6, 4), (10, 1), (40, 5))
    ),
    Promise("interval of a distance by likelihoods", "one document of 150 texts and 11 of 6, alike by half", "cover",
            LEVEL, 2000, partial(likely, texts=(150, *[6] * 11), between=0.5)),
    *(
        Promise("interval of Spearman's rho over measures", f"{count} measures, r {r:g}", "cover", LEVEL, 2000,
                partial(correlated, count=count, correlation=r))
        for count in (8, 23) for r in (0.0, 0.85)
    ),
    *(
        Promise("measure of noise ahead of another", f"{count} models, pair by pair", "value", 0.025, 100,
                partial(ahead, models=count))
        for count in (6, 8)
    ),
]  # fmt: skip
