"""Groups of layers that are close to each other and far from the rest, from a matrix of distances alone.

Two ways: spectral clusters, which need not be contiguous, and contiguous segments. Both may answer that there is only
one group: distances grow with the number of layers between, and any clustering divides a smooth gradient or noise into
something. So the best silhouette must exceed those of surrogates, which have the gradient and the noise of the matrix,
but no groups. `benchmarks/clusterings.py` compares methods and rules on planted groups.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float, Int
from scipy.sparse.csgraph import laplacian

from repsim_cli.base.errors import BadInput
from repsim_cli.findings.distances import compute_adjusted_rand

Square = Float[np.ndarray, "n n"]
Labels = Int[np.ndarray, " n"]
Ways = Callable[[Square], Callable[[int], Labels]]  # of a matrix: its groups, by their number

FEWEST = 4  # layers below which nothing is looked for
MOST = 10  # groups that are looked for at most, and no more than half of the layers
FLOOR = 0.25  # of the median: shorter distances count as this one in affinities and in residuals
SURROGATES, MARGIN = 20, 0.05  # matrices without groups; by how much the best silhouette must exceed all of theirs
NARROWEST, WIDE = 0.05, 0.5  # ranges of distances, of their median, between which the margin grows with the range


@dataclass(frozen=True)
class Partition:
    """labels: of every layer, numbered as they appear. scores: the mean silhouette by the number of groups, from 2 on.

    reference: the largest silhouette of the surrogates, also by the number of groups.
    """

    labels: Labels
    scores: dict[int, float]
    reference: dict[int, float]

    @property
    def count(self) -> int:
        return int(self.labels.max()) + 1


def convert_to_distances(values: Square, larger_is_closer: bool) -> Square:
    """Averages both directions, with 0 on the diagonal; of similarities it takes how far they are below what any two
    layers have, or every layer with itself.

    >>> convert_to_distances(np.array([[1.0, 0.2], [0.4, 1.0]]), True).round(6).tolist()
    [[0.0, 0.7], [0.7, 0.0]]
    """
    apart = (values + values.T) / 2
    if larger_is_closer:
        # the largest of all would do where a layer with itself is at 1; elsewhere (`ensd`) one layer's own value, or
        # that it has none, would change how far all others are from each other
        of_two = apart[~np.eye(len(apart), dtype=bool)].max(initial=-np.inf)
        apart = np.fmax(of_two, apart.diagonal().min()) - apart
    np.fill_diagonal(apart, 0)
    return apart


def convert_to_affinities(values: Square, larger_is_closer: bool) -> Square:
    """The inverse of distances, as published, where all below a quarter of the median of the distances above 0 are
    raised to that: else a layer and its copy, at distance 0, would be a group of their own. Similarities are not
    changed, except that negative ones become 0. The diagonal is 0; the Laplacian does not read it."""
    near = (values + values.T) / 2
    if larger_is_closer:
        near = np.maximum(near, 0)
    else:
        apart = near[np.triu_indices(len(near), 1)]
        near = 1 / np.maximum(near, FLOOR * np.median(apart[apart > 0]))
    np.fill_diagonal(near, 0)
    return near


def renumber(labels: np.ndarray) -> Labels:
    """Numbers the labels 0, 1, ... in the order in which they appear.

    >>> renumber(np.array([7, 7, 2, 7])).tolist()
    [0, 0, 1, 0]
    """
    _, first, codes = np.unique(labels, return_index=True, return_inverse=True)
    return first.argsort().argsort()[codes]


def find_spectral_clusters(values: Square, larger_is_closer: bool, *, count: int | None) -> Partition:
    """Spectral clusters on the normalised Laplacian of the affinities; their number by `choose_partition`, or count."""

    return choose_partition(values, larger_is_closer, find_spectral_ways(larger_is_closer), count)


def find_spectral_ways(larger_is_closer: bool) -> Ways:
    def ways(values: Square) -> Callable[[int], Labels]:
        vectors = decompose_walk(convert_to_affinities(values, larger_is_closer))
        return lambda k: cluster_eigenvectors(vectors[:, :k])

    return ways


def find_contiguous_segments(values: Square, larger_is_closer: bool, *, count: int | None) -> Partition:
    """Contiguous groups of least cost, the sum over groups of (sum of the distances of its pairs) / (its size): of
    squared Euclidean distances the sum of squares about the means. Exact, by dynamic programming. Their number by
    `choose_partition`, or count."""
    return choose_partition(values, larger_is_closer, find_segment_ways(larger_is_closer, count or 1), count)


def find_segment_ways(larger_is_closer: bool, most: int = 1) -> Ways:
    """most: groups that are asked for, where these are more than are looked for."""

    def ways(values: Square) -> Callable[[int], Labels]:
        _, starts = divide(convert_to_distances(values, larger_is_closer), max(*list_group_counts(len(values)), most))
        return lambda k: np.isin(np.arange(len(values)), starts[k - 1][1:]).cumsum()

    return ways


def choose_partition(values: Square, larger_is_closer: bool, ways: Ways, count: int | None) -> Partition:
    """Chooses the number of groups with the largest mean silhouette, where this exceeds every silhouette of the
    surrogates by `compute_margin`; else one group. count: a number of groups to take instead."""
    apart = convert_to_distances(values, larger_is_closer)
    if not apart.any():
        return Partition(np.zeros(len(values), int), {}, {})
    groups = ways(values)
    scores = _compute_silhouettes(apart, groups)
    none = [
        _compute_silhouettes(other, ways(turn_to_values(other, larger_is_closer))) for other in draw_surrogates(apart)
    ]
    reference = {k: max(other[k] for other in none) for k in scores}
    best = max(scores, key=lambda k: scores[k])
    if scores[best] - max(reference.values()) < compute_margin(apart):
        best = 1
    return Partition(groups(count or best), scores, reference)


def turn_to_values(apart: Square, larger_is_closer: bool) -> Square:
    return apart.max() - apart if larger_is_closer else apart


def compute_margin(apart: Square) -> float:
    """Computes by how much a silhouette must exceed those of surrogates: MARGIN; less where distances have most in
    common (similarities near 0, as mutual nearest neighbours have), since that makes all silhouettes small alike.

    >>> wide, narrow = (np.array([[0, 1.0, 1], [1, 0, far], [1, far, 0]]) for far in (3, 1.25))
    >>> compute_margin(wide), compute_margin(narrow)
    (0.05, 0.025)
    """
    values = apart[np.triu_indices(len(apart), 1)]
    return MARGIN * float(np.clip(np.ptp(values) / np.median(values[values > 0]), NARROWEST, WIDE)) / WIDE


def draw_surrogates(apart: Square) -> Iterator[Square]:
    """The same distances without groups: every cell is the mean over all pairs of layers equally far apart, times the
    ratio of another cell, drawn under a fixed seed, to the mean at that cell's own distance."""
    cells = np.triu_indices(len(apart), 1)
    values, means = apart[cells], replace_by_lag_means(apart)[cells]
    floor = FLOOR * np.median(values[values > 0])
    ratios = np.maximum(values, floor) / np.maximum(means, floor)
    draw = np.random.default_rng(0)
    for _ in range(SURROGATES):
        other = np.zeros_like(apart)
        other[cells] = means * draw.permutation(ratios)
        yield other + other.T


