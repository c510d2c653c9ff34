"""Trainings whose checkpoints are read one after the other: what is shared by the studies of this folder."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from repsim_cli.activations.cached import find_cached_reading, open_cache
from repsim_cli.activations.places import mark_kept_rows
from repsim_cli.activations.readings import Reading, choose_loading
from repsim_cli.activations.remedies import Remedies
from repsim_cli.activations.row_batches import stream_row_batches
from repsim_cli.activations.rows import RowBlock, stream_row_blocks
from repsim_cli.activations.stored import Recorder, Running, make_activations_key
from repsim_cli.base.errors import BadInput, RepsimError, RunFailed
from repsim_cli.base.settings import Hardware
from repsim_cli.data.base import Sequences
from repsim_cli.engine import footprint
from repsim_cli.engine.bounds import count_most_rows, describe_models
from repsim_cli.engine.comparison import make_comparison
from repsim_cli.engine.cost import Cost, describe_needs
from repsim_cli.engine.rows import make_diagnosis, tally
from repsim_cli.engine.study import OfSeries
from repsim_cli.engine.unit import Phase, Unit
from repsim_cli.measures import Measure
from repsim_cli.models.source import Checkpoint, Precomputed, Series, Source
from repsim_cli.runs.cache import Entry
from repsim_cli.runs.content import Table
from repsim_cli.runs.results import Run, quiet

Missing = Literal["stop", "skip"]


GAPS = ["model", "step", "why"]


@dataclass(frozen=True)
class Gap:
    """A checkpoint that could not be read."""

    model: str
    step: int
    why: str


class OpenedCheckpoint:
    """A checkpoint with its weights, until they are taken; None where the cache has all that is read of it."""

    def __init__(self, checkpoint: Checkpoint, source: Source, identity: dict[str, Any], module: nn.Module | None):
        self.checkpoint, self.source, self.identity, self.module = checkpoint, source, identity, module


@dataclass(frozen=True)
class CheckpointStep:
    """The rows of every layer of a checkpoint, as the estimate needs them: now, and again later."""

    checkpoint: Checkpoint
    rows: Callable[[], Iterator[list[Tensor]]]
    again: Callable[[], Iterator[list[Tensor]]]


Visit = Callable[["Training", OpenedCheckpoint], None]


def open_trainings(given: OfSeries, missing: Missing) -> dict[str, "Training"]:
    """Opens each series as a training, by label."""
    if not given["model"]:
        raise BadInput("model: no model is selected; e.g. model=[tiny_a_series]")
    return {label: Training(label, series, missing, given) for label, series in given["model"].items()}


def collect_trainings(trainings: Iterable["Training"]) -> tuple[list[Reading], dict[str, Measure], dict[str, str]]:
    """Collects what is read, the measures that suit at least one training, and why others do not suit one."""
    each = [training.compared for training in trainings]
    return (
        [reading for compared in each for reading in compared.readings],
        {label: bound for compared in each for label, bound in compared.measures.items()},
        {label: why for compared in each for label, why in compared.skipped.items()},
    )


def list_last(trainings: Iterable["Training"]) -> dict[str, str]:
    """Describes the last checkpoint of each training, for a plan."""
    every = [training.compared for training in trainings]
    return {
        label: text
        for each in every
        for label, text in describe_models(each.models, each.hardware, each.devices).items()
    }


def estimate_training_costs(trainings: Iterable["Training"], pairs: Mapping[str, int]) -> dict[str, Cost]:
    """Estimates the costs of all checkpoints. pairs: of layers that are compared at each, by the training's label."""
    parts: dict[str, Cost] = {}
    for training in trainings:
        for part, each in footprint.estimate_costs(training.compared, pairs[training.label]).items():
            parts[part] = parts.get(part, Cost()) + len(training.series.checkpoints) * each
    return parts


