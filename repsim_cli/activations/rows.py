"""Activations of all models of a run as one stream of paired rows: every model runs once per batch of sequences."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from repsim_cli.activations.batching import (
    Tally,
    lengths_of,
    longest,
    most_places,
    of_similar_length,
    padding_of,
    tensors,
    windows,
)
from repsim_cli.activations.capture import Reader, capture, shapes
from repsim_cli.activations.hook_points import ATTENTION, BY_HEAD, HookPoint, head_width, heads_of, points_of
from repsim_cli.activations.stored import Recorder
from repsim_cli.data.base import Sequences, draw
from repsim_cli.errors import BadInput, RepsimError, RunFailed
from repsim_cli.models.loading import Loading, like_inputs
from repsim_cli.models.sizes import check_spread, spread_of
from repsim_cli.models.source import AnySource, Precomputed, Source
from repsim_cli.planning import check_device
from repsim_cli.registry import did_you_mean
from repsim_cli.segments import BOTH, DOCUMENT, SEQUENCE
from repsim_cli.settings import LARGEST, WORDS, Extract, Hardware

log = logging.getLogger("repsim")
INNER = ("mlp_pre", "mlp_post", "module")  # their width is not the model's
AT_ONCE = 256  # stored rows that are read at a time, and rows in float64, for second moments
MLP_WIDTHS = ("intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size", "feed_forward_size", "d_inner")


class Layer(NamedTuple):
    """A representation of the run: the model's label, and the name of a hook point or stored array."""

    model: str
    name: str
    width: int

    def __str__(self) -> str:
        return f"{self.name} of '{self.model}'"


@dataclass(frozen=True)
class Reading:
    """What is read from a model. points: empty for stored activations."""

    label: str
    source: AnySource
    points: list[HookPoint]
    layers: list[Layer]

    @property
    def eager(self) -> bool:
        """Whether attention maps are read, which fused attention does not give."""
        return any(point.kind in ATTENTION for point in self.points)


def devices(hardware: Hardware, labels: Sequence[str]) -> dict[str, str]:
    """The device of each model: named, in turn, or that of the run. Raises BadInput for a device that is not there."""
    check_spread(hardware)
    named = hardware.devices
    if isinstance(named, dict):
        for label in named:
            if label not in labels:
                raise BadInput(f"hardware.devices: no such model, got '{label}'; {did_you_mean(label, labels)}")
        places = {label: named.get(label, hardware.device) for label in labels}
    else:
        turn = named or [hardware.device]
        places = {label: turn[i % len(turn)] for i, label in enumerate(labels)}
    for device in dict.fromkeys([hardware.device, *places.values()]):
        check_device("hardware.device" if device == hardware.device else "hardware.devices", device)
    return places


def loading(hardware: Hardware, device: str) -> Loading:
    """How a run loads a model of this device."""
    return Loading(dtype=getattr(torch, hardware.dtype), device=device, spread=spread_of(hardware))


def readings(models: Mapping[str, AnySource], extract: Extract) -> list[Reading]:
    """What is read from each model, in order. Raises BadInput (key path first) before any weight loads."""
    chosen = []
    for label, source in models.items():
        if isinstance(source, Precomputed):
            layers = [Layer(label, name, width) for name, width in zip(source.names, source.widths, strict=True)]
            chosen.append(Reading(label, source, [], layers))
            continue
        points = points_of(label, source, extract)
        maps = [point for point in points if point.kind in ATTENTION]
        # with two numbers, as with whole sequences, all rows have the same number of keys
        even = extract.unit == "sequence" or (source.modality == "numbers" and extract.unit in ("first", "last"))
        if maps and (not even or maps[0].head is None):
            raise BadInput(
                f"extract.hook_points: an attention map has no row per token, got '{maps[0].kind}'; use q, k, v, z or "
                f"attn_out, or {maps[0].kind}.h* with extract.unit=sequence"
            )
        guessed = any(point.kind in INNER for point in points) or source.modality == "images"
        read = shapes(source, points) if guessed else {}
        if source.modality == "images" and not _of_any_places(source, extract):
            _check_places(label, source, read)
        layers = [Layer(label, str(point), _width(point, source, extract, read.get(point))) for point in points]
        chosen.append(Reading(label, source, points, layers))
    return chosen


