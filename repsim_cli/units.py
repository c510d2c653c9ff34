"""The units of a run that may be computed anywhere: which there are, and how a worker computes them.

Each leaves an entry in the cache, which the study finds when it then runs: models are trained, rows recorded, pairs of
layers solved and stitch layers fitted by the functions that the study itself uses. The rest of a run stays with its own
process: fast measures, short tests, the evaluation of stitched models, analyses, figures.
"""

import copy
import itertools
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from repsim_cli.activations.cached import cached
from repsim_cli.activations.inputs import named, paired
from repsim_cli.activations.readings import Reading
from repsim_cli.activations.rows import windows_of
from repsim_cli.activations.stored import Recorder, activations_key, gather, window_name
from repsim_cli.cache import Entry
from repsim_cli.config.run import RunConfig, of_keys
from repsim_cli.data.base import Sequences
from repsim_cli.errors import Degenerate, RunFailed
from repsim_cli.executors import Unit, executor_of
from repsim_cli.executors.driver import driving
from repsim_cli.models.sizes import goes_by_block, weight_bytes
from repsim_cli.models.source import Series, Source
from repsim_cli.results import Run, quiet
from repsim_cli.settings import Hardware
from repsim_cli.similarity import Wanted, Work, estimate_all_pairs
from repsim_cli.stitching.evaluate import PredictionTask
from repsim_cli.stitching.models import Whole
from repsim_cli.studies import matrices
from repsim_cli.studies.cached import Content, known_pairs, solved_singly
from repsim_cli.studies.convergence import Convergence, Training
from repsim_cli.studies.features import Features
from repsim_cli.studies.matrices import clusters_of
from repsim_cli.studies.permutations import blocks_of, permuted_ahead
from repsim_cli.studies.probes import Probes
from repsim_cli.studies.record import places_of
from repsim_cli.studies.sample import batch_labels, counted, identified, inputs, opened, record_alone, tally
from repsim_cli.studies.similarity import Similarity
from repsim_cli.studies.stitching import Stitching
from repsim_cli.studies.training_view import TrainingView
from repsim_cli.studies.universal_neurons import UniversalNeurons
from repsim_cli.studies.views import Views

log = logging.getLogger("repsim")
RECORDED = (Similarity, Features, Probes, UniversalNeurons, Views)  # studies that read rows by `sample.opened`
HELD = 2  # whole models that a worker keeps for stitching
BASE = 1e9  # bytes of a worker without a model
TRAINED = 5  # times its weights: gradients, two moments, a batch
OF_SERIES = (Convergence, TrainingView)
SESSION = f"{__name__}:session"


def perform_ahead(checked: RunConfig, run: Run) -> None:
    """Computes the units of a run on the workers that `hardware.executor` names, if it names any."""
    hardware = Hardware(**checked.keys.hardware)
    if hardware.executor == "none":
        return
    threads = hardware.threads or torch.get_num_threads()
    with driving(
        partial(executor_of, hardware, threads, worker_bytes(checked.models, hardware)),
        run,
        name=hardware.executor,
        session=SESSION,
        config=checked.keys.model_dump(),
        threads=threads,
        price=hardware.price_per_node_hour,
    ) as driver:
        _phases(checked, run, driver)


def worker_bytes(models: Mapping[str, Any], hardware: Hardware) -> float:
    """Bytes that a worker takes, roughly: Python, the weights of two models to stitch or of one and its batches, or a
    training."""
    weights = [
        weight_bytes(model, hardware.dtype) * (TRAINED if model.make else 2)
        for model in models.values()
        if isinstance(model, Source)
    ]
    return BASE + max(weights, default=0.0)


def _phases(checked: RunConfig, run: Any, driver: Any) -> None:
    """What a phase leaves, the next one reads."""
    study = copy.copy(checked.study)  # the run itself chooses the models of groups among all
    kind = type(study)
    driver.perform(trainings(checked.models), "trainings")
    if kind in (Similarity, Stitching):
        study.choose(run)
    if kind is Similarity and not study.cached:
        log.warning("cache: it does not hold the activations of all models, which are left to the run itself")
        return
    if kind in RECORDED:
        count = (Hardware(**checked.keys.hardware).processes or 1) // max(len(study.live), 1)
        if count > 1:
            driver.perform(shardings(study.live, count), "shards of activations")
        driver.perform(recordings(study.live, count), "activations")
    if kind in OF_SERIES:
        driver.perform(checkpoints(study.trainings), "checkpoints")
    if kind is Similarity:
        driver.perform(solvings(study), "pairs")
        driver.perform(permutings(study), "permutations")
    if kind is Stitching:
        driver.perform(fittings(study), "stitch layers")


