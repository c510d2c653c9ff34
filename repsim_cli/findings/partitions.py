"""Groups of layers that are close to each other and far from the rest, from a matrix of distances alone.

Two ways: spectral clusters, which need not be contiguous, and contiguous segments. Both may find that there is one
group only. A matrix without blocks is not without structure: distances grow with the number of layers between, and
clusters of a smooth gradient look like clusters. So every score is held against that of a reference without blocks, in
which each distance is the mean over all pairs as far apart in the order of the layers (of the spectral clusters: in
the order along which the layers spread most).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np
import scipy.linalg
from jaxtyping import Float, Int
from scipy.sparse.csgraph import laplacian

from repsim_cli.errors import BadInput
from repsim_cli.findings.distances import adjusted_rand

Square = Float[np.ndarray, "n n"]
Labels = Int[np.ndarray, " n"]
By = Literal["eigengap", "silhouette"]

FEWEST = 4  # layers below which nothing is looked for
MOST = 10  # groups that are looked for at most, and no more than half of the layers
FLOOR = 0.25  # of the median: shorter distances have the affinity of this one
LEAST_SILHOUETTE = 0.15  # by which it must exceed its reference; the other scores by `least`
STRUCTURE = 0.25  # silhouette below which there are no clusters (Kaufman and Rousseeuw 1990)
PENALTY = 0.02  # of the score of segments, per further one


@dataclass(frozen=True)
class Partition:
    """labels: of every layer, numbered as they appear. scores, reference: by the number of groups, from 2 on.

    eigenvalues: of the normalised Laplacian, ascending (spectral clusters alone).
    """

    labels: Labels
    scores: dict[int, float]
    reference: dict[int, float]
    eigenvalues: Float[np.ndarray, " n"] | None = None

    @property
    def count(self) -> int:
        return int(self.labels.max()) + 1


def distances(values: Square, larger_is_closer: bool) -> Square:
    """Both directions averaged, 0 on the diagonal; of similarities how far they are below the largest one.

    >>> distances(np.array([[1.0, 0.2], [0.4, 1.0]]), True).round(6).tolist()
    [[0.0, 0.7], [0.7, 0.0]]
    """
    both = (values + values.T) / 2
    apart = both.max() - both if larger_is_closer else both.copy()
    np.fill_diagonal(apart, 0)
    return apart


def affinities(values: Square, larger_is_closer: bool) -> Square:
    """The inverse of distances, as published, where those below a quarter of the median of all that are not 0 count as
    that: a layer and its copy, at distance 0, would be a group by themselves. Similarities are taken as they are,
    negative ones as 0. Nothing is on the diagonal, which the Laplacian does not read."""
    near = (values + values.T) / 2
    if larger_is_closer:
        near = np.maximum(near, 0)
    else:
        apart = near[np.triu_indices(len(near), 1)]
        near = 1 / np.maximum(near, FLOOR * np.median(apart[apart > 0]))
    np.fill_diagonal(near, 0)
    return near


def renumbered(labels: np.ndarray) -> Labels:
    """0, 1, ... in the order in which they appear.

    >>> renumbered(np.array([7, 7, 2, 7])).tolist()
    [0, 0, 1, 0]
    """
    _, first, codes = np.unique(labels, return_index=True, return_inverse=True)
    return first.argsort().argsort()[codes]


def spectral(values: Square, larger_is_closer: bool, *, count: int | None, by: By) -> Partition:
    """Spectral clusters on the normalised Laplacian of the affinities.

    eigengap: k clusters have the score lambda_{k+1} - lambda_k; the k that is furthest above its reference is taken,
    where that is by `least`, else 1. silhouette: the k of the largest mean silhouette (of the distances), where that is
    0.25 and above its reference by 0.15, else 1. count: how many, whatever the scores.
    """
    apart = distances(values, larger_is_closer)
    if not apart.any():
        return Partition(np.zeros(len(values), int), {}, {}, np.zeros(len(values)))
    whole, vectors = decomposed(affinities(values, larger_is_closer))
    order = vectors[:, 1].argsort(kind="stable")
    flat = by_lag(((values + values.T) / 2)[np.ix_(order, order)])
    flat_whole, flat_vectors = decomposed(affinities(flat, larger_is_closer))
    counts = _counts(len(values))
    if by == "eigengap":
        scores, reference = ({k: float(x[k] - x[k - 1]) for k in counts} for x in (whole, flat_whole))
        best = _furthest(scores, reference, least(len(values)))
    else:
        sides = ((apart, vectors), (distances(flat, larger_is_closer), flat_vectors))
        scores, reference = ({k: silhouette(x, clusters(v[:, :k])) for k in counts} for x, v in sides)
        best = max(scores, key=lambda k: scores[k])
        if scores[best] < STRUCTURE or scores[best] - reference[best] < LEAST_SILHOUETTE:
            best = 1
    return Partition(clusters(vectors[:, : count or best]), scores, reference, whole)


def decomposed(near: Square) -> tuple[Float[np.ndarray, " n"], Square]:
    """The eigenvalues of the normalised Laplacian, ascending, and those of the random walk's eigenvectors."""
    whole, degrees = laplacian(near, normed=True, return_diag=True)
    values, vectors = scipy.linalg.eigh(whole)
    return values, vectors / degrees[:, None]