def _of_any_places(source: Source, extract: Extract) -> bool:
    """Whether layers of an image model may have places of their own: where the places of an image become one row, whose
    length is known before the run."""
    sized = hasattr(getattr(source.skeleton, "config", None), "image_size")
    return extract.unit == "mean" or (extract.unit == "sequence" and sized)


def _width(point: HookPoint, source: Source, extract: Extract, shape: tuple[int, int] | None) -> int:
    """Features of a row. shape: the places and features of the hook point, where a pass without weights gave them."""
    places, wide = shape or (None, width(point, source))
    if extract.unit != "sequence":
        return wide
    return wide * ((places if source.modality == "images" else None) or source.context or extract.length)


def _check_places(label: str, source: Source, read: Mapping[HookPoint, tuple[int, int]]) -> None:
    for point, (places, _) in read.items():
        if places != source.context:
            given = "of any size" if source.context == 1 else f"of {source.context} places"
            raise BadInput(
                f"extract.unit, model.{label}: {point} has places of its own, got {places} for images {given}; use "
                "extract=pooled"
            )


def width(point: HookPoint, source: Source) -> int:
    """Features per row, from the config (inside an MLP that it does not describe, and for an unknown module, four times
    the width)."""
    if point.kind in ATTENTION:
        return source.context or 1
    if point.kind in BY_HEAD:
        wide = head_width(point, source)
        return wide if point.head is not None else wide * heads_of(point, source)
    if point.kind not in INNER:
        return source.width
    config = getattr(source.skeleton, "config", None)
    named = [getattr(config, name, None) for name in MLP_WIDTHS if point.kind != "module"]
    return next((wide for wide in named if isinstance(wide, int)), 4 * source.width)


def places_read(sequences: Sequences, extract: Extract) -> Bool[np.ndarray, "N L"]:
    """Which places are read. Of tokens: only those of documents (`drop`), or all (`keep`). Of words: the pieces that
    stand for them. Of pooled rows: those that are pooled, never padding or what is skipped (unless nothing else is
    there: such a row is left out)."""
    if extract.unit in WORDS:
        return _of_words(sequences)[extract.piece]
    if extract.unit == "token":
        return sequences.text if extract.padding == "drop" else np.ones_like(sequences.text)
    if extract.unit in ("mean", "sequence"):
        return _unskipped(sequences, sequences.text if extract.padding == "drop" else sequences.mask)
    order = _unskipped(sequences, sequences.mask)
    order = order if extract.unit == "first" else order[:, ::-1]
    alone = order & (order.cumsum(1) == 1)
    return alone if extract.unit == "first" else alone[:, ::-1].copy()


def _unskipped(sequences: Sequences, places: Bool[np.ndarray, "N L"]) -> Bool[np.ndarray, "N L"]:
    """The places that are not skipped; of a sequence without any, all of them."""
    if sequences.skip is None:
        return places
    left = places & ~sequences.skip
    return np.where(left.any(1, keepdims=True), left, places)


def _of_words(sequences: Sequences) -> dict[str, Bool[np.ndarray, "N L"]]:
    """The last, the first and all pieces of words."""
    word = sequences.word
    assert word is not None, "extract.unit=word needs sequences that say of which word each token is"
    pieces = word >= 0
    # words ascend: a piece is the first of its word if all before belong to lower words, the last if all after belong
    # to higher ones
    before = np.maximum.accumulate(word, 1)
    after = np.minimum.accumulate(np.where(pieces, word, np.iinfo(word.dtype).max)[:, ::-1], 1)[:, ::-1]
    first, last = pieces.copy(), pieces.copy()
    first[:, 1:] &= word[:, 1:] > before[:, :-1]
    last[:, :-1] &= word[:, :-1] < after[:, 1:]
    return {"last": last, "first": first, "mean": pieces}


