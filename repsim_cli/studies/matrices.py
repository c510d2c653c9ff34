"""The matrices of all layers of all models: estimated over the rows of a run, cached, and recorded with their tests."""

import json
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from repsim_cli import significance as judging
from repsim_cli.activations.cached import Identities
from repsim_cli.activations.places import row_beginnings, row_documents, rows_of
from repsim_cli.activations.readings import Reading
from repsim_cli.activations.rows import row_numbers
from repsim_cli.cache import Entry, key
from repsim_cli.content import CHANCE, Measured, Table
from repsim_cli.data.base import Sequences
from repsim_cli.errors import Degenerate, RunFailed
from repsim_cli.measures import Measure
from repsim_cli.models.source import PrecomputedWords
from repsim_cli.results import STATE, Progress, Run, closest, dumps, read_array, write
from repsim_cli.segments import BOTH, Segments, segments
from repsim_cli.settings import Extract, Significance
from repsim_cli.similarity import (
    KnownPairs,
    SimilarityMatrix,
    State,
    Wanted,
    Work,
    estimate_all_pairs,
    joined,
    moment_pairs,
    note_name,
    of_sums,
)
from repsim_cli.similarity.grams import Keep, Shape, packed
from repsim_cli.similarity.moments import passes_of
from repsim_cli.similarity.pairs import Batch
from repsim_cli.similarity.processes import filed
from repsim_cli.studies.cached import Content, Fill, digest, finished, kept_tables, known_nulls, known_pairs
from repsim_cli.studies.record import measure_record, places_of, so_far
from repsim_cli.studies.sample import Rows, Study, batch_labels, identified, layers_of, opened
from repsim_cli.studies.without_value import kept
from repsim_cli.training.state import SAVE_EVERY

PACKED = "packed"  # the folder of tiles, in that of the run, until all batches are compared
ROWS = "diagnostics.json"  # of the layers of a group, beside their tiles
CLOSEST = ["measure", "model a", "model b", "layer a", "layer b"]
JUDGED = ["tested", CHANCE, "calibrated", "p", "p_family"]  # beside the value of the closest layers
Matrices = dict[str, SimilarityMatrix]


def resumed(file: Path, of: str, always: bool = False) -> tuple[State | None, Callable[[State], None]]:
    """The running means that a killed run saved, if any, and a function to save them, always or every few seconds.

    of: what the means are of. Those of anything else are not taken: a run may have several such passes.
    """
    saved, mark = time.monotonic(), torch.tensor(list(of.encode()), dtype=torch.uint8)

    def save(state: State) -> None:
        nonlocal saved
        if always or time.monotonic() - saved > SAVE_EVERY:
            whole = {key: x.cpu().contiguous() for key, x in {**state, "of": mark}.items()}
            write(file, safetensors.torch.save(whole))
            saved = time.monotonic()

    state = safetensors.torch.load_file(file) if file.is_file() else {}
    return state if torch.equal(state.pop("of", mark[:0]), mark) else None, save


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """Which rows of the run depend on each other.

    documents: the document of every row, or the row itself. beginnings: what the row is the first of (see
    `segments.py`). whole: how many rows each sequence has, where only whole sequences may be sampled, so that documents
    keep their segments.
    """

    documents: np.ndarray
    beginnings: np.ndarray
    whole: np.ndarray | None

    def segments(self, extract: Extract, seed: int, least: int) -> Segments:
        """Which rows of each batch are exchanged, at least `least`. Raises BadInput where too few documents can be."""
        total = len(self.documents)
        count = 1 if extract.estimate == "full" else total // extract.batch_rows
        batches = [row_numbers(extract, total, seed, batch, self.whole) for batch in range(count)]
        return segments([self.documents[x] for x in batches], [self.beginnings[x] for x in batches], least)


