"""One distance per pair of models from their layers, and whether clusters of models are the groups."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.cluster.hierarchy as hierarchy
from jaxtyping import Float, Int
from scipy.spatial.distance import squareform

from repsim_cli.analysis.groups import Judged, Members, arrangements, codes, judged, kinds
from repsim_cli.errors import Degenerate

ROUNDING = 1e-6  # by which a cosine may leave [-1, 1]


def angles(similarities: Float[np.ndarray, "m m l"]) -> Float[np.ndarray, "m m l"]:
    """arccos of normalised inner products, in radians.

    A negative one (unbiased CKA may be) is an angle above pi/2: U-centred Gram matrices have inner products like any
    others, and the mean of their cosines over batches is the cosine of the batches' unit vectors laid end to end; so
    the angles are a metric whatever the sign. One above 1 by rounding counts as 1. Angles below 1e-4 are rounding.
    Raises Degenerate for a value beyond [-1, 1].
    """
    worst = float(np.abs(similarities).max())
    if worst > 1 + ROUNDING:
        raise Degenerate(f"distances: no cosine, got {worst:.6g}; arccos needs values from -1 to 1")
    return np.arccos(np.clip(similarities, -1, 1))


def distances(layers: Float[np.ndarray, "m m l"]) -> Float[np.ndarray, "m m"]:
    """sqrt(sum over layers of d^2), a metric where d is one of counterparts (Brown et al. 2023, eq. 2)."""
    whole = np.sqrt(np.square((layers + layers.transpose(1, 0, 2)) / 2).sum(2))
    np.fill_diagonal(whole, 0)
    return whole


def clusters(values: Float[np.ndarray, "m m"], count: int) -> tuple[Float[np.ndarray, "n 4"], dict[str, np.ndarray]]:
    """The merges of an average-linkage clustering, and `count` clusters each: hierarchical from those, spectral from
    the affinity exp(-d^2 / (2 s^2)), s the median distance.

    Raises Degenerate where all models are the same.
    """
    from sklearn.cluster import SpectralClustering

    scale = float(np.median(squareform(values, checks=False)))
    if not scale:
        raise Degenerate("distances: half of the pairs of models are the same, got a median of 0; drop copies")
    linkage, cut = hierarchical(values, count)
    affinity = np.exp(-np.square(values / scale) / 2)
    spectral = SpectralClustering(count, affinity="precomputed", assign_labels="cluster_qr", random_state=0)
    return linkage, {
        "hierarchical": cut,
        "spectral": np.asarray(spectral.fit_predict(affinity)),
    }


def hierarchical(
    values: Float[np.ndarray, "m m"], count: int
) -> tuple[Float[np.ndarray, "n 4"], Int[np.ndarray, " m"]]:
    """The merges of an average-linkage clustering, and `count` clusters of them."""
    linkage = hierarchy.linkage(squareform(values, checks=False), "average", optimal_ordering=True)
    return linkage, hierarchy.cut_tree(linkage, count)[:, 0]


def adjusted_rand(labels: Int[np.ndarray, "k m"], found: Int[np.ndarray, " m"]) -> Float[np.ndarray, " k"]:
    """Hubert and Arabie's adjusted Rand index of each row with the clusters found: 1 is equal, 0 expected by chance."""

    def pairs(counts: np.ndarray) -> np.ndarray:
        return counts * (counts - 1) / 2

    table = (labels[:, :, None] == np.unique(labels)).astype(float).transpose(0, 2, 1) @ (
        found[:, None] == np.unique(found)
    )
    together = pairs(table).sum((1, 2))
    rows, columns = pairs(table.sum(2)).sum(1), pairs(table.sum(1)).sum(1)
    expected = rows * columns / math.comb(len(found), 2)
    most = (rows + columns) / 2
    return np.where(most == expected, 1.0, (together - expected) / np.where(most == expected, 1.0, most - expected))


def recovered(groups: Members, found: Int[np.ndarray, " m"], seed: int) -> Judged:
    """The adjusted Rand index of clusters and groups, against all other ways to group the models."""
    own = codes(groups)
    labels, exact = arrangements(own, seed)
    return judged(adjusted_rand(labels, found), float(adjusted_rand(own[None], found)[0]), exact)


def between_models(groups: Members, values: Float[np.ndarray, "m m"], seed: int) -> dict[str, Any]:
    """Clusters of the models, their agreement with the groups and the distances by kind of pair.

    Models come in the order of the groups; `linkage` is an array, all else plain values.
    """
    names = [label for members in groups.values() for label in members]
    linkage, found = clusters(values, len(groups))
    return {
        "models": names,
        "clusters": {method: own.tolist() for method, own in found.items()},
        "agreement": {method: vars(recovered(groups, own, seed)) for method, own in found.items()},
        "pairs": {
            "-".join(kind): {
                "models": [[names[i], names[j]] for i, j in pairs],
                "values": [float(values[i, j]) for i, j in pairs],
            }
            for kind, pairs in kinds(groups).items()
        },
        "linkage": linkage,
    }


AGREEMENT = ["distance", "clusters", "adjusted Rand", "p", "arrangements", "exact"]
SPREAD = ["distance", "pairs of", "pairs", "mean", "standard deviation", "smallest", "largest"]


def tables(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The agreement of clusters and the distances by kind, as results.json keeps tables."""
    agreement = [
        [name, method, *(one[key] for key in ("value", "p", "arrangements", "exact"))]
        for name, each in found.items()
        for method, one in each["agreement"].items()
    ]
    spread = []
    for name, each in found.items():
        for kind, pairs in each["pairs"].items():
            own = np.array(pairs["values"])
            deviation = float(own.std(ddof=1)) if len(own) > 1 else None
            spread.append([name, kind, len(own), float(own.mean()), deviation, float(own.min()), float(own.max())])
    return {
        "clusters and groups": {"columns": AGREEMENT, "rows": agreement},
        "distances by groups": {"columns": SPREAD, "rows": spread},
    }
