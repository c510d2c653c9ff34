"""Neighbourhood measures: do two representations give a sample the same nearest neighbours?

One table per representation serves them all: for every row its k nearest other rows in order. Pairs are then compared
list by list, all rows and many representations at a time.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from repsim_cli.errors import Degenerate
from repsim_cli.measures.base import Card, Measure, MeasureWarning, centred
from repsim_cli.measures.inner import Matrix
from repsim_cli.measures.rdm import SHAPE
from repsim_cli.registry import measures
from repsim_cli.settings import Positive

_BLOCK = 4096  # rows of the similarity matrix held at a time
_TILE = 512
_CELLS = 1 << 17  # (representation, row) cells compared at a time
_HOT = 1 << 23  # cells of the one-hot neighbour sets held at a time
_GATHERED = 1 << 24  # similarities at other representations' neighbours held at a time
TIE = 12  # decimals to which float64 similarities of about 1 are told apart
_NEAR = {torch.float32: 3e-6, torch.float64: 2e-12}  # similarities closer than this may have lost their order
_MANY_TIES = 0.05  # share of rows


class Neighbours(NamedTuple):
    """The k nearest rows of every row, nearest first, with their similarities; whether that row finds this one among
    its own; and the rows, of norm 1."""

    lists: Int[Tensor, "k n"]
    similarities: Float[Tensor, "k n"]
    mutual: Bool[Tensor, "k n"]
    units: Float[Tensor, "n d"]


def unit_rows(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Centred rows of norm 1, float64. A row at the mean has no direction: similarity 0 to every other row."""
    x = centred(x.double())[0]
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    # + 0.0: no negative zeros, so that equal rows have equal bits
    return torch.where(norms > 0, x / norms.clamp_min(torch.finfo(x.dtype).tiny), 0.0) + 0.0


def neighbours(x: Float[Tensor, "n d"], *, k: int) -> Neighbours:
    """The k nearest rows by cosine of centred rows, self excluded by index, equal similarities in index order.

    Rows whose order the working precision cannot tell are done again in float64. Warns where many rows have more
    than one candidate for the k-th place.
    """
    exact = unit_rows(x)
    units = exact.to(torch.promote_types(x.dtype, torch.float32))
    every = torch.arange(len(x), device=x.device)
    found = [largest(cosines(units, int(rows[0]), len(rows)), rows, k) for rows in every.split(_BLOCK)]
    values, lists = (torch.cat(part) for part in zip(*found, strict=True))
    unsure = (values[:, :-1] - values[:, 1:] < _NEAR[units.dtype]).any(1).nonzero()[:, 0]
    tied = 0
    if len(unsure):
        distinct, which = distinct_rows(exact)
        for rows in unsure.split(_BLOCK):
            # every distinct row once: then equal rows are equally near to the last bit, and equally near rows tie
            best, where = ordered((exact[rows] @ distinct.T).round(decimals=TIE)[:, which], rows, k)
            tied += int((best[:, k - 1 : k] == best[:, k:]).sum())
            values[rows], lists[rows] = best.to(values.dtype), where
    warn_of_ties(tied, len(x), k)
    places = lists[:, :k].T.contiguous()
    mutual = (places[:, places] == torch.arange(len(x), device=x.device)).any(0)
    return Neighbours(places.int(), values[:, :k].T.contiguous(), mutual, units)


Best = tuple[Float[Tensor, "b m"], Int[Tensor, "b m"]]


def cosines(units: Float[Tensor, "n d"], start: int, size: int) -> Float[Tensor, "b n"]:
    """Products of some rows with all; of theirs with each other, half are made and mirrored."""
    found = units.new_empty(size, len(units))
    stop = start + size
    found[:, :start] = units[start:stop] @ units[:start].T
    for i in range(start, stop, _TILE):
        rows, after = slice(i - start, i - start + _TILE), min(i + _TILE, stop)
        found[rows, i:] = units[i:after] @ units[i:].T
        found[after - start :, i:after] = found[rows, after:stop].T
    return found