def describe_training_needs(
    trainings: Iterable["Training"], costs: Mapping[str, Cost], hardware: Hardware
) -> dict[str, Any]:
    """Describes what trainings need that are visited one after the other, for the end of a plan."""
    trainings = list(trainings)
    rows = footprint.count_rows_per_comparison
    return describe_needs(
        costs,
        hardware,
        memory=max((each.memory(rows(each.compared)) for each in trainings), key=lambda parts: sum(parts.values())),
        activations=sum(len(each.series.checkpoints) * footprint.count_stored(each.compared) for each in trainings),
    )


class Training:
    """One training run: its last checkpoint as the similarity study sees a model, with the same checks and cache."""

    def __init__(self, label: str, series: Series, missing: Missing, given: OfSeries):
        self.label, self.series, self.missing = label, series, missing
        self.gaps: list[Gap] = []
        *others, last = series.checkpoints
        try:
            final = last.open()
        except BadInput as error:
            raise BadInput(f"model.{label}, step {last.step}: {error}") from None
        self.compared = make_comparison({**given, "model": {label: final}}, side_by_side=True)
        footprint.check_fits(self.compared, self.memory)
        for checkpoint in others if series.local else ():
            try:
                source = checkpoint.open()
            except BadInput as error:
                if missing == "stop":
                    raise BadInput(f"{self.unreadable(checkpoint, error)}") from None
                continue
            self._check_shape(checkpoint, source)

    @property
    def reading(self) -> Reading:
        """The layers that are read of every checkpoint."""
        return self.compared.readings[0]

    @property
    def last(self) -> Source:
        return self.compared.live[self.label]

    @property
    def steps(self) -> str:
        return ", ".join(str(checkpoint.step) for checkpoint in self.series.checkpoints)

    @property
    def forward_passes(self) -> int:
        return footprint.count_forward_passes(self.compared) * len(self.series.checkpoints)

    def memory(self, rows: int) -> dict[str, float]:
        """Bytes, estimated: as of the similarity study, rows of the compared checkpoints, and weights of the next."""
        compared = self.compared
        features = sum(layer.width for layer in compared.layers)
        if compared.extract.estimate == "full" and not compared.extract.features_changed:
            kept = 4.0 * 2 * rows * features
        else:
            kept = 0.0 if compared.cache else 4.0 * 3 * count_most_rows(compared.models, compared.extract) * features
        return {
            **footprint.estimate_comparison_memory(compared, rows),
            "checkpoints": kept,
            "next checkpoint": 4.0 * self.last.parameters,
        }

    def unreadable(self, checkpoint: Checkpoint, error: RepsimError) -> str:
        return (
            f"model.{self.label}, step {checkpoint.step}: missing or broken, got '{error}'; "
            "fix it, or set options.missing=skip to leave a gap"
        )

    def _check_shape(self, checkpoint: Checkpoint, source: Source) -> None:
        shape, wanted = ((s.model_type, s.layers, s.width, s.heads, s.vocabulary) for s in (source, self.last))
        if shape != wanted:
            raise BadInput(
                f"model.{self.label}, step {checkpoint.step}: another shape than the last checkpoint, got "
                f"{shape} for {wanted} (type, blocks, width, heads, vocabulary); leave this step out"
            )

    def make(self, run: Run) -> None:
        """Trains the series, where it is trained when first needed and is missing."""
        if self.series.make is None:
            return

        def progress(items: Iterable[Any], *, label: str, unit: str) -> Iterator[Any]:
            return run.progress(items, label=f"{self.label}: {label}", unit=unit)

        with run.stage("training"):
            self.series.make(progress)

    def start(self, run: Run) -> dict[str, Sequences]:
        """Prepares the inputs, which are the same for every checkpoint, and counts their rows."""
        with run.stage("data"):
            sequences = self.compared.sequences(run, self.label)
            self.compared = self.compared.count_rows(run, sequences)
        self.tokens = sequences[self.label]
        self.diagnosis = make_diagnosis(self.compared, sequences)
        return sequences

    def visit(
        self, run: Run, sequences: Mapping[str, Sequences], *, keep: bool, visit: Visit | None = None
    ) -> Iterator[CheckpointStep | Gap]:
        """Runs every checkpoint once, the last first. Each is loaded while the previous is computed, and freed after.

        The rows of the first and of the newest two can be read, with `keep` those of all. visit: called with each
        checkpoint while it is open.
        """
        *others, last = self.series.checkpoints
        order, stacks = [last, *others], []
        with ExitStack() as held, ThreadPoolExecutor(1) as loader:
            following = loader.submit(self._open, last, sequences)
            for i in run.progress(range(len(order)), label=self.label, unit="checkpoints"):
                stacks.append(held.enter_context(ExitStack()))
                with run.stage("loading"):
                    wait([following])
                current = following
                if i + 1 < len(order):
                    following = loader.submit(self._open, order[i + 1], sequences)
                try:
                    opened = current.result()
                    with run.stage("activations"):
                        step = self._step(run, stacks[i], opened, sequences)
                    if visit:
                        visit(self, opened)
                except RepsimError as error:
                    if i == 0:
                        raise RunFailed(f"model.{self.label}, step {last.step}: {error}") from error
                    if self.missing == "stop":
                        raise RunFailed(self.unreadable(order[i], error)) from error
                    yield self.gap(run, order[i], error)
                else:
                    yield step
                finally:
                    order[i].drop()
                if not keep and i > 1:
                    stacks[i - 1].close()

    def record(self, run: Run, number: int, sequences: Mapping[str, Sequences]) -> bool:
        """Puts the rows of a checkpoint into the cache; whether they were missing. One that cannot be read is left to
        the run where it leaves a gap there."""
        try:
            opened = self._open(self.series.checkpoints[number], sequences)
        except RepsimError:
            if self.missing == "stop":
                raise
            return False
        if opened.module is None:
            return False
        with ExitStack() as held:
            self._step(run, held, opened, sequences)
        return True

    def gap(self, run: Run, checkpoint: Checkpoint, error: RepsimError) -> Gap:
        self.gaps.append(Gap(self.label, checkpoint.step, str(error)))
        run.warn(f"model.{self.label}, step {checkpoint.step}: left out as a gap ({error})")
        return self.gaps[-1]

    def _open(self, checkpoint: Checkpoint, sequences: Mapping[str, Sequences]) -> OpenedCheckpoint:
        """The checkpoint with its weights, unless the cache has all that is read of it."""
        source = checkpoint.open()
        self._check_shape(checkpoint, source)
        identity, compared = source.identity(), self.compared
        stored = compared.cache and make_activations_key(
            identity, sequences[self.label], compared.extract, self.reading.points, compared.hardware.dtype
        )
        known = stored and Entry("activations", stored).known
        return OpenedCheckpoint(checkpoint, source, identity, None if known else self._load(source))

    def _step(
        self, run: Run, held: ExitStack, opened: OpenedCheckpoint, sequences: Mapping[str, Sequences]
    ) -> CheckpointStep:
        """The checkpoint's rows, from one pass, after which the model is freed, or from the cache.

        They stay in the cache while `held` is open, and in memory where there is no cache.
        """
        label, compared, identity = self.label, self.compared, opened.identity
        extract, hardware = compared.extract, compared.hardware
        run.input("models", {f"{label}, step {opened.checkpoint.step}": identity})
        of_checkpoint = replace(self.reading, source=opened.source)
        live = compared.readings if compared.cache else []
        entries = open_cache(live, sequences, {label: identity}, extract, hardware.dtype, run.warn)
        entry: Entry | None = held.enter_context(entries).get(label)
        count = tally(run, {label: opened.source})
        remedies = Remedies(extract, mark_kept_rows(sequences[label], extract))

        def give(reading: Reading, module: nn.Module | None = None) -> Iterator[RowBlock]:
            modules = {} if module is None else {label: module}
            recorders = {} if module is None or entry is None else {label: Recorder(entry)}
            return stream_row_blocks([reading], Running(modules, sequences, recorders, count), extract, hardware, quiet)

        def stream(reading: Reading, module: nn.Module | None = None) -> Iterator[list[Tensor]]:
            rows = remedies.apply(give(reading, module), reading.layers)
            rows = self.diagnosis.watch(rows, reading.layers)  # of the checkpoint that is read first, the last one
            return stream_row_batches(rows, extract, compared.total, compared.seed)

        def record() -> Reading | None:
            known = entry is not None and entry.complete
            return (
                find_cached_reading(of_checkpoint, {label: entry}, {label: identity})
                if entry is not None and known
                else None
            )

        again = record()
        if again is None and extract.estimate == "full" and not extract.features_changed:  # rows pass once
            sample = list(stream(of_checkpoint, self._module(opened)))
            again = record()
        else:
            again = again or self._record(opened, of_checkpoint, Running({}, sequences, {}, count), entry)
            if extract.features_changed:
                remedies.measure(remedies.rows(give(again)), again.layers)
            sample = list(stream(again)) if extract.estimate == "full" else None

        def read_again() -> Iterator[list[Tensor]]:
            return stream(again) if again is not None else iter(sample or ())

        return CheckpointStep(opened.checkpoint, read_again if sample is None else lambda: iter(sample), read_again)

    def _record(self, opened: OpenedCheckpoint, reading: Reading, running: Running, entry: Entry | None) -> Reading:
        """Runs the model once; its rows are read from the cache then, or from memory where it cannot be written."""
        module, compared = self._module(opened), self.compared
        attempts = [{self.label: Recorder(entry)}, {}] if entry is not None else [{}]
        kept: list[list[Tensor]] = []
        for recorders in attempts:
            now = replace(running, modules={self.label: module}, recorders=recorders)
            rows = stream_row_blocks([reading], now, compared.extract, compared.hardware, quiet)
            kept = [[] if recorders else [x.cpu() for x in block] for _, block in rows]
            if entry is not None and entry.complete:
                return find_cached_reading(reading, {self.label: entry}, {self.label: opened.identity})
        return replace(reading, source=self._keep_in_memory(kept, opened.identity), points=[])

    def _module(self, opened: OpenedCheckpoint) -> nn.Module:
        """The model on its device; only the caller holds a reference."""
        module, opened.module = opened.module, None
        if module is None:  # the cache entry was damaged
            module = self._load(opened.source)
        return module

    def _load(self, source: Source) -> nn.Module:
        return source.load(
            self.reading.eager, choose_loading(self.compared.hardware, self.compared.devices[self.label])
        )

    def _keep_in_memory(self, kept: Sequence[Sequence[Tensor]], identity: dict[str, Any]) -> Precomputed:
        names = [layer.name for layer in self.compared.layers]
        whole = {name: torch.cat([rows[i] for rows in kept]) for i, name in enumerate(names)}
        return Precomputed(
            names=names,
            rows=len(whole[names[0]]),
            widths=[layer.width for layer in self.compared.layers],
            read=lambda name, rows: whole[name][rows],
            identity=lambda: identity,
        )


