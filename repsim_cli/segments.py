"""Which rows trade places under the permutation null: one segment per document, all of one length.

Rows of one document depend on each other, so whole documents must move. Documents of unequal length cannot: laid end
to end in another order they no longer line up with each other, although the observed pairing does. Segments of equal
length do line up, row by row. What is exchangeable are these segments: documents are taken as independent of each
other and as alike at the same distance from where the segment begins.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from repsim_cli.errors import BadInput

DOCUMENT, SEQUENCE = 2, 1  # a row is the first one of its document, of its sequence: added up
BOTH = DOCUMENT + SEQUENCE
FEWEST = 10  # documents: with fewer a p value says nothing
SHARES = (0.5, 0.75, 1.0)  # of the documents of one kind that keep a segment at least: the first that leaves FEWEST

Rows = Int[np.ndarray, "_ _"]


class Segments(NamedTuple):
    """Of every batch its groups of segments: (k segments, l rows each), row numbers in the batch.

    Segments of one group trade places. count: of all segments, one per document. share: of all rows, those in segments.
    """

    batches: list[list[Rows]]
    count: int
    share: float

    def rows(self, batch: int) -> Int[np.ndarray, " n"]:
        """The rows of all segments of a batch, group by group."""
        groups = self.batches[batch]
        return np.concatenate([group.ravel() for group in groups]) if groups else np.empty(0, np.int64)

    def orders(self, batch: int, count: int, seed: Sequence[int]) -> Int[np.ndarray, "count n"]:
        """Random orders of `rows`: within each group segments change places, each in one piece."""
        generator = np.random.default_rng(seed)
        moved, start = [], 0
        for k, length in (group.shape for group in self.batches[batch]):
            places = generator.permuted(np.tile(np.arange(k), (count, 1)), axis=1)
            moved.append((start + places[:, :, None] * length + np.arange(length)).reshape(count, -1))
            start += k * length
        return np.concatenate(moved, axis=1)


def segments(
    documents: Sequence[Int[np.ndarray, " _"]], beginnings: Sequence[Int[np.ndarray, " _"]], least: int = 2
) -> Segments:
    """The segments of the rows of all batches; raises BadInput where fewer than FEWEST documents have one.

    documents: what every row is of. beginnings: what it is the first row of (DOCUMENT + SEQUENCE, or 0). least: rows in
    segments that a batch must have; others have none.

    A stretch is a run of rows of one document in one sequence. A document gives its longest stretch, in the one batch
    that holds it. Stretches of one group begin alike (a document, a sequence, both), and so have the same position
    effects. Of each group the length is taken at which segments hold most rows; shorter stretches are left out.
    """
    stretches = [_stretches(ids, first) for ids, first in zip(documents, beginnings, strict=True)]
    batch = np.concatenate([np.full(len(some), number) for number, some in enumerate(stretches)])
    document, start, length, kind = np.concatenate(stretches).T
    # the longest of each document: the first one in this order
    order = np.lexsort((start, batch, -length, document))
    chosen = order[np.unique(document[order], return_index=True)[1]]
    alike = [
        [chosen[(batch[chosen] == number) & (kind[chosen] == one)] for one in (BOTH, DOCUMENT, SEQUENCE)]
        for number in range(len(documents))
    ]
    count = 0
    for share in SHARES:
        batches = [[_equal(start[own], length[own], share) for own in groups if len(own) > 1] for groups in alike]
        batches = [groups if sum(group.size for group in groups) >= least else [] for groups in batches]
        count = sum(len(group) for groups in batches for group in groups)
        if count >= FEWEST:
            rows = sum(group.size for groups in batches for group in groups)
            return Segments(batches, count, rows / sum(map(len, documents)))
    wide = f" in batches of {least} rows at least" if least > 2 else ""
    raise BadInput(
        f"significance.clusters: {FEWEST} documents are needed that can trade places{wide}, got {count} of "
        f"{len(np.unique(np.concatenate(documents)))}; give more text, cut a .txt file at blank lines "
        "(data.sample_by=paragraph), or set significance.clusters=row where rows do not depend on each other"
    )


def _stretches(documents: Int[np.ndarray, " n"], beginnings: Int[np.ndarray, " n"]) -> Int[np.ndarray, "s 4"]:
    """(document, first row, rows, kind of beginning) of every stretch that begins in this batch."""
    first = beginnings > 0
    first[1:] |= documents[1:] != documents[:-1]
    first[:1] = True
    starts = np.flatnonzero(first)
    lengths = np.diff(starts, append=len(documents))
    found = np.stack([documents[starts], starts, lengths, beginnings[starts]], 1)
    return found[found[:, 3] > 0]


def _equal(starts: Int[np.ndarray, " s"], lengths: Int[np.ndarray, " s"], share: float) -> Rows:
    """Equally long segments from the beginning of at least that share of the stretches, of most rows."""
    descending = np.sort(lengths)[::-1]
    counts = np.arange(max(2, int(np.ceil(share * len(lengths)))), len(lengths) + 1)
    length = int(descending[counts[np.argmax(counts * descending[counts - 1])] - 1])
    return starts[lengths >= length][:, None] + np.arange(length)