def distinct_rows(x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "m d"], Int[Tensor, " n"]]:
    """(the distinct rows, which of them every row is)."""
    # one telling column mostly answers it, and sorting whole rows is slow
    column = x[:, int(x.abs().amax(0).argmax())]
    if len(column.unique()) == len(x):
        return x, torch.arange(len(x), device=x.device)
    return torch.unique(x, dim=0, return_inverse=True)


def largest(similarity: Float[Tensor, "b n"], rows: Int[Tensor, " b"], k: int) -> Best:
    """The k + 1 largest of every row, or all but the row itself: (values, indices), in any order where equal."""
    similarity.scatter_(1, rows[:, None], -torch.inf)
    best = similarity.topk(min(k + 1, similarity.shape[1] - 1), dim=1)
    return best.values, best.indices


def ordered(similarity: Float[Tensor, "b n"], rows: Int[Tensor, " b"], k: int) -> Best:
    """As `largest`, equal ones by index."""
    values, indices = largest(similarity, rows, k)
    tied = (values[:, :-1] == values[:, 1:]).any(1).nonzero()[:, 0]
    if len(tied):
        count, last, those = values.shape[1], values[tied, -1:], similarity[tied]
        above, equal = those > last, those == last
        chosen = above | (equal & (equal.cumsum(1) <= count - above.sum(1, keepdim=True)))
        found = chosen.nonzero()[:, 1].view(-1, count)
        values[tied], order = those.gather(1, found).sort(dim=1, descending=True, stable=True)
        indices[tied] = found.gather(1, order)
    return values, indices


def warn_of_ties(tied: int, n: int, k: int) -> None:
    if tied > _MANY_TIES * n:
        warnings.warn(
            f"{tied} of {n} rows have several equally near rows for the last of {k} places, which go by index, the "
            "same in every layer; leave out layers that see no context (embed)",
            MeasureWarning,
            stacklevel=3,
        )


def permuted(state: Neighbours, order: Int[Tensor, " n"]) -> Neighbours:
    """The table of x[order]; rows that tie keep the places they had in x."""
    lists = order.argsort().int()[state.lists[:, order].long()]
    return Neighbours(lists, state.similarities[:, order], state.mutual[:, order], state.units[order])


class Stack(NamedTuple):
    """The tables of r representations."""

    lists: Int[Tensor, "k r n"]
    similarities: Float[Tensor, "k r n"]
    mutual: Bool[Tensor, "k r n"]


def stacked(states: Sequence[Neighbours]) -> Stack:
    return Stack(*(torch.stack([getattr(state, part) for state in states], 1) for part in Stack._fields))


def in_common(a: Sequence[Neighbours], b: Sequence[Neighbours]) -> Iterator[Float[Tensor, "rows a b"]]:
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


def by_sets(value: Callable[[Tensor, int], Tensor]) -> tuple[Callable, Callable]:
    """(compare, compare_all) of the mean over rows of value(|A_i & B_i|, k)."""

    def compare_all(a: Sequence[Neighbours], b: Sequence[Neighbours]) -> Matrix:
        k, n = a[0].lists.shape
        return sum(value(count.double(), k).sum(0) for count in in_common(a, b)) / n  # type: ignore[return-value]

    return lambda a, b: float(compare_all([a], [b])), compare_all


