"""Retrieval: of how many rows the nearest row of the other column is their pair."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import csr_array, diags_array
from torch import Tensor

from repsim_cli.activations.places import find_rows
from repsim_cli.base.settings import Extract
from repsim_cli.data.base import Sequences

BLOCK = 1024  # rows whose cosines with all others are held at a time
SAME = 1e-6  # cosines that differ by less are equal: rows are float32
LEAST = 700.0  # -log of the smallest p that is given: smaller ones are not numbers
Rows = Float[Tensor, "n d"] | csr_array


class Retrieved(NamedTuple):
    """hits: of every row, 1 where its pair is the nearest, 1/m where it is one of m equally near rows, else 0. unique:
    rows of which their pair alone is the nearest; of words, texts as `Votes` counts them."""

    hits: Float[np.ndarray, " n"]
    unique: int

    @property
    def share(self) -> float:
        return float(self.hits.mean())


def make_unit_rows(x: Float[Tensor, "n d"], centred: bool) -> Float[Tensor, "n d"]:
    """Brings rows to norm 1, float64, rows of zeros as they are. centred: without the mean of all rows."""
    x = x.double()
    x = x - x.mean(0) if centred else x
    return torch.nn.functional.normalize(x, dim=1, eps=torch.finfo(x.dtype).tiny)


def count_retrieved(x: Rows, y: Rows, texts: Int[np.ndarray, " n"] | None = None) -> Retrieved:
    """Counts how many of the rows of x, of norm 1 or 0, find their pair among those of y, by cosine.

    Random pairings give a share of 1/n on average, whatever the rows: every row then is the pair of each other row as
    often.

    texts: of rows that are words, the text of each. Each text then has one vote, for the text in which most of the
    nearest rows of its words lie, whatever words they are; `unique` are the texts that vote for their pair.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> count_retrieved(x, x).share, count_retrieved(x, x.flip(0)).unique
    (1.0, 1)
    """
    n = int(x.shape[0])  # type: ignore[index]  # of sparse arrays
    hits, votes = np.empty(n), Votes(texts)
    for start in range(0, n, BLOCK):
        rows = np.arange(start, min(start + BLOCK, n))
        shares = _share_nearest(x, y, rows)
        hits[rows] = shares[torch.from_numpy(rows - start), torch.from_numpy(rows)].cpu().numpy()
        votes.add(shares, rows)
    return Retrieved(hits, int((hits == 1).sum()) if texts is None else votes.count())


class Votes:
    """For which text of the other column the words of each text vote, with a vote per word, split among equally near
    rows. A text is the unit, since its words depend on each other; which text it votes for does not depend on the
    pairing, so that the bound of `bound_retrieval_p` holds for random pairings of texts."""

    def __init__(self, texts: Int[np.ndarray, " n"] | None):
        self.texts = None if texts is None else torch.from_numpy(np.unique(texts, return_inverse=True)[1])
        count = 0 if self.texts is None else int(self.texts.max()) + 1
        self.sums = torch.zeros(count, count, dtype=torch.float64)

    def add(self, shares: Float[Tensor, "b n"], rows: Int[np.ndarray, " b"]) -> None:
        if self.texts is not None:
            of_words = torch.zeros(len(rows), len(self.sums), dtype=torch.float64).index_add_(1, self.texts, shares)
            self.sums.index_add_(0, self.texts[torch.from_numpy(rows)], of_words)

    def count(self) -> int:
        """Counts the texts that have most votes for their pair, and fewer for each other text."""
        most = self.sums >= self.sums.max(1, keepdim=True).values - SAME
        return int((most.diagonal() & (most.sum(1) == 1)).sum())


def _share_nearest(x: Any, y: Any, rows: Int[np.ndarray, " b"]) -> Float[Tensor, "b n"]:
    """Gives 1/m to each of the m rows of y that are equally near to a row of x, and 0 to the others."""
    products = x[rows] @ y.T
    cosines = products if isinstance(products, Tensor) else torch.from_numpy(products.toarray())
    near = cosines >= cosines.max(1, keepdim=True).values - SAME
    return near.double() / near.sum(1, keepdim=True)


def bound_retrieval_p(unique: int) -> float:
    """Bounds from above, whatever the rows are, the p of `unique` rows that find their pair.

    Under random pairings k given rows all find their pairs with probability (n - k)! / n! at most, so that k or more
    of n do with 1 / k! at most (Markov's inequality for the number of sets of k such rows).

    >>> bound_retrieval_p(0), round(bound_retrieval_p(3), 6)
    (1.0, 0.166667)
    """
    return math.exp(-min(math.lgamma(unique + 1), LEAST))


def count_sequence_tokens(sequences: Sequences, rows: Int[np.ndarray, "N L"], vocabulary: int) -> csr_array:
    """(n, vocabulary): how often each token is in the text of each row, at norm 1. rows: of which row each place is a
    part, as of `find_rows`."""
    inside = rows >= 0
    ids = sequences.ids[inside]
    counts = csr_array((np.ones(len(ids)), (rows[inside], ids)), shape=(int(rows.max()) + 1, vocabulary))
    counts.sum_duplicates()
    norms = np.sqrt(counts.multiply(counts).sum(1))
    return csr_array(diags_array(1 / norms) @ counts)


def compute_token_retrieval(
    columns: Sequence[Sequences], extract: Extract, vocabulary: int, rows: Int[np.ndarray, " n"]
) -> float:
    """Computes the share that tokens alone retrieve, from the first column to the second: each text, or word, is what
    tokens it has, in any order. rows: which rows of the run."""
    x, y = (count_sequence_tokens(each, find_rows(each, extract), vocabulary)[rows] for each in columns)
    return count_retrieved(x, y).share
