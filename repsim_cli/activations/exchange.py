"""Which rows could take each other's place if two models shared nothing: those of the same place in different units.

A unit is a document, whose rows depend on each other; where too few documents can be exchanged, a stretch of rows of
one sequence; where rows are independent, a row. All rows count, whatever the lengths of the units.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

ENOUGH = 0.7  # share of the rows that must have a partner, else smaller units are exchanged
JITTER = 0.2  # of the sizes of units, by which their order is random
SOME = 0.3  # the same where rows must share more than a place
LOOKED_AT = 8  # batches of which the share is taken

Rows = Int[np.ndarray, " n"]


class Exchange(NamedTuple):
    """The units of all rows.

    units: of every row. places: rows with the same one may take each other's place. what: the units, in words.
    partnered: share of the rows of a batch that have others to take the place of.
    """

    units: Rows
    places: Rows
    what: str
    partnered: float = 1.0

    def keep(self, rows: Rows) -> "Exchange":
        """Keeps these rows."""
        return self._replace(units=self.units[rows], places=self.places[rows])


def find_exchange(
    documents: Rows,
    beginnings: Rows,
    batches: Sequence[Int[np.ndarray, " _"]],
    alike: Rows | None = None,
    held: Rows | None = None,
) -> Exchange | None:
    """Finds the units of all rows; None where no two of them can be exchanged in most batches.

    documents: of every row. beginnings: what it is the first row of (`segments.py`). batches: numbers of the rows that
    are used together. alike: what rows of a place must share too. held: what rows must share in the stead of a place;
    the first row of a document that has it then goes with the first one of another, the second with the second.
    """
    first = beginnings > 0
    first[1:] |= documents[1:] != documents[:-1]
    first[:1] = True
    starts = np.flatnonzero(first)
    stretch = first.cumsum() - 1
    distance, kind = np.arange(len(documents)) - starts[stretch], beginnings[starts][stretch]
    begun = combine(kind, np.zeros_like(kind) if alike is None else alike)
    if held is not None:
        units = [Exchange(documents, combine(held, begun, _count_equal(combine(documents, held))), "documents")]
        units = units if len(np.unique(documents)) < len(documents) else [units[0]._replace(what="rows")]
    elif len(starts) == len(documents) and len(np.unique(documents)) == len(documents):
        units = [Exchange(documents, begun, "rows")]
    else:
        by_document = combine(begun, _count_equal(documents[starts])[stretch], distance)
        units = [
            Exchange(documents, by_document, "documents"),
            Exchange(stretch, combine(begun, distance), "sequences" if len(starts) < len(documents) else "rows"),
        ]
    some = batches[:: -(-len(batches) // LOOKED_AT)]
    least = ENOUGH if alike is None and held is None else SOME
    for each in units:
        share = float(np.mean([_mark_exchangeable_rows(each.keep(rows)).mean() for rows in some]))
        if share >= least:
            return each._replace(partnered=share)
    return None


def combine(*parts: Rows) -> Rows:
    """Numbers each combination of codes, from 0."""
    codes = np.zeros(len(parts[0]), np.int64)
    for part in parts:
        codes = np.unique(codes * (int(part.max()) + 1) + part, return_inverse=True)[1]
    return codes


def _count_equal(values: Rows) -> Rows:
    """Counts the equal values that precede each."""
    order = np.argsort(values, kind="stable")
    new = np.r_[True, np.diff(values[order]) != 0]
    counted = np.empty_like(order)
    counted[order] = np.arange(len(values)) - np.flatnonzero(new)[new.cumsum() - 1]
    return counted


def _mark_exchangeable_rows(units: Exchange) -> np.ndarray:
    """Tells which rows have a row of the same place in another unit."""
    return np.bincount(units.places)[units.places] > 1


def draw_derangement(units: Exchange, seed: Sequence[int]) -> Rows:
    """Draws an order that leaves no row in place which has a partner: each takes that of the next unit, in a cycle of
    all units, which has a row of its place. Units of about the same size follow each other, so that few are torn."""
    rng = np.random.default_rng(seed)
    _, unit, sizes = np.unique(units.units, return_inverse=True, return_counts=True)
    turn = np.argsort(np.argsort(-sizes * rng.uniform(1 - JITTER, 1, len(sizes))))[unit]
    by_place = np.lexsort((turn, units.places))
    place = units.places[by_place]
    new = np.r_[True, place[1:] != place[:-1]]
    begins = np.flatnonzero(new)[new.cumsum() - 1]
    last = np.r_[new[1:], True]
    following = np.where(last, begins, np.arange(len(place)) + 1)
    order = np.empty(len(place), np.int64)
    order[by_place] = by_place[following]
    return order
