"""Which rows lie near a row: in the plane of a t-SNE and in the full space of each layer, and how many of the nearest
are those of the first layer (Gao et al. 2024, figure 9, table 5)."""

from typing import Any

import numpy as np
import scipy.stats
import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.analysis.histograms import apart
from repsim_cli.measures.inner import unpacked
from repsim_cli.measures.rdm import packed_distances

SLOW = 10.0  # with 50, 20 rows in two far groups (perplexity 10) end at a loss of 0.24, with 10 at 0.00


def plane(x: Float[Tensor, "n d"], *, perplexity: float, seed: int) -> Float[np.ndarray, "n 2"]:
    """The rows in two dimensions: exact t-SNE of scikit-learn on Euclidean distances, started from the two principal
    components, with its defaults but for the learning rate: n / 48, and at least SLOW where scikit-learn has 50.
    The same seed gives the same plane. Needs d >= 2 and perplexity < n."""
    from sklearn.manifold import TSNE  # importing scikit-learn takes a second

    unit, _ = apart(x)
    rate: Any = max(len(x) / 48, SLOW)  # its stubs know of "auto" alone
    projection = TSNE(perplexity=perplexity, init="pca", method="exact", learning_rate=rate, random_state=seed)
    return projection.fit_transform(unit.cpu().numpy()).astype(np.float64)


def nearest(x: Float[Tensor, "n d"], k: int) -> Int[np.ndarray, "n k"]:
    """Of every row the k others at the smallest Euclidean distance, the nearest first; of tied ones the earlier row."""
    unit, _ = apart(x)
    found = unpacked(packed_distances(unit), len(x))
    found.fill_diagonal_(torch.inf)
    return found.cpu().numpy().argsort(1, kind="stable")[:, :k]


def overlap(a: Int[np.ndarray, "... k"], b: Int[np.ndarray, "... k"]) -> Float[np.ndarray, "..."]:
    """Jaccard similarity of sets of k: shared ones over those in either, 0 to 1.

    >>> overlap(np.array([[1, 2, 3]]), np.array([[3, 2, 9]])).tolist()
    [0.5]
    """
    shared = (a[..., :, None] == b[..., None, :]).sum((-2, -1))
    return shared / (2 * a.shape[-1] - shared)


def chance(rows: int, k: int) -> float:
    """The expected overlap of two sets of k drawn independently from the rows - 1 others.

    >>> round(chance(16, 5), 4)
    0.2144
    """
    shared = np.arange(k + 1)
    shares = scipy.stats.hypergeom.pmf(shared, rows - 1, k, k)
    return float(shares @ (shared / (2 * k - shared)))
