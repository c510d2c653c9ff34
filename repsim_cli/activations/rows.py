"""Activations of all models of a run as one stream of paired rows: every model runs once per batch of sequences."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from repsim_cli.activations.batching import (
    TokenTally,
    batch_by_length,
    count_batch_places,
    cut_windows,
    find_longest_length,
    limit_padding,
    make_input_tensors,
    measure_lengths,
)
from repsim_cli.activations.capture import Reader, capture
from repsim_cli.activations.linear import speed_up_linear_layers
from repsim_cli.activations.places import (
    count_given_rows,
    count_kept_rows,
    mark_read_places,
    mark_row_places,
    order_places,
)
from repsim_cli.activations.readings import Layer, Reading
from repsim_cli.activations.stored import Running
from repsim_cli.base.errors import BadInput, RepsimError, RunFailed
from repsim_cli.base.settings import LARGEST, STREAMED, WORDS, Extract, Hardware
from repsim_cli.data.base import Sequences
from repsim_cli.models.loading import make_input_template
from repsim_cli.models.source import Precomputed, Source

log = logging.getLogger("repsim")
AT_ONCE = 256  # stored rows that are read at a time, and rows in float64, for second moments


class RowBlock(NamedTuple):
    """Paired rows of every layer, float32, starting at row `first`."""

    first: int
    rows: list[Tensor]


class HeldRows(RowBlock):
    """Rows that stay in memory anyway."""


def stream_row_blocks(
    readings: Sequence[Reading],
    running: Running,
    extract: Extract,
    hardware: Hardware,
    progress: Callable[[Sequence[Any]], Iterator[Any]],
    first_row: int = 0,
) -> Iterator[RowBlock]:
    """Paired rows of every layer of every model, one window of sequences (`batching`) at a time, in row order, from
    first_row on.

    The rows of the sequences are the same for all models (`have_same_rows`).
    """
    modules, sequences, recorders = running.modules, running.sequences, running.recorders
    if not sequences:
        size = min(extract.batch_rows, AT_ONCE) if extract.estimate in STREAMED else extract.batch_rows
        yield from _stream_stored_blocks(readings, size, hardware.device, progress, first_row)
        return
    counts = count_given_rows(next(iter(sequences.values())), extract)
    with ExitStack() as stack:
        live = [(r, r.source) for r in readings if isinstance(r.source, Source)]
        forwards = {
            r.label: Forward(
                r,
                stack.enter_context(capture(modules[r.label], source, r.points)),
                modules[r.label],
                sequences[r.label],
                extract,
                hardware,
                running.tally,
            )
            for r, source in live
        }
        whole = cut_sequence_windows(sequences, extract, hardware)
        done = 0
        for window in progress(whole):
            place = slice(done, done + int(counts[window].sum()))
            done = place.stop
            if done <= first_row:
                continue
            rows: list[Tensor] = []
            for reading in readings:
                if isinstance(reading.source, Precomputed):
                    rows += _read_stored([reading], place, hardware.device)
                    continue
                recorder = recorders.get(reading.label)
                taken = recorder.read(window) if recorder else None
                if taken is None:
                    taken = forwards[reading.label].rows(window)
                    if recorder:
                        recorder.write(window, taken)
                rows += [x.to(hardware.device) for x in taken]
            yield RowBlock(place.start, rows)
    for reading, _ in live:
        if reading.label in recorders:
            recorders[reading.label].finish([layer.name for layer in reading.layers], whole)


def _stream_stored_blocks(
    readings: Sequence[Reading],
    size: int,
    device: str,
    progress: Callable[[Sequence[Any]], Iterator[Any]],
    first_row: int,
) -> Iterator[RowBlock]:
    """The same where every model is one of stored activations: blocks of `size` rows."""
    total = min(r.source.rows for r in readings if isinstance(r.source, Precomputed))
    for start in progress(range(0, total, size)):
        if start + size > first_row:
            place = slice(start, min(total, start + size))
            held = all(isinstance(r.source, Precomputed) and r.source.is_held(place) for r in readings)
            kind = HeldRows if held and device == "cpu" else RowBlock
            yield kind(start, _read_stored(readings, place, device))


def cut_sequence_windows(sequences: Mapping[str, Sequences], extract: Extract, hardware: Hardware) -> list[slice]:
    """The windows of sequences (`batching`), the same for all models of a run."""
    lengths = np.max([measure_lengths(find_used(given, extract)) for given in sequences.values()], axis=0)
    return cut_windows(lengths, count_batch_places(find_longest_length(sequences, extract), hardware))


def find_used(sequences: Sequences, extract: Extract) -> Bool[np.ndarray, "N L"]:
    """The places that a model must run: those that it sees, and those that are read. Rows of whole sequences are of
    equal length however long the batch is."""
    if extract.unit == "sequence":
        return np.ones_like(sequences.mask)
    return sequences.mask | mark_read_places(sequences, extract)


class Chosen(NamedTuple):
    """The places of a batch that are read. at: their numbers among all, which are counted once for all layers."""

    mask: Bool[Tensor, "b s"]
    at: Int[Tensor, " n"]

    def to(self, device: torch.device) -> "Chosen":
        return self if self.at.device == device else Chosen(self.mask.to(device), self.at.to(device))

    def take(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "n d"]:
        return x.flatten(0, 1)[self.at].float()


class Forward:
    """Forward passes of one model. Where the device runs out of memory, batches are halved from then on."""

    def __init__(
        self,
        reading: Reading,
        read: Reader,
        module: nn.Module,
        sequences: Sequences,
        extract: Extract,
        hardware: Hardware,
        tally: TokenTally | None = None,
    ):
        assert isinstance(reading.source, Source)
        self.reading, self.source, self.read, self.sequences = reading, reading.source, read, sequences
        self.counts, self.lengths = count_given_rows(sequences, extract), measure_lengths(find_used(sequences, extract))
        self.extract, self.hardware, self.tally = extract, hardware, tally
        self.weights = make_input_template(module)
        self.sped_up = speed_up_linear_layers(self.weights)
        self.fits: int | None = None

    @cached_property
    def padding(self) -> float:
        """The largest share of a batch's places that may be padding."""
        once = partial(self._read_layers, where="a sequence of medium length")
        padding = limit_padding(once, self.sequences, self.lengths, self.weights.dtype)
        if not padding:
            log.info("model.%s: padding changes its activations; it runs batches of equal length", self.reading.label)
        return padding

    def rows(self, window: slice) -> list[Tensor]:
        """Rows (m, d) of each layer for the sequences of the window, in order, float32."""
        counts = self.counts[window]
        firsts = counts.cumsum() - counts
        rows: list[Tensor] = []
        for batch in batch_by_length(self.lengths[window], self.hardware, self.padding):
            taken = self._split_to_fit(batch + window.start)
            if len(batch) == len(counts):
                return taken
            if not rows:
                rows = [x.new_empty(int(counts.sum()), x.shape[1]) for x in taken]
            starts = firsts[batch] - (counts[batch].cumsum() - counts[batch])
            places = np.arange(counts[batch].sum()) + np.repeat(starts, counts[batch])
            for of_window, x in zip(rows, taken, strict=True):
                of_window[torch.from_numpy(places).to(x.device)] = x
        return rows

    def _split_to_fit(self, batch: Int[np.ndarray, " b"]) -> list[Tensor]:
        """The rows of a batch, in parts where it has more sequences than fit into memory."""
        size, fits = len(batch), self.fits
        if fits is not None and size > fits:
            parts = [self._split_to_fit(batch[i : i + fits]) for i in range(0, size, fits)]
            return [torch.cat(pieces) for pieces in zip(*parts, strict=True)]
        places = int(self.lengths[batch].max())
        given = self.sequences.take(batch, places)
        try:
            taken = self._read_layers(given, f"sequences {batch[0]} to {batch[-1]}")
        except torch.OutOfMemoryError:
            if size == 1:
                raise RunFailed(
                    f"model.{self.reading.label}: one sequence does not fit into the memory of {self.weights.device}, "
                    f"got {places} tokens; lower extract.length, or use another dtype or device"
                ) from None
        else:
            if self.tally:
                self.tally(self.reading.label, given.mask)
            return taken
        self.fits = size // 2
        log.warning(
            "model.%s: out of memory with %d sequences; continuing with %d", self.reading.label, size, self.fits
        )
        if self.weights.device.type == "cuda":
            torch.cuda.empty_cache()
        return self._split_to_fit(batch)

    def _read_layers(self, given: Sequences, where: str) -> list[Tensor]:
        inputs, mask, more = make_input_tensors(given, self.source, self.weights)
        marked = torch.from_numpy(mark_read_places(given, self.extract))
        chosen = Chosen(marked.to(self.weights.device), marked.flatten().nonzero()[:, 0].to(self.weights.device))
        try:
            with self.sped_up:
                by_point = self.read(inputs, mask, **more)
        except RepsimError as error:
            raise RunFailed(f"model.{self.reading.label}: {error}") from error
        taken = []
        for point, layer in zip(self.reading.points, self.reading.layers, strict=True):
            x, read = by_point.pop(point), chosen
            if x.ndim == 3 and x.shape[1] != marked.shape[1] and given.inputs.ndim == 4:
                # a stage of an image model has places of its own
                if self.extract.unit not in ("mean", "sequence"):
                    raise RunFailed(
                        f"{layer}: the places of its images differ from the run's, got {x.shape[1]} for "
                        f"{marked.shape[1]}; use extract=pooled with extract.unit=mean"
                    )
                places = x.shape[:2].numel()
                read = Chosen(x.new_ones(x.shape[:2], dtype=torch.bool), torch.arange(places, device=x.device))
            if x.ndim != 3 or x.shape[:2] != read.mask.shape:
                raise RunFailed(
                    f"{layer}: not (batch, position, features), got {tuple(x.shape)}; choose another module"
                )
            taken.append(self._take_rows(x, read.to(x.device), given))
        advice = "check the model's weights and hardware.dtype, or leave this layer out"
        _check_finite(taken, self.reading.layers, lambda x: where, advice)
        return taken

    def _take_rows(self, x: Float[Tensor, "b s d"], chosen: Chosen, given: Sequences) -> Float[Tensor, "n e"]:
        """The rows of a batch, float32."""
        if self.extract.unit in WORDS:
            return self._of_words(x, chosen, given)
        if self.extract.unit == "token":
            return chosen.take(x)
        if self.extract.unit == "sequence":
            return chosen.take(x).view(len(x), -1)
        return pool(x, chosen.mask)

    def _of_words(self, x: Float[Tensor, "b s d"], chosen: Chosen, given: Sequences) -> Float[Tensor, "n d"]:
        """Takes the rows of words, in row order."""
        if self.extract.piece == "mean":
            assert given.word is not None
            rows = pool_words(x, torch.from_numpy(given.word).to(x.device))
        else:
            rows = chosen.take(x)
        places = mark_row_places(given, self.extract)
        ordered = np.ravel_multi_index(order_places(given, places, self.extract), places.shape)
        if (np.diff(ordered) > 0).all():
            return rows
        return rows[torch.from_numpy(np.searchsorted(np.flatnonzero(places), ordered)).to(rows.device)]


