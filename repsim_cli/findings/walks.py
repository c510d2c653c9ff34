"""Groups of layers against those of layers that wander at random, which come in groups, too, the more the fewer
directions they wander in."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import scipy
from jaxtyping import Float

from repsim_cli.findings.evidence import Evidence
from repsim_cli.findings.partitions import (
    FLOOR,
    Labels,
    Square,
    Ways,
    convert_to_distances,
    find_spectral_clusters,
    list_group_counts,
    silhouette,
    turn_to_values,
)

POWERS = 1, 2  # of Euclidean distances, as which those of measures are taken: walks of both must be exceeded
WALKS_OF_TWO = 39  # as few as have a p of 0.05 where the smaller one of two counts


def compute_p_among_walks(
    matrices: Sequence[Square], statistic: Callable[[Square], float], find_groups: Callable[[Square], Labels]
) -> float:
    """Computes how seldom walks, in place of each of the matrices, have as large a statistic in the mean over them: the
    statistic, or that times how little layers wander within a group, by distances and by their roots.

    matrices: of layers in the order of the network, each the mean of seeds, which may share layers that wander.
    find_groups: finds the groups that the statistic is of.
    """

    def measure(some: Sequence[Square]) -> Float[np.ndarray, "2"]:
        clear = np.array([statistic(apart) for apart in some])
        within = [_compare_steps_within(apart, find_groups(apart)) for apart in some]
        return np.array([clear.mean(), (clear * within).mean()])

    shares = []
    for power in POWERS:
        drawn = zip(*(draw_reordered(apart, power, WALKS_OF_TWO) for apart in matrices), strict=True)
        value, *walks = map(measure, drawn)
        as_large = (~(np.array(walks) < value)).sum(0)  # also where the value is of no groups
        shares.append(2 * (1 + as_large.min()) / (1 + WALKS_OF_TWO))
    return float(min(1.0, max(shares)))


def say_beyond_walks(apart: Square, labels: Labels, find_groups: Callable[[Square], Labels]) -> Literal["yes", "no"]:
    """Says whether groups are clearer than those of layers that wander at random in as few directions, which fall into
    groups, too: in their silhouette, or in that times how little layers wander within a group, they exceed all walks,
    by distances and by their roots.

    labels: of the groups. find_groups: finds them in other distances.
    """

    def measure(apart: Square, labels: Labels) -> Float[np.ndarray, "2"]:
        return silhouette(apart, labels) * np.array([1.0, _compare_steps_within(apart, labels)])

    for power in POWERS:
        walks = draw_reordered(apart, power, WALKS_OF_TWO)
        own, beyond = measure(next(walks), labels), np.ones(2, bool)
        for walk in walks:
            beyond &= own > measure(walk, find_groups(walk))
            if not beyond.any():
                return "no"
    return "yes"


def make_group_finder(ways: Ways, larger_is_closer: bool) -> Callable[[Square], Labels]:
    """Makes the function that finds the groups of the largest silhouette in distances."""

    def find_clearest_groups(apart: Square) -> Labels:
        groups = ways(turn_to_values(apart, larger_is_closer))
        return max(map(groups, list_group_counts(len(apart))), key=lambda labels: silhouette(apart, labels))

    return find_clearest_groups


def _compare_steps_within(apart: Square, labels: Labels) -> float:
    """Divides the mean squared distance from each layer to the next one of its group by that of all pairs of one group:
    1 where layers scatter (von Neumann 1941), less where they wander.

    >>> at = np.array([0.0, 1, 0, 1, 5, 6, 7, 8])
    >>> round(_compare_steps_within(np.abs(at[:, None] - at), np.arange(8) // 4), 2)
    0.5
    """
    squares, members = np.square(apart), [np.flatnonzero(labels == group) for group in range(labels.max() + 1)]
    steps = np.concatenate([squares[at[:-1], at[1:]] for at in members])
    within = squares[np.triu(labels[:, None] == labels, 1)]
    return float(steps.mean() / within.mean()) if within.any() else 1.0


def require_beyond_walks(evidence: Evidence, seeds: Sequence[Square], wanted: Callable[[int], bool]) -> Evidence:
    """Weakens evidence of how many spectral clusters seeds have: their mean must have that number too, and more clearly
    than walks do.

    wanted(clusters): whether the claim means this number of clusters."""

    def measure_wanted_clearness(apart: Square) -> float:
        found = find_spectral_clusters(apart, False, count=None)
        clear = found.scores and wanted(found.count)
        return max(found.scores.values()) - max(found.reference.values()) if clear else -math.inf

    def find_groups(apart: Square) -> Labels:
        return find_spectral_clusters(apart, False, count=None).labels

    matrices = average_by_size([convert_to_distances(values, False) for values in seeds])
    shared = compute_p_among_walks(matrices, measure_wanted_clearness, find_groups)
    how = f"{evidence.how}, and walks in place of the layers that they share"
    return replace(evidence, above=max(evidence.above, shared), how=how)


def average_by_size(matrices: Sequence[Square]) -> list[Square]:
    """Averages the matrices of models with the same number of layers."""
    by_size: dict[int, list[Square]] = {}
    for apart in matrices:
        by_size.setdefault(len(apart), []).append(apart)
    return [np.mean(alike, axis=0) for alike in by_size.values()]


def draw_reordered(apart: Square, power: int, count: int) -> Iterator[Square]:
    """Draws distances between layers that wander: classical scaling of the roots of the distances places the layers,
    and the steps from each to the next are taken in another order. The first matrix is that of the layers as placed.
    Steps keep their sizes, of which a few may be large, and the way in which sizes grow or shrink with depth: otherwise
    large steps, or small ones at one end, would look like groups. power: of distances, as roots of this are
    Euclidean: 1, or 2 as one minus CKA.
    """
    size = len(apart)
    centre = np.eye(size) - 1 / size
    values, vectors = scipy.linalg.eigh(-centre @ apart ** (2 / power) @ centre / 2)
    places = vectors * np.sqrt(np.maximum(values, 0))
    steps = np.diff(places, axis=0)
    growth = _measure_growth(steps)[:, None]
    draw = np.random.default_rng(0)
    for number in range(1 + count):
        walk = places if number == 0 else np.pad(draw.permutation(steps / growth) * growth, ((1, 0), (0, 0))).cumsum(0)
        yield scipy.spatial.distance.squareform(scipy.spatial.distance.pdist(walk)) ** power


def _measure_growth(steps: Float[np.ndarray, "s d"]) -> Float[np.ndarray, " s"]:
    """Measures how the sizes of steps grow, as an exponential; steps far below the median count as a share of it."""
    sizes, at = np.linalg.norm(steps, axis=1), np.arange(len(steps))
    least = FLOOR * np.median(sizes[sizes > 0]) if sizes.any() else 1.0
    return np.exp(np.polyfit(at, np.log(np.maximum(sizes, least)), 1)[0] * at)
