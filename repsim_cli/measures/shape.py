"""Shape distances: how far apart two representations remain after the best rotation, or permutation of neurons."""

import math
import warnings
from typing import NamedTuple

import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.base.registry import measures
from repsim_cli.measures.alignments import permutation, rotation
from repsim_cli.measures.base import Measure, MeasureWarning, Pairwise
from repsim_cli.measures.bases import NEURONS, nuclear_norm
from repsim_cli.measures.cards import Card
from repsim_cli.measures.centring import centre
from repsim_cli.measures.rdm import SHAPE

_NEAR = 1e-3  # squared distances below this share of their terms are computed from differences


class CentredShape(NamedTuple):
    """A centred representation of mean squared row norm 1, rotated into at most n columns; size: its Frobenius norm."""

    rows: Float[Tensor, "n k"]
    size: float


def prepare_shape(x: Float[Tensor, "n d"]) -> CentredShape:
    rows, scale = centre(x)
    if rows.shape[1] > len(rows):
        rows = torch.linalg.qr(rows.double().T, mode="r").R.T.to(rows.dtype)
    return CentredShape(rows, scale * math.sqrt(len(x)))


def permute(state: CentredShape, order: Tensor) -> CentredShape:
    return state._replace(rows=state.rows[order])


def compute_bures_similarity(a: CentredShape, b: CentredShape) -> float:
    """|a'b|_* at unit Frobenius norms, in [0, 1]: the inner product after the best rotation."""
    dtype = torch.promote_types(a.rows.dtype, b.rows.dtype)
    return min(1.0, nuclear_norm(a.rows.to(dtype).T @ b.rows.to(dtype)) / len(a.rows))


def compute_procrustes_distance(a: CentredShape, b: CentredShape, left: float = 1.0, right: float = 1.0) -> float:
    """Distance after the best rotation at Frobenius norms left and right; the narrower side is padded with zeros."""
    if a is b:
        return 0.0
    scales = left**2 + right**2
    squared = scales - 2 * left * right * compute_bures_similarity(a, b)
    if squared > _NEAR * scales:
        return math.sqrt(squared)
    # for close pairs the difference would cancel: take what remains after the rotation
    width = max(a.rows.shape[1], b.rows.shape[1])
    x, y = (torch.nn.functional.pad(s.rows.double(), (0, width - s.rows.shape[1])) for s in (a, b))
    x, y = left * x / torch.linalg.matrix_norm(x), right * y / torch.linalg.matrix_norm(y)
    u, _, vt = torch.linalg.svd(x.T @ y)
    return float(torch.linalg.matrix_norm(x @ (u @ vt) - y))


def size_and_shape_distance(a: CentredShape, b: CentredShape) -> float:
    return compute_procrustes_distance(a, b, a.size, b.size)


def compute_shape_angle(a: CentredShape, b: CentredShape) -> float:
    """Computes the angle from the chord, since arccos loses half of the digits near 1."""
    return 2 * math.asin(min(1.0, compute_procrustes_distance(a, b) / 2))


@measures.register(
    "procrustes",
    Card(
        label="Procrustes distance",
        larger_is_closer=False,
        bounds=(0.0, math.sqrt(2)),
        symmetric=True,
        is_metric=True,
        invariant_to=SHAPE,
        minimum_rows=2,
        cost="n d^2 + d^3 per pair",
        source="Williams et al. 2021, eq. 7; Ding et al. 2021, section 3 (root, unit Frobenius norm)",
        note="0: equal up to rotation, scale and offset; a metric. Few rows make layers look alike, as the rotation is "
        "fitted to them: unrelated layers are 1.08 apart at 4 rows per feature, not 1.41. Values below 1e-12 are "
        "rounding.",
    ),
)
def procrustes() -> Measure:
    """Orthogonal Procrustes distance of centred, unit-norm representations, in [0, sqrt 2].

    Two points on a line against the same points turned by a right angle:

    >>> from repsim_cli import measures
    >>> measures.get("procrustes")([[0., 0.], [1., 0.], [2., 0.]], [[0., 0.], [0., 1.], [0., 2.]]) < 1e-7
    True
    """
    return Pairwise(
        prepare=prepare_shape, compare=compute_procrustes_distance, permute=permute, aligned=rotation, wide_squares=4.0
    )


@measures.register(
    "procrustes_size_and_shape",
    Card(
        label="Procrustes size-and-shape distance",
        larger_is_closer=False,
        bounds=(0.0, None),
        symmetric=True,
        is_metric=True,
        invariant_to=SHAPE - {"isotropic_scaling"},
        minimum_rows=2,
        cost="n d^2 + d^3 per pair",
        source="Kendall et al. 1999, size-and-shape; Williams et al. 2021, eq. 7 without scaling",
        note="0: equal up to rotation and offset. In the units of the activations: unequal scales count.",
    ),
)
def procrustes_size_and_shape() -> Measure:
    """Frobenius distance of centred representations after the best rotation, unscaled.

    Lines (-1, 0, 1) and (-3, 0, 3), at a right angle before: the root of 4 + 4.

    >>> from repsim_cli import measures
    >>> x, y = [[0., 0.], [1., 0.], [2., 0.]], [[0., 0.], [0., 3.], [0., 6.]]
    >>> round(measures.get("procrustes_size_and_shape")(x, y), 6)
    2.828427
    """
    return Pairwise(
        prepare=prepare_shape, compare=size_and_shape_distance, permute=permute, aligned=rotation, wide_squares=4.0
    )


