"""Which rows lie near a row: in the plane of a t-SNE, and in the full space of a layer (Gao et al. 2024, figure 9)."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.measures.inner import unpack
from repsim_cli.measures.rdm import pack_distances
from repsim_cli.studies.views.histograms import standardise_rows

PLANE, FULL = "t-SNE plane", "full space"
SLOW = 10.0  # with 50, 20 rows in two far groups (perplexity 10) end at a loss of 0.24, with 10 at 0.00


def project_to_plane(x: Float[Tensor, "n d"], *, perplexity: float, seed: int) -> Float[np.ndarray, "n 2"]:
    """The rows in two dimensions: exact t-SNE of scikit-learn on Euclidean distances, started from the two principal
    components, with its defaults but for the learning rate: n / 48, and at least SLOW where scikit-learn has 50.
    The same seed gives the same plane. Needs d >= 2 and perplexity < n."""
    from sklearn.manifold import TSNE  # importing scikit-learn takes a second

    unit, _ = standardise_rows(x)
    rate: Any = max(len(x) / 48, SLOW)  # its stubs know of "auto" alone
    projection = TSNE(perplexity=perplexity, init="pca", method="exact", learning_rate=rate, random_state=seed)
    return projection.fit_transform(unit.cpu().numpy()).astype(np.float64)


def find_nearest_rows(x: Float[Tensor, "n d"], k: int) -> Int[np.ndarray, "n k"]:
    """Finds for every row the k others at the smallest Euclidean distance, the nearest first, ties in order of rows."""
    unit, _ = standardise_rows(x)
    distances = unpack(pack_distances(unit), len(x))
    distances.fill_diagonal_(torch.inf)
    return distances.cpu().numpy().argsort(1, kind="stable")[:, :k]
