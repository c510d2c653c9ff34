"""How many neighbours two representations share under random pairings of their rows, from the lists alone.

Lists are matrices of zeros and ones with few ones, so that what `expected.py` sums over all cells is summed over these:
for all pairs at once, a product of sparse matrices whose columns are what entries must share to be counted together.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from repsim_cli.engine.expected import RowPlaces, scale_to_cells
from repsim_cli.measures.inner import Matrix

FILLED = 0.05  # share of a matrix that is not 0, from which on it is multiplied as if all were
AT_ONCE = 1 << 14  # rows of it
Lists = Sequence[Int[Tensor, "k n"]]


def compute_mean_overlap(lists: Lists, places: RowPlaces) -> Matrix:
    """Computes the mean number of rows that the lists of two representations have in common, over random pairings of
    these places."""
    unit, place, across, together = (
        part.cpu().numpy() for part in (places.unit, places.place, places.across, places.together)
    )
    (i, j), n = _index_list_entries(lists), len(unit)
    same, p, q = unit[i] == unit[j], place[i], place[j]
    weight = np.where(same, together[p, q], across[p, q])
    met = weight > 0
    of_units, of_others = met & same, met & ~same
    cross = _sum_shared(i * n + j, np.where(same, -weight, weight), met)
    cross -= _sum_shared(i * places.count + q, weight, of_others) + _sum_shared(j * places.count + p, weight, of_others)
    cross += sum(_sum_shared(p * places.count + q, weight, some) for some in (of_units, of_others))
    squares = torch.from_numpy(np.stack([np.full(len(j), j.shape[1]), met.sum(1)], 1)).double()
    return scale_to_cells(torch.from_numpy(cross), squares, squares, places)


def count_overlaps(lists: Lists, orders: Int[Tensor, "o n"]) -> Float[Tensor, "o r r"]:
    """Counts the rows that the lists of two representations have in common, with the rows of the column's in each of
    these orders. Its lists are kept, as in `compute_mean_overlap`: rows are not looked for anew."""
    moved = [order.argsort()[each[:, order].long().cpu()] for order in orders for each in lists]
    i, j = _index_list_entries([*lists, *moved])
    every = np.ones(j.shape, bool)
    cross = _sum_shared(i * len(orders[0]) + j, every.astype(float), every, len(lists))
    return torch.from_numpy(cross).unflatten(1, (len(orders), len(lists))).transpose(0, 1)


def _index_list_entries(lists: Lists) -> tuple[Int[np.ndarray, "r e"], Int[np.ndarray, "r e"]]:
    """Makes the row and the column of every entry of the lists."""
    k, n = lists[0].shape
    j = np.stack([each.flatten().cpu().numpy() for each in lists]).astype(np.int64)
    return np.broadcast_to(np.tile(np.arange(n), k), j.shape), j


def _sum_shared(
    keys: Int[np.ndarray, "r e"], weight: Float[np.ndarray, "r e"], counted: Bool[np.ndarray, "r e"], rows: int = 0
) -> Float[np.ndarray, "a b"]:
    """Sums the weights of all pairs of entries of two representations that have a key in common, which has one weight.

    counted: which entries count. rows: how many of the representations are rows, and the others columns; 0: all are
    both.
    """
    of, _ = counted.nonzero()
    order = np.argsort(keys[counted], kind="stable")
    of, sorted_keys = of[order], keys[counted][order]
    new = np.flatnonzero(np.r_[True, np.diff(sorted_keys) != 0, True][: len(order) + 1])
    by_key = scipy.sparse.csr_array((np.ones(len(of)), of, new), (len(new) - 1, len(keys)))
    weight_of_key = scipy.sparse.diags_array(weight[counted][order][new[:-1]])
    by_key.sum_duplicates()  # else a key takes the square of its entries; changes `new`, which it holds
    weighted = weight_of_key @ by_key
    return _multiply_columns(weighted[:, :rows], by_key[:, rows:]) if rows else _multiply_columns(weighted, by_key)


def _multiply_columns(a: Any, b: Any) -> Float[np.ndarray, "a b"]:
    """Multiplies a.T @ b of sparse matrices, as dense blocks where b has many entries: products with 0 take less time
    than looking entries up."""
    if b.nnz < FILLED * math.prod(b.shape):
        return (a.T @ b).toarray()
    total = torch.zeros(a.shape[1], b.shape[1], dtype=torch.float64)
    for start in range(0, a.shape[0], AT_ONCE):
        left, right = (torch.from_numpy(each[start : start + AT_ONCE].toarray()) for each in (a, b))
        total.addmm_(left.T, right)
    return total.numpy()