def pool_words(x: Float[Tensor, "b s d"], word: Int[Tensor, "b s"]) -> Float[Tensor, "n d"]:
    """The mean over the pieces of each word of each sequence, float32. word: -1 for places outside words."""
    pieces, word = word >= 0, word.long()
    sequence = torch.arange(len(word), device=word.device)[:, None].expand_as(word)
    _, of = torch.unique_consecutive(torch.stack([sequence[pieces], word[pieces]]), dim=1, return_inverse=True)
    total = x.new_zeros(int(of[-1]) + 1, x.shape[2], dtype=torch.float32).index_add_(0, of, x[pieces].float())
    return total / of.bincount()[:, None]


def pool(x: Float[Tensor, "b s d"], chosen: Bool[Tensor, "b s"]) -> Float[Tensor, "n d"]:
    """The mean over the chosen places of each sequence that has any, float32."""
    any_chosen = chosen.any(1)
    total = torch.where(chosen[..., None], x.float(), 0.0).sum(1)
    return total[any_chosen] / chosen.sum(1, keepdim=True)[any_chosen]


def _read_stored(readings: Sequence[Reading], rows: slice, device: str) -> list[Tensor]:
    taken = []
    for reading in readings:
        assert isinstance(reading.source, Precomputed)
        for layer in reading.layers:
            x = reading.source.read(layer.name, rows)
            advice = "fix the array or what the module reads (float32)"
            _check_finite([x], [layer], partial(_name_bad_row, rows.start), advice)
            taken.append(x.to(device))
    return taken


