"""The nearest rows of every row: a table per representation, for all neighbourhood measures.

Pairs are compared list by list, with all rows and many representations at a time.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from repsim_cli.base.errors import BadInput, Degenerate
from repsim_cli.base.settings import Fraction, Positive
from repsim_cli.measures.base import MeasureWarning, Pairwise
from repsim_cli.measures.centring import centre
from repsim_cli.measures.documents import have_same_groups
from repsim_cli.measures.inner import Matrix
from repsim_cli.measures.kernels import Documents
from repsim_cli.measures.near_rows import (
    BLOCK,
    Best,
    Candidates,
    add_missing_directions,
    compute_cosines,
    find_left_out,
    leave_out_documents,
    list_nearest_rows,
    order_candidates,
    select_candidates,
    select_most_similar,
)
from repsim_cli.measures.platonic import SEEN, Rows, clamp_units
from repsim_cli.measures.rank import find_relative_precision

_CELLS = 1 << 17  # (representation, row) cells compared at a time
_MOVED = 1 / 8  # units of the precision of its numbers: how far rounding is likely to move a row
_MANY_TIES = 0.05  # share of rows

Places = Positive | Fraction  # neighbours per row, or their share of the rows


class NearestRows(NamedTuple):
    """The k nearest rows of every row, nearest first.

    similarities: of these rows. mutual: whether they have this row among their k nearest. units: all rows, of norm 1.
    tied: whether some of them, or the next one, are equally near, so that the index decides. crowded: whether it does
    for the last place of many rows, as in other such layers. documents: of the rows, where neighbours are of other
    documents alone.
    """

    lists: Int[Tensor, "k n"]
    similarities: Float[Tensor, "k n"]
    mutual: Bool[Tensor, "k n"]
    units: Float[Tensor, "n d"]
    tied: bool = False
    documents: Documents | None = None
    crowded: bool = False


def normalise_centred_rows(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Centred rows of norm 1, float64. A row at the mean has no direction: similarity 0 to every other row."""
    x = centre(x.double())[0]
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    x.div_(norms.clamp_min(torch.finfo(x.dtype).tiny)).masked_fill_(~(norms > 0), 0.0)
    return x.add_(0.0)  # without negative zeros, so that equal rows have equal bits


UNITS = {"centred": normalise_centred_rows, "platonic": clamp_units}


def count_neighbours(k: Places, n: int) -> int:
    """Counts the neighbours of each of n rows.

    >>> count_neighbours(10, 1024), count_neighbours(0.01, 1024)
    (10, 10)
    """
    return k if isinstance(k, int) else round(k * n)


def count_rows_needed(k: Places) -> int:
    """The fewest rows at which each row has k neighbours, and other rows besides. Raises BadInput where k is neither a
    number nor a share."""
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
    """Finds the same for rows of norm 1, and counts the rows whose k-th place is decided by rounding, and by ties.

    x: the rows as they were given. dtype: in which products are taken first. documents: as in `find_neighbours`.
    most: rows compared at a time."""
    units, points = exact.to(dtype), add_missing_directions(exact)
    blocks, candidates, others = list[Best](), list[Candidates](), list[Tensor]()
    for rows, cosines in compute_cosines(units, most):
        if documents is not None:
            leave_out_documents(cosines, rows, documents)
        blocks.append(best := select_most_similar(cosines, rows, k))
        some, left = select_candidates(cosines, rows, best[0])
        candidates.append(some)
        others.append(left)
    values, lists = (torch.cat(part) for part in zip(*blocks, strict=True))
    near, tied, any_tie = values.double() - 1, 0, False
    of_candidates = (part for some in candidates for part in order_candidates(points, some, k))
    of_all = list_nearest_rows(points, torch.cat(others), k, partial(find_left_out, documents))
    for rows, (best, where) in chain(of_candidates, of_all):
        tied += int((best[:, k - 1 : k] == best[:, k:]).sum())
        any_tie |= bool((best[:, :-1] == best[:, 1:]).any())
        values[rows], lists[rows], near[rows] = (1 + best).to(values.dtype), where, best
    every = torch.arange(len(x), device=x.device)
    places = lists[:, :k].T.contiguous()
    mutual = torch.stack([(places[:, there] == every).any(0) for there in places])
    similarities, crowded = values[:, :k].T.contiguous(), tied > _MANY_TIES * len(x)
    found = NearestRows(places.int(), similarities, mutual, units, any_tie, documents, crowded)
    return found, count_rounded(near, k, x), tied


def warn_of_ties(tied: int, n: int, k: int) -> None:
    if tied > _MANY_TIES * n:
        warnings.warn(
            f"{tied} of {n} rows have several equally near rows for the last of {k} places, which go by index, the "
            "same in every layer; leave out layers that see no context (embed), and rows that occur twice",
            MeasureWarning,
            stacklevel=3,
        )


def count_rounded(near: Float[Tensor, "b m"], k: int, x: Float[Tensor, "n d"]) -> int:
    """Counts the rows whose k-th and next place differ by no more than the rounding of x is likely to move them. near:
    minus half the squared distances to the nearest rows, of rows of norm 1."""
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
    """The functions of a measure that is the mean over rows of a symmetric value(single, many)."""

    def of_rows(a: Sequence[NearestRows], b: Sequence[NearestRows]) -> Float[Tensor, "a b n"]:
        many = stack(b)
        return torch.stack([value(single, many).double() for single in a])

    compare_all = make_compare_all(
        lambda single, many: value(single, many).mean(1, dtype=torch.float64), symmetric=True
    )
    return Functions(lambda a, b: float(compare_all([a], [b])), compare_all, of_rows)


def make_neighbour_measure(
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
        apart=partial(make_neighbour_measure, functions, k, least, overlap, rows=rows)
        if apart and documents is None
        else None,
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
