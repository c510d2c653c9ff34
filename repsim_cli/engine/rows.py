"""The rows that a study reads: the inputs of its models, and their activations, from the cache where it has them."""

import gc
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from repsim_cli.activations.batching import TokenTally
from repsim_cli.activations.by_block import ByBlock, make_part_loader, run_by_block
from repsim_cli.activations.cached import Identities, entries_of, find_cached_reading, open_cache
from repsim_cli.activations.diagnostics import Diagnosis
from repsim_cli.activations.inputs import name_errors
from repsim_cli.activations.places import list_row_positions, mark_kept_rows
from repsim_cli.activations.readings import Layer, Reading, choose_loading
from repsim_cli.activations.remedies import Remedies
from repsim_cli.activations.row_batches import stream_row_batches
from repsim_cli.activations.rows import RowBlock, cut_sequence_windows, stream_row_blocks
from repsim_cli.activations.stored import Recorder, Running
from repsim_cli.base.errors import RunFailed
from repsim_cli.base.settings import Hardware
from repsim_cli.data.base import Sequences
from repsim_cli.engine.extraction import Extraction, list_layers
from repsim_cli.engine.same_layers import SameLayers
from repsim_cli.models.sizes import goes_by_block, list_models_alone
from repsim_cli.models.source import AnySource, Source
from repsim_cli.runs.cache import Entry
from repsim_cli.runs.content import Table
from repsim_cli.runs.results import Progress, Run

Look = Callable[[Iterator[RowBlock], Remedies], Iterator[RowBlock]]


def prepare(run: Run, hardware: Hardware) -> None:
    """Sets the threads of the run, and notes them and the device in the manifest."""
    if hardware.threads:
        torch.set_num_threads(hardware.threads)
    run.manifest.update(device=hardware.device, threads=torch.get_num_threads())


