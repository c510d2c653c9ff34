"""Groups of models against all other ways to group them."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from repsim_cli.base.settings import Members
from repsim_cli.findings.evidence import EXACT, LEVEL, ROUNDING, SAMPLED, Evidence, list_group_arrangements


def number_groups(groups: Members) -> Int[np.ndarray, " m"]:
    """The number of each model's group, models in the order of the groups."""
    return np.repeat(np.arange(len(groups)), [len(members) for members in groups.values()])


@dataclass(frozen=True)
class Permuted:
    """A statistic of the groups. p: the share of the arrangements of their labels whose statistic is as large.
    opposite_p: of those whose statistic is as small. exact: whether all arrangements were enumerated. models: that are
    grouped."""

    value: float
    p: float
    opposite_p: float
    arrangements: int
    exact: bool
    models: int

    @property
    def evidence(self) -> Evidence:
        how = f"{self.arrangements:,} {'' if self.exact else 'drawn '}groupings of the models"
        return Evidence(self.p, self.opposite_p, how, units=self.models)


def permute_groups(statistics: Float[np.ndarray, " k"], value: float, exact: bool, models: int) -> Permuted:
    """Compares the value of the groups with those of other arrangements of the models.

    statistics: of all arrangements, or of the groups (`value`) and of those that were drawn.
    """
    near = ROUNDING * max(1.0, abs(value))
    p, opposite = float((statistics >= value - near).mean()), float((statistics <= value + near).mean())
    return Permuted(value, p, opposite, len(statistics), exact, models)


def compute_labelling_separations(
    values: Float[np.ndarray, "m m"], labels: Int[np.ndarray, "k m"]
) -> Float[np.ndarray, " k"]:
    """Mean over the pairs between groups minus mean over those within, for each way to label the models."""
    a, b = np.triu_indices(len(values), k=1)
    pairs = values[a, b]
    parts = []
    for part in np.array_split(labels, -(-len(labels) // 10_000)):
        same = part[:, a] == part[:, b]
        within = same @ pairs / same.sum(1)
        parts.append((pairs.sum() - same @ pairs) / (~same).sum(1) - within)
    return np.concatenate(parts)


def compute_separation(values: Float[np.ndarray, "m m"], groups: Members, seed: int) -> Permuted:
    """Mean between minus mean within the groups, against all other ways to group the models.

    Pairs within count alike whichever group they are of: the larger group has more of them.
    """
    labels, exact = list_group_arrangements(number_groups(groups), seed)
    return permute_groups(
        compute_labelling_separations(values, labels),
        float(compute_labelling_separations(values, number_groups(groups)[None])[0]),
        exact,
        len(values),
    )


def find_smallest_p(groups: Members) -> float:
    """The p of groups that stand apart from all other arrangements: groups of one size may swap their names.

    >>> find_smallest_p({"a": "uvw", "b": "xyz"})
    0.1
    """
    sizes = [len(members) for members in groups.values()]
    alike = math.prod(math.factorial(sizes.count(size)) for size in set(sizes))
    count = math.factorial(sum(sizes)) // math.prod(map(math.factorial, sizes))
    return alike / count if count <= EXACT else 1 / (1 + SAMPLED)


def say_why_untestable(groups: Members) -> str:
    """Says why these groups cannot be told apart; empty where they can."""
    if len(groups) < 2:
        return "needs two groups of 4 models"
    least = find_smallest_p(groups)
    return f"groups of this size have no p below {least:.2g}; needs two groups of 4 models" if least > LEVEL else ""


def leave_out_each(count: int) -> list[Int[np.ndarray, " kept"]]:
    """The places that are left without each model."""
    return [np.delete(np.arange(count), place) for place in range(count)]
