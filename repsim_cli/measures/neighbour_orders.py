"""Neighbour lists: do two representations give a row the same nearest neighbours in the same order?"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.base.registry import measures
from repsim_cli.measures.base import Measure
from repsim_cli.measures.cards import Card
from repsim_cli.measures.nearest import (
    TIES,
    NearestRows,
    NeighbourStack,
    Places,
    make_neighbour_measure,
    make_row_functions,
)
from repsim_cli.measures.platonic import Rows
from repsim_cli.measures.rdm import SHAPE


def rank_sums(single: NearestRows, many: NeighbourStack) -> tuple[Float[Tensor, "r n"], Int[Tensor, "r n"]]:
    """Sums 2 / ((1 + |p - q|) (p + q)) over the m common neighbours of each row, at places p and q, and divides by its
    value for equal places; also gives m."""
    sums, common = torch.zeros_like(many.similarities[0]), torch.zeros_like(many.lists[0])
    for p, left in enumerate(single.lists, start=1):
        for q, right in enumerate(many.lists, start=1):
            equal = left == right
            common += equal
            sums.add_(equal, alpha=2 / ((1 + abs(p - q)) * (p + q)))
    places = torch.arange(1, len(single.lists) + 1, device=sums.device, dtype=sums.dtype)
    best = torch.cat([places.new_ones(1), (1 / places).cumsum(0)])
    return sums / best[common.long()], common


def rank_value(single: NearestRows, many: NeighbourStack) -> Float[Tensor, "r n"]:
    return rank_sums(single, many)[0]


def rank_jaccard_value(single: NearestRows, many: NeighbourStack) -> Float[Tensor, "r n"]:
    ranks, common = rank_sums(single, many)
    return ranks * common / (2 * len(single.lists) - common)


def compute_lcs_lengths(single: NearestRows, many: NeighbourStack) -> Int[Tensor, "r n"]:
    above = [torch.zeros_like(many.lists[0], dtype=torch.int16)] * (len(many.lists) + 1)
    for left in single.lists:
        row = above[:1]
        for q, right in enumerate(many.lists):
            row.append(torch.maximum(above[q] + (left == right), torch.maximum(above[q + 1], row[q])))
        above = row
    return above[-1]


def edit_value(single: NearestRows, many: NeighbourStack) -> Float[Tensor, "r n"]:
    k = len(single.lists)
    above = [torch.full_like(many.lists[0], q, dtype=torch.int16) for q in range(k + 1)]
    for p, left in enumerate(single.lists, start=1):
        row = [torch.full_like(above[0], p)]
        for q, right in enumerate(many.lists):
            row.append(torch.minimum(above[q] + (left != right), torch.minimum(above[q + 1], row[q]) + 1))
        above = row
    return 1 - above[-1].double() / k


@measures.register(
    "rank_similarity",
    Card(
        label="rank similarity of neighbours",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=3,
        falls_with_rows=True,
        cost="n^2 d once per layer, n k^2 per pair",
        source="Wang et al. 2022; Klabunde et al. 2023 (rank similarity); cosine on centred rows",
        note="1: common neighbours have the same places, however many there are (see rank_jaccard). " + TIES,
    ),
)
def rank_similarity(*, k: Places = 10) -> Measure:
    """Mean closeness of the places p, q of the m common neighbours, in [0, 1].

    Per row sum 2 / ((1 + |p - q|) (p + q)) / (1 + 1/2 + ... + 1/m), 0 without a common neighbour.

    k: neighbours per row, or below 1 their share of the rows.

    The two nearest of rows a, b, -a, -b are the same in x and y, in the other order: (1/3 + 1/3) / (1 + 1/2).

    >>> from repsim_cli import measures
    >>> a, b, c = [2., 0.], [1., 1.], [-1., 1.]
    >>> x, y = ([[*p], [*q], [-p[0], -p[1]], [-q[0], -q[1]]] for p, q in ((a, b), (a, c)))
    >>> round(measures.get("rank_similarity", k=2)(x, y), 6)
    0.444444
    """
    return make_neighbour_measure(make_row_functions(rank_value), k)


@measures.register(
    "rank_jaccard",
    Card(
        label="joint rank and Jaccard of neighbours",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=3,
        falls_with_rows=True,
        cost="n^2 d once per layer, n k^2 per pair",
        source="Wang et al. 2022; Klabunde et al. 2023 (joint rank and Jaccard); cosine on centred rows",
        note="1: the same neighbours in the same order. " + TIES,
    ),
)
def rank_jaccard(*, k: Places = 10) -> Measure:
    """Mean over rows of Jaccard index times rank similarity of the k nearest rows, in [0, 1].

    k: neighbours per row, or below 1 their share of the rows.

    The two nearest of rows a, b, -a, -b are the same in x and y, in the other order: 1 times 4/9.

    >>> from repsim_cli import measures
    >>> a, b, c = [2., 0.], [1., 1.], [-1., 1.]
    >>> x, y = ([[*p], [*q], [-p[0], -p[1]], [-q[0], -q[1]]] for p, q in ((a, b), (a, c)))
    >>> round(measures.get("rank_jaccard", k=2)(x, y), 6)
    0.444444
    """
    return make_neighbour_measure(make_row_functions(rank_jaccard_value), k)


@measures.register(
    "lcs_knn",
    Card(
        label="longest common subsequence of k-NN",
        larger_is_closer=True,
        bounds=(0.0, None),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=3,
        falls_with_rows=True,
        cost="n^2 d once per layer, n k^2 per pair",
        source="Huh et al. 2024, appendix A (LCS k-NN), not divided by k; cosine on centred rows",
        note="At most k: a number of neighbours in the same order. " + TIES,
    ),
)
def lcs_knn(*, k: Places = 10, rows: Rows = "centred") -> Measure:
    """Mean length of the longest common subsequence of the lists of k nearest rows, in [0, k].

    k: neighbours per row, or below 1 their share of the rows.
    rows: `centred`; or `platonic`, as Huh et al. (2024) take them: values clamped at the 0.95 quantile of the layer's
        absolute values, rows not centred. Offsets and rotations change that.

    The two nearest of rows a, b, -a, -b are the same in x and y, in the other order.

    >>> from repsim_cli import measures
    >>> a, b, c = [2., 0.], [1., 1.], [-1., 1.]
    >>> x, y = ([[*p], [*q], [-p[0], -p[1]], [-q[0], -q[1]]] for p, q in ((a, b), (a, c)))
    >>> round(measures.get("lcs_knn", k=2)(x, y), 6)
    1.0
    """
    return make_neighbour_measure(make_row_functions(compute_lcs_lengths), k, rows=rows)


@measures.register(
    "edit_distance_knn",
    Card(
        label="edit distance of k-NN",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=3,
        falls_with_rows=True,
        cost="n^2 d once per layer, n k^2 per pair",
        source="Huh et al. 2024, appendix A (edit distance k-NN); cosine on centred rows",
        note="1 - mean edit distance / k: a similarity. " + TIES,
    ),
)
def edit_distance_knn(*, k: Places = 10, rows: Rows = "centred") -> Measure:
    """1 - mean Levenshtein distance of the lists of k nearest rows / k, in [0, 1].

    k: neighbours per row, or below 1 their share of the rows.
    rows: `centred`; or `platonic`, as Huh et al. (2024) take them: values clamped at the 0.95 quantile of the layer's
        absolute values, rows not centred. Offsets and rotations change that.

    The two nearest of rows a, b, -a, -b are the same in x and y, in the other order: two edits.

    >>> from repsim_cli import measures
    >>> a, b, c = [2., 0.], [1., 1.], [-1., 1.]
    >>> x, y = ([[*p], [*q], [-p[0], -p[1]], [-q[0], -q[1]]] for p, q in ((a, b), (a, c)))
    >>> round(measures.get("edit_distance_knn", k=2)(x, y), 6)
    0.0
    """
    return make_neighbour_measure(make_row_functions(edit_value), k, rows=rows)