def places_run(sequences: Sequences, extract: Extract) -> Bool[np.ndarray, "N L"]:
    """One place for every row that models give, unless rows are pooled sequences."""
    if extract.unit in WORDS and extract.piece == "mean":
        return _of_words(sequences)["first"]
    return places_read(sequences, extract)


def rows_run(sequences: Sequences, extract: Extract) -> Int[np.ndarray, " N"]:
    """How many rows models give for each sequence: its places or words, or one if any place is pooled."""
    places = places_run(sequences, extract)
    return places.any(1).astype(int) if extract.pooled else places.sum(1)


def _row_places(sequences: Sequences, extract: Extract) -> Bool[np.ndarray, "N L"]:
    """As `places_run`, of the rows of the run."""
    places = places_run(sequences, extract)
    return places if sequences.left_out is None else places & ~sequences.left_out


def rows_of(sequences: Sequences, extract: Extract) -> Int[np.ndarray, " N"]:
    """How many rows of the run each sequence gives: those of `rows_run` that no model leaves out."""
    places = _row_places(sequences, extract)
    return places.any(1).astype(int) if extract.pooled else places.sum(1)


def rows_left(sequences: Sequences, extract: Extract) -> Bool[np.ndarray, " n"] | None:
    """Of every row that models give, whether it is a row of the run; None: all are."""
    if sequences.left_out is None:
        return None
    places = places_run(sequences, extract)
    if extract.pooled:
        return ~np.all(sequences.left_out, axis=1)[np.any(places, axis=1)]
    return ~sequences.left_out[places]


def row_labels(sequences: Sequences, extract: Extract) -> Int[np.ndarray, " n"] | None:
    """The label code of every row of the run, in row order; None where the data has none."""
    if sequences.labels is None:
        return None
    return np.repeat(sequences.labels.codes, rows_of(sequences, extract))


def row_examples(sequences: Sequences, extract: Extract) -> Int[np.ndarray, " n"]:
    """The number in the data set of the example or sentence of every row of the run, in row order."""
    assert sequences.example is not None
    return np.repeat(sequences.example, rows_of(sequences, extract))


def row_words(sequences: Sequences, extract: Extract) -> Int[np.ndarray, " n"]:
    """The number in its sentence of every row of the run that is a word, in row order."""
    assert sequences.word is not None
    return sequences.word[_row_places(sequences, extract)]


def row_documents(sequences: Sequences, extract: Extract) -> Int[np.ndarray, " n"]:
    """The document or sentence of every row of the run, in row order; for pooled rows, their sequence."""
    if extract.unit in ("token", *WORDS):
        return sequences.document[_row_places(sequences, extract)]
    return np.flatnonzero(rows_of(sequences, extract))


def row_positions(sequences: Sequences, extract: Extract) -> Int[np.ndarray, " n"] | None:
    """The place of every row in its sequence, which counts special tokens; None for pooled rows, which have none."""
    if extract.unit not in ("token", *WORDS):
        return None
    return _row_places(sequences, extract).nonzero()[1]


def row_beginnings(sequences: Sequences, extract: Extract) -> Int[np.ndarray, " n"]:
    """What every row of the run is the first row of: DOCUMENT + SEQUENCE of `segments.py`, or 0."""
    if extract.unit not in ("token", *WORDS):
        return np.full(rows_of(sequences, extract).sum(), BOTH)
    places = _row_places(sequences, extract)
    first = places & (places.cumsum(1) == 1)
    document = np.where(places, sequences.document, -1)
    # a document that begins inside a sequence, wherever its first row is in it
    before = np.maximum.accumulate(np.where(places, np.arange(places.shape[1]), -1), 1)[:, :-1]
    changed = np.zeros_like(places)
    changed[:, 1:] = document[:, 1:] != np.take_along_axis(document, before.clip(0), 1)
    begins = np.where(first, _begun(sequences, first), changed)
    return (DOCUMENT * begins + SEQUENCE * first)[places]