def tally(run: Run, models: Mapping[str, AnySource]) -> TokenTally:
    """Counts what the live models run, in what the manifest says about the data."""
    live = [label for label, source in models.items() if isinstance(source, Source)]
    return TokenTally(run.manifest["data"] if live else {}, live)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of a run while the cache entries of its models are held. modules: the models that are not in the cache.

    diagnosis: of the layers whose rows have passed, and same: what is the same in several models; None: it is known.
    groups: layers whose rows are in memory together; None: all. look: is shown the rows of all layers as models give
    them.
    """

    extraction: Extraction
    sequences: Mapping[str, Sequences]
    identities: Identities
    entries: Mapping[str, Entry]
    modules: Mapping[str, nn.Module]
    recorders: Mapping[str, Recorder]
    tally: TokenTally
    remedies: Remedies
    diagnosis: Diagnosis | None
    same: SameLayers | None
    groups: Sequence[Sequence[int]] | None
    look: Look | None = None

    def list_readings(self) -> list[Reading]:
        """The readings, from the cache where it is complete by now."""
        return [find_cached_reading(reading, self.entries, self.identities) for reading in self.extraction.readings]

    def stream(
        self, progress: Progress, readings: list[Reading] | None = None, seen: int = 0
    ) -> Iterator[list[Tensor]]:
        """Batches of all layers from batch `seen` on, as the estimate needs them. readings: None: all.

        The first time that a layer is read, all its rows pass, for its diagnostics.
        """
        extraction, given = self.extraction, readings or self.list_readings()
        first = seen * extraction.extract.batch_rows
        layers = list_layers(given)
        start = 0 if self.diagnosis is not None and self.diagnosis.lacks(layers) else first
        models = self._read_given(given, progress, start)
        if self.same is not None and readings is None and not start and not self.same.passed:
            models = self.same.watch(models)
        rows = self.remedies.apply(models, layers)
        if self.diagnosis is not None:
            rows = self.diagnosis.watch(rows, layers)
        return stream_row_batches(rows, extraction.extract, extraction.total, extraction.seed, first, extraction.whole)

    def stream_all(self, progress: Progress) -> Iterator[RowBlock]:
        """Streams all rows of all layers in order, with the remedies applied; a block has whole sequences."""
        readings = self.list_readings()
        rows = self.remedies.apply(self._read_given(readings, progress), list_layers(readings))
        return rows if self.diagnosis is None else self.diagnosis.watch(rows, list_layers(readings))

    def _read_given(self, readings: list[Reading], progress: Progress, first: int = 0) -> Iterator[RowBlock]:
        """The rows that models give, from this row of the run on."""
        given = stream_row_blocks(
            readings,
            Running(self.modules, self.sequences, self.recorders, self.tally),
            self.extraction.extract,
            self.extraction.hardware,
            progress,
            self.remedies.first(first),
        )
        if self.look is None or first or list_layers(readings) != self.extraction.layers:
            return given
        return self.look(given, self.remedies)

    def part(self, chosen: Sequence[int]) -> tuple[list[Reading], list[int]]:
        """Readings that have these layers, by their numbers among all, and which of the layers that they read these
        are."""
        some, read = [], []
        for reading, place in zip(self.list_readings(), self.extraction.places, strict=True):
            numbers = [a for a in range(place.start, place.stop) if a in chosen]
            if not numbers:
                continue
            if reading.points and reading.label in self.recorders:
                numbers = list(range(place.start, place.stop))  # the cache stores whole models
            indices = [a - place.start for a in numbers]
            points = [reading.points[a] for a in indices] if reading.points else []
            some.append(replace(reading, points=points, layers=[reading.layers[a] for a in indices]))
            read += numbers
        return some, [read.index(a) for a in chosen]

    def stream_layers(self, chosen: Sequence[int], progress: Progress) -> Iterator[list[Tensor]]:
        """`stream` of these layers, by their numbers among all, ascending."""
        some, kept = self.part(chosen)
        for batch in self.stream(progress, some):
            yield [batch[a] for a in kept]

    def record(self, progress: Progress) -> None:
        """Runs the models that the cache takes, where layers are in groups: window by window, so that their layers can
        then be read group by group."""
        running = [x for x in self.list_readings() if x.points and x.label in self.recorders]
        if self.groups and running:
            deque(self._read_given(running, progress), maxlen=0)

    def measure_features(self, progress: Progress) -> None:
        """Takes the shares and scales of features from all rows, where the remedies need them."""
        if self.extraction.extract.features_changed:
            self.record(progress)
            for group in self.groups or [range(len(self.extraction.layers))]:
                some, _ = self.part(group)
                self.remedies.measure(self.remedies.rows(self._read_given(some, progress)), list_layers(some))

    def tables(self, layers: Sequence[Layer]) -> dict[str, Table]:
        """The diagnostics of these layers, and their features that are left out."""
        diagnostics = {} if self.diagnosis is None else self.diagnosis.tables(layers)
        same = {} if self.same is None else self.same.tables()
        return diagnostics | self.remedies.tables(layers) | same


def make_diagnosis(extraction: Extraction, sequences: Mapping[str, Sequences]) -> Diagnosis:
    """The diagnosis of the run's layers, before any row has passed."""
    places = {label: list_row_positions(given, extraction.extract) for label, given in sequences.items()}
    return Diagnosis(places, extraction.total, extraction.seed)


def hash_models(run: Run, extraction: Extraction) -> Identities:
    """The identity of each model, with the hashes of its weights, noted in the manifest."""
    with run.stage("hashes"):
        identities = {label: _identify_model(model, extraction.hardware) for label, model in extraction.models.items()}
        run.input("models", identities)
        run.manifest["models_run"] = []
    run.save_manifest()
    for reading in extraction.readings:
        source, by_name = reading.source, all(point.module for point in reading.points)
        if isinstance(source, Source) and (table := source.architecture) and table.guessed and not by_name:
            blocks = ", ".join(stack.blocks for stack in table.stacks.values()) or table.blocks
            run.warn(
                f"model.{reading.label}: {source.model_type} has no table of hook points; its blocks were found by "
                f"structure ({blocks}), and only the stream is read"
            )
    return identities


def load_model(reading: Reading, extraction: Extraction) -> nn.Module:
    """Loads the model onto its device, ready to read what is to be read."""
    assert isinstance(reading.source, Source)
    how = choose_loading(extraction.hardware, extraction.devices[reading.label])
    return name_errors(reading.label, partial(reading.source.load, how=how), reading.eager)