def plan_checkpoint_units(trainings: Iterable[Training]) -> Phase:
    """A unit per checkpoint of every series: its rows."""
    return "checkpoints", [
        Unit(
            kind="checkpoint",
            name=f"activations of {training.label}, step {checkpoint.step}",
            args={"label": training.label, "number": number},
            group=training.label,
        )
        for training in trainings
        for number, checkpoint in enumerate(training.series.checkpoints)
    ]


class TrainingWorker:
    """Records the checkpoints of series on a worker, which holds their inputs."""

    def __init__(self, trainings: Mapping[str, Training]):
        self.trainings = trainings
        self._started: dict[str, tuple[Mapping[str, Sequences], Any]] = {}

    def record(self, run: Run, label: str, number: int) -> bool:
        training = self.trainings[label]
        if label not in self._started:
            self._started[label] = training.start(run), run.manifest["data"]
        sequences, data = self._started[label]
        run.manifest |= {"data": copy.deepcopy(data)}
        return training.record(run, number, sequences)


def tabulate_checkpoint_gaps(gaps: Sequence[Gap]) -> dict[str, Table]:
    """The checkpoints that are gaps; no table where there are none."""
    rows = [[gap.model, gap.step, gap.why] for gap in gaps]
    return {"checkpoints left out": Table(columns=GAPS, rows=rows)} if rows else {}