def measure_clearness(apart: Square) -> float:
    """Measures by how much the silhouette of two contiguous groups exceeds the largest of surrogates without groups."""
    own, *others = (silhouette(x, divide_in_two(x)) for x in (apart, *draw_surrogates(apart)))
    return own - max(others)


def divide_in_two(apart: Square) -> Labels:
    """Divides layers into the two contiguous groups of least cost."""
    return (np.arange(len(apart)) >= find_cut(apart)).astype(int)


def find_cut(apart: Square) -> int:
    """Finds how many layers are in the first of two contiguous groups of least cost."""
    return divide(apart, 2)[1][1][1]


def decompose_walk(near: Square) -> Square:
    """The eigenvectors of the random walk, by the normalised Laplacian's eigenvalues, ascending."""
    whole, degrees = laplacian(near, normed=True, return_diag=True)
    _, vectors = scipy.linalg.eigh(whole)
    return vectors / degrees[:, None]


def cluster_eigenvectors(vectors: Float[np.ndarray, "n k"]) -> Labels:
    """k clusters from k eigenvectors, by a pivoted QR factorisation (Damle, Minden and Ying 2019): no random starts,
    and the same whichever basis equal eigenvalues come with."""
    count = vectors.shape[1]
    *_, pivots = scipy.linalg.qr(vectors.T, pivoting=True)
    turn, _ = scipy.linalg.polar(vectors[pivots[:count]].T)  # of one layer of every cluster
    return renumber(np.abs(vectors @ turn).argmax(1))


