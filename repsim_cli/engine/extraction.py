"""Which rows are read of which models: a frozen value that studies hold."""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from repsim_cli.activations.inputs import (
    check_modality,
    describe_inputs,
    find_stored_documents,
    load_tokenizers,
    make_sequences,
    pair_rows,
    try_sequences,
)
from repsim_cli.activations.places import list_row_documents, list_row_labels
from repsim_cli.activations.readings import Layer, Reading, assign_devices, plan_readings
from repsim_cli.activations.row_batches import select_batch_rows
from repsim_cli.activations.rows import check_stored_rows, count_run_rows
from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import write_percent
from repsim_cli.base.settings import OF_SAMPLE, Extract, Hardware
from repsim_cli.data.base import Data, Sequences
from repsim_cli.data.copies import count_copied_texts, find_equal_sequences, warn_of_copies
from repsim_cli.engine.bounds import count_most_rows, find_usual_length
from repsim_cli.engine.study import OfRows
from repsim_cli.models.source import AnySource, PrecomputedIds, PrecomputedWords, Source
from repsim_cli.runs.results import Run

ENDS = ("bos", "eos", "cls", "sep")  # tokens that begin and end texts
UNKNOWN = 0.2  # share of the tokens of a text, from which on a tokenizer knows too little of it


def make_noted_sequences(
    run: Run,
    live: Mapping[str, Source],
    tokenizers: Mapping[str, Any],
    data: Data,
    extract: Extract,
    seed: int,
    of: str = "",
) -> dict[str, Sequences]:
    """The inputs of each live model, noted in the manifest. of: a name for them, where a run has several sets."""
    sequences = make_sequences(live, tokenizers, data, extract, seed)
    if sequences:
        note_sequences(run, sequences, data, extract, of)
        for warning in list_unknown_texts(sequences, tokenizers, data.source):
            run.warn(warning)
    return sequences


def list_unknown_texts(sequences: Mapping[str, Sequences], tokenizers: Mapping[str, Any], source: str) -> Iterator[str]:
    """Lists warnings of tokenizers that know little of the text: what they do not know is one token to all that have
    them. Where that token also begins or ends texts, it tells nothing."""
    shares: dict[str, list[str]] = {}
    for label, given in sequences.items():
        unknown, *ends = (getattr(tokenizers.get(label), f"{name}_token_id", None) for name in ("unk", *ENDS))
        if unknown is None or unknown in ends:
            continue
        if (share := float((given.ids[given.text] == unknown).mean())) > UNKNOWN:
            shares.setdefault(write_percent(share), []).append(f"'{label}'")
    for share, labels in shares.items():
        yield (
            f"data: {share} of the tokens of {source} are unknown to the tokenizer of {', '.join(labels)}, and the "
            "same token to it; take text that it knows"
        )


def note_sequences(run: Run, sequences: Mapping[str, Sequences], data: Data, extract: Extract, of: str = "") -> None:
    """Notes inputs in the manifest, and warns of what is left out of them, with the name of the model where they are of
    one; of: as of `make_noted_sequences`."""
    description, notices = describe_inputs(sequences, data, extract)
    if of:
        run.input(f"data of {of}", description)
        run.manifest["data"] = run.manifest.get("data", {}) | description
    else:
        run.input("data", description)
    for notice in notices:
        run.warn(f"{of}: {notice}" if of in sequences else notice)


def locate_model_layers(readings: Sequence[Reading]) -> list[slice]:
    """The slice of each model's layers among all layers."""
    ends = itertools.accumulate((len(reading.layers) for reading in readings), initial=0)
    return [slice(start, end) for start, end in itertools.pairwise(ends)]


def list_layers(readings: Sequence[Reading]) -> list[Layer]:
    return [layer for reading in readings for layer in reading.layers]