def clusters_of(
    significance: Significance,
    readings: Sequence[Reading],
    sequences: Mapping[str, Sequences],
    extract: Extract,
    total: int,
) -> Clusters:
    """By `significance.clusters`; rows of stored arrays are independent of each other, but for words of sentences."""
    stored = [r.source.sentences for r in readings if isinstance(r.source, PrecomputedWords)]
    if significance.clusters == "row" or not (sequences or stored):
        return Clusters(documents=np.arange(total), beginnings=np.full(total, BOTH), whole=None)
    if sequences:
        given = next(iter(sequences.values()))
        documents, beginnings = row_documents(given, extract), row_beginnings(given, extract)
        whole = rows_of(given, extract)
    else:
        whole = np.array([sentence.words for sentence in stored[0]])
        documents, beginnings = np.repeat(np.arange(len(whole)), whole), np.zeros(whole.sum(), int)
        beginnings[(whole.cumsum() - whole)[whole > 0]] = BOTH
    sampled = significance.method == "permutation" and (whole > 1).any()
    return Clusters(documents=documents, beginnings=beginnings, whole=whole if sampled else None)


def content_of(
    study: Study,
    significance: Significance,
    sequences: Mapping[str, Sequences],
    identities: Identities,
    clusters: Clusters,
    trading: Segments | None,
    wanted: Wanted | None,
    room: float,
) -> Content:
    """What determines the matrices. The arguments are those of `matrices_of`."""
    estimate = study.extract.estimate
    widths = [layer.width for reading in study.readings for layer in reading.layers]
    null = significance.method != "none" or significance.jackknife
    return Content.of(
        study,
        sequences,
        identities,
        len(clusters.documents),
        clusters.whole,
        by=__name__,
        significance={
            "method": significance.method,
            "permutations": None if trading is None else significance.permutations,
            "segments": None if trading is None else digest(group for batch in trading.batches for group in batch),
            "documents": digest([clusters.documents]) if null else None,
            "jackknife": [significance.jackknife, _jackknifed(significance, estimate)],
        },
        wanted=None if wanted is None else wanted.tolist(),
        passes=passes_of(widths, room) if estimate == "moments" else None,
    )


def matrices_of(
    run: Run,
    study: Study,
    measures: Mapping[str, Measure],
    significance: Significance,
    sequences: Mapping[str, Sequences],
    total: int,
    *,
    clusters: Clusters,
    trading: Segments | None,
    wanted: Wanted | None,
    room: float,
    groups: Sequence[Sequence[int]] | None = None,
    identities: Identities | None = None,
    blocks: Mapping[str, Sequence[range]] = MappingProxyType({}),
) -> tuple[Matrices, dict[str, Table]]:
    """The matrix of all layers of every measure, and the tables of the layers, from the cache where it has them; no
    model runs where it has all.

    trading: the rows that permutations move, where significance is by permutation. room: bytes for the cross products
    of second moments. groups: layers whose rows are in memory together; None: all. identities: where they are known.
    blocks: of permutations that the cache may hold, by the label of the measure.
    """
    identities, estimate = identities or identified(run, study), study.extract.estimate
    content = None
    if study.cache:
        content = content_of(study, significance, sequences, identities, clusters, trading, wanted, room)
    with finished(run, measures, content) as known, kept_tables(run, content) as tables:
        if known.missing or not tables:
            with (
                known_pairs(run, known.missing, content, wanted) as pairs,
                known_nulls(run, known.missing, content, blocks) as fill,
                opened(
                    run,
                    study,
                    sequences,
                    total,
                    clusters.whole,
                    identities=identities,
                    diagnose=not tables,
                    groups=groups,
                ) as rows,
                run.stage("activations and similarity"),
            ):
                try:
                    made: Matrices = {}
                    if not known.missing:
                        deque(rows.stream(partial(run.progress, label="diagnostics", unit="batches")), maxlen=0)
                    elif estimate == "moments":
                        made = by_moments(run, rows, known.missing, room)
                    else:
                        made = estimated(
                            run,
                            rows,
                            known.missing,
                            significance,
                            clusters=clusters,
                            trading=trading,
                            wanted=wanted,
                            known=pairs,
                            fill=fill,
                        )
                except Degenerate as error:
                    raise RunFailed(str(error)) from error
                if not tables:
                    tables |= rows.tables(layers_of(study.readings))
            known.keep(made)
        matrices = kept(run, {label: known.matrices[label] for label in measures}, wanted)
    for notice in joined(matrices.values()):
        run.warn(notice)
    return matrices, tables