def trainings(models: Mapping[str, Any]) -> list[Unit]:
    """A unit per model, or series of checkpoints, that is trained when it is first needed."""
    made = [label for label, model in models.items() if isinstance(model, Source | Series) and model.make]
    return [Unit(kind="model", name=f"training of {label}", args={"label": label}) for label in made]


def shardings(live: Mapping[str, Source], count: int) -> list[Unit]:
    """So many units per model, where there are more workers than models: each every so-many-th window of its rows."""
    return [
        Unit(
            kind="shard",
            name=f"shard {number} of activations of {label}",
            args={"label": label, "number": number, "count": count},
            group=label,
        )
        for label in live
        for number in range(count)
    ]


def recordings(live: Mapping[str, Source], shards: int = 1) -> list[Unit]:
    """A unit per model: its rows, taken from so many shards."""
    return [
        Unit(kind="activations", name=f"activations of {label}", args={"label": label, "shards": shards})
        for label in live
    ]


def checkpoints(trainings: Mapping[str, Training]) -> list[Unit]:
    """A unit per checkpoint of every series: its rows."""
    return [
        Unit(
            kind="checkpoint",
            name=f"activations of {label}, step {checkpoint.step}",
            args={"label": label, "number": number},
            group=label,
        )
        for label, training in trainings.items()
        for number, checkpoint in enumerate(training.series.checkpoints)
    ]


def solvings(study: Similarity) -> list[Unit]:
    """A unit per measure that solves its pairs one by one and pair of models."""
    wanted, places = study.wanted(), places_of(study.readings)
    labels = [reading.label for reading in study.readings]
    return [
        Unit(
            kind="pairs",
            name=f"{measure} of {labels[i]} and {labels[j]}",
            args={"measure": measure, "models": [labels[i], labels[j]]},
        )
        for measure, bound in study.measures.items()
        if solved_singly(bound, study.extract.estimate)
        for i, j in itertools.product(range(len(labels)), repeat=2)
        if i <= j or not bound.card.symmetric
        if wanted is None or bool(wanted[places[i], places[j]].any())
    ]


def permutings(study: Similarity) -> list[Unit]:
    """A unit per block of the permutations of a measure."""
    return [
        Unit(
            kind="permutations",
            name=f"permutations {block.start} to {block.stop - 1} of {measure}",
            args={"measure": measure, "first": block.start, "stop": block.stop},
        )
        for measure, blocks in blocks_of(study).items()
        for block in blocks
    ]


def fittings(study: Stitching) -> list[Unit]:
    """A unit per head and tail: their stitch layers, which are fitted side by side."""
    return [
        Unit(
            kind="stitches",
            name=f"stitches of {head} and {tail}",
            args={"tail": tail, "head": number},
            group=tail,
        )
        for tail, heads in study.heads.items()
        for number, head in enumerate(heads)
        if study.recipe.fitted
    ]


