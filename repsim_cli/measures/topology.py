"""Persistent homology: representation topology divergence and geometry score.

The barcodes come from ripser and gudhi, in an extra: `pip install -e '.[topology]'`.
"""

import warnings
from functools import partial
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from repsim_cli.base.gram import squared_norms
from repsim_cli.base.registry import measures
from repsim_cli.base.settings import Above0, Medium, Seed
from repsim_cli.measures.base import Measure, MeasureWarning, Pairwise
from repsim_cli.measures.cards import Card
from repsim_cli.measures.centring import centre
from repsim_cli.measures.inner import unpack
from repsim_cli.measures.rdm import SHAPE, pack_distances

Square = Float[np.ndarray, "n n"]
SubsetRows = Annotated[int, Field(ge=3, le=4000)]  # so that float32 holds every rank of their distances
Landmarks = Annotated[int, Field(ge=4, le=10**6)]  # three have no hole

_QUANTILE = 0.9  # the distances are divided by this quantile, which includes the zeros of the diagonal
_GAMMA = 1 / (128 * 5000)  # per row: the longest relaxation as a share of the largest distance


def centre_and_scale_rows(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    return centre(x.double())[0]


def normalise_distances(x: Float[Tensor, "n d"]) -> Square:
    distances = unpack(pack_distances(x), len(x)).cpu().numpy()
    return distances / np.quantile(distances, _QUANTILE)


def cross_barcode(first: Square, second: Square) -> float:
    """Total length of the bars in dimension 1 that appear when the short edges of `second` are added to `first`.

    They are the bars of the Rips filtration on two copies of the rows: distances 0 within the first copy,
    min(first, second) within the second, first between the two; those from row i to row j > i of the copy are omitted.
    """
    from ripser import ripser

    n = len(first)
    distances = np.zeros((2 * n, 2 * n))
    distances[n:, :n] = np.where(np.tri(n, k=-1, dtype=bool), np.inf, first)
    distances[:n, n:] = distances[n:, :n].T
    distances[n:, n:] = np.minimum(first, second)
    # ripser works in float32; the barcode depends on the order of the distances alone, and ranks are exact
    levels, ranks = np.unique(distances, return_inverse=True)
    ranked = np.where(np.isinf(distances), np.inf, ranks.reshape(distances.shape)).astype(np.float32)
    bars = ripser(ranked, maxdim=1, distance_matrix=True)["dgms"][1].astype(int)
    return float(np.sum(levels[bars[:, 1]] - levels[bars[:, 0]]))


def average_topology_divergence(
    a: Float[Tensor, "n d"], b: Float[Tensor, "n e"], *, rows: int, subsets: int, seed: int
) -> float:
    """The mean, over subsets of the rows and both directions, of the summed lengths of the bars of the cross-barcode.

    rows: of each subset, at most all. subsets: how many. seed: of their draws.
    """
    draw = np.random.default_rng(seed)
    chosen = (
        [draw.choice(len(a), rows, replace=False) for _ in range(subsets)] if len(a) > rows else [np.arange(len(a))]
    )
    lengths = []
    for subset in chosen:
        first, second = (normalise_distances(side[torch.from_numpy(subset)]) for side in (a, b))
        lengths.append((cross_barcode(first, second) + cross_barcode(second, first)) / 2)
    return float(np.mean(lengths))


@measures.register(
    "rtd",
    Card(
        label="RTD",
        larger_is_closer=False,
        bounds=(0.0, None),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=3,
        cost="two barcodes of 2 rows points per subset and pair: 5 to 30 s for 500 rows",
        source="Barannikov et al. 2022: representation topology divergence, dimension 1, mean of both directions",
        package="ripser",
        note="0: the same clusters and loops at every scale. Grows with the rows of a subset; compare only equal ones.",
    ),
)
def rtd(*, rows: SubsetRows = 500, subsets: Medium = 10, seed: Seed = 0) -> Measure:
    """Total length of the bars by which the graph of short edges in x differs from the graph of edges short in x or y.

    rows: rows per subset; all of them where there are no more.
    subsets: how many random subsets, the same for all layers; the value is their mean.
    seed: of the subsets.

    Distances are divided by their 0.9 quantile. Bars are of dimension 1. The value is the mean of both directions.

    Rows 0, 1, 3 join at 1/3 and 2/3, rows 0, 2, 3 too but the other way round, and the edges of both at 1/3: one bar.

    >>> from repsim_cli import measures
    >>> round(measures.get("rtd")([[0.], [1.], [3.]], [[0.], [2.], [3.]]), 6)
    0.333333
    """
    return Pairwise(
        prepare=centre_and_scale_rows,
        compare=partial(average_topology_divergence, rows=rows, subsets=subsets, seed=seed),
        work=lambda n: (0.0, (1.5e10 + 200.0 * min(n, rows) ** 3) * (subsets if n > rows else 1)),
        copies=2.0,
        leaps=True,
    )


def measure_hole_lifetimes(distances: Float[np.ndarray, "n l"], longest: float) -> Float[np.ndarray, " holes"]:
    """Shares of [0, longest] for which the relaxed witness complex of the l landmarks has 0, 1, 2 ... holes."""
    import gudhi

    # a landmark that is further away than the third nearest by more than this is in no triangle witnessed by the row
    third = np.partition(distances, 2, axis=1)[:, 2]
    count = int((distances <= third[:, None] + longest).sum(1).max())
    order = np.argpartition(distances, count - 1, axis=1)[:, :count]
    order = np.take_along_axis(order, np.take_along_axis(distances, order, 1).argsort(1), 1)
    table = np.stack([order, np.take_along_axis(distances, order, 1)], axis=-1, dtype=np.float64)
    tree = gudhi.WitnessComplex(table).create_simplex_tree(max_alpha_square=longest, limit_dimension=2)
    # gudhi counts holes in the highest dimension only on request: those of a complex of edges are in dimension 1
    tree.compute_persistence(homology_coeff_field=2, persistence_dim_max=tree.dimension() < 2)
    births, deaths = tree.persistence_intervals_in_dimension(1).reshape(-1, 2).T
    times = np.concatenate([[0.0], births, np.minimum(deaths, longest), [longest]])
    steps = np.concatenate([[0], np.ones_like(births), -np.ones_like(deaths), [0]])
    order = np.argsort(times, kind="stable")
    counts = np.cumsum(steps[order])[:-1].astype(int)
    # simultaneous events only count as a sum; a negative count in between lasts no time
    return np.bincount(counts.clip(0), np.diff(times[order]) / longest)


def average_living_times(
    x: Float[Tensor, "n d"], *, landmarks: int, repeats: int, gamma: float | None, seed: int
) -> Float[np.ndarray, " holes"]:
    """Mean relative living times of the numbers of holes, over random landmarks.

    The landmarks are drawn from the rows sorted by norm, so that the order of the rows does not matter.
    """
    x = centre_and_scale_rows(x)
    x = x[squared_norms(x).argsort(stable=True)]
    n, distances = len(x), unpack(pack_distances(x), len(x)).cpu().numpy()
    draw = np.random.default_rng(seed)
    share = n * _GAMMA if gamma is None else gamma
    total = np.zeros(1)
    for _ in range(repeats):
        near = distances[:, draw.choice(n, landmarks, replace=False)]
        times = measure_hole_lifetimes(near, share * float(near.max()))
        total = np.pad(total, (0, max(0, len(times) - len(total))))
        total[: len(times)] += times
    if not total[1:].any():
        warnings.warn(
            f"no complex of {landmarks} landmarks of {n} rows has a hole, and layers without holes score 0; "
            "use more rows, or a larger gamma",
            MeasureWarning,
            stacklevel=2,
        )
    return total / repeats


def sum_squared_difference(a: Float[np.ndarray, " a"], b: Float[np.ndarray, " b"]) -> float:
    length = max(len(a), len(b))
    a, b = (np.pad(side, (0, length - len(side))) for side in (a, b))
    return float(np.sum((a - b) ** 2))


@measures.register(
    "geometry_score",
    Card(
        label="geometry score",
        larger_is_closer=False,
        bounds=(0.0, 2.0),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=5,
        paired=False,
        cost="n^2 d, and per repeat a complex of landmarks n cells, once per layer: about 10 s for 2000 rows",
        source="Khrulkov and Oseledets 2018: mean relative living times of loops; not multiplied by 1000",
        package="gudhi",
        note="0: as many holes for as long. The rows need no pairing. Needs many times more rows than landmarks; "
        "the scale looked at grows with the rows.",
    ),
)
def geometry_score(
    *,
    landmarks: Landmarks = 64,
    repeats: Medium = 1000,
    gamma: Above0 | None = None,
    seed: Seed = 0,
) -> Measure:
    """Sum of squared differences of the mean relative living times of 0, 1, 2 ... holes in witness complexes.

    landmarks: rows that are drawn as landmarks, without replacement.
    repeats: how many times landmarks are drawn anew.
    gamma: the longest relaxation, over the largest distance; null: n / 640000, as published.
    seed: of the landmarks.

    Unlike in the published code, numbers of holes are not cut at 100, beyond which it counts nothing, and holes in
    complexes without triangles are seen.

    A ring of eight rows has one hole, whichever row is not a landmark, in any order of the rows:

    >>> from repsim_cli import measures
    >>> ring = [[0., 2.], [1., 1.], [2., 0.], [1., -1.], [0., -2.], [-1., -1.], [-2., 0.], [-1., 1.]]
    >>> round(measures.get("geometry_score", landmarks=7)(ring, ring[::-1]), 6)
    0.0
    """
    return Pairwise(
        prepare=partial(average_living_times, landmarks=landmarks, repeats=repeats, gamma=gamma, seed=seed),
        compare=sum_squared_difference,
        permute=lambda state, order: state,
        work=lambda n: (repeats * (4e7 + 1.5e5 * n), 0.0),
        minimum_rows=landmarks + 1,
        copies=0.0,
        leaps=True,
    )