def _name_bad_row(start: int, x: Tensor) -> str:
    return f"row {start + int((~(x.abs() <= LARGEST)).any(1).int().argmax())}"


def _check_finite(rows: Sequence[Tensor], layers: Sequence[Layer], where: Callable[[Tensor], str], advice: str) -> None:
    """Raises RunFailed for rows that are not finite, or too large. A GPU is waited for once, not for each layer."""
    ends = [torch.stack(x.aminmax()).to(rows[0].device) for x in rows if x.numel()]
    if not ends or bool((torch.stack(ends).abs() <= LARGEST).all()):  # NaN if there is one
        return
    x, layer = next((x, layer) for x, layer in zip(rows, layers, strict=True) if not bool((x.abs() <= LARGEST).all()))
    got = float(x[~(x.abs() <= LARGEST)][0])
    problem = "too large to be squared and summed" if isfinite(got) else "not finite"
    raise RunFailed(f"{layer}: activations are {problem}, got {got} in {where(x)}; {advice}")


def check_stored_rows(readings: Sequence[Reading]) -> dict[str, int]:
    """Counts the rows of stored activations, by model. Raises BadInput where they differ."""
    stored = {r.label: r.source.rows for r in readings if isinstance(r.source, Precomputed)}
    _check_same_count(stored)
    return stored


def count_run_rows(readings: Sequence[Reading], sequences: Mapping[str, Sequences], extract: Extract) -> int:
    """The number of rows of the run, the same for every model. Raises BadInput where stored activations differ."""
    stored = check_stored_rows(readings)
    given = next(iter(sequences.values()), None)
    if given is None:
        return next(iter(stored.values()))
    _check_same_count(stored | {"(data)": int(count_given_rows(given, extract).sum())})
    return int(count_kept_rows(given, extract).sum())


def _check_same_count(rows: Mapping[str, int]) -> None:
    if len(set(rows.values())) > 1:
        listed = ", ".join(f"{label}: {count}" for label, count in rows.items())
        raise BadInput(f"model: models have different numbers of rows, got {listed}; rows must be paired")
