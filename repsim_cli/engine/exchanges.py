"""Random pairings of the rows of two models, for what is chosen anew under each: whole documents trade places."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int

FEWEST = 8  # documents that are exchanged; of fewer, rows are shifted in their order


def draw_document_orders(documents: Int[np.ndarray, " n"], count: int, seed: int) -> Iterator[Int[np.ndarray, " n"]]:
    """Draws `count` orders of the rows, in which documents trade places and rows of a document stay together; of
    fewer than FEWEST documents, orders in which rows are shifted round.

    >>> [order.tolist() for order in draw_document_orders(np.zeros(4, int), 2, 0)]
    [[1, 2, 3, 0], [2, 3, 0, 1]]
    """
    generator = np.random.default_rng(seed)
    sides, of = np.argsort(documents, kind="stable"), np.unique(documents, return_inverse=True)[1]
    ends = np.split(sides, np.cumsum(np.bincount(of))[:-1])
    for _ in range(count):
        if len(ends) < FEWEST:
            yield np.roll(np.arange(len(documents)), int(generator.integers(1, max(2, len(documents)))))
            continue
        order = np.empty_like(sides)
        order[sides] = np.concatenate([ends[document] for document in generator.permutation(len(ends))])
        yield order
