"""Shape distances: how far apart two representations remain after the best rotation."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.measures.base import Card, Measure, centred
from repsim_cli.registry import measures

NEAR = 1e-4


def unit_shape(x: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
    """Centred, unit Frobenius norm, float64, and rotated into at most n columns (distances do not change)."""
    x = centred(x)[0].double()
    x = x / torch.linalg.matrix_norm(x)
    if x.shape[1] > len(x):
        x = torch.linalg.qr(x.T, mode="r").R.T
    return x


def procrustes_distance(a: Float[Tensor, "n k"], b: Float[Tensor, "n l"]) -> float:
    """sqrt(2 - 2 |a'b|_*): both have unit norm. Wider or narrower sides count as padded with zeros."""
    overlap = float(torch.linalg.svdvals(a.T @ b).sum())
    if overlap < 1 - NEAR:
        return math.sqrt(2 - 2 * overlap)
    # close together the difference would cancel: measure what remains after the rotation
    width = max(a.shape[1], b.shape[1])
    a, b = (torch.nn.functional.pad(side, (0, width - side.shape[1])) for side in (a, b))
    u, _, vt = torch.linalg.svd(a.T @ b)
    return float(torch.linalg.matrix_norm(a @ (u @ vt) - b))


@measures.register(
    "procrustes",
    Card(
        label="Procrustes distance",
        larger_is_closer=False,
        bounds=(0.0, math.sqrt(2)),
        symmetric=True,
        is_metric=True,
        invariant_to=frozenset({"permutation_of_neurons", "orthogonal", "isotropic_scaling", "translation"}),
        minimum_rows=2,
        cost="n d^2 + d^3 per pair",
        source="Williams et al. 2021, eq. 7; Ding et al. 2021, section 3 (root, unit Frobenius norm)",
        note="0: equal up to rotation, scale and offset; a metric. Values below 1e-12 are rounding.",
    ),
)
def procrustes() -> Measure:
    """Orthogonal Procrustes distance of centred, unit-norm representations, in [0, sqrt 2].

    Two points on a line against the same points turned by a right angle:

    >>> from repsim_cli import measures
    >>> measures.get("procrustes")([[0., 0.], [1., 0.], [2., 0.]], [[0., 0.], [0., 1.], [0., 2.]]) < 1e-7
    True
    """
    return Measure(prepare=unit_shape, compare=procrustes_distance)