def silhouette(apart: Square, labels: Labels) -> float:
    """The mean over layers (Rousseeuw 1987), as scikit-learn's `silhouette_score`, in a hundredth of its time; 0 where
    there is one group."""
    member = np.eye(labels.max() + 1)[labels]
    sizes, at = member.sum(0), np.arange(len(labels))
    if len(sizes) == 1:
        return 0.0
    means = apart @ member
    inside = means[at, labels] / np.maximum(sizes[labels] - 1, 1)
    means /= sizes
    means[at, labels] = np.inf
    outside = means.min(1)
    larger = np.maximum(inside, outside)
    counted = (sizes[labels] > 1) & (larger > 0)
    return float(np.where(counted, outside - inside, 0).dot(1 / np.where(counted, larger, 1)) / len(labels))


def _compute_silhouettes(apart: Square, groups: Callable[[int], Labels]) -> dict[int, float]:
    return {k: silhouette(apart, groups(k)) for k in list_group_counts(len(apart))}


def divide(apart: Square, most: int) -> tuple[Float[np.ndarray, " k"], list[list[int]]]:
    """The least cost of 1, 2, ..., `most` contiguous groups, and where the groups begin."""
    n = len(apart)
    sums = np.pad(apart.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    ends = np.arange(n + 1)
    inside = sums[ends, ends][:, None] + sums[ends, ends] - sums - sums.T  # of first, end: all pairs, twice
    size = ends[None] - ends[:, None]
    cost = np.where(size > 0, inside / 2 / np.maximum(size, 1), np.inf)
    best = [cost[0]]
    last = []
    for _ in range(1, most):
        through = best[-1][:, None] + cost  # of the last group's first, end
        last.append(through.argmin(0))
        best.append(through.min(0))
    starts = []
    for k in range(most):
        begin, at = [], n
        for step in reversed(last[:k]):
            at = int(step[at])
            begin.append(at)
        starts.append([0, *reversed(begin)])
    return np.array([row[n] for row in best]), starts


def replace_by_lag_means(square: Square) -> Square:
    """Replaces every cell by the mean over all pairs of layers equally far apart.

    >>> replace_by_lag_means(np.array([[0.0, 1, 5], [1, 0, 3], [5, 3, 0]])).tolist()
    [[0.0, 2.0, 5.0], [2.0, 0.0, 2.0], [5.0, 2.0, 0.0]]
    """
    means = [float(np.diagonal(square, lag).mean()) for lag in range(len(square))]
    return scipy.linalg.toeplitz(means)


def list_group_counts(layers: int) -> range:
    return range(2, min(MOST, layers // 2) + 1)


def compare_partitions(first: Sequence[Any] | np.ndarray, second: Sequence[Any] | np.ndarray) -> float:
    """The adjusted Rand index of two partitions of the layers; 1 for the same, also where both are of one group."""
    codes = [np.unique(np.asarray(labels), return_inverse=True)[1] for labels in (first, second)]
    return float(compute_adjusted_rand(codes[0][None], codes[1])[0])


def have_groups(*partitions: Sequence[Any] | np.ndarray) -> bool:
    """Says whether any of the partitions has several groups: two of one group agree whatever the layers are like."""
    return any(len(np.unique(np.asarray(labels))) > 1 for labels in partitions)


def parse_ranges(groups: Sequence[str], layers: int) -> Labels:
    """The group of every layer, from ranges of layers in the order of the network, counted from 0.

    Raises BadInput for what is not a range of layers, and unless every layer is in one group.

    >>> parse_ranges(["0-1 4", "2-3"], 5).tolist()
    [0, 0, 1, 1, 0]
    """
    labels = np.full(layers, -1)
    for group, text in enumerate(groups):
        for part in text.split():
            match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if not first <= last < layers:
                raise BadInput(f"no range of its {layers} layers, got '{part}'; write e.g. 0-{layers - 1}")
            if (labels[first : last + 1] >= 0).any():
                raise BadInput(f"a layer is in one group only, got '{part}' again; drop it")
            labels[first : last + 1] = group
    if (labels < 0).any():
        raise BadInput(f"all of its {layers} layers are needed, got none for {int(labels.argmin())}; put it in a group")
    return labels


def list_layer_ranges(labels: Sequence[int]) -> list[str]:
    """The groups as ranges of layers, which `parse_ranges` reads.

    >>> list_layer_ranges([0, 0, 1, 1, 0])
    ['0-1 4', '2-3']
    """
    parts_of: dict[int, list[str]] = {}
    for group, run in groupby(range(len(labels)), key=lambda layer: labels[layer]):
        first, *more = run
        parts_of.setdefault(group, []).append(f"{first}-{more[-1]}" if more else str(first))
    return [" ".join(parts) for parts in parts_of.values()]