def by_lists(value: Callable[[Neighbours, Stack], Float[Tensor, " r"]], symmetric: bool) -> tuple[Callable, Callable]:
    """(compare, compare_all) of value(one, many): one representation against many."""

    def compare_all(a: Sequence[Neighbours], b: Sequence[Neighbours]) -> Matrix:
        values = torch.empty(len(a), len(b), dtype=torch.float64, device=a[0].lists.device)
        size = max(1, _CELLS // a[0].lists.shape[1])
        mirrored = symmetric and a is b
        for start in range(0, len(b), size):
            columns = slice(start, start + size)
            many = stacked(b[columns])
            for i, one in enumerate(a[: columns.stop] if mirrored else a):
                values[i, columns] = value(one, many)
        return values.triu() + values.triu(1).T if mirrored else values

    return lambda a, b: float(compare_all([a], [b])), compare_all


def rank_sums(one: Neighbours, many: Stack) -> tuple[Float[Tensor, "r n"], Int[Tensor, "r n"]]:
    """Over common neighbours at places p and q: sum 2 / ((1 + |p - q|) (p + q)), divided by that of m equal places,
    and m, their number."""
    sums, common = torch.zeros_like(many.similarities[0]), torch.zeros_like(many.lists[0])
    for p, left in enumerate(one.lists, start=1):
        for q, right in enumerate(many.lists, start=1):
            equal = left == right
            common += equal
            sums.add_(equal, alpha=2 / ((1 + abs(p - q)) * (p + q)))
    places = torch.arange(1, len(one.lists) + 1, device=sums.device, dtype=sums.dtype)
    best = torch.cat([places.new_ones(1), (1 / places).cumsum(0)])
    return sums / best[common.long()], common


def rank_value(one: Neighbours, many: Stack) -> Float[Tensor, " r"]:
    return rank_sums(one, many)[0].mean(1, dtype=torch.float64)


def rank_jaccard_value(one: Neighbours, many: Stack) -> Float[Tensor, " r"]:
    ranks, common = rank_sums(one, many)
    return (ranks * common / (2 * len(one.lists) - common)).mean(1, dtype=torch.float64)


def lcs_value(one: Neighbours, many: Stack) -> Float[Tensor, " r"]:
    above = [torch.zeros_like(many.lists[0], dtype=torch.int16)] * (len(many.lists) + 1)
    for left in one.lists:
        row = above[:1]
        for q, right in enumerate(many.lists):
            row.append(torch.maximum(above[q] + (left == right), torch.maximum(above[q + 1], row[q])))
        above = row
    return above[-1].double().mean(1)


def edit_value(one: Neighbours, many: Stack) -> Float[Tensor, " r"]:
    k = len(one.lists)
    above = [torch.full_like(many.lists[0], q, dtype=torch.int16) for q in range(k + 1)]
    for p, left in enumerate(one.lists, start=1):
        row = [torch.full_like(above[0], p)]
        for q, right in enumerate(many.lists):
            row.append(torch.minimum(above[q] + (left != right), torch.minimum(above[q + 1], row[q]) + 1))
        above = row
    return 1 - above[-1].double().mean(1) / k


def cycle(a: Neighbours, b: Neighbours) -> float:
    """Share of rows i that are among the a-neighbours of one of their b-neighbours."""
    every = torch.arange(a.lists.shape[1], device=a.lists.device)
    found = torch.zeros(len(every), dtype=torch.bool, device=every.device)
    for there in b.lists.long():
        found |= (a.lists[:, there] == every).any(0)
    return float(found.double().mean())


def second_order_all(a: Sequence[Neighbours], b: Sequence[Neighbours]) -> Matrix:
    """Mean cosine, over the union of a row's neighbours in both, of how near either representation finds them."""
    both = a if a is b else [*a, *b]
    k, n = a[0].lists.shape
    columns = slice(len(both) - len(b), None)
    total = torch.zeros(len(a), len(b), dtype=torch.float64, device=a[0].lists.device)
    for rows in torch.arange(n, device=total.device).split(max(1, _GATHERED // (len(both) ** 2 * k))):
        lists = torch.stack([state.lists[:, rows] for state in both], 1)
        where = lists.flatten(0, 1).long()
        # near[c, p, e, i]: how near c finds the neighbour that e has at place p
        near = torch.stack([(s.units @ s.units[rows].T).gather(0, where).view(lists.shape) for s in both])
        every = torch.arange(len(both), device=total.device)
        theirs = near[every, :, every].transpose(0, 1)[:, columns]
        for i in range(len(a)):
            here, there = near[columns, :, i].transpose(0, 1), near[i, :, columns]
            own = near[i, :, i][:, None]
            known = torch.zeros_like(there, dtype=torch.bool)
            for left in lists[:, i]:
                known |= lists[:, columns] == left
            fresh = (~known).to(near.dtype)
            dot = (own * here).sum(0) + (there * theirs * fresh).sum(0)
            squares = ((own**2).sum(0) + (there**2 * fresh).sum(0)) * ((here**2).sum(0) + (theirs**2 * fresh).sum(0))
            # without any direction there is nothing in common
            total[i] += (dot / squares.sqrt().clamp_min(torch.finfo(dot.dtype).tiny)).sum(1, dtype=torch.float64)
    return total / n


def masked_hsic(one: Neighbours, many: Stack) -> Float[Tensor, " r"]:
    """n (n - 3) HSIC1 of the similarities K, L at common neighbours, 0 elsewhere: K, L are not symmetric matrices.

    tr(K L) + 1'K1 1'L1 / ((n - 1) (n - 2)) - 2 / (n - 2) 1'K L1, in float64.
    """
    n = one.lists.shape[1]
    row_sums = torch.zeros_like(many.lists[0], dtype=torch.float64)
    column_sums, trace = torch.zeros_like(row_sums), torch.zeros_like(row_sums)
    for left, kernel, mutual in zip(one.lists, one.similarities.double(), one.mutual, strict=True):
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


def own_hsic(state: Neighbours) -> float:
    """0 where it is rounding of the similarities."""
    value = float(masked_hsic(state, stacked([state])))
    floor = 10 * torch.finfo(state.similarities.dtype).eps * float(state.similarities.square().sum())
    return value if value > floor else 0.0


def cknna_all(a: Sequence[Neighbours], b: Sequence[Neighbours]) -> Matrix:
    cross = by_lists(masked_hsic, symmetric=False)[1](a, b)
    own = [cross.new_tensor([own_hsic(state) for state in side]) for side in ((a,) if a is b else (a, b))]
    for values in own:
        if not values.all():
            raise Degenerate(
                f"cknna: no self-similarity, got 0 for representation {int(values.argmin())} of {len(values)}; "
                "use more rows or another k"
            )
    return cross / own[0].sqrt()[:, None] / own[-1].sqrt()


def measure(functions: tuple[Callable, Callable], k: int, rows: int = 0) -> Measure:
    """The measure of (compare, compare_all) on the table of k neighbours."""
    compare, compare_all = functions
    return Measure(
        prepare=partial(neighbours, k=k),
        compare=compare,
        compare_all=compare_all,
        permute=permuted,
        minimum_rows=max(rows, k + 1),
    )


_TIES = "Equal rows tie, and ties go by index on both sides: layers that see no context (embed) score high."


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
        cost="n^2 d once per layer, n k per pair",
        source="Huh et al. 2024, section 3 and appendix A; cosine on centred rows",
        note="Share of common nearest neighbours; unrelated layers score about k / (n - 1). " + _TIES,
    ),
)
def mutual_knn(*, k: Positive = 10) -> Measure:
    """Mean overlap of the k-nearest-neighbour sets, |A_i & B_i| / k, in [0, 1].

    The two nearest of rows a, b, -a, -b are the same in x and y, in the other order.

    >>> from repsim_cli import measures
    >>> a, b, c = [2., 0.], [1., 1.], [-1., 1.]
    >>> x, y = ([[*p], [*q], [-p[0], -p[1]], [-q[0], -q[1]]] for p, q in ((a, b), (a, c)))
    >>> round(measures.get("mutual_knn", k=2)(x, y), 6)
    1.0
    """
    return measure(by_sets(lambda common, k: common / k), k)


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
        cost="n^2 d once per layer, n k per pair",
        source="Schumacher et al. 2021; Wang et al. 2022; cosine on centred rows",
        note="Common share of the joined neighbour sets; unrelated layers score about k / (2 n). " + _TIES,
    ),
)
def jaccard_knn(*, k: Positive = 10) -> Measure:
    """Mean Jaccard index of the k-nearest-neighbour sets, |A_i & B_i| / |A_i | B_i|, in [0, 1].

    The two nearest of rows a, b, -a, -b are the same in x and y, in the other order.

    >>> from repsim_cli import measures
    >>> a, b, c = [2., 0.], [1., 1.], [-1., 1.]
    >>> x, y = ([[*p], [*q], [-p[0], -p[1]], [-q[0], -q[1]]] for p, q in ((a, b), (a, c)))
    >>> round(measures.get("jaccard_knn", k=2)(x, y), 6)
    1.0
    """
    return measure(by_sets(lambda common, k: common / (2 * k - common)), k)


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
        note="1: neighbours are equally near in both. " + _TIES,
    ),
)
def second_order_cosine(*, k: Positive = 10) -> Measure:
    """Mean cosine of a row's similarities to its k nearest rows of either representation, in [-1, 1].

    The two nearest of rows a, b, -a, -b are the same in x and y, in the other order:
    (r, -r) against (-r, r) with r the root of 1/2.

    >>> from repsim_cli import measures
    >>> a, b, c = [2., 0.], [1., 1.], [-1., 1.]
    >>> x, y = ([[*p], [*q], [-p[0], -p[1]], [-q[0], -q[1]]] for p, q in ((a, b), (a, c)))
    >>> round(measures.get("second_order_cosine", k=2)(x, y), 6)
    -1.0
    """
    return measure((lambda a, b: float(second_order_all([a], [b])), second_order_all), k)


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
        cost="n^2 d once per layer, n k^2 per pair",
        source="Wang et al. 2022; Klabunde et al. 2023 (rank similarity); cosine on centred rows",
        note="1: common neighbours have the same places, however many there are (see rank_jaccard). " + _TIES,
    ),
)
def rank_similarity(*, k: Positive = 10) -> Measure:
    """Mean closeness of the places p, q of the m common neighbours, in [0, 1].

    Per row sum 2 / ((1 + |p - q|) (p + q)) / (1 + 1/2 + ... + 1/m), 0 without a common neighbour.

    The two nearest of rows a, b, -a, -b are the same in x and y, in the other order:
    (1/3 + 1/3) / (1 + 1/2).

    >>> from repsim_cli import measures
    >>> a, b, c = [2., 0.], [1., 1.], [-1., 1.]
    >>> x, y = ([[*p], [*q], [-p[0], -p[1]], [-q[0], -q[1]]] for p, q in ((a, b), (a, c)))
    >>> round(measures.get("rank_similarity", k=2)(x, y), 6)
    0.444444
    """
    return measure(by_lists(rank_value, symmetric=True), k)


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
        cost="n^2 d once per layer, n k^2 per pair",
        source="Wang et al. 2022; Klabunde et al. 2023 (joint rank and Jaccard); cosine on centred rows",
        note="1: the same neighbours in the same order. " + _TIES,
    ),
)
def rank_jaccard(*, k: Positive = 10) -> Measure:
    """Mean over rows of Jaccard index times rank similarity of the k nearest rows, in [0, 1].

    The two nearest of rows a, b, -a, -b are the same in x and y, in the other order:
    1 times 4/9.

    >>> from repsim_cli import measures
    >>> a, b, c = [2., 0.], [1., 1.], [-1., 1.]
    >>> x, y = ([[*p], [*q], [-p[0], -p[1]], [-q[0], -q[1]]] for p, q in ((a, b), (a, c)))
    >>> round(measures.get("rank_jaccard", k=2)(x, y), 6)
    0.444444
    """
    return measure(by_lists(rank_jaccard_value, symmetric=True), k)


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
        note="At most 1, which a layer may not reach with itself; about k^2 / n for unrelated layers. " + _TIES,
    ),
)
def cycle_knn(*, k: Positive = 10) -> Measure:
    """Share of rows i that are, in x, among the k nearest of one of the k nearest of i in y. Not symmetric.

    The nearest of a is b in x; in y it is -b, whose nearest in x is -a: no row is found again.

    >>> from repsim_cli import measures
    >>> a, b, c = [2., 0.], [1., 1.], [-1., 1.]
    >>> x, y = ([[*p], [*q], [-p[0], -p[1]], [-q[0], -q[1]]] for p, q in ((a, b), (a, c)))
    >>> round(measures.get("cycle_knn", k=1)(x, y), 6)
    0.0
    """
    return Measure(prepare=partial(neighbours, k=k), compare=cycle, permute=permuted, minimum_rows=k + 1)


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
        cost="n^2 d once per layer, n k^2 per pair",
        source="Huh et al. 2024, appendix A (LCS k-NN), not divided by k; cosine on centred rows",
        note="At most k: a number of neighbours in the same order. " + _TIES,
    ),
)
def lcs_knn(*, k: Positive = 10) -> Measure:
    """Mean length of the longest common subsequence of the lists of k nearest rows, in [0, k].

    The two nearest of rows a, b, -a, -b are the same in x and y, in the other order.

    >>> from repsim_cli import measures
    >>> a, b, c = [2., 0.], [1., 1.], [-1., 1.]
    >>> x, y = ([[*p], [*q], [-p[0], -p[1]], [-q[0], -q[1]]] for p, q in ((a, b), (a, c)))
    >>> round(measures.get("lcs_knn", k=2)(x, y), 6)
    1.0
    """
    return measure(by_lists(lcs_value, symmetric=True), k)


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
        cost="n^2 d once per layer, n k^2 per pair",
        source="Huh et al. 2024, appendix A (edit distance k-NN); cosine on centred rows",
        note="1 - mean edit distance / k: a similarity. " + _TIES,
    ),
)
def edit_distance_knn(*, k: Positive = 10) -> Measure:
    """1 - mean Levenshtein distance of the lists of k nearest rows / k, in [0, 1].

    The two nearest of rows a, b, -a, -b are the same in x and y, in the other order:
    two edits.

    >>> from repsim_cli import measures
    >>> a, b, c = [2., 0.], [1., 1.], [-1., 1.]
    >>> x, y = ([[*p], [*q], [-p[0], -p[1]], [-q[0], -q[1]]] for p, q in ((a, b), (a, c)))
    >>> round(measures.get("edit_distance_knn", k=2)(x, y), 6)
    0.0
    """
    return measure(by_lists(edit_value, symmetric=True), k)


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
        cost="n^2 d once per layer, n k^2 per pair",
        source="Huh et al. 2024, appendix A, with HSIC1 (Song et al. 2012) and no epsilon; cosine on centred rows",
        note="1 of a layer with itself; may be negative. Not quite symmetric, as the masked similarities are not. "
        + _TIES,
    ),
)
def cknna(*, k: Positive = 10) -> Measure:
    """HSIC1 of the similarities at common k nearest rows, over the root of both self-terms.

    The two nearest of rows a, b, -a, -b are the same in x and y, in the other order:
    similarities r, -r against -r, r.

    >>> from repsim_cli import measures
    >>> a, b, c = [2., 0.], [1., 1.], [-1., 1.]
    >>> x, y = ([[*p], [*q], [-p[0], -p[1]], [-q[0], -q[1]]] for p, q in ((a, b), (a, c)))
    >>> round(measures.get("cknna", k=2)(x, y), 6)
    -1.0
    """
    return measure((lambda a, b: float(cknna_all([a], [b])), cknna_all), k, rows=4)
