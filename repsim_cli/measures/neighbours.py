"""Neighbour sets: do two representations give a row the same nearest neighbours?"""

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.base.registry import measures
from repsim_cli.measures.base import Measure
from repsim_cli.measures.cards import Card
from repsim_cli.measures.inner import Matrix
from repsim_cli.measures.near_rows import count_block_rows
from repsim_cli.measures.nearest import (
    TIES,
    Functions,
    NearestRows,
    NeighbourStack,
    Places,
    make_compare_all,
    make_neighbour_measure,
    stack,
)
from repsim_cli.measures.platonic import Rows
from repsim_cli.measures.rdm import SHAPE

_HOT = 1 << 23  # cells of the one-hot neighbour sets held at a time
_GATHERED = 1 << 24  # similarities at other representations' neighbours held at a time


def count_common_neighbours(a: Sequence[NearestRows], b: Sequence[NearestRows]) -> Iterator[Float[Tensor, "rows a b"]]:
    """|A_i & B_i| of all pairs for some rows at a time: neighbour sets as 0/1 vectors over their union."""
    both = a if a is b else [*a, *b]
    k, n = a[0].lists.shape
    for rows in torch.arange(n, device=a[0].lists.device).split(max(1, _HOT // (len(both) ** 2 * k))):
        members = torch.stack([state.lists[:, rows] for state in both]).permute(2, 0, 1).flatten(1)
        members, order = members.sort(1)
        names = torch.nn.functional.pad((members.diff(dim=1) != 0).cumsum(1), (1, 0))
        names = torch.empty_like(names).scatter_(1, order, names).unflatten(1, (len(both), k))
        sets = torch.zeros(len(rows), len(both), int(names.max()) + 1, device=names.device).scatter_(2, names, 1.0)
        yield sets[:, : len(a)] @ sets[:, -len(b) :].mT


def make_set_functions(value: Callable[[Tensor, int], Tensor]) -> Functions:
    """The functions of the mean over rows of value(|A_i & B_i|, k)."""

    def compare_all(a: Sequence[NearestRows], b: Sequence[NearestRows]) -> Matrix:
        k, n = a[0].lists.shape
        return sum(value(count.double(), k).sum(0) for count in count_common_neighbours(a, b)) / n  # type: ignore[return-value]

    def of_rows(a: Sequence[NearestRows], b: Sequence[NearestRows]) -> Float[Tensor, "a b n"]:
        k = len(a[0].lists)
        return torch.cat([value(count.double(), k) for count in count_common_neighbours(a, b)]).permute(1, 2, 0)

    return Functions(lambda a, b: float(compare_all([a], [b])), compare_all, of_rows)


def cycle(a: NearestRows, b: NearestRows) -> float:
    """Share of rows i that are a-neighbours of at least one of their b-neighbours."""
    every = torch.arange(a.lists.shape[1], device=a.lists.device)
    cyclic = torch.zeros(len(every), dtype=torch.bool, device=every.device)
    for there in b.lists.long():
        cyclic |= (a.lists[:, there] == every).any(0)
    return float(cyclic.double().mean())


def compute_all_second_order(a: Sequence[NearestRows], b: Sequence[NearestRows]) -> Matrix:
    """Mean cosine, over the union of a row's neighbours in both, of their similarities to it in either."""
    both = a if a is b else [*a, *b]
    k, n = a[0].lists.shape
    columns = slice(len(both) - len(b), None)
    total = torch.zeros(len(a), len(b), dtype=torch.float64, device=a[0].lists.device)
    size = min(max(1, _GATHERED // (len(both) ** 2 * k)), count_block_rows(n))
    for rows in torch.arange(n, device=total.device).split(size):
        lists = torch.stack([state.lists[:, rows] for state in both], 1)
        where = lists.flatten(0, 1).long()
        # near[c, p, e, i]: the similarity, in c, of the neighbour at place p in e
        near = torch.stack([(s.units @ s.units[rows].T).gather(0, where).view(lists.shape) for s in both])
        every = torch.arange(len(both), device=total.device)
        theirs = near[every, :, every].transpose(0, 1)[:, columns]
        for i in range(len(a)):
            here, there = near[columns, :, i].transpose(0, 1), near[i, :, columns]
            to_row = near[i, :, i][:, None]
            known = torch.zeros_like(there, dtype=torch.bool)
            for left in lists[:, i]:
                known |= lists[:, columns] == left
            fresh = (~known).to(near.dtype)
            dot = (to_row * here).sum(0) + (there * theirs * fresh).sum(0)
            squares = ((to_row**2).sum(0) + (there**2 * fresh).sum(0)) * ((here**2).sum(0) + (theirs**2 * fresh).sum(0))
            # rows without a direction have nothing in common
            total[i] += (dot / squares.sqrt().clamp_min(torch.finfo(dot.dtype).tiny)).sum(1, dtype=torch.float64)
    return total / n


def compute_masked_hsic(single: NearestRows, many: NeighbourStack) -> Float[Tensor, " r"]:
    """n (n - 3) HSIC1 of the similarities K, L at common neighbours, 0 elsewhere: K, L are not symmetric matrices.

    tr(K L) + 1'K1 1'L1 / ((n - 1) (n - 2)) - 2 / (n - 2) 1'K L1, in float64.
    """
    n = single.lists.shape[1]
    row_sums = torch.zeros_like(many.lists[0], dtype=torch.float64)
    column_sums, trace = torch.zeros_like(row_sums), torch.zeros_like(row_sums)
    for left, kernel, mutual in zip(single.lists, single.similarities.double(), single.mutual, strict=True):
        common = torch.zeros_like(row_sums, dtype=torch.bool)
        other, both_ways = torch.zeros_like(row_sums), torch.zeros_like(common)
        for right, similarity, also in zip(many.lists, many.similarities, many.mutual, strict=True):
            equal = left == right
            common |= equal
            other += equal * similarity
            both_ways |= equal & also
        mine = common * kernel
        row_sums += other
        column_sums.scatter_add_(1, left.long().expand_as(mine), mine)
        trace += mine * other * (both_ways & mutual)
    sums = column_sums.sum(1) * row_sums.sum(1) / ((n - 1) * (n - 2))
    return trace.sum(1) + sums - 2 / (n - 2) * (column_sums * row_sums).sum(1)


def compute_self_hsic(state: NearestRows) -> float:
    """`compute_masked_hsic` of a representation with itself; 0 where it is within the rounding of the similarities."""
    value = float(compute_masked_hsic(state, stack([state])))
    floor = 10 * torch.finfo(state.similarities.dtype).eps * float(state.similarities.square().sum())
    return value if value > floor else 0.0


def compute_all_cknna(a: Sequence[NearestRows], b: Sequence[NearestRows]) -> Matrix:
    cross = make_compare_all(compute_masked_hsic, symmetric=False)(a, b)
    norms = [cross.new_tensor([compute_self_hsic(state) for state in side]) for side in ((a,) if a is b else (a, b))]
    for values in norms:
        if not values.all():
            raise Degenerate(
                f"cknna: no self-similarity, got 0 for representation {int(values.argmin())} of {len(values)}; "
                "use more rows or another k"
            )
    return cross / norms[0].sqrt()[:, None] / norms[-1].sqrt()


@measures.register(
    "mutual_knn",
    Card(
        label="mutual k-NN",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=3,
        falls_with_rows=True,
        cost="n^2 d once per layer, n k per pair",
        source="Huh et al. 2024, section 3 and appendix A; cosine on centred rows",
        note="Share of common nearest neighbours; unrelated layers score about k / (n - 1). " + TIES,
    ),
)
def mutual_knn(*, k: Places = 10, rows: Rows = "centred") -> Measure:
    """Mean overlap of the k-nearest-neighbour sets, |A_i & B_i| / k, in [0, 1].

    k: neighbours per row, or below 1 their share of the rows.
    rows: `centred`; or `platonic`, as Huh et al. (2024) take them: values clamped at the 0.95 quantile of the layer's
        absolute values, rows not centred. Offsets and rotations change that.

    The two nearest of rows a, b, -a, -b are the same in x and y, in the other order.

    >>> from repsim_cli import measures
    >>> a, b, c = [2., 0.], [1., 1.], [-1., 1.]
    >>> x, y = ([[*p], [*q], [-p[0], -p[1]], [-q[0], -q[1]]] for p, q in ((a, b), (a, c)))
    >>> round(measures.get("mutual_knn", k=2)(x, y), 6)
    1.0
    """
    return make_neighbour_measure(
        make_set_functions(lambda common, k: common / k), k, overlap=lambda state: state.lists, rows=rows
    )


@measures.register(
    "jaccard_knn",
    Card(
        label="Jaccard k-NN",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=3,
        falls_with_rows=True,
        cost="n^2 d once per layer, n k per pair",
        source="Schumacher et al. 2021; Wang et al. 2022; cosine on centred rows",
        note="Common share of the joined neighbour sets; unrelated layers score about k / (2 n). " + TIES,
    ),
)
def jaccard_knn(*, k: Places = 10) -> Measure:
    """Mean Jaccard index of the k-nearest-neighbour sets, |A_i & B_i| / |A_i | B_i|, in [0, 1].

    k: neighbours per row, or below 1 their share of the rows.

    The two nearest of rows a, b, -a, -b are the same in x and y, in the other order.

    >>> from repsim_cli import measures
    >>> a, b, c = [2., 0.], [1., 1.], [-1., 1.]
    >>> x, y = ([[*p], [*q], [-p[0], -p[1]], [-q[0], -q[1]]] for p, q in ((a, b), (a, c)))
    >>> round(measures.get("jaccard_knn", k=2)(x, y), 6)
    1.0
    """
    return make_neighbour_measure(make_set_functions(lambda common, k: common / (2 * k - common)), k)


@measures.register(
    "second_order_cosine",
    Card(
        label="second-order cosine",
        larger_is_closer=True,
        bounds=(-1.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=3,
        cost="n^2 d once per layer, n^2 d per layer more, n k^2 per pair",
        source="Hamilton et al. 2016 (cosine similarities, not distances); cosine on centred rows",
        note="1: neighbours are equally near in both. " + TIES,
    ),
)
def second_order_cosine(*, k: Places = 10) -> Measure:
    """Mean cosine of a row's similarities to its k nearest rows of either representation, in [-1, 1].

    k: neighbours per row, or below 1 their share of the rows.

    The two nearest of rows a, b, -a, -b are the same in x and y, in the other order: (r, -r) against (-r, r) with r the
    root of 1/2.

    >>> from repsim_cli import measures
    >>> a, b, c = [2., 0.], [1., 1.], [-1., 1.]
    >>> x, y = ([[*p], [*q], [-p[0], -p[1]], [-q[0], -q[1]]] for p, q in ((a, b), (a, c)))
    >>> round(measures.get("second_order_cosine", k=2)(x, y), 6)
    -1.0
    """
    return make_neighbour_measure(
        Functions(lambda a, b: float(compute_all_second_order([a], [b])), compute_all_second_order), k
    )


@measures.register(
    "cycle_knn",
    Card(
        label="cycle k-NN",
        larger_is_closer=True,
        bounds=(0.0, None),
        symmetric=False,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=3,
        cost="n^2 d once per layer, n k^2 per pair",
        source="Huh et al. 2024, appendix A (cycle k-NN); cosine on centred rows",
        note="At most 1, which a layer may not reach with itself; about k^2 / n for unrelated layers. " + TIES,
    ),
)
def cycle_knn(*, k: Places = 10, rows: Rows = "centred") -> Measure:
    """Share of rows i that are, in x, among the k nearest of one of the k nearest of i in y. Not symmetric.

    k: neighbours per row, or below 1 their share of the rows.
    rows: `centred`; or `platonic`, as Huh et al. (2024) take them: values clamped at the 0.95 quantile of the layer's
        absolute values, rows not centred. Offsets and rotations change that.

    The nearest of a is b in x; in y it is -b, whose nearest in x is -a: no row is found again.

    >>> from repsim_cli import measures
    >>> a, b, c = [2., 0.], [1., 1.], [-1., 1.]
    >>> x, y = ([[*p], [*q], [-p[0], -p[1]], [-q[0], -q[1]]] for p, q in ((a, b), (a, c)))
    >>> round(measures.get("cycle_knn", k=1)(x, y), 6)
    0.0
    """
    return make_neighbour_measure(Functions(cycle), k, rows=rows)


@measures.register(
    "cknna",
    Card(
        label="CKNNA",
        larger_is_closer=True,
        bounds=(None, None),
        symmetric=False,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=4,
        falls_with_rows=True,
        cost="n^2 d once per layer, n k^2 per pair",
        source="Huh et al. 2024, appendix A, with HSIC1 (Song et al. 2012) and no epsilon; cosine on centred rows",
        note="1 of a layer with itself; may be negative. Not quite symmetric, as the masked similarities are not. "
        + TIES,
    ),
)
def cknna(*, k: Places = 10, rows: Rows = "centred") -> Measure:
    """HSIC1 of the similarities at common k nearest rows, over the root of both self-terms.

    k: neighbours per row, or below 1 their share of the rows.
    rows: `centred`; or `platonic`, as Huh et al. (2024) take them: values clamped at the 0.95 quantile of the layer's
        absolute values, rows not centred. Offsets and rotations change that.

    The two nearest of rows a, b, -a, -b are the same in x and y, in the other order: similarities r, -r against -r, r.

    >>> from repsim_cli import measures
    >>> a, b, c = [2., 0.], [1., 1.], [-1., 1.]
    >>> x, y = ([[*p], [*q], [-p[0], -p[1]], [-q[0], -q[1]]] for p, q in ((a, b), (a, c)))
    >>> round(measures.get("cknna", k=2)(x, y), 6)
    -1.0
    """
    # its sums are centred over all rows
    return make_neighbour_measure(
        Functions(lambda a, b: float(compute_all_cknna([a], [b])), compute_all_cknna),
        k,
        least=4,
        apart=False,
        rows=rows,
    )
