"""Which sequences a model runs together: batches of similar length, formed within windows of consecutive sequences.

A window holds at most the tokens of the largest batch. Its sequences run longest first, and its rows are put back in
the order of the data when all have run, so that memory is bounded.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.data.base import Sequences
from repsim_cli.models.source import Source

PADDING = 0.1  # the largest share of a batch's places that may be padding
ADDED = 16  # places of padding with which it is tested whether a model ignores them
COUNTS = ("tokens_read", "places")
Lengths = Int[np.ndarray, " N"]


def count_batch_places(longest: int, hardware: Hardware) -> int:
    """Places of the largest batch. A sequence that is longer than batch_tokens is run alone."""
    places = hardware.batch_size * longest
    return places if hardware.batch_tokens is None else min(places, max(hardware.batch_tokens, longest))


def measure_lengths(used: Bool[np.ndarray, "N L"]) -> Lengths:
    """The places of each sequence up to the last that is used."""
    return np.where(used.any(1), used.shape[1] - used[:, ::-1].argmax(1), 0)


def count_batch_sequences(length: int, hardware: Hardware) -> int:
    """The number of sequences of this length that a batch holds."""
    if hardware.batch_tokens is None:
        return hardware.batch_size
    return min(hardware.batch_size, max(hardware.batch_tokens // max(length, 1), 1))


def count_passes(sequences: int, length: int, hardware: Hardware) -> int:
    """The number of forward passes that sequences of one length take."""
    return -(-sequences // count_batch_sequences(length, hardware))


def find_longest_length(sequences: Mapping[str, Sequences], extract: Extract) -> int:
    """Places that the longest sequence of the data may have; of images, their patches."""
    texts = [given.inputs.ndim == 2 for given in sequences.values()]
    return max([given.mask.shape[1] for given in sequences.values()] + [extract.length] * any(texts))


def cut_windows(lengths: Lengths, most: int) -> list[slice]:
    """Consecutive sequences of at most `most` tokens in all; a longer sequence is a window of its own."""
    ends, start, found = np.concatenate([[0], lengths.cumsum()]), 0, []
    while start < len(lengths):
        stop = max(int(np.searchsorted(ends, ends[start] + most, side="right")) - 1, start + 1)
        found.append(slice(start, stop))
        start = stop
    return found


def batch_by_length(lengths: Lengths, hardware: Hardware, padding: float = PADDING) -> Iterator[Int[np.ndarray, " b"]]:
    """Sequences of similar length, the longest first; each batch ascending, its share of padding at most `padding`."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        length = int(lengths[order[start]])
        candidates = order[start : start + count_batch_sequences(length, hardware)]
        places = length * np.arange(1, len(candidates) + 1)
        fits = places - lengths[candidates].cumsum() <= padding * places
        fits[0] = True
        batch = candidates[: int(fits.sum())]
        start += len(batch)
        yield np.sort(batch)


def limit_padding(
    run: Callable[[Sequences], Sequence[Float[Tensor, "n d"]]],
    sequences: Sequences,
    lengths: Lengths,
    dtype: torch.dtype,
) -> float:
    """The largest share of a batch's places that may be padding: PADDING, or 0 for a model that ignores its mask, so
    that padding changes the activations of a sequence beyond rounding.

    run: the activations of every layer for these sequences, of a model of this dtype. The shortest sequence with as
        many places as the padding has, or else the longest that can be padded, is run both ways.
    """
    shorter = np.flatnonzero(lengths < lengths.max())
    if not len(shorter):
        return PADDING
    ascending = shorter[np.argsort(lengths[shorter], kind="stable")]
    place = min(int(np.searchsorted(lengths[ascending], ADDED)), len(ascending) - 1)
    one, alone = ascending[[place]], int(lengths[ascending[place]])
    padded = min(alone + ADDED, int(lengths.max()))
    tolerance = torch.finfo(dtype).eps ** 0.5
    for x, y in zip(run(sequences.take(one, alone)), run(sequences.take(one, padded)), strict=True):
        if not ((x - y).norm(dim=1) <= tolerance * x.norm(dim=1)).all():
            return 0.0
    return PADDING


def make_input_tensors(
    sequences: Sequences, source: Source, weights: Tensor
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The inputs of a model with these weights, their mask, and the token types if it reads them, on its device."""
    inputs, mask = (torch.from_numpy(x).to(weights.device) for x in (sequences.inputs, sequences.mask))
    inputs = inputs.to(weights.dtype) if inputs.is_floating_point() else inputs.long()
    if sequences.segments is None or not source.segments:
        return inputs, mask, {}
    return inputs, mask, {"token_type_ids": torch.from_numpy(sequences.segments).to(weights.device).long()}


class TokenTally:
    """Counts, in the record of the data, the tokens that models read and the places that they ran, padding included:
    a number, or one per model where they differ.

    record: may hold the counts of an interrupted run, which continue.
    """

    def __init__(self, record: MutableMapping[str, Any], labels: Sequence[str]):
        self.record = record
        self.counts = {name: self._read_counts(record.get(name, 0), labels) for name in COUNTS}
        self._note()

    @staticmethod
    def _read_counts(count: int | Mapping[str, int], labels: Sequence[str]) -> Counter[str]:
        return Counter(dict(count) if isinstance(count, Mapping) else dict.fromkeys(labels, count))

    def __call__(self, label: str, mask: Bool[np.ndarray, "b s"]) -> None:
        self.counts["tokens_read"][label] += int(mask.sum())
        self.counts["places"][label] += mask.size
        self._note()

    def _note(self) -> None:
        for name, counts in self.counts.items():
            same = len(set(counts.values())) == 1
            self.record[name] = next(iter(counts.values())) if same else dict(counts)