Kind = TypeVar("Kind", bound="Extraction")


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """Which rows are read of which models, and how.

    devices, tokenizers: by the label of the model. total: the rows of the run, once they are counted. whole: as in
    `select_batch_rows`.
    """

    models: Mapping[str, AnySource]
    readings: Sequence[Reading]
    data: Data
    devices: Mapping[str, str]
    tokenizers: Mapping[str, Any]
    extract: Extract
    hardware: Hardware
    seed: int
    cache: bool
    total: int = 0
    whole: np.ndarray | None = None

    @cached_property
    def live(self) -> dict[str, Source]:
        return {label: source for label, source in self.models.items() if isinstance(source, Source)}

    @cached_property
    def layers(self) -> list[Layer]:
        return list_layers(self.readings)

    @property
    def names(self) -> list[str]:
        """Names the layers, with their models."""
        return [str(layer) for layer in self.layers]

    @property
    def places(self) -> list[slice]:
        """The slice of each model's layers among all layers."""
        return locate_model_layers(self.readings)

    def keep_models(self: Kind, labels: Collection[str]) -> Kind:
        """Keeps these models alone, in this order."""
        readings = {each.label: each for each in self.readings}
        return replace(
            self,
            models={label: self.models[label] for label in labels},
            readings=[readings[label] for label in dict.fromkeys(labels)],
            tokenizers={label: self.tokenizers[label] for label in labels if label in self.tokenizers},
        )

    def extend(self, kind: type[Kind], **more: Any) -> Kind:
        """Makes a kind of extraction that has more fields."""
        return kind(**{each.name: getattr(self, each.name) for each in fields(Extraction)}, **more)

    def sequences(self, run: Run, of: str = "") -> dict[str, Sequences]:
        """Tokenizes the inputs of each live model, as `make_noted_sequences` notes them."""
        return make_noted_sequences(run, self.live, self.tokenizers, self.data, self.extract, self.seed, of)

    def pair_rows(self: Kind, run: Run, sequences: Mapping[str, Sequences]) -> Kind:
        """Puts stored rows in the order of the run's; warns where a choice of blocks was meant for them."""
        if not self.live and self.extract.layers != "all":
            label = next(iter(self.models))
            run.warn(
                f"extract.layers: stored rows have no blocks, got {self.extract.layers}; all layers of the files are "
                f"read; choose them by model.{label}.layers=[NAME,...]"
            )
        return replace(self, readings=pair_rows(self.readings, sequences, self.data, self.extract, run.warn))

    def count_rows(self: Kind, run: Run, sequences: Mapping[str, Sequences]) -> Kind:
        """Adds the number of rows, and notes it in the manifest; warns where it is smaller than requested."""
        extract = self.extract
        total, asked = count_run_rows(self.readings, sequences, extract), extract.rows
        run.manifest["rows"] = total
        if extract.remedies:
            skipped = run.manifest["data"]["rows_skipped"] if sequences else 0
            share = skipped / (total + skipped)
            run.manifest["remedies"] = {**extract.remedies, "rows_left_out": skipped, "share_left_out": share}
        if extract.estimate in OF_SAMPLE and total < asked:
            read, there = (run.manifest.get("data", {}).get(f"sequences{of}") for of in ("", "_available"))
            cut = bool(sequences) and extract.sequences <= read < (math.inf if there is None else there)
            advice = "; raise extract.sequences for more" if cut else ""
            if "rows" not in extract.at_most:
                run.warn(f"extract.rows: {asked} rows were requested, the data have {total}; all are used{advice}")
            elif cut:
                run.warn(f"extract.sequences: {total} rows are all that {extract.sequences} sequences have{advice}")
        return replace(self, total=total)

    def numbers(self, batch: int) -> np.ndarray:
        """Numbers the rows of the run that a batch holds."""
        return select_batch_rows(self.extract, self.total, self.seed, batch, self.whole)

    @property
    def batches(self) -> int:
        """The number of batches that the rows fill."""
        return 1 if self.extract.estimate in OF_SAMPLE else self.total // self.extract.batch_rows

    def find_documents(
        self, sequences: Mapping[str, Sequences], warn: Callable[[str], None] | None = None
    ) -> Int[np.ndarray, " n"]:
        """Finds the document of every sampled row. Copies of a text have the document of the first, so that none is on
        both sides of a split or counts twice in an error; a stored row whose document is not known is one of its own.

        warn: is told where many texts are copies.
        """
        numbers, given = self.numbers(0), next(iter(sequences.values()), None)
        if given is not None:
            if warn is not None:
                warn_of_copies(*count_copied_texts(given), warn, "data")
            found = list_row_documents(given, self.extract)
            return (find_equal_sequences(given)[found] if self.extract.pooled else found)[numbers]
        told = find_stored_documents(self.readings)
        return numbers if told is None else np.unique(np.array(told), return_inverse=True)[1][numbers]

    def labels(self, sequences: Mapping[str, Sequences]) -> Callable[[int], Tensor | None]:
        """The classes of the rows of a batch, by its number; None where the data has no classes."""
        codes = list_row_labels(next(iter(sequences.values())), self.extract) if sequences else None
        if codes is None:
            return lambda batch: None
        return lambda batch: torch.from_numpy(codes[self.numbers(batch)])


def make_extraction(
    given: OfRows,
    *,
    among: Iterable[str] | None = None,
    read: Callable[[Mapping[str, AnySource], Extract], list[Reading]] = plan_readings,
) -> Extraction:
    """Plans which rows of which layers are read. Raises BadInput where a model cannot be read like this.

    given: the keys of the run.
    among: all models of the run, which share its devices; None means those of `given`.
    read: finds the layers of each model that are read.
    """
    models, data, extract, hardware = given["model"], given["data"], given["extract"], given["hardware"]
    if not models:
        raise BadInput("model: no model is selected; e.g. model=[tiny_a,tiny_b]")
    live = {label: source for label, source in models.items() if isinstance(source, Source)}
    check_modality(live, data)
    readings = read(models, extract)
    check_stored_rows([r for r in readings if not isinstance(r.source, PrecomputedIds | PrecomputedWords)])
    tokenizers = load_tokenizers(live, data, extract)
    try_sequences(live, tokenizers, data, extract, given["seed"])
    return Extraction(
        models=dict(models),
        readings=readings,
        data=data,
        devices=assign_devices(hardware, list(among or models)),
        tokenizers=tokenizers,
        extract=extract,
        hardware=hardware,
        seed=given["seed"],
        cache=given.get("cache", True),
    )


def find_sequence_length(extraction: Extraction) -> int:
    """Finds how many tokens a sequence usually has."""
    return find_usual_length(extraction.live, extraction.data, extraction.extract)


def count_sequences(extraction: Extraction) -> int:
    """Counts the sequences of each model, at most: of pooled rows as many as stored rows stand beside them."""
    wanted = extraction.extract.sequences
    return min(wanted, count_most_rows(extraction.models, extraction.extract)) if extraction.extract.pooled else wanted