def _begun(sequences: Sequences, first: Bool[np.ndarray, "N L"]) -> Bool[np.ndarray, "N 1"]:
    """Whether the document of the first row of each sequence begins in it, at that row or before."""
    at = first.argmax(1)[:, None]
    same = sequences.document == np.take_along_axis(sequences.document, at, 1)
    before = np.arange(first.shape[1]) <= at
    return (same & before & (sequences.position == 0)).any(1, keepdims=True)


def same_rows(a: Sequences, b: Sequences, extract: Extract) -> bool:
    """Whether two models see the same rows in the same order. Pooled examples are equal whatever their tokens."""
    if not np.array_equal(rows_run(a, extract), rows_run(b, extract)):
        return False
    if extract.unit in WORDS:
        rows_a, rows_b = ([y[places_run(x, extract)] for y in (x.position, x.document)] for x in (a, b))
        return np.array_equal(rows_a, rows_b)
    if extract.unit != "token" and a.example is not None and b.example is not None:
        return np.array_equal(a.example, b.example)
    places = np.array_equal(a.document, b.document) and np.array_equal(a.position, b.position)
    # pixel values differ where models normalise them differently
    return places and (a.inputs.ndim != 2 or np.array_equal(a.inputs, b.inputs))


class Block(NamedTuple):
    """Paired rows of every layer, float32, starting at row `first`."""

    first: int
    rows: list[Tensor]


def blocks(
    readings: Sequence[Reading],
    modules: Mapping[str, nn.Module],
    recorders: Mapping[str, Recorder],
    sequences: Mapping[str, Sequences],
    extract: Extract,
    hardware: Hardware,
    progress: Callable[[Sequence[Any]], Iterator[Any]],
    first_row: int = 0,
    tally: Tally | None = None,
) -> Iterator[Block]:
    """Paired rows of every layer of every model, one window of sequences (`batching`) at a time, in row order, from
    first_row on.

    sequences: of every live model; the same rows for all (`same_rows`). tally: counts what is run.
    """
    if not sequences:
        total = min(r.source.rows for r in readings if isinstance(r.source, Precomputed))
        size = min(extract.batch_rows, AT_ONCE) if extract.estimate == "moments" else extract.batch_rows
        for start in progress(range(0, total, size)):
            if start + size > first_row:
                yield Block(start, _stored(readings, slice(start, min(total, start + size)), hardware.device))
        return
    counts = rows_run(next(iter(sequences.values())), extract)
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
                tally,
            )
            for r, source in live
        }
        whole = windows_of(sequences, extract, hardware)
        done = 0
        for window in progress(whole):
            place = slice(done, done + int(counts[window].sum()))
            done = place.stop
            if done <= first_row:
                continue
            rows: list[Tensor] = []
            for reading in readings:
                if isinstance(reading.source, Precomputed):
                    rows += _stored([reading], place, hardware.device)
                    continue
                recorder = recorders.get(reading.label)
                taken = recorder.read(window) if recorder else None
                if taken is None:
                    taken = forwards[reading.label].rows(window)
                    if recorder:
                        recorder.write(window, taken)
                rows += [x.to(hardware.device) for x in taken]
            yield Block(place.start, rows)
    for reading, _ in live:
        if reading.label in recorders:
            recorders[reading.label].finish([layer.name for layer in reading.layers], whole)


def windows_of(sequences: Mapping[str, Sequences], extract: Extract, hardware: Hardware) -> list[slice]:
    """The windows of sequences (`batching`), the same for all models of a run."""
    lengths = np.max([lengths_of(used(given, extract)) for given in sequences.values()], axis=0)
    return windows(lengths, most_places(longest(sequences, extract), hardware))


