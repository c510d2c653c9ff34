"""Retrieval: of how many rows the nearest row of the other column is their pair."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import csr_array, diags_array
from torch import Tensor

from repsim_cli.data.base import Sequences

BLOCK = 1024  # rows whose cosines with all others are held at a time
SAME = 1e-6  # cosines that differ by less are equal: rows are float32
LEAST = 700.0  # -log of the smallest p that is given: smaller ones are no numbers
Rows = Float[Tensor, "n d"] | csr_array


class Retrieved(NamedTuple):
    """share: of the rows, a row whose pair is one of m equally near rows counts 1/m. unique: rows of which their pair
    alone is the nearest."""

    share: float
    unique: int


def directions(x: Float[Tensor, "n d"], centred: bool) -> Float[Tensor, "n d"]:
    """Brings rows to norm 1, float64, rows of zeros as they are. centred: without the mean of all rows."""
    x = x.double()
    x = x - x.mean(0) if centred else x
    return torch.nn.functional.normalize(x, dim=1, eps=torch.finfo(x.dtype).tiny)


def retrieved(x: Rows, y: Rows) -> Retrieved:
    """Counts how many of the rows of x, of norm 1 or 0, find their pair among those of y, by cosine.

    Random pairings give a share of 1/n on average, whatever the rows: every row then is the pair of each other row as
    often.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> retrieved(x, x), retrieved(x, x.flip(0)).unique
    (Retrieved(share=1.0, unique=3), 1)
    """
    n = int(x.shape[0])  # type: ignore[index]  # of sparse arrays
    hits = [_hits(x, y, np.arange(start, min(start + BLOCK, n))) for start in range(0, n, BLOCK)]
    share, unique = (sum(part) for part in zip(*hits, strict=True))
    return Retrieved(share / n, int(unique))


def _hits(x: Any, y: Any, rows: Int[np.ndarray, " b"]) -> tuple[float, float]:
    products = x[rows] @ y.T
    cosines = products if isinstance(products, Tensor) else torch.from_numpy(products.toarray())
    near = cosines >= cosines.max(1, keepdim=True).values - SAME
    paired, equal = near[torch.arange(len(rows)), torch.from_numpy(rows)], near.sum(1)
    return float((paired / equal).sum()), float((paired & (equal == 1)).sum())


def at_most(unique: int) -> float:
    """Bounds the p of so many rows that find their pair: at most so large, whatever the rows are.

    Under random pairings k given rows all find their pairs with probability (n - k)! / n! at most, so that k or more
    of n do with 1 / k! at most (Markov's inequality for the number of sets of k such rows).

    >>> at_most(0), round(at_most(3), 6)
    (1.0, 0.166667)
    """
    return math.exp(-min(math.lgamma(unique + 1), LEAST))


def tokens_of(sequences: Sequences, vocabulary: int) -> csr_array:
    """(n, vocabulary): how often each token is in the text of each sequence, rows at norm 1."""
    rows, _ = np.nonzero(sequences.text)
    ids = sequences.ids[sequences.text]
    counts = csr_array((np.ones(len(ids)), (rows, ids)), shape=(len(sequences.ids), vocabulary))
    counts.sum_duplicates()
    norms = np.sqrt(counts.multiply(counts).sum(1))
    return csr_array(diags_array(1 / norms) @ counts)


def by_tokens(first: Sequences, second: Sequences, vocabulary: int, rows: Int[np.ndarray, " n"]) -> float:
    """Computes the share that tokens alone retrieve, from the first text to the second: each is what tokens it has, in
    any order. rows: which of the sequences."""
    x, y = (tokens_of(each, vocabulary)[rows] for each in (first, second))
    return retrieved(x, y).share