def estimated(
    run: Run,
    rows: Rows,
    measures: Mapping[str, Measure],
    significance: Significance,
    *,
    clusters: Clusters,
    trading: Segments | None,
    wanted: Wanted | None,
    known: Mapping[str, KnownPairs],
    fill: Fill,
) -> Matrices:
    """The matrices from a single pass over the rows, resumed from the means that an interrupted run saved.

    trading: the rows that permutations move, where significance is by permutation. known: pairs in the cache. fill:
    takes permutations from there.
    """
    file, names = run.folder / STATE, [str(layer) for layer in layers_of(rows.readings)]
    of = key({"models": rows.identities, "layers": names, "extract": asdict(rows.extract)})
    state, save = resumed(file, of, always=any(measure.slow is not None for measure in measures.values()))
    jackknifed = _jackknifed(significance, rows.extract.estimate)
    files = [_per_batch_file(run, label) for label in measures] if jackknifed else []
    if state is not None and not all([*(f"{label}.mean" in state for label in measures), *map(Path.is_file, files)]):
        state = None  # saved while the cache held some of these matrices, or without those of its batches
    labels = batch_labels(rows.sequences, rows.extract, rows.numbers)

    def permutations(steps: Sequence[Any], measure: str) -> Iterator[Any]:
        return run.progress(steps, label=f"permutations, {measure}", unit="steps")

    def notes(batch: int, label: str, shape: Sequence[int]) -> np.ndarray:
        noted = work.notes(batch, f"{note_name(label)}-null", shape)
        fill(batch, label, noted)
        return noted

    progress = partial(run.progress, label="activations and similarity", unit="batches")
    count = 1 if rows.extract.estimate == "full" else rows.total // rows.extract.batch_rows

    def batches(seen: int) -> Iterable[Batch]:
        if rows.groups is None:
            return rows.stream(progress, seen=seen)
        shape, device = Shape(count, len(rows.numbers(0)), rows.hardware.tile), rows.hardware.device
        keep = kept_tiles(run, rows, measures, shape, progress)
        stream = partial(rows.of_layers, progress=progress)
        return packed(keep, measures, rows.groups, stream, shape, names=names, device=device)(seen)

    with Work(
        folder=run.folder,
        processes=rows.hardware.workers,
        progress=run.progress,
        seed=rows.seed,
        call=of,
        known=known,
        batches=count,
        show=so_far(
            run,
            rows.readings,
            measures,
            rows.extract.estimate,
            rows=len(rows.numbers(0)),
            available=rows.total,
            batches=count,
            wanted=wanted,
        ),
    ) as work:
        null = None
        if trading is not None:
            null = judging.drawn(
                significance,
                measures,
                trading,
                names=names,
                seed=rows.seed,
                tile=rows.hardware.tile,
                labels=labels,
                notes=notes,
                progress=permutations,
            )
        matrices, _ = estimate_all_pairs(
            measures,
            batches,
            names=names,
            estimate=rows.extract.estimate,
            tile=rows.hardware.tile,
            labels=labels,
            statistics=judging.statistics(significance, lambda batch: clusters.documents[rows.numbers(batch)]),
            beside=null or (lambda *_: {}),
            each=_keep(run, rows, measures) if jackknifed else lambda *_: None,
            state=state,
            save=save,
            wanted=wanted,
            work=work,
        )
    if jackknifed:
        for label, matrix in matrices.items():
            kept = np.load(_per_batch_file(run, label), mmap_mode="r")[: matrix.batches]
            se = judging.without_each(kept, partial(of_sums, measures[label], names=names))
            matrices[label] = replace(matrix, se=se)
    shutil.rmtree(run.folder / PACKED, ignore_errors=True)
    file.unlink(missing_ok=True)  # first: a run without it starts at the first batch and writes all files again
    for label in matrices:
        _per_batch_file(run, label).unlink(missing_ok=True)
    return matrices


