"""Regroups a stream of rows for the estimate: sampled, as it comes, or in batches of one size."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from repsim_cli.activations.rows import RowBlock
from repsim_cli.base.memory import trim
from repsim_cli.base.settings import STREAMED, Extract
from repsim_cli.data.base import draw


def stream_row_batches(
    stream: Iterator[RowBlock],
    extract: Extract,
    total: int,
    seed: int,
    first_row: int = 0,
    whole: Int[np.ndarray, " N"] | None = None,
) -> Iterator[list[Tensor]]:
    """The stream regrouped for the estimate: one batch of rows sampled under the seed (`full`), all rows as they come
    (`moments`, `sampled`), or batches of exactly `batch_rows` rows in row order from first_row on, without the
    remainder.

    whole: as in `select_batch_rows`.
    """
    if extract.estimate == "full":
        return _sample(stream, torch.from_numpy(select_batch_rows(extract, total, seed, 0, whole)))
    if extract.estimate in STREAMED:
        return (rows for _, rows in stream if len(rows[0]))
    return regroup(stream, extract.batch_rows, first_row, rest=False)


def select_batch_rows(
    extract: Extract, total: int, seed: int, batch: int, whole: Int[np.ndarray, " N"] | None = None
) -> Int[np.ndarray, " n"]:
    """The rows of the run in a batch, ascending.

    whole: the number of rows of each sequence, to sample whole sequences (one at least).
    """
    if extract.estimate == "sampled":
        return np.arange(total)
    if extract.estimate != "full":
        return np.arange(batch * extract.batch_rows, (batch + 1) * extract.batch_rows)
    if whole is None or total <= extract.rows:
        return draw(total, extract.rows, seed)
    order = np.random.default_rng(seed).permutation(len(whole))
    fitting = np.searchsorted(whole[order].cumsum(), extract.rows, side="right")
    chosen = np.zeros(len(whole), bool)
    chosen[order[: max(1, fitting)]] = True
    return np.flatnonzero(np.repeat(chosen, whole))


def _sample(stream: Iterator[RowBlock], chosen: Tensor) -> Iterator[list[Tensor]]:
    out = _gather(stream, chosen)
    trim()  # what reading has left behind, in pieces
    yield out


def _gather(stream: Iterator[RowBlock], chosen: Tensor) -> list[Tensor]:
    """Gathers the chosen rows of a stream, one tensor per layer."""
    out: list[Tensor] = []
    filled = 0
    for first, rows in stream:
        inside = take_rows(rows, first, chosen)
        if not out:
            out = [x.new_empty(len(chosen), x.shape[1]) for x in rows]
        for x, target in zip(inside, out, strict=True):
            target[filled : filled + len(x)] = x
        filled += len(inside[0])
    return out


def take_rows(rows: Sequence[Tensor], first: int, chosen: Int[Tensor, " m"]) -> list[Tensor]:
    """Takes from a block of a stream, in every layer, those of its rows that are chosen.

    first: the number of the block's first row in the stream.
    chosen: numbers of rows in the stream; they ascend, so that what is taken of one block after the other is in their
        order.
    """
    inside = chosen[(chosen >= first) & (chosen < first + len(rows[0]))] - first
    return [x[inside.to(x.device)] for x in rows]


def regroup(stream: Iterator[RowBlock], size: int, first_row: int, rest: bool) -> Iterator[list[Tensor]]:
    """Batches of exactly `size` rows from first_row on; rest: and what is left."""
    pending: list[Tensor] = []
    for first, rows in stream:
        rows = [x[max(0, first_row - first) :] for x in rows]
        left = len(pending[0]) if pending else 0
        pending = [torch.cat([old, x]) for old, x in zip(pending, rows, strict=True)] if left else rows
        whole = len(pending[0]) // size
        for i in range(whole):
            yield [x[i * size : (i + 1) * size] for x in pending]
        pending = [x[whole * size :].clone() for x in pending]
    if rest and pending and len(pending[0]):
        yield pending
