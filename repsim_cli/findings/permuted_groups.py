"""Groups of models against all other ways to group them."""

import math
from dataclasses import dataclass, replace

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
    grouped. wide: the group whose own models are as far apart as models of two groups, if there is one: groups that
    differ in nothing but how far their models scatter have a small p, too."""

    value: float
    p: float
    opposite_p: float
    arrangements: int
    exact: bool
    models: int
    wide: str = ""

    @property
    def evidence(self) -> Evidence:
        how = f"{self.arrangements:,} {'' if self.exact else 'drawn '}groupings of the models"
        if not self.wide:
            return Evidence(self.p, self.opposite_p, how, units=self.models)
        how += f", and models of '{self.wide}' are as far apart as models of two groups: spread alone may tell them"
        return Evidence(1.0, self.opposite_p, how, units=self.models)


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
    numbers = number_groups(groups)
    labels, exact = list_group_arrangements(numbers, seed)
    found = permute_groups(
        compute_labelling_separations(values, labels),
        float(compute_labelling_separations(values, numbers[None])[0]),
        exact,
        len(values),
    )
    return replace(found, wide=find_wide_group(values, groups))


def find_wide_group(values: Float[np.ndarray, "m m"], groups: Members) -> str:
    """Finds the group whose models are farthest apart, where they are as far as models of two groups; else empty.

    >>> square = np.abs(np.subtract.outer([0.0, 0.1, -9.0, 9.0], [0.0, 0.1, -9.0, 9.0]))
    >>> find_wide_group(square, {"narrow": ["a", "b"], "wide": ["c", "d"]})
    'wide'
    """
    numbers = number_groups(groups)
    a, b = np.triu_indices(len(values), k=1)
    pairs, same = values[a, b], numbers[a] == numbers[b]
    within = {
        name: float(pairs[same & (numbers[a] == number)].mean())
        for number, (name, members) in enumerate(groups.items())
        if len(members) > 1
    }
    widest = max(within, key=lambda name: within[name], default="")
    return widest if within and within[widest] >= pairs[~same].mean() else ""


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