def used(sequences: Sequences, extract: Extract) -> Bool[np.ndarray, "N L"]:
    """The places that a model must run: those that it sees, and those that are read. Rows of whole sequences are of
    equal length however long the batch is."""
    if extract.unit == "sequence":
        return np.ones_like(sequences.mask)
    return sequences.mask | places_read(sequences, extract)


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
        tally: Tally | None = None,
    ):
        assert isinstance(reading.source, Source)
        self.reading, self.source, self.read, self.sequences = reading, reading.source, read, sequences
        self.counts, self.lengths = rows_run(sequences, extract), lengths_of(used(sequences, extract))
        self.extract, self.hardware, self.tally = extract, hardware, tally
        self.weights = like_inputs(module)
        self.fits: int | None = None

    @cached_property
    def padding(self) -> float:
        """How much of a batch may be padding."""
        once = partial(self._once, where="a sequence of medium length")
        padding = padding_of(once, self.sequences, self.lengths, self.weights.dtype)
        if not padding:
            log.info("model.%s: padding changes its activations; it runs batches of equal length", self.reading.label)
        return padding

    def rows(self, window: slice) -> list[Tensor]:
        """Rows (m, d) of each layer for the sequences of the window, in order, float32."""
        counts = self.counts[window]
        firsts = counts.cumsum() - counts
        rows: list[Tensor] = []
        for batch in of_similar_length(self.lengths[window], self.hardware, self.padding):
            taken = self._fitting(batch + window.start)
            if len(batch) == len(counts):
                return taken
            if not rows:
                rows = [x.new_empty(int(counts.sum()), x.shape[1]) for x in taken]
            starts = firsts[batch] - (counts[batch].cumsum() - counts[batch])
            places = np.arange(counts[batch].sum()) + np.repeat(starts, counts[batch])
            for of_window, x in zip(rows, taken, strict=True):
                of_window[torch.from_numpy(places).to(x.device)] = x
        return rows

    def _fitting(self, batch: Int[np.ndarray, " b"]) -> list[Tensor]:
        """The rows of a batch, in parts where it has more sequences than fit into memory."""
        size, fits = len(batch), self.fits
        if fits is not None and size > fits:
            parts = [self._fitting(batch[i : i + fits]) for i in range(0, size, fits)]
            return [torch.cat(pieces) for pieces in zip(*parts, strict=True)]
        places = int(self.lengths[batch].max())
        given = self.sequences.take(batch, places)
        try:
            taken = self._once(given, f"sequences {batch[0]} to {batch[-1]}")
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
        return self._fitting(batch)

    def _once(self, given: Sequences, where: str) -> list[Tensor]:
        inputs, mask, more = tensors(given, self.source, self.weights)
        chosen = torch.from_numpy(places_read(given, self.extract)).to(self.weights.device)
        try:
            by_point = self.read(inputs, mask, **more)
        except RepsimError as error:
            raise RunFailed(f"model.{self.reading.label}: {error}") from error
        taken = []
        for point, layer in zip(self.reading.points, self.reading.layers, strict=True):
            x, read = by_point.pop(point), chosen
            if x.ndim == 3 and x.shape[1] != chosen.shape[1] and given.inputs.ndim == 4:
                # a stage of an image model has places of its own
                if self.extract.unit not in ("mean", "sequence"):
                    raise RunFailed(
                        f"{layer}: the places of its images differ from the run's, got {x.shape[1]} for "
                        f"{chosen.shape[1]}; use extract=pooled with extract.unit=mean"
                    )
                read = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
            if x.ndim != 3 or x.shape[:2] != read.shape:
                raise RunFailed(
                    f"{layer}: not (batch, position, features), got {tuple(x.shape)}; choose another module"
                )
            rows = self._of(x, read.to(x.device), given)
            advice = "check the model's weights and hardware.dtype, or leave this layer out"
            _check_finite(rows, layer, lambda: where, advice)
            taken.append(rows)
        return taken

    def _of(self, x: Float[Tensor, "b s d"], chosen: Bool[Tensor, "b s"], given: Sequences) -> Float[Tensor, "n e"]:
        """The rows of a batch, float32."""
        if self.extract.unit in WORDS and self.extract.piece == "mean":
            assert given.word is not None
            return pool_words(x, torch.from_numpy(given.word).to(x.device))
        if self.extract.unit in ("token", *WORDS):
            return x[chosen].float()
        if self.extract.unit == "sequence":
            return x[chosen].float().view(len(x), -1)
        return pool(x, chosen)


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


