"""Attention maps of all models of a run, as a stream over sentences; words attend and are attended to."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.activations.batching import (
    TokenTally,
    batch_by_length,
    count_batch_places,
    cut_windows,
    limit_padding,
    make_input_tensors,
    measure_lengths,
)
from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import count_heads, expand
from repsim_cli.activations.maps import AttentionMaps
from repsim_cli.activations.readings import Layer, Reading
from repsim_cli.activations.stored import Running
from repsim_cli.base.errors import BadInput, RepsimError, RunFailed
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.data.base import Sequences
from repsim_cli.models.loading import make_input_template
from repsim_cli.models.source import AnySource, Precomputed, Source

Special = Literal["drop_renormalise", "keep"]
OFF = 0.01  # by which the rows of a map may miss 1, in half precision


def plan_attention_readings(models: Mapping[str, AnySource], extract: Extract) -> list[Reading]:
    """The attention layers of each model, in order; the width of a layer is its number of heads.

    Raises BadInput (key path first) where a model has no attention maps.
    """
    readings = []
    for label, source in models.items():
        if isinstance(source, Precomputed):
            raise BadInput(f"model.{label}: stored activations have no attention maps, got precomputed; use a model")
        try:
            points = expand(["pattern"], extract.layers, source)
        except BadInput as error:
            raise BadInput(f"extract.layers, model.{label}: {error}") from None
        readings.append(
            Reading(label, source, points, [Layer(label, str(point), count_heads(point, source)) for point in points])
        )
    return readings


def slice_heads_by_layer(readings: Sequence[Reading]) -> list[slice]:
    """The heads of each layer, among all heads."""
    ends = np.cumsum([0, *(layer.width for reading in readings for layer in reading.layers)]).tolist()
    return [slice(a, b) for a, b in pairwise(ends)]


def number_map_rows(sequences: Sequences, special: Special) -> Int[np.ndarray, "N L"]:
    """Numbers the rows and columns of each sequence's map: for every place its row and column, from 0, or -1.

    Words come in order. With `keep`, every token outside words (above all those of the template) has a row as well.
    """
    word = sequences.word
    assert word is not None
    alone = np.arange(word.shape[1]) + word.max() + 1  # tokens outside words, by place
    kept = word >= 0 if special == "drop_renormalise" else sequences.mask
    numbers = np.full(word.shape, -1, np.int64)
    for row, (words, inside) in enumerate(zip(np.where(word >= 0, word, alone), kept, strict=True)):
        _, first, of = np.unique(words[inside], return_index=True, return_inverse=True)
        numbers[row, inside] = first.argsort().argsort()[of]
    return numbers


def check_units(of: Mapping[str, Int[np.ndarray, "N L"]], sequences: Mapping[str, Sequences]) -> None:
    """Raises BadInput for the first sequence whose map differs in size between models."""
    first, *others = of
    sizes = {label: places.max(1) + 1 for label, places in of.items()}
    for label in others:
        differs = np.flatnonzero(sizes[label] != sizes[first])
        if len(differs):
            at = int(differs[0])
            example = sequences[first].example
            raise BadInput(
                f"options.special: different sizes of maps in sentence {at if example is None else int(example[at])}, "
                f"got {sizes[first][at]} words and special tokens for '{first}' and {sizes[label][at]} for '{label}'; "
                "use drop_renormalise, or models with the same tokenizer"
            )


def pool_attention_by_word(
    pattern: Float[Tensor, "h s s"], of: Int[Tensor, " s"], special: Special
) -> Float[Tensor, "h t t"]:
    """The map of a sequence by words: the sum over the pieces of the attended word, the mean over the attending ones.

    of: the row of every token, -1 for none. With `drop_renormalise`, tokens without a row are left out and rows are
    divided by their remaining sum, so that each is a distribution again.
    """
    count = int(of.max()) + 1
    member = torch.zeros(count, len(of), dtype=pattern.dtype, device=pattern.device)
    pieces = (of >= 0).nonzero()[:, 0]
    member[of[pieces], pieces] = 1
    words = (member / member.sum(1, keepdim=True)) @ pattern @ member.T
    return words / words.sum(2, keepdim=True) if special == "drop_renormalise" else words


def cut_sentence_windows(sequences: Mapping[str, Sequences], hardware: Hardware) -> list[slice]:
    """Windows of sentences whose maps go through the models at a time, the same for all models."""
    lengths = np.max([measure_lengths(given.mask) for given in sequences.values()], axis=0)
    return cut_windows(lengths, count_batch_places(max(given.mask.shape[1] for given in sequences.values()), hardware))


def stream_attention_maps(
    readings: Sequence[Reading],
    running: Running,
    special: Special,
    hardware: Hardware,
    progress: Callable[[Sequence[Any]], Iterator[Any]],
    first: int = 0,
) -> Iterator[AttentionMaps]:
    """The maps of all heads of these models, one window of sentences (`batching`) at a time, from window `first` on.

    Modules have eager attention, and the maps of all sequences one size (`check_units`). Raises RunFailed for a model
    without attention weights.
    """
    modules, sequences = running.modules, running.sequences
    layers = slice_heads_by_layer(readings)
    sizes = number_map_rows(sequences[readings[0].label], special).max(1) + 1
    with ExitStack() as stack:
        forwards = {
            r.label: _Forward(
                reading=r,
                source=source,
                read=stack.enter_context(capture(modules[r.label], source, r.points)),
                weights=make_input_template(modules[r.label]),
                sequences=sequences[r.label],
                special=special,
                hardware=hardware,
                tally=running.tally,
            )
            for r in readings
            if isinstance(source := r.source, Source) and r.label in modules
        }

        def cells(label: str, window: slice) -> Tensor:
            recorder = running.recorders.get(label)
            if recorder and (stored := recorder.read(window)):
                return stored[0].to(hardware.device)
            made = torch.cat([heads.flatten(1) for heads in forwards[label].maps(window)], 1)
            if recorder:
                recorder.write(window, [made])
            return made

        for window in progress(cut_sentence_windows(sequences, hardware)[first:]):
            yield AttentionMaps(torch.cat([cells(r.label, window) for r in readings]), sizes[window].tolist(), layers)


@dataclass(kw_only=True)
class _Forward:
    """Forward passes of one model."""

    reading: Reading
    source: Source
    read: Callable[..., Any]
    weights: Tensor
    sequences: Sequences
    special: Special
    hardware: Hardware
    tally: TokenTally | None

    @cached_property
    def lengths(self) -> Int[np.ndarray, " N"]:
        return measure_lengths(self.sequences.mask)

    @cached_property
    def padding(self) -> float:
        """The largest share of a batch's places that may be padding."""

        def flatten_maps(given: Sequences) -> list[Tensor]:
            return [heads.flatten(1) for heads in self._compute_word_maps(given)]

        return limit_padding(flatten_maps, self.sequences, self.lengths, self.weights.dtype)

    def maps(self, window: slice) -> list[Tensor]:
        """The maps (heads, t, t) of each sentence of the window, all heads of the layers that are read, float32."""
        sentences = [torch.empty(0)] * (window.stop - window.start)
        for batch in batch_by_length(self.lengths[window], self.hardware, self.padding):
            numbers = batch + window.start
            given = self.sequences.take(numbers, int(self.lengths[numbers].max()))
            for place, heads in zip(batch, self._compute_word_maps(given), strict=True):
                sentences[place] = heads.to(self.hardware.device)
            if self.tally:
                self.tally(self.reading.label, given.mask)
        _check_rows(sentences, self.reading.label, self.sequences, window)
        return sentences

    def _compute_word_maps(self, given: Sequences) -> list[Tensor]:
        inputs, mask, more = make_input_tensors(given, self.source, self.weights)
        try:
            patterns = self.read(inputs, mask, **more)
        except RepsimError as error:
            raise RunFailed(f"model.{self.reading.label}: {error}") from error
        for point, layer in zip(self.reading.points, self.reading.layers, strict=True):
            sentences, places = given.mask.shape
            shape = (sentences, layer.width, places, places)
            if patterns[point].shape != shape:
                raise RunFailed(
                    f"{layer}: not attention (sentence, head, query, key), got {tuple(patterns[point].shape)} instead "
                    f"of {shape}; use another model"
                )
        # copies all layers, so that the model's tensors can be freed
        by_layer = torch.stack([patterns.pop(point) for point in self.reading.points], 1)
        of = torch.from_numpy(number_map_rows(given, self.special)).to(by_layer.device)
        return [
            pool_attention_by_word(p, row, self.special)
            for p, row in zip(by_layer.float().flatten(1, 2), of, strict=True)
        ]


def _check_rows(sentences: Sequence[Tensor], label: str, given: Sequences, window: slice) -> None:
    for number, heads in enumerate(sentences, window.start):
        off = float((heads.sum(2) - 1).abs().max())
        if not off <= OFF:
            sentence = number if given.example is None else int(given.example[number])
            raise RunFailed(
                f"model.{label}: a word's attention does not sum to 1, got an error of {off:.3g} in sentence "
                f"{sentence}; use options.special=keep if all of it goes to special tokens (nan), else another model"
            )
