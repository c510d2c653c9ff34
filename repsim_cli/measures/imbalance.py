"""Information imbalance: how far from a row, in one representation, is the row that is nearest to it in another?"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.base.registry import measures
from repsim_cli.measures.attention import map_in_threads
from repsim_cli.measures.base import Measure, Pairwise
from repsim_cli.measures.cards import Card
from repsim_cli.measures.centring import centre
from repsim_cli.measures.documents import have_same_groups
from repsim_cli.measures.inner import Matrix
from repsim_cli.measures.kernels import Documents
from repsim_cli.measures.near_rows import compute_block_distances, find_left_out, list_nearest_rows
from repsim_cli.measures.nearest import warn_of_ties
from repsim_cli.measures.rdm import SHAPE

_TILE = 32  # rows whose distances are counted at a time, in the processor's cache
_EQUAL = 2e-7  # share of a squared distance: two of float32 that differ by less are equal


class Nearest(NamedTuple):
    """Rows, relative to their mean, and the nearest other row of each. documents: as in `nearest.NearestRows`."""

    rows: Float[Tensor, "n d"]
    nearest: Int[Tensor, " n"]
    documents: Documents | None = None


def find_nearest_neighbours(x: Float[Tensor, "n d"], documents: Documents | None = None) -> Nearest:
    """Finds the nearest row of each by Euclidean distance, the first of equally near ones. Warns where there are many.

    Raises Degenerate where all rows are equal, or the largest document leaves no two other rows.
    """
    rows = centre(x.double())[0]
    if documents is not None and (left := len(x) - int(documents.bincount().max())) < 2:
        raise Degenerate(f"2 rows of other documents are needed, got {left}; give more documents")
    nearest, tied = torch.empty(len(rows), dtype=torch.long, device=rows.device), 0
    every = torch.arange(len(rows), device=rows.device)
    for some, (best, where) in list_nearest_rows(rows, every, 1, partial(find_left_out, documents)):
        nearest[some] = where[:, 0]
        tied += int((best[:, 0] == best[:, 1]).sum())
    warn_of_ties(tied, len(rows), 1)
    return Nearest(rows, nearest, documents)


def permute(state: Nearest, order: Int[Tensor, " n"]) -> Nearest:
    """Gives the state of x[order]; the nearest row is of the documents that stand in the other places."""
    rows, documents = state.rows[order], state.documents
    if documents is not None and not have_same_groups(documents[order], documents):
        return find_nearest_neighbours(rows, documents)
    return Nearest(rows, order.argsort()[state.nearest[order]], documents)


def compute_imbalances(row: Nearest, columns: Sequence[Nearest]) -> Float[Tensor, " b"]:
    """Twice the mean place, in the row's representation, of the nearest rows of each column, over the number of rows.
    Equally near rows share the mean of their places."""
    total = torch.zeros(len(columns), dtype=torch.float64, device=row.rows.device)
    asked = torch.stack([column.nearest for column in columns])
    for rows, squared in compute_block_distances(row.rows, partial(find_left_out, row.documents)):
        squared = squared.float()
        those = squared.gather(1, asked[:, rows].T)
        tiles = zip(squared.split(_TILE), those.split(_TILE), strict=True)
        total += torch.cat([*map_in_threads(find_relative_places, tiles)]).sum(0)
    return total / len(row.rows)


def find_relative_places(tile: tuple[Float[Tensor, "c n"], Float[Tensor, "c b"]]) -> Float[Tensor, "c b"]:
    """Finds twice the places of these distances among all of their row, over the number of rows."""
    squared, those = tile
    near, far = those * (1 - _EQUAL), those * (1 + _EQUAL)
    # counted cell by cell: to sort them costs as much as 40 columns
    sides = [count(squared < near[:, b, None]) + 1 + count(squared <= far[:, b, None]) for b in range(those.shape[1])]
    return torch.stack(sides, 1).double() / (count(squared.isfinite())[:, None] + 1)


def count(cells: Bool[Tensor, "c n"]) -> Int[Tensor, " c"]:
    return torch.from_numpy(np.count_nonzero(cells.numpy(), axis=1)) if cells.device.type == "cpu" else cells.sum(1)


def compute_all_imbalances(rows: Sequence[Nearest], columns: Sequence[Nearest]) -> Matrix:
    return torch.stack([compute_imbalances(row, columns) for row in rows])


def make_imbalance(documents: Documents | None = None) -> Pairwise:
    """documents: of the rows, where the nearest row, and those before it, are of other documents."""
    return Pairwise(
        prepare=find_nearest_neighbours if documents is None else partial(find_nearest_neighbours, documents=documents),
        apart=make_imbalance if documents is None else None,
        compare=lambda a, b: float(compute_imbalances(a, [b])),
        compare_all=compute_all_imbalances,
        permute=permute,
        work=lambda rows: (2500.0 * rows**2, 300.0 * rows**2),
        copies=2.0,
    )


@measures.register(
    "information_imbalance",
    Card(
        label="information imbalance",
        larger_is_closer=False,
        bounds=(0.0, 2.0),
        symmetric=False,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=3,
        cost="2 n^2 d once per layer, n log n per pair",
        source="Glielmo et al. 2022, equation 1; Euclidean distance",
        note="Row a, column b: 2 / n where the nearest row in b is always the nearest in a, 1 where b says nothing of "
        "a's neighbours. a has all that b has where (b, a) is near 0 and (a, b) is not.",
    ),
)
def information_imbalance() -> Measure:
    """Mean place, among the rows by their distance in x, of the row that is nearest in y, times 2 / n; in [2 / n, 2).

    x has y's coordinate and a larger one of its own, by which the nearest rows in y are the second in x:

    >>> from repsim_cli import measures
    >>> x, y = [[0., 0.], [9., 1.], [0., 3.], [9., 7.]], [[0.], [1.], [3.], [7.]]
    >>> round(measures.get("information_imbalance")(x, y), 6), round(measures.get("information_imbalance")(y, x), 6)
    (1.0, 1.125)
    """
    return make_imbalance()