@measures.register(
    "shape_angular",
    Card(
        label="angular shape distance",
        larger_is_closer=False,
        bounds=(0.0, math.pi / 2),
        symmetric=True,
        is_metric=True,
        invariant_to=SHAPE,
        minimum_rows=2,
        cost="n d^2 + d^3 per pair",
        source="Williams et al. 2021, angular shape metric over rotations; Kendall et al. 1999",
        note="Radians; 0: equal up to rotation, scale and offset. A metric; its cosine is bures_similarity.",
    ),
)
def shape_angular() -> Measure:
    """Angle of centred representations after the best rotation, arccos of |x'y|_* / (|x| |y|), in [0, pi/2].

    Two lines whose correlation is -1/2:

    >>> from repsim_cli import measures
    >>> round(measures.get("shape_angular")([[0.], [1.], [0.]], [[0.], [0.], [2.]]), 6)
    1.047198
    """
    return Pairwise(
        prepare=prepare_shape, compare=compute_shape_angle, permute=permute, aligned=rotation, wide_squares=4.0
    )


@measures.register(
    "bures_similarity",
    Card(
        label="Bures similarity (NBS)",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=2,
        cost="n d^2 + d^3 per pair",
        source="Tang et al. 2020 (normalised Bures similarity), as the nuclear norm of Harvey et al. 2024",
        note="1: equal up to rotation, scale and offset. The cosine of shape_angular.",
        width_limit="bures_similarity is inflated when there are not many more rows than features; use more rows",
    ),
)
def bures_similarity() -> Measure:
    """Fidelity tr (K^1/2 L K^1/2)^1/2 / root(tr K tr L) of centred Gram matrices, |x'y|_* / (|x| |y|), in [0, 1].

    Two lines whose correlation is -1/2:

    >>> from repsim_cli import measures
    >>> round(measures.get("bures_similarity")([[0.], [1.], [0.]], [[0.], [0.], [2.]]), 12)
    0.5
    """
    return Pairwise(
        prepare=prepare_shape, compare=compute_bures_similarity, permute=permute, aligned=rotation, wide_squares=4.0
    )


def compute_mean_aligned_cosine(a: CentredShape, b: CentredShape) -> float:
    dtype = torch.promote_types(a.rows.dtype, b.rows.dtype)
    x, y = a.rows.to(dtype), b.rows.to(dtype)
    # in float64, for a row far from the others hides in float32 what they say about the rotation
    u, _, vt = torch.linalg.svd(x.double().T @ y.double(), full_matrices=False)
    products = ((x @ (u @ vt).to(dtype)) * y).sum(1).double()
    norms = torch.linalg.vector_norm(x, dim=1).double() * torch.linalg.vector_norm(y, dim=1)
    without = int((norms == 0).sum())
    if without:
        warnings.warn(f"rows at the mean have no direction, got {without}; left out", MeasureWarning, stacklevel=2)
    return float((products[norms > 0] / norms[norms > 0]).mean())


@measures.register(
    "aligned_cosine",
    Card(
        label="aligned cosine",
        larger_is_closer=True,
        bounds=(-1.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=2,
        cost="n d^2 + d^3 per pair",
        source="Hamilton et al. 2016, cosine of rows after the best rotation; here centred",
        note="1: after the rotation every row has the same direction. Every row counts alike, whatever its norm.",
    ),
)
def aligned_cosine() -> Measure:
    """Mean cosine of the paired rows, centred, after the rotation that is best for the whole, in [-1, 1].

    >>> from repsim_cli import measures
    >>> x, y = [[0., 0.], [1., 0.], [2., 3.]], [[0., 0.], [0., 2.], [-6., 4.]]
    >>> round(measures.get("aligned_cosine")(x, y), 12)
    1.0
    """
    return Pairwise(
        prepare=prepare_shape, compare=compute_mean_aligned_cosine, permute=permute, aligned=rotation, wide_squares=4.0
    )


def centre_and_scale_neurons(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Centres rows and scales them to mean squared norm 1; the neurons are not rotated."""
    return centre(x)[0]


def compute_permutation_distance(a: Float[Tensor, "n d"], b: Float[Tensor, "n l"]) -> float:
    """Distance after the best matching of neurons at unit Frobenius norms; unmatched neurons are matched to 0."""
    products = (a.T @ b).double().cpu().numpy()
    left, right = scipy.optimize.linear_sum_assignment(products, maximize=True)
    squared = 2 - 2 * float(products[left, right].sum()) / len(a)
    if squared > 2 * _NEAR:
        return math.sqrt(squared)
    a, b = (side.double() / torch.linalg.matrix_norm(side.double()) for side in (a, b))
    rest = [side.square().sum() - side[:, used].square().sum() for side, used in ((a, left), (b, right))]
    return math.sqrt(max(0.0, float((a[:, left] - b[:, right]).square().sum() + sum(rest))))


@measures.register(
    "permutation_procrustes",
    Card(
        label="permutation Procrustes distance",
        larger_is_closer=False,
        bounds=(0.0, 2.0),
        symmetric=True,
        is_metric=False,
        invariant_to=NEURONS,
        minimum_rows=2,
        cost="n d^2 + d^3 per pair",
        source="Williams et al. 2021, shape metric over permutations, centred, unit Frobenius norm",
        note="0: the same neurons in another order. A metric among layers of one width; between widths, matching "
        "to zeros can break the triangle inequality.",
    ),
)
def permutation_procrustes() -> Measure:
    """Distance of centred, unit-norm representations after the best permutation of neurons, in [0, 2].

    The neurons of y are those of x in another order:

    >>> from repsim_cli import measures
    >>> x, y = [[0., 1.], [1., 5.], [2., 0.]], [[2., 0.], [10., 2.], [0., 4.]]
    >>> measures.get("permutation_procrustes")(x, y) < 1e-7
    True
    """
    return Pairwise(prepare=centre_and_scale_neurons, compare=compute_permutation_distance, aligned=permutation)