def kept_tiles(run: Run, rows: Rows, measures: Mapping[str, Measure], shape: Shape, progress: Progress) -> Keep:
    """Tiles of finished groups of layers, with their diagnostics, stay in the run's folder until the run is complete:
    one that was cut off resumes with the next group."""
    layers, diagnosis = layers_of(rows.readings), rows.diagnosis
    parts = {"models": rows.identities, "measures": list(measures), "shape": shape, "groups": rows.groups}
    entry = Entry("packed", key({**parts, "diagnosed": diagnosis is not None}), home=run.folder / PACKED)
    entry.load()

    def keep(group: Sequence[int], save: Callable[[Path], None]) -> Path:
        name, members = f"{group[0]:05d}+{len(group)}", [layers[a] for a in group]

        def whole(folder: Path) -> None:
            rows.record(progress)
            save(folder)
            if diagnosis is not None:
                (folder / ROWS).write_text(dumps([diagnosis.rows[layer] for layer in members]))

        if name not in entry.files:
            entry.write(name, whole)
        if diagnosis is not None:
            diagnosis.rows |= dict(zip(members, json.loads((entry.files[name] / ROWS).read_text()), strict=True))
        return entry.files[name]

    return keep


def by_moments(run: Run, rows: Rows, measures: Mapping[str, Measure], room: float) -> Matrices:
    """The matrices from second moments, with `room` bytes for cross products: later passes read what the first one
    stored in the cache, and what is prepared of each layer stays in files."""
    layers = [layer for reading in rows.readings for layer in reading.layers]
    progress = partial(run.progress, label="activations and second moments", unit="batches")
    passes = partial(rows.of_layers, progress=progress)
    names, widths = [str(layer) for layer in layers], [layer.width for layer in layers]
    with Work(folder=run.folder) as work:
        return moment_pairs(measures, passes, names=names, widths=widths, room=room, keep=partial(filed, work))[0]


def records(
    run: Run,
    readings: Sequence[Reading],
    measures: Mapping[str, Measure],
    matrices: Matrices,
    significance: Significance,
    *,
    trading: Segments | None,
    wanted: Wanted | None,
) -> tuple[list[Measured], dict[str, Table]]:
    """The measures as results.json has them, and after a test the table of the closest layers of every two models."""
    measured: list[Measured] = []
    table: list[list[Any]] = []
    for label, matrix in matrices.items():
        measure = measures[label]
        judged = judging.judge(significance, measure, matrix, trading, places_of(readings))
        if judged.null is not None and judged.null.get("skewed"):
            run.warn(
                f"significance: {label}: the null of {judged.null['skewed']} of {matrix.values.numel()} cells is too "
                "skewed for the closed form, whose p values there may be off by 0.6; use significance=permutation"
            )
        extra: dict[str, Any] = {
            "se": matrix.statistics.get("se", matrix.se),
            "p": judged.p,
            "p_family": judged.p_family,
            "q": judged.q,
            "calibrated": judged.calibrated,
            "tested": judged.tested,
            CHANCE: judged.chance,
        }
        if measure.slow is not None:
            extra |= {key: matrix.statistics[key] for key in measure.slow.details}
        if significance.bands and extra["se"] is not None:
            extra["low"], extra["high"] = judging.bands(
                matrix.values, extra["se"], matrix.batches, significance, measure.card
            )
        record = measure_record(run, readings, label, measure, matrix, extra, judged.null, wanted=wanted)
        measured.append(record)
        for each in record.matrices if judged.null is not None else ():
            models = each.rows.model, each.columns.model
            cells = {what: read_array(run.folder, path) for what, path in each.cells.items()}
            if models[0] != models[1] and (found := closest(record, each, cells)):
                *layers, numbers = found
                table.append([label, *models, *layers, numbers["values"], *map(numbers.get, JUDGED)])
    columns = [*CLOSEST, "value", *JUDGED]
    return measured, {"closest layers": Table(columns=columns, rows=table)} if table else {}


def _jackknifed(significance: Significance, estimate: str) -> bool:
    """Whether standard errors need every batch's matrix: those of a ratio of sums do not add up over batches."""
    return significance.bands and estimate == "ratio_of_sums"


def _per_batch_file(run: Run, label: str) -> Path:
    """The file of every batch's matrix, until the run ends."""
    return run.folder / f".per-batch-{note_name(label)}.npy"


def _keep(run: Run, rows: Rows, measures: Mapping[str, Measure]) -> Callable[[int, Mapping[str, Tensor]], None]:
    """Writes every batch's matrix, for the jackknife."""
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
