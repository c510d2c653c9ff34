"""How layers converge during training: every checkpoint against the last of its run, layer by layer."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from repsim_cli.activations.cached import cached, from_cache
from repsim_cli.activations.readings import Reading, loading
from repsim_cli.activations.rows import batches, blocks
from repsim_cli.activations.stored import Recorder, activations_key
from repsim_cli.base.errors import BadInput, Degenerate, RepsimError, RunFailed
from repsim_cli.base.registry import studies
from repsim_cli.base.settings import Hardware
from repsim_cli.data.base import Sequences
from repsim_cli.engine import footprint
from repsim_cli.engine.bounds import most_rows, shown
from repsim_cli.engine.checks import suitable
from repsim_cli.engine.comparison import comparison_of
from repsim_cli.engine.cost import Cost, needs
from repsim_cli.engine.counterparts import Counterparts, estimate_counterparts
from repsim_cli.engine.curves import curve, named
from repsim_cli.engine.record import blocks_record
from repsim_cli.engine.rows import diagnosis_of, prepare, tally
from repsim_cli.engine.study import OfSeries, Study
from repsim_cli.engine.unit import Kinds, Phase, Unit
from repsim_cli.engine.without_value import Lacking, measures_with_values
from repsim_cli.measures import Measure
from repsim_cli.models.source import Checkpoint, Precomputed, Series, Source
from repsim_cli.runs.cache import Entry
from repsim_cli.runs.content import DIAGNOSED, DIAGNOSTICS, Curve, Measured, Results, Table
from repsim_cli.runs.results import Run, quiet

Missing = Literal["stop", "skip"]
GAPS = ["model", "step", "why"]
UNTRAINED = "untrained weights (step 0)"  # what chance gives


@dataclass(frozen=True)
class Gap:
    """A checkpoint that could not be read."""

    model: str
    step: int
    why: str


class Opened:
    """A checkpoint with its weights, until they are taken; None where the cache has all that is read of it."""

    def __init__(self, checkpoint: Checkpoint, source: Source, identity: dict[str, Any], module: nn.Module | None):
        self.checkpoint, self.source, self.identity, self.module = checkpoint, source, identity, module


@dataclass(frozen=True)
class Step:
    """The rows of every layer of a checkpoint, as the estimate needs them: now, and again later."""

    checkpoint: Checkpoint
    rows: Callable[[], Iterator[list[Tensor]]]
    again: Callable[[], Iterator[list[Tensor]]]


Visit = Callable[["Training", Opened], None]


@studies.register("convergence")
class Convergence(Study):
    """Compares the layers of every checkpoint of a training with the same layers of the last one.

    previous: compare every checkpoint with the one before it too.
    pairs: compare all checkpoints with all, which gives a matrix per layer.
    missing: a checkpoint that is missing or broken stops the run (`stop`), or is left out and shown as a gap (`skip`).
    Example: repsim run study=convergence model=[] +model.mine='{kind: series, folder: DIR}' measure=[cka]
    """

    takes_series: ClassVar[bool] = True

    def __init__(
        self,
        *,
        previous: bool = False,
        pairs: bool = False,
        missing: Missing = "stop",
        **given: Unpack[OfSeries],
    ):

        def check(bound: Measure) -> None:
            if pairs and not bound.card.symmetric:
                raise BadInput(
                    f"options.pairs: needs symmetric measures, got {bound.name}; use e.g. cka, or pairs=false"
                )

        given["measure"], asymmetric = suitable(given["measure"], check, given.get("skip_unsuitable", False))
        self.previous, self.pairs, self.hardware = previous, pairs, given["hardware"]
        self.trainings = trainings_of(given, missing)
        self.readings, self.measures, skipped = of_trainings(self.trainings.values())
        self.skipped = asymmetric | skipped

    def plan(self) -> dict[str, Any]:
        trainings = self.trainings.values()
        return {
            "models": shown_last(trainings),
            "checkpoints": {training.label: training.steps for training in trainings},
            "measures": list(self.measures),
            "forward passes": sum(training.forward_passes for training in trainings),
            **self.needs(self.costs()),
        }

    def needs(self, costs: Mapping[str, Cost]) -> dict[str, Any]:
        return needs_of_trainings(self.trainings.values(), costs, self.hardware)

    def costs(self) -> dict[str, Cost]:
        """Every checkpoint is run once, and compared with the last one layer by layer."""
        pairs = {}
        for label, training in self.trainings.items():
            others = (len(training.series.checkpoints) + 1) / 2 if self.pairs else 1 + self.previous
            pairs[label] = int(len(training.compared.layers) * others)
        return costs_of_trainings(self.trainings.values(), pairs)

    def run(self, run: Run) -> Results:
        curves = self.curves(run)
        return Results(
            study="convergence",
            measures=[
                measured for training in self.trainings.values() if self.pairs for measured in training.matrices(run)
            ],
            tables=self.tables(),
            curves=named(curves),
        )

    def units(self, run: Run) -> Iterable[Phase]:
        return [checkpoints(self.trainings.values())]

    def worker(self) -> Kinds:
        return {"checkpoint": TrainingWorker(self.trainings).record}

    def curves(self, run: Run, visit: Visit | None = None) -> list[Curve]:
        """A curve per measure, hook point and model (and what it is compared with). visit: as in `visited`."""
        prepare(run, self.hardware)
        for training in self.trainings.values():
            training.make(run)
        trainings = self.trainings.values()
        return [curve for training in trainings for curve in training.curves(run, self.previous, self.pairs, visit)]

    def tables(self) -> dict[str, Table]:
        """The gaps, and the diagnostics of the last checkpoints."""
        of_each = [
            training.diagnosis.tables(training.compared.layers)[DIAGNOSTICS] for training in self.trainings.values()
        ]
        whole = Table(columns=DIAGNOSED, rows=[row for table in of_each for row in table.rows])
        return {**gap_table(self.gaps()), DIAGNOSTICS: whole}

    def gaps(self) -> list[Gap]:
        return [gap for training in self.trainings.values() for gap in training.gaps]


def trainings_of(given: OfSeries, missing: Missing) -> dict[str, "Training"]:
    """By label."""
    if not given["model"]:
        raise BadInput("model: no model is selected, got none; e.g. model=[tiny_a_series]")
    return {label: Training(label, series, missing, given) for label, series in given["model"].items()}


def of_trainings(trainings: Iterable["Training"]) -> tuple[list[Reading], dict[str, Measure], dict[str, str]]:
    """What is read, the measures that suit at least one training, and why others do not suit one."""
    each = [training.compared for training in trainings]
    return (
        [reading for compared in each for reading in compared.readings],
        {label: bound for compared in each for label, bound in compared.measures.items()},
        {label: why for compared in each for label, why in compared.skipped.items()},
    )


def shown_last(trainings: Iterable["Training"]) -> dict[str, str]:
    """For a plan: the last checkpoint of each."""
    every = [training.compared for training in trainings]
    return {label: text for each in every for label, text in shown(each.models, each.hardware, each.devices).items()}


def costs_of_trainings(trainings: Iterable["Training"], pairs: Mapping[str, int]) -> dict[str, Cost]:
    """pairs: of layers that are compared at each checkpoint, by the label of the training."""
    parts: dict[str, Cost] = {}
    for training in trainings:
        for part, each in footprint.costs(training.compared, pairs[training.label]).items():
            parts[part] = parts.get(part, Cost()) + len(training.series.checkpoints) * each
    return parts


def needs_of_trainings(
    trainings: Iterable["Training"], costs: Mapping[str, Cost], hardware: Hardware
) -> dict[str, Any]:
    """The end of the plan of trainings that are visited one after the other."""
    trainings = list(trainings)
    rows = footprint.rows_at_once
    return needs(
        costs,
        hardware,
        memory=max((each.memory(rows(each.compared)) for each in trainings), key=lambda parts: sum(parts.values())),
        activations=sum(len(each.series.checkpoints) * footprint.stored(each.compared) for each in trainings),
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
        self.compared = comparison_of({**given, "model": {label: final}}, side_by_side=True)
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
        """What is read of every checkpoint."""
        return self.compared.readings[0]

    @property
    def last(self) -> Source:
        return self.compared.live[self.label]

    @property
    def steps(self) -> str:
        return ", ".join(str(checkpoint.step) for checkpoint in self.series.checkpoints)

    @property
    def forward_passes(self) -> int:
        return footprint.forward_passes(self.compared) * len(self.series.checkpoints)

    def memory(self, rows: int) -> dict[str, float]:
        """As of the similarity study; and the rows of the compared checkpoints, and the weights of the next."""
        compared = self.compared
        features = sum(layer.width for layer in compared.layers)
        if compared.extract.estimate == "full":
            kept = 4.0 * 2 * rows * features
        else:
            kept = 0.0 if compared.cache else 4.0 * 3 * most_rows(compared.models, compared.extract) * features
        return {
            **footprint.memory_of(compared, rows),
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

        def progress(items: Iterable, *, label: str, unit: str) -> Iterator:
            return run.progress(items, label=f"{self.label}: {label}", unit=unit)

        with run.stage("training"):
            self.series.make(progress)

    def start(self, run: Run) -> dict[str, Sequences]:
        """The inputs of every checkpoint, of which it counts the rows."""
        with run.stage("data"):
            sequences = self.compared.sequences(run, self.label)
            self.compared = self.compared.counted(run, sequences)
        self.tokens = sequences[self.label]
        self.diagnosis = diagnosis_of(self.compared, sequences)
        return sequences

    def curves(self, run: Run, previous: bool = False, pairs: bool = False, visit: Visit | None = None) -> list[Curve]:
        """Similarity to the last checkpoint, and on demand to the previous; pairs: of all with all, in `between`."""
        values: dict[tuple[str, str], dict[int, Counterparts]] = {}
        self.between: dict[str, dict[tuple[int, int], Counterparts]] = {}
        prepared: dict[Any, Any] = {}
        before: Step | None = None
        earlier: list[Step] = []
        sequences = self.start(run)

        def compare(step: Step, other: Step, against: str = "", kept: dict[Any, Any] | None = None) -> None:
            with run.stage("similarity"):
                compared = self._compared(run, sequences, step, other, kept)
            for measure, pair in compared.items():
                both = sorted((step.checkpoint.step, other.checkpoint.step))
                self.between.setdefault(measure, {}).setdefault((both[0], both[1]), pair)
                if against:
                    values.setdefault((measure, against), {})[step.checkpoint.step] = pair

        final: Step | None = None
        for step in self.visited(run, sequences, keep=pairs, visit=visit):
            if isinstance(step, Gap):
                before = None
                continue
            final = final or step
            compare(step, final, "last", prepared)
            if step is final:
                continue
            if before and previous:
                compare(step, before, "previous")
            for other in [*earlier, step] if pairs else []:
                compare(step, other)
            before, earlier = step, [*earlier, replace(step, rows=step.again)] if pairs else []
            if previous and step.checkpoint is self.series.checkpoints[-2]:
                compare(final, step, "previous")
        labels = self._listed(run)
        return [curve for key, by_step in values.items() if key[0] in labels for curve in self._curves(*key, by_step)]

    def _listed(self, run: Run) -> list[str]:
        """The measures with a value at all; what has none is listed."""
        found = {}
        for measure, by_pair in self.between.items():
            missing = [(steps, r, why) for steps, pair in by_pair.items() for r, why in pair.undefined.items()]
            cells = len(self.compared.layers) * len(by_pair)
            found[measure] = Lacking([why for *_, why in missing], cells, len(missing) < cells)
            for steps, r, why in missing:
                layers = (f"{self.compared.layers[r].name} at step {step}" for step in steps)
                run.without_value.append([measure, self.label, self.label, *layers, why])
        return measures_with_values(run, found)

    def visited(
        self, run: Run, sequences: Mapping[str, Sequences], *, keep: bool, visit: Visit | None = None
    ) -> Iterator[Step | Gap]:
        """Every checkpoint, the last first: loaded while the previous is computed, run once, and freed.

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

    def _open(self, checkpoint: Checkpoint, sequences: Mapping[str, Sequences]) -> Opened:
        """The checkpoint with its weights, unless the cache has all that is read of it."""
        source = checkpoint.open()
        self._check_shape(checkpoint, source)
        identity, compared = source.identity(), self.compared
        stored = compared.cache and activations_key(
            identity, sequences[self.label], compared.extract, self.reading.points, compared.hardware.dtype
        )
        known = stored and Entry("activations", stored).known
        return Opened(checkpoint, source, identity, None if known else self._loaded(source))

    def _step(self, run: Run, held: ExitStack, opened: Opened, sequences: Mapping[str, Sequences]) -> Step:
        """The checkpoint's rows, from one pass, after which the model is freed, or from the cache.

        They stay in the cache while `held` is open, and in memory where there is no cache.
        """
        label, compared, identity = self.label, self.compared, opened.identity
        extract, hardware = compared.extract, compared.hardware
        run.input("models", {f"{label}, step {opened.checkpoint.step}": identity})
        of_checkpoint = replace(self.reading, source=opened.source)
        live = compared.readings if compared.cache else []
        entries = cached(live, sequences, {label: identity}, extract, hardware.dtype, run.warn)
        entry: Entry | None = held.enter_context(entries).get(label)
        count = tally(run, {label: opened.source})

        def stream(reading: Reading, module: nn.Module | None = None) -> Iterator[list[Tensor]]:
            modules = {} if module is None else {label: module}
            recorders = {} if module is None or entry is None else {label: Recorder(entry)}
            rows = blocks([reading], modules, recorders, sequences, extract, hardware, quiet, tally=count)
            rows = self.diagnosis.watched(rows, reading.layers)  # of the checkpoint that is read first, the last one
            return batches(rows, extract, compared.total, compared.seed)

        def stored() -> Iterator[list[Tensor]]:
            assert entry is not None
            return stream(from_cache(of_checkpoint, {label: entry}, {label: identity}))

        if extract.estimate == "full":
            if entry is not None and entry.complete:
                sample = list(stored())
            else:
                sample = list(stream(of_checkpoint, self._module(opened)))
            complete = entry is not None and entry.complete
            return Step(opened.checkpoint, lambda: iter(sample), stored if complete else lambda: iter(sample))
        if entry is None or not entry.complete:
            module = self._module(opened)
            attempts = [{label: Recorder(entry)}, {}] if entry is not None else [{}]
            kept: list[list[Tensor]] = []
            for recorders in attempts:  # a second time where the cache could not be written
                given = {label: module}, recorders, sequences, extract, hardware, quiet
                rows = blocks([of_checkpoint], *given, tally=count)
                kept = [[] if recorders else [x.cpu() for x in block] for _, block in rows]
                if entry is not None and entry.complete:
                    break
        if entry is None or not entry.complete:
            memory = replace(of_checkpoint, source=self._in_memory(kept, identity), points=[])
            return Step(opened.checkpoint, lambda: stream(memory), lambda: stream(memory))
        return Step(opened.checkpoint, stored, stored)

    def _module(self, opened: Opened) -> nn.Module:
        """The model on its device; only the caller holds a reference."""
        module, opened.module = opened.module, None
        if module is None:  # the cache entry was damaged
            module = self._loaded(opened.source)
        return module

    def _loaded(self, source: Source) -> nn.Module:
        return source.load(self.reading.eager, loading(self.compared.hardware, self.compared.devices[self.label]))

    def _curves(self, measure: str, against: str, by_step: Mapping[int, Counterparts]) -> Iterator[Curve]:
        """A curve per hook point."""
        reading, bound = self.reading, self.compared.measures[measure]
        points = [point.kind if point.layer is not None else str(point) for point in reading.points]
        for point in dict.fromkeys(points):
            places = [i for i, other in enumerate(points) if other == point]
            se = {step: pair.se[places].tolist() for step, pair in by_step.items() if pair.se is not None}
            values = {step: pair.values[places].tolist() for step, pair in by_step.items()}
            first = [value for value in values.get(0, ()) if not np.isnan(value)]
            untrained = against == "last" and first and len(values) > 1
            yield curve(
                quantity=f"{measure} to {against}",
                label=bound.card.label,
                point=point,
                model=self.label,
                parameters=self.last.parameters,
                steps=[checkpoint.step for checkpoint in self.series.checkpoints],
                layers=[reading.layers[i].name for i in places],
                values=values,
                se=se,
                bounds=bound.card.bounds,
                measure=measure,
                levels={UNTRAINED: float(np.mean(first))} if untrained else {},
                larger_is_closer=bound.card.larger_is_closer,
            )

    def _compared(
        self,
        run: Run,
        sequences: Mapping[str, Sequences],
        step: Step,
        other: Step,
        kept: dict[Any, Any] | None,
    ) -> dict[str, Counterparts]:
        """kept: what was prepared of `other`, where it is the same in every call."""
        names = [tuple(f"{layer} at step {s.checkpoint.step}" for s in (step, other)) for layer in self.compared.layers]
        estimate = self.compared.extract.estimate
        try:
            compared, notices = estimate_counterparts(
                self.compared.measures,
                zip(step.rows(), other.rows(), strict=True),
                names=[(a, b) for a, b in names],
                estimate=estimate,
                tile=self.compared.hardware.tile,
                labels=self.compared.labels(sequences),
                kept=kept if estimate == "full" else None,
            )
        except Degenerate as error:
            raise RunFailed(str(error)) from error
        for notice in notices:
            run.warn(notice)
        return compared

    def matrices(self, run: Run) -> Iterator[Measured]:
        """Similarity of all checkpoints with all, a matrix per layer."""
        for label, by_pair in self.between.items():
            if not any(pair.values.isfinite().any() for pair in by_pair.values()):
                continue
            steps = sorted({step for pair in by_pair for step in pair})
            blocks, undefined = {}, {}
            for i, layer in enumerate(self.compared.layers):
                square = np.zeros((len(steps), len(steps)))
                for (first, second), pair in by_pair.items():
                    j, k = steps.index(first), steps.index(second)
                    square[j, k] = square[k, j] = float(pair.values[i])
                blocks[layer.name] = ([f"step {step}" for step in steps], square)
                cells = {tuple(map(steps.index, both)): pair.undefined.get(i) for both, pair in by_pair.items()}
                why = {cell: text for (j, k), text in cells.items() if text for cell in ((j, k), (k, j))}
                undefined |= {layer.name: why} if why else {}
            like = next(iter(by_pair.values()))
            yield blocks_record(
                run,
                f"{label} between checkpoints of {self.label}",
                self.compared.measures[label],
                blocks,
                undefined,
                estimate=self.compared.extract.estimate,
                rows=like.rows,
                batches=like.batches,
            )

    def _in_memory(self, kept: Sequence[Sequence[Tensor]], identity: dict[str, Any]) -> Precomputed:
        names = [layer.name for layer in self.compared.layers]
        whole = {name: torch.cat([rows[i] for rows in kept]) for i, name in enumerate(names)}
        return Precomputed(
            names=names,
            rows=len(whole[names[0]]),
            widths=[layer.width for layer in self.compared.layers],
            read=lambda name, rows: whole[name][rows],
            identity=lambda: identity,
        )


def checkpoints(trainings: Iterable[Training]) -> Phase:
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
    """What a worker holds of series, whose checkpoints it records: their inputs."""

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


def gap_table(gaps: Sequence[Gap]) -> dict[str, Table]:
    """The checkpoints that are gaps; no table where there are none."""
    rows = [[gap.model, gap.step, gap.why] for gap in gaps]
    return {"checkpoints left out": Table(columns=GAPS, rows=rows)} if rows else {}
