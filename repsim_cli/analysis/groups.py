"""Named groups of models: all pairs within each group and between groups, by depth, with bands and p values.

A model stands in many pairs, so pairs are not independent. Bands here draw models, not pairs: each replicate draws
the models of every group anew (with replacement) and averages over the pairs of different models that it has. Bands
over pairs, as published by Brown et al. 2023, stand beside them. p values permute the groups' labels over the models.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from repsim_cli.errors import BadInput
from repsim_cli.findings.evidence import EXACT, ROUNDING, SAMPLED, arrangements
from repsim_cli.settings import Group, Ranked

Members = Mapping[str, Sequence[str]]
Pairs = list[tuple[int, int]]
Kind = tuple[str, str]  # the groups that a pair's models come from

REPLICATES = 2000
FEWEST = 3  # models of a group below which draws of them say nothing


def resolve(groups: Mapping[str, Group], metrics: Mapping[str, Mapping[str, float]]) -> dict[str, list[str]]:
    """The models of every group. metrics: of all models, in order; equal ones keep that order in the ranking.

    Raises BadInput where a model lacks the metric, or would be in two groups.
    """
    found: dict[str, list[str]] = {}
    for name, group in groups.items():
        if not isinstance(group, Ranked):
            found[name] = list(group)
            continue
        for label, known in metrics.items():
            if group.by not in known:
                listed = ", ".join(known) or "no metrics"
                raise BadInput(
                    f"groups.{name}.by: '{label}' was saved without {group.by}, got {listed}; use another metric"
                )
        scores = {label: known[group.by] for label, known in metrics.items()}
        ranking = sorted(scores, key=lambda label: -scores[label])
        found[name] = ranking[: group.top] if group.top is not None else ranking[len(ranking) - (group.bottom or 0) :]
    of: dict[str, str] = {}
    for name, members in found.items():
        for label in members:
            if label in of:
                raise BadInput(
                    f"groups.{name}: a model is in one group only, got '{label}', which is in {of[label]} too; "
                    "ask for fewer models"
                )
            of[label] = name
    return found


def ties(groups: Mapping[str, Group], members: Members, metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Of which top and bottom groups a metric tells some models not apart."""
    ranked = {name: group for name, group in groups.items() if isinstance(group, Ranked)}
    found = []
    for (a, top), (b, bottom) in itertools.permutations(ranked.items(), 2):
        if top.top and bottom.bottom and top.by == bottom.by:
            lowest = min(metrics[label][top.by] for label in members[a])
            if lowest <= max(metrics[label][top.by] for label in members[b]):
                found.append(f"groups: {a} and {b} both have models of {top.by} {lowest:.3g}; ask for fewer models")
    return found


def codes(groups: Members) -> Int[np.ndarray, " m"]:
    """The number of each model's group, models in the order of the groups."""
    return np.repeat(np.arange(len(groups)), [len(members) for members in groups.values()])


def kinds(groups: Members) -> dict[Kind, Pairs]:
    """All unordered pairs of different models by their groups, as places in the order of the groups."""
    starts = np.cumsum([0, *(len(members) for members in groups.values())])
    places = {name: range(starts[i], starts[i + 1]) for i, name in enumerate(groups)}
    return {
        (a, b): list(itertools.combinations(places[a], 2) if a == b else itertools.product(places[a], places[b]))
        for a, b in itertools.combinations_with_replacement(places, 2)
    }


@dataclass(frozen=True)
class Depths:
    """values[a, b, l]: of models a and b (in the order of the groups) at their l-th depth; its mirror image, where
    it differs, is the same pair the other way, and a pair's value is the mean of both. The diagonal is not read.

    shares: of the blocks that lie at or below each depth, in (0, 1].
    """

    groups: Members
    values: Float[np.ndarray, "m m l"]
    shares: Float[np.ndarray, " l"]
    larger_is_closer: bool

    @property
    def symmetric(self) -> Float[np.ndarray, "m m l"]:
        return (self.values + self.values.transpose(1, 0, 2)) / 2