def free_memory() -> None:
    """Frees the memory of models to which nothing refers any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def record_alone(
    run: Run,
    extraction: Extraction,
    reading: Reading,
    entry: Entry,
    sequences: Mapping[str, Sequences],
    counts: TokenTally,
    only: Sequence[slice] | None = None,
) -> None:
    """Runs a model that is in memory no longer than that, and completes its entry. Raises RunFailed where the rows
    cannot be written. only: the windows of a shard, of a model that is not run by block."""
    if entry.complete:
        return
    label, extract, hardware = reading.label, extraction.extract, extraction.hardware
    assert isinstance(reading.source, Source)
    if goes_by_block(reading.source, hardware):
        part = partial(
            name_errors,
            label,
            make_part_loader(reading.source, reading.eager, choose_loading(hardware, extraction.devices[label])),
        )
        windows = cut_sequence_windows(sequences, extract, hardware)
        with run.stage("activations by block"):
            given = ByBlock(reading, part, sequences[label], windows, extract, hardware, entry)
            run_by_block(given, run.progress, tally=counts)
        return
    progress = partial(run.progress, label=f"activations of {label}", unit="batches")
    with run.stage("models"):
        modules = {label: load_model(reading, extraction)}
    with run.stage("activations"):
        for _ in stream_row_blocks(
            [reading], Running(modules, sequences, {label: Recorder(entry, only)}, counts), extract, hardware, progress
        ):
            pass
    modules.clear()
    free_memory()
    if not entry.complete:
        raise RunFailed(
            f"model.{label}: its rows cannot be kept while the next model runs, got no room at {entry.folder}; free "
            "space there, or use hardware.resident=all and features as they are (extract.normalise=none)"
        )


def _identify_model(model: AnySource, hardware: Hardware) -> dict[str, Any]:
    """The identity of a model, with the dtype in which its stream is kept on disk where it is another one."""
    other = hardware.stream is not None and isinstance(model, Source) and goes_by_block(model, hardware)
    return {**model.identity(), **({"stream": hardware.stream} if other else {})}


@contextmanager
def open_rows(
    run: Run,
    extraction: Extraction,
    sequences: Mapping[str, Sequences],
    *,
    identities: Identities | None = None,
    diagnose: bool = True,
    groups: Sequence[Sequence[int]] | None = None,
    look: Look | None = None,
) -> Iterator[Rows]:
    """The rows, with those models loaded that must be run, noted in the manifest. identities: where they are known.
    diagnose: whether the layers are diagnosed when their rows pass. groups, look: as of `Rows`."""
    extract, hardware = extraction.extract, extraction.hardware
    identities = identities or hash_models(run, extraction)
    live = [reading for reading in extraction.readings if extraction.cache and isinstance(reading.source, Source)]
    with ExitStack() as held:
        entries: Mapping[str, Entry] = held.enter_context(
            open_cache(live, sequences, identities, extract, hardware.dtype, run.warn)
        )
        now = [find_cached_reading(reading, entries, identities) for reading in extraction.readings]
        running = {reading.label: reading for reading in now if isinstance(reading.source, Source)}
        run.manifest["models_run"] = list(running)
        counts = tally(run, extraction.models)
        alone = list_models_alone(
            {label: r.source for label, r in running.items() if isinstance(r.source, Source)}, hardware
        )
        if extract.features_changed:  # their rows pass twice, and no model runs twice
            alone = [label for label in running if label in alone or label not in entries]
        if alone:
            lacking = [running[label] for label in alone if label not in entries]
            opened = entries_of(run.folder / "activations", lacking, sequences, identities, extract, hardware.dtype)
            entries = {**entries, **held.enter_context(opened)}
            for label in alone:
                record_alone(run, extraction, running.pop(label), entries[label], sequences, counts)
        with run.stage("models"):
            modules = {label: load_model(reading, extraction) for label, reading in running.items()}
        given = next(iter(sequences.values()), None)
        rows = Rows(
            extraction=extraction,
            sequences=sequences,
            identities=identities,
            entries=entries,
            modules=modules,
            recorders={label: Recorder(entries[label]) for label in modules if label in entries},
            tally=counts,
            remedies=Remedies(extract, None if given is None else mark_kept_rows(given, extract)),
            diagnosis=make_diagnosis(extraction, sequences) if diagnose else None,
            same=SameLayers(extraction.readings, hardware.dtype) if diagnose else None,
            groups=groups,
            look=look if modules else None,
        )
        if extract.features_changed:
            with run.stage("scales of features"):
                rows.measure_features(partial(run.progress, label="scales of features", unit="batches"))
        yield rows


def sample(
    run: Run, extraction: Extraction, sequences: Mapping[str, Sequences], layers: Sequence[Layer] | None = None
) -> tuple[list[Tensor], dict[str, Table]]:
    """The sampled rows (n, d) of every layer, and the tables of these layers, or of all; each model runs once at
    most."""
    with open_rows(run, extraction, sequences) as rows, run.stage("activations"):
        (taken,) = rows.stream(partial(run.progress, label="activations", unit="batches"))
        return taken, rows.tables(extraction.layers if layers is None else layers)
