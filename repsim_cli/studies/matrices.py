"""The matrices of all layers of all models: estimated over the rows of a run, and kept with what is known of them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from repsim_cli import significance as judging
from repsim_cli.activations.rows import Reading, row_documents, row_numbers
from repsim_cli.measures import Measure
from repsim_cli.results import STATE, Run, slug, write
from repsim_cli.settings import Significance
from repsim_cli.similarity import (
    SimilarityMatrix,
    State,
    Wanted,
    Work,
    estimate_all_pairs,
    moment_pairs,
    note_name,
    of_sums,
)
from repsim_cli.studies.record import measure_record, places_of
from repsim_cli.studies.sample import Rows, batch_labels
from repsim_cli.training.state import SAVE_EVERY

CLOSEST = ["measure", "model a", "model b", "layer a", "layer b", "value", "p", "calibrated"]
Matrices = dict[str, SimilarityMatrix]


def resumed(file: Path, always: bool = False) -> tuple[State | None, Callable[[State], None]]:
    """The running means that a killed run saved, if any, and what saves the next ones: always, or every few seconds."""
    saved = time.monotonic()

    def save(state: State) -> None:
        nonlocal saved
        if always or time.monotonic() - saved > SAVE_EVERY:
            write(file, safetensors.torch.save({key: x.cpu().contiguous() for key, x in state.items()}))
            saved = time.monotonic()

    return safetensors.torch.load_file(file) if file.is_file() else None, save


def estimated(
    run: Run,
    rows: Rows,
    measures: Mapping[str, Measure],
    significance: Significance,
    *,
    wanted: Wanted | None,
    couplings: bool,
) -> Matrices:
    """From one pass over the rows, which goes on from the means that a killed run saved."""
    file = run.folder / STATE
    state, save = resumed(file, always=any(measure.slow is not None for measure in measures.values()))

    def clusters(batch: int) -> np.ndarray:
        """What every row of a batch belongs to: its document, or itself."""
        numbers = row_numbers(rows.extract, rows.total, rows.seed, batch)
        if not rows.sequences or significance.clusters == "row":
            return numbers
        return row_documents(next(iter(rows.sequences.values())), rows.extract)[numbers]

    def permutations(steps: Sequence[Any], measure: str) -> Iterator[Any]:
        return run.progress(steps, label=f"permutations, {measure}", unit="steps")

    progress = partial(run.progress, label="activations and similarity", unit="batches")
    with Work(
        folder=run.folder,
        processes=rows.hardware.workers,
        progress=run.progress,
        couplings=couplings,
        seed=rows.seed,
    ) as work:
        matrices, notices = estimate_all_pairs(
            measures,
            lambda seen: rows.stream(progress, seen=seen),
            names=[str(layer) for reading in rows.readings for layer in reading.layers],
            estimate=rows.extract.estimate,
            tile=rows.hardware.tile,
            labels=batch_labels(rows.sequences, rows.extract, rows.total, rows.seed),
            statistics=judging.statistics(significance, clusters, rows.seed, permutations),
            each=_keep(run, rows, measures) if significance.bootstrap else lambda batch, values: None,
            state=state,
            save=save,
            wanted=wanted,
            work=work,
        )
    for notice in notices:
        run.warn(notice)
    file.unlink(missing_ok=True)
    return matrices


def by_moments(run: Run, rows: Rows, measures: Mapping[str, Measure], side: int) -> Matrices:
    """From second moments, by blocks of `side` features: what one pass stored, the next ones read again."""
    places, layers = places_of(rows.readings), [layer for reading in rows.readings for layer in reading.layers]
    progress = partial(run.progress, label="activations and second moments", unit="batches")

    def passes(chosen: Sequence[int]) -> Iterator[list[Tensor]]:
        found, read = [], []
        for reading, place in zip(rows.found(), places, strict=True):
            numbers = [a for a in range(place.start, place.stop) if a in chosen]
            if not numbers:
                continue
            if reading.points and reading.label in rows.recorders:
                numbers = list(range(place.start, place.stop))  # what is written must be whole
            own = [a - place.start for a in numbers]
            points = [reading.points[a] for a in own] if reading.points else []
            found.append(replace(reading, points=points, layers=[reading.layers[a] for a in own]))
            read += numbers
        kept = [read.index(a) for a in chosen]
        for batch in rows.stream(progress, found):
            yield [batch[a] for a in kept]

    names, widths = [str(layer) for layer in layers], [layer.width for layer in layers]
    matrices, notices = moment_pairs(measures, passes, names=names, widths=widths, side=side)
    for notice in notices:
        run.warn(notice)
    return matrices


def records(
    run: Run,
    readings: Sequence[Reading],
    measures: Mapping[str, Measure],
    matrices: Matrices,
    significance: Significance,
    *,
    seed: int,
    wanted: Wanted | None,
    couplings: bool,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The measures as results.json keeps them, and of a permutation test the table of the closest layers."""
    found, closest = [], []
    names = [layer.name for reading in readings for layer in reading.layers]
    places = dict(zip((reading.label for reading in readings), places_of(readings), strict=True))
    for label, matrix in matrices.items():
        measure = measures[label]
        judged = judging.judge(significance, measure, matrix)
        extra: dict[str, Any] = {
            "se": matrix.statistics.get("se", matrix.se),
            "p": judged.p,
            "calibrated": judged.calibrated,
        }
        if measure.slow is not None:
            extra |= {key: matrix.statistics[key] for key in measure.slow.details}
            if couplings and measure.slow.matches:
                extra["coupling"] = Work(folder=run.folder).matchings(note_name(measures, label))
        if significance.bootstrap:
            file = _per_batch_file(run, label)
            finish = partial(of_sums, measure, names=names) if matrix.estimate == "ratio_of_sums" else torch.clone
            kept = np.load(file, mmap_mode="r")[: matrix.batches]
            extra["low"], extra["high"] = judging.bands(kept, significance, seed, finish)
        found.append(measure_record(run, readings, label, measure, matrix, extra, judged.null, wanted=wanted))
        if significance.method == "permutation":
            best = judging.best_pairs(significance, measure, matrix, places, names)
            closest += [[label, *row] for row in best]
    for label in matrices if significance.bootstrap else ():
        _per_batch_file(run, label).unlink()
    return found, {"closest layers": {"columns": CLOSEST, "rows": closest}} if closest else {}


def _per_batch_file(run: Run, label: str) -> Path:
    """Every batch's matrix, while the run goes on."""
    return run.folder / f".per-batch-{slug(label)}.npy"


def _keep(run: Run, rows: Rows, measures: Mapping[str, Measure]) -> Callable[[int, Mapping[str, Tensor]], None]:
    """Writes every batch's matrix, for bands."""
    count = sum(len(reading.layers) for reading in rows.readings)
    shape, kept = (rows.total // rows.extract.batch_rows, count, count), {}
    for label in measures:
        file = _per_batch_file(run, label)
        whole = file.is_file() and np.load(file, mmap_mode="r").shape == shape
        kept[label] = np.lib.format.open_memmap(file, "r+" if whole else "w+", np.float64, None if whole else shape)

    def keep(batch: int, values: Mapping[str, Tensor]) -> None:
        for label, matrix in values.items():
            kept[label][batch] = matrix.cpu().numpy()

    return keep
