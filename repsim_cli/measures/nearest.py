"""The nearest rows of every row: a table per representation, for all neighbourhood measures.

Pairs are compared list by list, with all rows and many representations at a time.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from repsim_cli.base.errors import BadInput, Degenerate
from repsim_cli.base.gram import multiply_into
from repsim_cli.base.settings import Fraction, Positive
from repsim_cli.measures.base import MeasureWarning, Pairwise
from repsim_cli.measures.centring import centre
from repsim_cli.measures.documents import have_same_groups
from repsim_cli.measures.inner import Matrix
from repsim_cli.measures.kernels import Documents
from repsim_cli.measures.platonic import SEEN, Rows, clamp_units
from repsim_cli.measures.rank import find_relative_precision

BLOCK = 4096  # rows of the similarity matrix held at a time, where they are not more than _HELD
_HELD = 1 << 23  # cells of it: of more memory every page would be zeroed anew for every block
_EXACT = 1024  # rows computed again in float64 at a time, of a quarter of these cells
_SEEN = 100  # rows whose median stands for the median of all
_TILE = 512
_CELLS = 1 << 17  # (representation, row) cells compared at a time
_TIE = 1e-13  # of the squares in a squared distance: rows whose distances differ by less are equally near
_NEAR = {torch.float32: 3e-6, torch.float64: 2e-12}  # similarities closer than this may have lost their order
_MOVED = 1 / 8  # units of the precision of its numbers: how far rounding is likely to move a row
_MANY_TIES = 0.05  # share of rows

Best = tuple[Float[Tensor, "b m"], Int[Tensor, "b m"]]
Places = Positive | Fraction  # neighbours per row, or their share of the rows


class NearestRows(NamedTuple):
    """The k nearest rows of every row, nearest first.

    similarities: of these rows. mutual: whether they have this row among their k nearest. units: all rows, of norm 1.
    tied: whether some of them, or the next one, are equally near, so that the index decides. documents: of the rows,
    where neighbours are of other documents alone.
    """

    lists: Int[Tensor, "k n"]
    similarities: Float[Tensor, "k n"]
    mutual: Bool[Tensor, "k n"]
    units: Float[Tensor, "n d"]
    tied: bool = False
    documents: Documents | None = None


def normalise_centred_rows(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Centred rows of norm 1, float64. A row at the mean has no direction: similarity 0 to every other row."""
    x = centre(x.double())[0]
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    # + 0.0 removes negative zeros, so that equal rows have equal bits
    return torch.where(norms > 0, x / norms.clamp_min(torch.finfo(x.dtype).tiny), 0.0) + 0.0


UNITS = {"centred": normalise_centred_rows, "platonic": clamp_units}


def count_neighbours(k: Places, n: int) -> int:
    """Counts the neighbours of each of n rows.

    >>> count_neighbours(10, 1024), count_neighbours(0.01, 1024)
    (10, 10)
    """
    return k if isinstance(k, int) else round(k * n)


