"""Which rows trade places under the permutation null: a segment per document, all of equal length.

Rows of a document depend on each other, so whole documents must move. Documents of unequal length cannot: concatenated
in another order, they no longer line up with each other, although the observed pairing does. Segments of equal length
line up row by row. These segments are exchangeable if documents are independent of each other and identically
distributed at the same distance from the beginning of the segment.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from repsim_cli.activations.exchange import Exchange
from repsim_cli.base.errors import BadInput

DOCUMENT, SEQUENCE = 2, 1  # a row is the first of its document, of its sequence; BOTH is the sum
BOTH = DOCUMENT + SEQUENCE
FEWEST = 10  # documents: with fewer, p values are meaningless
SHARES = (0.5, 0.75, 1.0)  # least share of the documents of a kind that keep a segment: the first that leaves FEWEST

Rows = Int[np.ndarray, "_ _"]


class Segments(NamedTuple):
    """The groups of segments of every batch: (k segments, l rows each), as row numbers in the batch.

    Segments of a group trade places. count: the number of all segments, one per document. share: of all rows that are
    in segments.
    """

    batches: list[list[Rows]]
    count: int  # pyright: ignore[reportIncompatibleMethodOverride] - nothing counts items of it
    share: float

    def exchange(self, batch: int) -> Exchange:
        """Says for every row of `rows` which segment it is in and where in it, so that whole segments can be exchanged.

        batch: its number.
        """
        shapes = [group.shape for group in self.batches[batch]]
        before = np.cumsum([0, *(k for k, _ in shapes)])[:-1]
        units = [np.repeat(first + np.arange(k), length) for first, (k, length) in zip(before, shapes, strict=True)]
        starts = np.cumsum([0, *(length for _, length in shapes)])[:-1]
        places = [np.tile(first + np.arange(length), k) for first, (k, length) in zip(starts, shapes, strict=True)]
        return Exchange(np.concatenate(units), np.concatenate(places), "segments")

    def rows(self, batch: int) -> Int[np.ndarray, " n"]:
        """The rows of all segments of a batch, group by group."""
        groups = self.batches[batch]
        return np.concatenate([group.ravel() for group in groups]) if groups else np.empty(0, np.int64)

    def orders(self, batch: int, count: int, seed: Sequence[int], shifted: bool = False) -> Int[np.ndarray, "count n"]:
        """Random orders of `rows`: within each group, whole segments trade places, or all move on by the same
        number."""
        generator = np.random.default_rng(seed)
        moved, start = [], 0
        for k, length in (group.shape for group in self.batches[batch]):
            if shifted:
                places = (np.arange(k) + generator.integers(k, size=(count, 1))) % k
            else:
                places = generator.permuted(np.tile(np.arange(k), (count, 1)), axis=1)
            moved.append((start + places[:, :, None] * length + np.arange(length)).reshape(count, -1))
            start += k * length
        return np.concatenate(moved, axis=1)


def find_segments(
    documents: Sequence[Int[np.ndarray, " _"]],
    beginnings: Sequence[Int[np.ndarray, " _"]],
    alike: Sequence[Int[np.ndarray, " _"]] | None = None,
    least: int = 2,
) -> Segments:
    """The segments of the rows of all batches. Raises BadInput where fewer than FEWEST documents have a segment.

    documents: the document of every row.
    beginnings: what it is the first row of (DOCUMENT + SEQUENCE, or 0).
    alike: what the first rows of segments must share to trade places.
    least: the number of rows in segments that a batch must have; batches with fewer have no segments.

    A stretch is a run of rows of the same document in the same sequence. A document gives its longest stretch, in the
    batch that holds it. Stretches of a group begin in the same way (a document, a sequence, both), and so have the same
    position effects. For each group, the length is chosen at which segments hold most rows; shorter stretches are left
    out.
    """
    stretches = [_find_stretches(ids, first) for ids, first in zip(documents, beginnings, strict=True)]
    batch = np.concatenate([np.full(len(some), number) for number, some in enumerate(stretches)])
    document, start, length, kind = np.concatenate(stretches).T
    # the longest of each document comes first in this order
    order = np.lexsort((start, batch, -length, document))
    chosen = order[np.unique(document[order], return_index=True)[1]]
    codes = (
        np.zeros(len(start), int)
        if alike is None
        else np.array([alike[b][s] for b, s in zip(batch, start, strict=True)])
    )
    groups_of = [_group_stretches(chosen[batch[chosen] == number], kind, codes) for number in range(len(documents))]
    count = 0
    for share in SHARES:
        batches = [
            [_cut_equal_segments(start[some], length[some], share) for some in groups if len(some) > 1]
            for groups in groups_of
        ]
        batches = [groups if sum(group.size for group in groups) >= least else [] for groups in batches]
        count = sum(len(group) for groups in batches for group in groups)
        if count >= FEWEST:
            rows = sum(group.size for groups in batches for group in groups)
            return Segments(batches, count, rows / sum(map(len, documents)))
    wide = f" in batches of {least} rows at least" if least > 2 else ""
    raise BadInput(
        f"significance.clusters: {FEWEST} documents are needed that can be exchanged{wide}, got {count} of "
        f"{len(np.unique(np.concatenate(documents)))}; give more documents, or set significance.clusters=row where "
        "rows do not depend on each other"
    )


def _group_stretches(chosen: Int[np.ndarray, " c"], kind: np.ndarray, codes: np.ndarray) -> list[Int[np.ndarray, " _"]]:
    """Stretches that begin in the same way, `BOTH` first, and have the same code."""
    order = np.lexsort((chosen, codes[chosen], -kind[chosen]))
    chosen = chosen[order]
    new = np.flatnonzero((np.diff(kind[chosen]) != 0) | (np.diff(codes[chosen]) != 0)) + 1
    return [np.sort(group) for group in np.split(chosen, new)]


def _find_stretches(documents: Int[np.ndarray, " n"], beginnings: Int[np.ndarray, " n"]) -> Int[np.ndarray, "s 4"]:
    """Finds every stretch that begins in this batch: (document, first row, number of rows, kind of beginning)."""
    first = beginnings > 0
    first[1:] |= documents[1:] != documents[:-1]
    first[:1] = True
    starts = np.flatnonzero(first)
    lengths = np.diff(starts, append=len(documents))
    stretches = np.stack([documents[starts], starts, lengths, beginnings[starts]], 1)
    return stretches[stretches[:, 3] > 0]


def _cut_equal_segments(starts: Int[np.ndarray, " s"], lengths: Int[np.ndarray, " s"], share: float) -> Rows:
    """Segments of equal length from the beginning of at least this share of the stretches, with the most rows."""
    descending = np.sort(lengths)[::-1]
    counts = np.arange(max(2, int(np.ceil(share * len(lengths)))), len(lengths) + 1)
    length = int(descending[counts[np.argmax(counts * descending[counts - 1])] - 1])
    return starts[lengths >= length][:, None] + np.arange(length)