def _stored(readings: Sequence[Reading], rows: slice, device: str) -> list[Tensor]:
    taken = []
    for reading in readings:
        assert isinstance(reading.source, Precomputed)
        for layer in reading.layers:
            x = reading.source.read(layer.name, rows)
            _check_finite(x, layer, partial(_first_row, x, rows.start), "fix the stored array (read as float32)")
            taken.append(x.to(device))
    return taken


def _first_row(x: Tensor, start: int) -> str:
    return f"row {start + int((~(x.abs() <= LARGEST)).any(1).int().argmax())}"


def _check_finite(x: Tensor, layer: Layer, where: Callable[[], str], advice: str) -> None:
    low, high = x.aminmax() if x.numel() else (0.0, 0.0)  # NaN if there is one
    if not (low >= -LARGEST and high <= LARGEST):
        got = float(x[~(x.abs() <= LARGEST)][0])
        problem = "too large to be squared and summed" if isfinite(got) else "not finite"
        raise RunFailed(f"{layer}: activations are {problem}, got {got} in {where()}; {advice}")


def total_rows(readings: Sequence[Reading], sequences: Mapping[str, Sequences], extract: Extract) -> int:
    """The number of rows of the run, the same for every model. Raises BadInput where stored activations differ."""
    stored = {r.label: r.source.rows for r in readings if isinstance(r.source, Precomputed)}
    given = next(iter(sequences.values()), None)
    if given is not None:
        stored["(data)"] = int(rows_run(given, extract).sum())
    if len(set(stored.values())) != 1:
        listed = ", ".join(f"{label}: {rows}" for label, rows in stored.items())
        raise BadInput(f"model: models have different numbers of rows, got {listed}; rows must be paired")
    return next(iter(stored.values())) if given is None else int(rows_of(given, extract).sum())


def batches(
    stream: Iterator[Block],
    extract: Extract,
    total: int,
    seed: int,
    first_row: int = 0,
    whole: Int[np.ndarray, " N"] | None = None,
) -> Iterator[list[Tensor]]:
    """The stream regrouped for the estimate: one batch of rows sampled under the seed (`full`), all rows as they come
    (`moments`), or batches of exactly `batch_rows` rows in row order from first_row on, without the remainder.

    whole: as in `row_numbers`.
    """
    if extract.estimate == "full":
        return _sampled(stream, torch.from_numpy(row_numbers(extract, total, seed, 0, whole)))
    if extract.estimate == "moments":
        return (rows for _, rows in stream if len(rows[0]))
    return regrouped(stream, extract.batch_rows, first_row, rest=False)


def row_numbers(
    extract: Extract, total: int, seed: int, batch: int, whole: Int[np.ndarray, " N"] | None = None
) -> Int[np.ndarray, " n"]:
    """The rows of the run in a batch, ascending.

    whole: the number of rows of each sequence, to sample whole sequences (one at least).
    """
    if extract.estimate != "full":
        return np.arange(batch * extract.batch_rows, (batch + 1) * extract.batch_rows)
    if whole is None or total <= extract.rows:
        return draw(total, extract.rows, seed)
    order = np.random.default_rng(seed).permutation(len(whole))
    fitting = np.searchsorted(whole[order].cumsum(), extract.rows, side="right")
    chosen = np.zeros(len(whole), bool)
    chosen[order[: max(1, fitting)]] = True
    return np.flatnonzero(np.repeat(chosen, whole))


def _sampled(stream: Iterator[Block], chosen: Tensor) -> Iterator[list[Tensor]]:
    out: list[Tensor] = []
    filled = 0
    for first, rows in stream:
        inside = chosen[(chosen >= first) & (chosen < first + len(rows[0]))] - first
        if not out:
            out = [x.new_empty(len(chosen), x.shape[1]) for x in rows]
        for x, target in zip(rows, out, strict=True):
            target[filled : filled + len(inside)] = x[inside.to(x.device)]
        filled += len(inside)
    yield out


def regrouped(stream: Iterator[Block], size: int, first_row: int, rest: bool) -> Iterator[list[Tensor]]:
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