def count_block_rows(n: int, most: int = BLOCK, cells: int = _HELD) -> int:
    """Counts the rows that are compared with n rows at a time.

    >>> count_block_rows(10_000), count_block_rows(100_000)
    (838, 83)
    """
    return max(1, min(most, cells // max(n, 1)))


def count_rows_needed(k: Places) -> int:
    """Counts the rows of which each has neighbours, and others. Raises BadInput for no number and no share."""
    if k < 1:
        return math.ceil(max(1 / k, 1 / (1 - k))) + 1
    if not isinstance(k, int):
        raise BadInput(
            f"k: neighbours per row are counted, got {k}; give a whole number, or a share of the rows below 1"
        )
    return k + 1


def find_neighbours(
    x: Float[Tensor, "n d"], *, k: Places, documents: Documents | None = None, rows: Rows = "centred"
) -> NearestRows:
    """The k nearest rows by cosine, self excluded by index, equal similarities in index order.

    Rows whose order is uncertain in the working precision are computed again in float64. Warns where many rows have
    several candidates for the k-th place, or where the rounding of the rows decides among them. Raises Degenerate where
    the largest document leaves fewer than k other rows.

    k: as in `count_neighbours`. documents: of the rows; neighbours are then of other documents. rows: how they are
        prepared.
    """
    k = count_neighbours(k, len(x))
    if documents is not None and (left := len(x) - int(documents.bincount().max())) < k:
        raise Degenerate(f"{k} rows of other documents are needed, got {left}; give more documents, or a smaller k")
    found, lost, tied = find_neighbours_and_ties(
        UNITS[rows](x), torch.promote_types(x.dtype, torch.float32), x, k=k, documents=documents
    )
    warn_of_ties(tied, len(x), k)
    warn_of_rounding(lost - tied, len(x), k)
    return found


def find_neighbours_and_ties(
    exact: Float[Tensor, "n d"],
    dtype: torch.dtype,
    x: Float[Tensor, "n d"],
    *,
    k: int,
    documents: Documents | None = None,
    most: int = BLOCK,
) -> tuple[NearestRows, int, int]:
    """Finds the same of rows of norm 1, and counts those of which rounding, and ties, decide the k-th place.

    x: the rows as they were given. dtype: in which products are taken first. documents: as in `find_neighbours`.
    most: rows compared at a time."""
    units, left_out = exact.to(dtype), partial(find_left_out, documents)
    every = torch.arange(len(x), device=x.device)
    blocks = [
        select_most_similar(compute_block_cosines(units, int(rows[0]), len(rows)), left_out(rows), k)
        for rows in every.split(count_block_rows(len(x), most))
    ]
    values, lists = (torch.cat(part) for part in zip(*blocks, strict=True))
    unsure = (values[:, :-1] - values[:, 1:] < _NEAR[units.dtype]).any(1).nonzero()[:, 0]
    near, tied, any_tie = values.double() - 1, 0, False
    if len(unsure):
        for rows, (best, where) in list_nearest_rows(add_missing_directions(exact), unsure, k, left_out):
            tied += int((best[:, k - 1 : k] == best[:, k:]).sum())
            any_tie |= bool((best[:, :-1] == best[:, 1:]).any())
            values[rows], lists[rows], near[rows] = (1 + best).to(values.dtype), where, best
    places = lists[:, :k].T.contiguous()
    mutual = torch.stack([(places[:, there] == every).any(0) for there in places])
    found = NearestRows(places.int(), values[:, :k].T.contiguous(), mutual, units, any_tie, documents)
    return found, count_rounded(near, k, x), tied


def compute_block_cosines(units: Float[Tensor, "n d"], start: int, size: int) -> Float[Tensor, "b n"]:
    """Products of a block of rows with all rows; within the block, half are computed and mirrored."""
    products = units.new_empty(size, len(units))
    stop = start + size
    multiply_into(products[:, :start], units[start:stop], units[:start])
    for i in range(start, stop, _TILE):
        rows, after = slice(i - start, i - start + _TILE), min(i + _TILE, stop)
        multiply_into(products[rows, i:], units[i:after], units[i:])
        products[after - start :, i:after] = products[rows, after:stop].T
    return products


def add_missing_directions(units: Float[Tensor, "n d"]) -> Float[Tensor, "n e"]:
    """Adds a coordinate for each row without a direction, which makes it orthogonal to every other row."""
    lost = (units == 0).all(1).nonzero()[:, 0]
    directions = torch.zeros(len(units), len(lost)).to(units)
    directions[lost, torch.arange(len(lost), device=lost.device)] = 1
    return torch.cat([units, directions], 1) if len(lost) else units


LeftOut = Bool[Tensor, "b n"]


def find_left_out(documents: Documents | None, rows: Int[Tensor, " b"]) -> LeftOut | Int[Tensor, " b"]:
    """Finds what is left out for these rows: the rows themselves, or by cell those of their documents."""
    return rows if documents is None else documents[rows, None] == documents


def list_nearest_rows(
    x: Float[Tensor, "n d"], rows: Int[Tensor, " b"], k: int, left_out: Callable[[Tensor], Tensor] = lambda rows: rows
) -> Iterator[tuple[Int[Tensor, " c"], Best]]:
    """Blocks of these rows, each with minus half the squared distances to its k + 1 nearest rows and their indices;
    equally near rows are ordered by index."""
    for block, near, squares in compute_block_nearness(x, rows):
        yield block, find_ordered(near, left_out(block), k, squares)


def compute_block_distances(
    x: Float[Tensor, "n d"], left_out: Callable[[Tensor], Tensor]
) -> Iterator[tuple[Int[Tensor, " c"], Float[Tensor, "c n"]]]:
    """Blocks of all rows, each with the squared distances to all rows; infinite to those that are left out."""
    for block, near, _ in compute_block_nearness(x, torch.arange(len(x), device=x.device)):
        squared, away = near.mul_(-2).clamp_min_(0), left_out(block)
        cells = away if away.dtype == torch.bool else away[:, None] == torch.arange(len(x), device=x.device)
        yield block, squared.masked_fill_(cells, torch.inf)


def compute_block_nearness(
    x: Float[Tensor, "n d"], rows: Int[Tensor, " b"]
) -> Iterator[tuple[Int[Tensor, " c"], Float[Tensor, "c n"], Float[Tensor, " c"]]]:
    """Blocks of these rows, each with minus half the squared distances to all rows, and with the rows' squared norms.

    Rows are taken relative to the median row of their side, so that a massive feature, which is alike in all rows of a
    side, does not cost the others digits.
    """
    distinct, which = find_distinct_rows(x)
    some = x[:: len(x) // _SEEN + 1]
    positive = x[:, int(some.abs().mean(0).argmax())] > 0
    for side in (positive, ~positive):
        of_side = rows[side[rows]]
        if not len(of_side):
            continue
        seen = side.nonzero()[:, 0]
        points = distinct - x[seen[:: len(seen) // _SEEN + 1]].median(0).values
        squares = points.square().sum(1)
        for block in of_side.split(count_block_rows(len(x), _EXACT, _HELD // 4)):
            places = which[block]
            # every distinct row once, so that equal rows are equally near to the last bit
            near = torch.addmm(squares, points[places], points.T, beta=-0.5).sub_(squares[places, None] / 2)
            yield block, near if distinct is x else near[:, which], squares[places]


def find_distinct_rows(x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "m d"], Int[Tensor, " n"]]:
    """(the distinct rows, the index of every row among them); x itself where all are."""
    # a single column usually tells rows apart, and sorting whole rows is slow
    column = x[:, int(x.abs().amax(0).argmax())]
    if len(column.unique()) < len(x):
        distinct, which = torch.unique(x, dim=0, return_inverse=True)
        if len(distinct) < len(x):
            return distinct, which
    return x, torch.arange(len(x), device=x.device)


def select_most_similar(similarity: Float[Tensor, "b n"], left_out: Tensor, k: int) -> Best:
    """The k + 1 largest of every row, or all that are not left out: (values, indices), in any order where equal.
    left_out: as of `find_left_out`."""
    if left_out.dtype == torch.bool:
        similarity.masked_fill_(left_out, -torch.inf)
    else:
        similarity.scatter_(1, left_out[:, None], -torch.inf)
    best = similarity.topk(min(k + 1, similarity.shape[1] - 1), dim=1)
    return best.values, best.indices


def find_ordered(near: Float[Tensor, "b n"], left_out: Tensor, k: int, squares: Float[Tensor, " b"]) -> Best:
    """Selects as `select_most_similar` does, from minus half the squared distances of rows with these squared norms.
    Values that differ by rounding alone count as equal, and equal values are ordered by index."""
    values, indices = select_most_similar(near, left_out, k)
    tolerance = _TIE * (squares[:, None] - 2 * values[:, -1:])
    tied = (values[:, :-1] - values[:, 1:] <= tolerance).any(1).nonzero()[:, 0]
    if len(tied):
        count, last, those, within = values.shape[1], values[tied, -1:], near[tied], tolerance[tied]
        above = those > last + within
        equal = ~above & (those >= last - within)
        chosen = above | (equal & (equal.cumsum(1) <= count - above.sum(1, keepdim=True)))
        columns = chosen.nonzero()[:, 1].view(-1, count)
        best, order = those.gather(1, columns).sort(dim=1, descending=True)
        first = torch.nn.functional.pad(best[:, :-1] - best[:, 1:] > within, (1, 0), value=True)
        places = torch.arange(count, device=best.device)
        group = torch.where(first, places, 0).cummax(1).values
        columns = columns.gather(1, order)
        indices[tied] = columns.gather(1, (group * near.shape[1] + columns).argsort(1))
        values[tied] = best.gather(1, group)
    return values, indices


def warn_of_ties(tied: int, n: int, k: int) -> None:
    if tied > _MANY_TIES * n:
        warnings.warn(
            f"{tied} of {n} rows have several equally near rows for the last of {k} places, which go by index, the "
            "same in every layer; leave out layers that see no context (embed), and rows that occur twice",
            MeasureWarning,
            stacklevel=3,
        )


def count_rounded(near: Float[Tensor, "b m"], k: int, x: Float[Tensor, "n d"]) -> int:
    """Counts the rows of which the last of k places and the next differ by no more than the rounding of x is likely to
    move them. near: minus half the squared distances to the nearest rows, of rows of norm 1."""
    moved = _MOVED * find_relative_precision(x)
    last = (-2 * near[:, k - 1 : k]).clamp_min(0).sqrt()
    # the rounding of d features adds up to `moved`, of which a distance sees its own direction
    return int((near[:, k - 1 : k] - near[:, k:] <= moved * (last / math.sqrt(x.shape[1]) + moved)).sum())


def warn_of_rounding(count: int, n: int, k: int) -> None:
    if count > _MANY_TIES * n:
        warnings.warn(
            f"rounding decides the neighbours of {count} of {n} rows: the last of {k} places and the next are equally "
            "near within the precision of the rows; give them in a higher precision, or leave the layer out",
            MeasureWarning,
            stacklevel=3,
        )


def permute(state: NearestRows, order: Int[Tensor, " n"]) -> NearestRows:
    """The table of x[order]. Equally near rows go by their new index, as those of the other side do; neighbours are of
    the documents that stand in the other places."""
    documents = state.documents
    if state.tied or (documents is not None and not have_same_groups(documents[order], documents)):
        units = state.units[order]
        return find_neighbours_and_ties(units.double(), units.dtype, units, k=len(state.lists), documents=documents)[0]
    lists = order.argsort().int()[state.lists[:, order].long()]
    return NearestRows(
        lists, state.similarities[:, order], state.mutual[:, order], state.units[order], documents=documents
    )


class NeighbourStack(NamedTuple):
    """The tables of r representations."""

    lists: Int[Tensor, "k r n"]
    similarities: Float[Tensor, "k r n"]
    mutual: Bool[Tensor, "k r n"]


def stack(states: Sequence[NearestRows]) -> NeighbourStack:
    return NeighbourStack(
        *(torch.stack([getattr(state, part) for state in states], 1) for part in NeighbourStack._fields)
    )


class Functions(NamedTuple):
    """Of a measure: as in `Pairwise`."""

    compare: Callable[[NearestRows, NearestRows], float]
    compare_all: Callable[[Sequence[NearestRows], Sequence[NearestRows]], Matrix] | None = None
    of_rows: Callable[[Sequence[NearestRows], Sequence[NearestRows]], Float[Tensor, "a b n"]] | None = None


def make_compare_all(
    value: Callable[[NearestRows, NeighbourStack], Float[Tensor, " r"]], symmetric: bool
) -> Callable[[Sequence[NearestRows], Sequence[NearestRows]], Matrix]:
    """Makes what compares all pairs, by value(single, many): a representation against many."""

    def compare_all(a: Sequence[NearestRows], b: Sequence[NearestRows]) -> Matrix:
        values = torch.empty(len(a), len(b), dtype=torch.float64, device=a[0].lists.device)
        size = max(1, _CELLS // a[0].lists.shape[1])
        mirrored = symmetric and a is b
        for start in range(0, len(b), size):
            columns = slice(start, start + size)
            many = stack(b[columns])
            for i, single in enumerate(a[: columns.stop] if mirrored else a):
                values[i, columns] = value(single, many)
        return values.triu() + values.triu(1).T if mirrored else values

    return compare_all


def make_row_functions(value: Callable[[NearestRows, NeighbourStack], Float[Tensor, "r n"]]) -> Functions:
    """The functions of a symmetric value(single, many) that every row has, of which the measure is the mean."""

    def of_rows(a: Sequence[NearestRows], b: Sequence[NearestRows]) -> Float[Tensor, "a b n"]:
        many = stack(b)
        return torch.stack([value(single, many).double() for single in a])

    compare_all = make_compare_all(
        lambda single, many: value(single, many).mean(1, dtype=torch.float64), symmetric=True
    )
    return Functions(lambda a, b: float(compare_all([a], [b])), compare_all, of_rows)


def measure(
    functions: Functions,
    k: Places,
    least: int = 0,
    overlap: Callable[[NearestRows], Tensor] | None = None,
    documents: Documents | None = None,
    *,
    apart: bool = True,
    rows: Rows = "centred",
) -> Pairwise:
    """The measure with these functions, on the table of k neighbours. documents, rows: as in `find_neighbours`.
    least: rows. apart: whether it has a form for pairs of rows of different documents."""
    given = {"k": k, "rows": rows} | ({} if documents is None else {"documents": documents})
    return Pairwise(
        prepare=partial(find_neighbours, **given),
        apart=partial(measure, functions, k, least, overlap, rows=rows) if apart and documents is None else None,
        compare=functions.compare,
        compare_all=functions.compare_all,
        of_rows=functions.of_rows if rows == "centred" else None,
        permute=permute,
        minimum_rows=max(least, count_rows_needed(k)),
        overlap=overlap,
        cubes=None,
        sees=SEEN[rows],
    )


TIES = "Equal rows tie, and ties go by index on both sides: layers that see no context (embed) score high."