def clusters(vectors: Float[np.ndarray, "n k"]) -> Labels:
    """k clusters from k eigenvectors, by a pivoted QR factorisation (Damle, Minden and Ying 2019): no random starts,
    and the same whichever basis equal eigenvalues come with."""
    count = vectors.shape[1]
    *_, pivots = scipy.linalg.qr(vectors.T, pivoting=True)
    turn, _ = scipy.linalg.polar(vectors[pivots[:count]].T)  # of one layer of every cluster
    return renumbered(np.abs(vectors @ turn).argmax(1))


def silhouette(apart: Square, labels: Labels) -> float:
    """The mean over layers; 0 where there is one cluster."""
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(apart, labels, metric="precomputed")) if len(np.unique(labels)) > 1 else 0.0


def segments(values: Square, larger_is_closer: bool, *, count: int | None) -> Partition:
    """Contiguous groups of least cost, the sum over groups of (sum of the distances of its pairs) / (its size): of
    squared Euclidean distances the sum of squares about the means. Exact, by dynamic programming.

    k groups have the score 1 - cost(k) / cost(1) - 0.02 (k - 1), whose penalty keeps noise in one group; the k that is
    furthest above its reference is taken, where that is by `least`, else 1. count: how many, whatever the scores.
    """
    apart = distances(values, larger_is_closer)
    if not apart.any():
        return Partition(np.zeros(len(values), int), {}, {})
    counts = _counts(len(values))
    most = max(*counts, count or 1)
    (costs, starts), (flat, _) = (divided(square, most) for square in (apart, by_lag(apart)))
    scores = {k: 1 - float(costs[k - 1] / costs[0]) - PENALTY * (k - 1) for k in counts}
    reference = {k: 1 - float(flat[k - 1] / flat[0]) for k in counts}
    best = count or _furthest(scores, reference, least(len(values)))
    labels = np.zeros(len(values), int)
    labels[starts[best - 1][1:]] = 1
    return Partition(labels.cumsum(), scores, reference)


def divided(apart: Square, most: int) -> tuple[Float[np.ndarray, " k"], list[list[int]]]:
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


def by_lag(square: Square) -> Square:
    """The same without blocks: every cell the mean over all pairs of as many steps.

    >>> by_lag(np.array([[0.0, 1, 5], [1, 0, 3], [5, 3, 0]])).tolist()
    [[0.0, 2.0, 5.0], [2.0, 0.0, 2.0], [5.0, 2.0, 0.0]]
    """
    means = [float(np.diagonal(square, lag).mean()) for lag in range(len(square))]
    return scipy.linalg.toeplitz(means)


def _counts(layers: int) -> range:
    return range(2, min(MOST, layers // 2) + 1)


def least(layers: int) -> float:
    """By how much a score must exceed its reference: what random walks, smooth curves and noise reach in about one case
    of twenty, more the fewer layers there are (`tests/findings/test_sub_networks.py`).

    >>> round(least(12), 3), round(least(93), 3)
    (0.18, 0.093)
    """
    return 0.08 + 1.2 / layers


def _furthest(scores: Mapping[int, float], reference: Mapping[int, float], enough: float) -> int:
    """The number of groups whose score is furthest above its reference, or 1."""
    above = {k: scores[k] - reference[k] for k in scores}
    best = max(above, key=lambda k: above[k])
    return best if above[best] >= enough else 1


def agreement(first: Sequence[Any] | np.ndarray, second: Sequence[Any] | np.ndarray) -> float:
    """The adjusted Rand index of two partitions of the layers; 1 for the same, also where both are of one group."""
    codes = [np.unique(np.asarray(labels), return_inverse=True)[1] for labels in (first, second)]
    return float(adjusted_rand(codes[0][None], codes[1])[0])


def parsed(groups: Sequence[str], layers: int) -> Labels:
    """The group of every layer, from ranges of layers in the order of the network, counted from 0.

    Raises BadInput for what is no range of layers, and unless every layer is in one group.

    >>> parsed(["0-1 4", "2-3"], 5).tolist()
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


def ranges(labels: Sequence[int]) -> list[str]:
    """The groups as ranges of layers, which `parsed` reads.

    >>> ranges([0, 0, 1, 1, 0])
    ['0-1 4', '2-3']
    """
    parts_of: dict[int, list[str]] = {}
    for group, run in groupby(range(len(labels)), key=lambda layer: labels[layer]):
        first, *more = run
        parts_of.setdefault(group, []).append(f"{first}-{more[-1]}" if more else str(first))
    return [" ".join(parts) for parts in parts_of.values()]