class Session:
    """What a worker holds of a run: its configuration, and what several units need."""

    def __init__(self, config: Mapping[str, Any]):
        self.checked = of_keys(dict(config))
        self.study: Any = copy.copy(self.checked.study)
        self._facts: dict[str, Any] = {}  # of the manifest
        self._identities: dict[str, Any] = {}
        self._wholes: dict[str, Whole] = {}
        self._started: dict[str, tuple[Mapping[str, Sequences], int, dict[str, Any]]] = {}

    def run(self, folder: str) -> Run:
        """A run whose files nobody reads."""
        lists = {"timings": {}, "peak_memory_mb_after": {}, "warnings": [], "resumed": []}
        return Run(Path(folder), {**copy.deepcopy(self._facts), **lists}, None)

    def perform(self, kind: str, args: Mapping[str, Any]) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            return KINDS[kind](self, self.run(folder), **args)

    @cached_property
    def sequences(self) -> Mapping[str, Sequences]:
        """The inputs of all models of a study of rows."""
        study = self.study
        with tempfile.TemporaryDirectory() as folder:
            run = self.run(folder)
            if isinstance(study, Similarity):
                study.choose(run)
            sequences = inputs(run, study.live, study.tokenizers, study.data, study.extract, study.seed)
            study.readings = paired(study.readings, sequences, study.data, study.extract, run.warn)
            self._facts = {key: run.manifest[key] for key in ("data",) if key in run.manifest}
        return sequences

    def read(self, run: Run, label: str) -> tuple[Any, Reading, dict[str, Any]]:
        """The study of a single model, what is read of it, and its identity by label."""
        assert self.sequences is not None  # notes what the manifest says of the data
        run.manifest |= self._facts
        study = self.of([label])
        (reading,) = study.readings
        return study, reading, self.identities(run, study)

    def identities(self, run: Run, study: Any) -> dict[str, Any]:
        """The identities of the models of a study, hashed once."""
        if lacking := {label: model for label, model in study.models.items() if label not in self._identities}:
            part = copy.copy(study)
            part.models = lacking
            part.readings = [reading for reading in study.readings if reading.label in lacking]
            self._identities |= identified(run, part)
        return {label: self._identities[label] for label in study.models}

    @cached_property
    def training(self) -> tuple[Sequences, PredictionTask]:
        """What stitch layers are fitted on."""
        study: Stitching = self.study
        with tempfile.TemporaryDirectory() as folder:
            run = self.run(folder)
            study.choose(run)
            train, held = study.parts(run)
        return train, study.task(held)

    def identity(self, label: str) -> dict[str, Any]:
        """Of a model as it is stitched, hashed once."""
        if label not in self._identities:
            self._identities[label] = self.study.models[label].identity()
        return self._identities[label]

    def started(self, run: Run, label: str) -> tuple[Training, Mapping[str, Sequences], int]:
        """A series, the inputs of its checkpoints and how many rows they give."""
        training = self.study.trainings[label]
        if label not in self._started:
            sequences, total = training.start(run)
            self._started[label] = sequences, total, run.manifest["data"]
        sequences, total, data = self._started[label]
        run.manifest |= {"data": copy.deepcopy(data)}
        return training, sequences, total

    def whole(self, label: str) -> Whole:
        """A whole model, of which the last few stay in memory."""
        whole = self._wholes.pop(label, None) or self.study.open_whole(label)
        self._wholes[label] = whole  # the last to be dropped
        while len(self._wholes) > HELD:
            self._wholes.pop(next(iter(self._wholes)))
        return whole

    def of(self, labels: Sequence[str]) -> Any:
        """The study, of these models alone."""
        assert self.sequences is not None
        part = copy.copy(self.study)
        part.readings = [reading for reading in part.readings if reading.label in labels]
        part.models = {reading.label: part.models[reading.label] for reading in part.readings}
        part.hardware = replace(part.hardware, processes=1)
        return part


def session(config: Mapping[str, Any], threads: int) -> Callable[[str, Mapping[str, Any]], bool]:
    """Raises BadConfig where the run cannot be checked here: a model that is missing, a device, memory."""
    torch.set_num_threads(threads)
    return Session(config).perform


def _train(session: Session, run: Run, label: str) -> bool:
    begun = False

    def progress(items: Any, **_: Any) -> Iterator[Any]:
        nonlocal begun
        begun = True
        return iter(items)

    named(label, session.checked.models[label].make, progress)
    return begun


def _shard(session: Session, run: Run, label: str, number: int, count: int) -> bool:
    study, reading, identities = session.read(run, label)
    if goes_by_block(study.models[label], study.hardware):  # its weights are read once for all rows
        return False
    sequences, dtype = session.sequences, study.hardware.dtype
    whole = activations_key(identities[label], sequences[label], study.extract, reading.points, dtype)
    with cached([reading], sequences, identities, study.extract, dtype, run.warn, (number, count)) as entries:
        if label not in entries or entries[label].complete or Entry("activations", whole).known:
            return False
        every = windows_of(sequences, study.extract, study.hardware)[number::count]
        # a run that was cut off may have left some
        windows = [window for window in every if not Entry("activations", whole).has(window_name(window))]
        if not windows:
            return False
        record_alone(run, study, reading, entries[label], sequences, tally(run, study.models), windows)
        return True


