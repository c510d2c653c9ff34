"""Which rows lie near a row: in the plane of a t-SNE, and in the full space of a layer (Gao et al. 2024, figure 9)."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.base.plain import slug
from repsim_cli.base.settings import Above0, NotNegative, Positive
from repsim_cli.data.base import draw
from repsim_cli.measures.inner import unpack
from repsim_cli.measures.rdm import pack_distances
from repsim_cli.runs.content import Matrix, Side
from repsim_cli.runs.results import Run
from repsim_cli.studies.views.histograms import centre_and_scale
from repsim_cli.studies.views.rows import LayerRows, ViewBatch

PLANE, FULL = "t-SNE plane", "full space"
SLOW = 10.0  # with 50, 20 rows in two far groups (perplexity 10) end at a loss of 0.24, with 10 at 0.00
SAMPLES = 3  # drawn where none are named, as published


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The nearest rows of each row of the batch, in the plane of a t-SNE and in the full space of each layer.

    k: how many nearest rows.
    perplexity: of the t-SNE; below the number of rows of the batch.
    samples: rows whose neighbours are drawn and listed, as places in the batch from 0; null: three drawn at random.
    """

    k: Positive = 5
    perplexity: Above0 = 5.0
    samples: list[NotNegative] | None = None


def project_to_plane(x: Float[Tensor, "n d"], *, perplexity: float, seed: int) -> Float[np.ndarray, "n 2"]:
    """The rows in two dimensions: exact t-SNE of scikit-learn on Euclidean distances, started from the two principal
    components, with its defaults but for the learning rate: n / 48, and at least SLOW where scikit-learn has 50.
    The same seed gives the same plane. Needs d >= 2 and perplexity < n."""
    from sklearn.manifold import TSNE  # importing scikit-learn takes a second

    unit, _ = centre_and_scale(x)
    rate: Any = max(len(x) / 48, SLOW)  # its stubs know of "auto" alone
    projection = TSNE(perplexity=perplexity, init="pca", method="exact", learning_rate=rate, random_state=seed)
    return projection.fit_transform(unit.cpu().numpy()).astype(np.float64)


def find_nearest_rows(x: Float[Tensor, "n d"], k: int) -> Int[np.ndarray, "n k"]:
    """Finds for every row the k others at the smallest Euclidean distance, the nearest first, ties in order of rows."""
    unit, _ = centre_and_scale(x)
    distances = unpack(pack_distances(unit), len(x))
    distances.fill_diagonal_(torch.inf)
    return distances.cpu().numpy().argsort(1, kind="stable")[:, :k]


def make_neighbour_matrices(
    run: Run, viewed: LayerRows, batch: ViewBatch, settings: Neighbours, *, seed: int
) -> dict[str, Matrix]:
    """Finds the nearest rows of each row of a batch in every layer of each model, in the plane of a t-SNE and in full
    space.

    viewed: the rows of all layers.
    batch: which of them are placed.
    seed: that of the t-SNE and of the rows that are shown.
    """
    drawn, k = viewed.take(batch), settings.k
    made = drawn.apply(run, partial(project_to_plane, perplexity=settings.perplexity, seed=seed), "neighbours", "t-SNE")
    samples = settings.samples or draw(len(batch), SAMPLES, seed).tolist()
    matrices = {}
    for number, label in enumerate(made):
        there = [i for i, x in enumerate(made[label]) if x is not None]
        planes = [made[label][i] for i in there]
        around = {
            PLANE: np.stack([find_nearest_rows(torch.from_numpy(x), k) for x in planes]),
            FULL: np.stack([find_nearest_rows(drawn.rows[label][i], k) for i in there]),
        }
        stem = slug("neighbours", f"{number:02d}", label)
        matrices[f"neighbours of {label}"] = Matrix(
            rows=Side(model=label, layers=[viewed.names(label)[i] for i in there]),
            columns=Side(model="rows", layers=batch.names),
            values=run.write_array(slug(stem, "planes"), np.stack(planes)),
            n=len(batch),
            label="place in the plane of a t-SNE",
            details={where: run.write_array(slug(stem, "nearest", where), places) for where, places in around.items()},
            about={"kind": "neighbours", "k": k, "samples": samples},
        )
    return matrices