def by_depth(depths: Depths, *, level: float, seed: int) -> dict[Kind, dict[str, Any]]:
    """Per kind of pair: mean over pairs at each depth, bands of `level` (None with fewer than 3 models in a group,
    and over pairs with fewer than 3 pairs), and every pair's values."""
    values = depths.symmetric
    names = [label for members in depths.groups.values() for label in members]
    weights = _draws(depths.groups, seed)
    found = {}
    for kind, pairs in kinds(depths.groups).items():
        a, b = np.array(pairs).T
        own = values[a, b]
        enough = min(len(depths.groups[name]) for name in kind) >= FEWEST
        alone = np.random.default_rng(seed).multinomial(len(pairs), [1 / len(pairs)] * len(pairs), REPLICATES)
        found[kind] = {
            "models": [[names[i], names[j]] for i, j in pairs],
            "values": own.tolist(),
            "mean": own.mean(0).tolist(),
            **_band("", weights[:, a] * weights[:, b] if enough else None, own, level),
            **_band("pairs_", alone if len(pairs) >= FEWEST else None, own, level),
            "level": level,
            "replicates": REPLICATES,
        }
    return found


def _draws(groups: Members, seed: int) -> Int[np.ndarray, "k m"]:
    """How often each model is drawn in each replicate; every group of two or more has two different ones."""
    rng = np.random.default_rng(seed)
    parts = []
    for members in groups.values():
        size, kept = len(members), np.empty((0, len(members)), int)
        while len(kept) < REPLICATES:
            drawn = rng.multinomial(size, [1 / size] * size, REPLICATES)
            kept = np.concatenate([kept, drawn[(drawn > 0).sum(1) > 1]])[:REPLICATES]
        parts.append(kept)
    return np.concatenate(parts, 1)


def _band(prefix: str, weights: np.ndarray | None, values: np.ndarray, level: float) -> dict[str, Any]:
    """The middle `level` of the replicates' weighted means at each depth."""
    if weights is None:
        return {f"{prefix}low": None, f"{prefix}high": None}
    means = weights @ values / weights.sum(1, keepdims=True)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return {f"{prefix}low": low.tolist(), f"{prefix}high": high.tolist()}


def separation(values: Float[np.ndarray, "m m"], labels: Int[np.ndarray, "k m"]) -> Float[np.ndarray, " k"]:
    """Mean over the pairs between groups minus mean over those within, for each way to label the models."""
    a, b = np.triu_indices(len(values), k=1)
    pairs = values[a, b]
    found = []
    for part in np.array_split(labels, -(-len(labels) // 10_000)):
        same = part[:, a] == part[:, b]
        within = same @ pairs / same.sum(1)
        found.append((pairs.sum() - same @ pairs) / (~same).sum(1) - within)
    return np.concatenate(found)


def within_gap(values: Float[np.ndarray, "m m"], labels: Int[np.ndarray, "k m"]) -> Float[np.ndarray, " k"]:
    """Mean over the pairs within group 0 minus mean over those within group 1, for each way to label the models."""
    a, b = np.triu_indices(len(values), k=1)
    means = []
    for group in (0, 1):
        inside = (labels[:, a] == group) & (labels[:, b] == group)
        means.append(inside @ values[a, b] / inside.sum(1))
    return means[0] - means[1]


@dataclass(frozen=True)
class Judged:
    """A statistic of the groups; p: the share of the arrangements of their labels that have one as large; opposite_p:
    one as small."""

    value: float
    p: float
    opposite_p: float
    arrangements: int
    exact: bool


def judged(statistics: Float[np.ndarray, " k"], own: float, exact: bool) -> Judged:
    """statistics: of all arrangements, or of `own` and those that were drawn."""
    near = ROUNDING * max(1.0, abs(own))
    p, opposite = float((statistics >= own - near).mean()), float((statistics <= own + near).mean())
    return Judged(own, p, opposite, len(statistics), exact)


def separated(values: Float[np.ndarray, "m m"], groups: Members, seed: int) -> Judged:
    """Mean between minus mean within the groups, against all other ways to group the models.

    Pairs within count alike whichever group they are of: the larger group has more of them.
    """
    own = codes(groups)
    labels, exact = arrangements(own, seed)
    return judged(separation(values, labels), float(separation(values, own[None])[0]), exact)


def smallest_p(groups: Members) -> float:
    """The p of groups that stand apart from all other arrangements: groups of one size may swap their names.

    >>> smallest_p({"a": "uvw", "b": "xyz"})
    0.1
    """
    sizes = [len(members) for members in groups.values()]
    alike = math.prod(math.factorial(sizes.count(size)) for size in set(sizes))
    count = math.factorial(sum(sizes)) // math.prod(map(math.factorial, sizes))
    return alike / count if count <= EXACT else 1 / (1 + SAMPLED)