def _record(session: Session, run: Run, label: str, shards: int) -> bool:
    sequences = session.sequences
    study, reading, identities = session.read(run, label)
    with cached([reading], sequences, identities, study.extract, study.hardware.dtype, run.warn) as entries:
        if label not in entries or entries[label].complete:  # without an entry: the run's own process streams it
            return False
        entry = entries[label]
        if shards > 1 and not goes_by_block(study.models[label], study.hardware):
            gather(entry, shards)
            windows = windows_of(sequences, study.extract, study.hardware)
            Recorder(entry).finish([layer.name for layer in reading.layers], windows)
        record_alone(run, study, reading, entry, sequences, tally(run, study.models))
        return True


def _checkpoint(session: Session, run: Run, label: str, number: int) -> bool:
    training, sequences, total = session.started(run, label)
    return training.record(run, number, sequences, total)


def _solve(session: Session, run: Run, measure: str, models: list[str]) -> bool:
    sequences, whole = session.sequences, session.study
    run.manifest |= copy.deepcopy(session._facts)
    study = session.of(models)
    total = counted(run, whole, sequences)
    clusters = clusters_of(whole.significance, whole.readings, sequences, whole.extract, total)
    identities = session.identities(run, study)
    content = Content.of(study, sequences, identities, total, clusters.whole, by=matrices.__name__)
    bound = study.measures[measure]
    wanted = _block(whole, study, models, bound.card.symmetric)
    with known_pairs(run, {measure: bound}, content, wanted) as known:
        if all(entry.complete for pairs in known.values() for entry in pairs.entries.values()):
            return False
        with (
            opened(run, study, sequences, total, clusters.whole, identities=identities, diagnose=False) as rows,
            Work(folder=run.folder, known=known, seed=None) as work,
        ):
            try:
                estimate_all_pairs(
                    {measure: bound},
                    lambda seen: rows.stream(quiet, seen=seen),
                    names=[str(layer) for reading in study.readings for layer in reading.layers],
                    estimate=study.extract.estimate,
                    tile=study.hardware.tile,
                    labels=batch_labels(sequences, study.extract, rows.numbers),
                    wanted=wanted,
                    work=work,
                )
            except Degenerate as error:
                raise RunFailed(str(error)) from error
        return True


def _permute(session: Session, run: Run, measure: str, first: int, stop: int) -> bool:
    sequences = session.sequences
    study = session.of([reading.label for reading in session.study.readings])
    run.manifest |= copy.deepcopy(session._facts)
    identities = session.identities(run, study)
    return permuted_ahead(run, study, measure, range(first, stop), sequences, identities)


def _block(whole: Similarity, study: Similarity, models: Sequence[str], symmetric: bool) -> Wanted:
    """Which layers of the study, of one model or two, are compared: the rows' with the columns', as the run wants."""
    at = [reading.label for reading in study.readings]
    i, j = (places_of(study.readings)[at.index(label)] for label in models)
    count = sum(len(reading.layers) for reading in study.readings)
    block = torch.zeros(count, count, dtype=torch.bool)
    block[i, j] = True
    if symmetric:
        block[j, i] = True
    if (wanted := whole.wanted()) is None:
        return block
    places = zip(whole.readings, places_of(whole.readings), strict=True)
    at_rows = torch.cat([torch.arange(place.start, place.stop) for reading, place in places if reading.label in at])
    return block & wanted[at_rows][:, at_rows]


def _stitch(session: Session, run: Run, tail: str, head: int) -> bool:
    train, task = session.training
    study: Stitching = session.study
    of = study.heads[tail][head]
    identities = {label: session.identity(label) for label in (of.model, tail)}
    return study.fit_ahead(of, tail, train, task, identities, session.whole)


KINDS: dict[str, Callable[..., bool]] = {
    "model": _train,
    "shard": _shard,
    "activations": _record,
    "checkpoint": _checkpoint,
    "pairs": _solve,
    "permutations": _permute,
    "stitches": _stitch,
}
