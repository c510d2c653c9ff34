"""Units of work: the rows of a model, whole or in shards."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Generic, TypeVar

from repsim_cli.activations.cached import Identities, open_cache
from repsim_cli.activations.rows import cut_sequence_windows
from repsim_cli.activations.stored import Recorder, gather, make_activations_key, name_window
from repsim_cli.data.base import Sequences
from repsim_cli.engine.extraction import Extraction
from repsim_cli.engine.rows import hash_models, record_alone, tally
from repsim_cli.engine.study import Study
from repsim_cli.engine.unit import Kinds, Phase, Unit
from repsim_cli.models.sizes import goes_by_block
from repsim_cli.runs.cache import Entry
from repsim_cli.runs.results import Run, open_scratch_run

Of = TypeVar("Of", bound=Extraction)


class StudyOfRows(Study):
    """A study that reads rows of models once. extraction: which."""

    extraction: Extraction

    def units(self, run: Run) -> Iterator[Phase]:
        return plan_recordings(self.extraction)

    def worker(self) -> Kinds:
        return RowWorker(lambda run: self.extraction).kinds


def plan_recordings(extraction: Extraction) -> Iterator[Phase]:
    """The rows of each model: where there are more workers than models, each takes every so-many-th window of the
    rows, which the last units put together."""
    live, workers = extraction.live, extraction.hardware.processes or 1
    shards = workers // max(len(live), 1)
    if shards > 1:
        yield (
            "shards of activations",
            [_make_shard_unit(label, number, shards) for label in live for number in range(shards)],
        )
    args = [{"label": label, "shards": shards} for label in live]
    yield "activations", [Unit(kind="activations", name=f"activations of {x['label']}", args=x) for x in args]


def _make_shard_unit(label: str, number: int, count: int) -> Unit:
    args = {"label": label, "number": number, "count": count}
    return Unit(kind="shard", name=f"shard {number} of activations of {label}", args=args, group=label)


class RowWorker(Generic[Of]):
    """Records the rows of a run on a worker."""

    def __init__(self, given: Callable[[Run], Of]):
        self._given = given
        self._facts: dict[str, Any] = {}  # of the manifest
        self._identities: dict[str, Any] = {}

    @property
    def kinds(self) -> Kinds:
        return {"shard": self.shard, "activations": self.record}

    @cached_property
    def sequences(self) -> Mapping[str, Sequences]:
        """The inputs of all models."""
        return self._started[0]

    @cached_property
    def extraction(self) -> Of:
        """The extraction, with stored rows in the order of the inputs."""
        return self._started[1]

    @cached_property
    def _started(self) -> tuple[Mapping[str, Sequences], Of]:
        with open_scratch_run() as run:
            extraction = self._given(run)
            sequences = extraction.sequences(run)
            extraction = extraction.pair_rows(run, sequences)
            self._facts = {key: run.manifest[key] for key in ("data",) if key in run.manifest}
        return sequences, extraction

    def take_models(self, run: Run, labels: Sequence[str]) -> tuple[Of, Identities]:
        """The extraction of these models alone, in their order in the run, with their identities."""
        every = self.extraction
        part = replace(
            every.keep_models([label for label in every.models if label in labels]),
            hardware=replace(every.hardware, processes=1),
        )
        run.manifest |= copy.deepcopy(self._facts)
        if lacking := [label for label in part.models if label not in self._identities]:
            self._identities |= hash_models(run, part.keep_models(lacking))
        return part, {label: self._identities[label] for label in part.models}

    def shard(self, run: Run, label: str, number: int, count: int) -> bool:
        extraction, identities = self.take_models(run, [label])
        (reading,) = extraction.readings
        extract, hardware, sequences = extraction.extract, extraction.hardware, self.sequences
        if goes_by_block(extraction.live[label], hardware):  # its weights are read once for all rows
            return False
        whole = make_activations_key(identities[label], sequences[label], extract, reading.points, hardware.dtype)
        with open_cache(
            [reading], sequences, identities, extract, hardware.dtype, run.warn, (number, count)
        ) as entries:
            if label not in entries or entries[label].complete or Entry("activations", whole).known:
                return False
            every = cut_sequence_windows(sequences, extract, hardware)[number::count]
            # a run that was cut off may have left some
            windows = [window for window in every if not Entry("activations", whole).has(name_window(window))]
            if windows:
                counts = tally(run, extraction.models)
                record_alone(run, extraction, reading, entries[label], sequences, counts, windows)
            return bool(windows)

    def record(self, run: Run, label: str, shards: int) -> bool:
        extraction, identities = self.take_models(run, [label])
        (reading,) = extraction.readings
        extract, hardware, sequences = extraction.extract, extraction.hardware, self.sequences
        with open_cache([reading], sequences, identities, extract, hardware.dtype, run.warn) as entries:
            if label not in entries or entries[label].complete:  # without an entry: the run's own process streams it
                return False
            entry = entries[label]
            if shards > 1 and not goes_by_block(extraction.live[label], hardware):
                gather(entry, shards)
                windows = cut_sequence_windows(sequences, extract, hardware)
                Recorder(entry).finish([layer.name for layer in reading.layers], windows)
            record_alone(run, extraction, reading, entry, sequences, tally(run, extraction.models))
            return True
