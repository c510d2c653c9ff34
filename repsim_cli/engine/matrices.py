"""The matrices of all layers of all models: estimated over the rows of a run, and cached."""

import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from repsim_cli.activations.cached import Identities
from repsim_cli.base.errors import Degenerate, RunFailed
from repsim_cli.base.files import create_npy
from repsim_cli.base.settings import IN_BATCHES, Extract
from repsim_cli.base.timer import Timer
from repsim_cli.data.base import Sequences
from repsim_cli.engine import chance, floor
from repsim_cli.engine import significance as judging
from repsim_cli.engine.batch_stream import PACKED, make_batch_stream
from repsim_cli.engine.batches import FEWEST, make_batches_observer
from repsim_cli.engine.behind import keep_rows_behind
from repsim_cli.engine.cached import Content, Fill, hash_arrays, open_matrices, open_nulls, open_pairs, open_tables
from repsim_cli.engine.comparison import Comparison
from repsim_cli.engine.estimates import Beside, State, compute_from_sums, estimate_all_pairs, say_notices
from repsim_cli.engine.expected import RowPlaces, index_row_places
from repsim_cli.engine.first_look import FirstLook
from repsim_cli.engine.known import KnownPairs
from repsim_cli.engine.left_out import make_left_out_observer
from repsim_cli.engine.moments import plan_passes
from repsim_cli.engine.one_by_one import note_name
from repsim_cli.engine.permuted import Progress as Steps
from repsim_cli.engine.permuted import iterate_silently
from repsim_cli.engine.prepared import SimilarityMatrix, Statistics
from repsim_cli.engine.processes import PairWork
from repsim_cli.engine.record import make_map_writer
from repsim_cli.engine.rows import Rows, hash_models, open_rows
from repsim_cli.engine.streamed import BY_ESTIMATE, Matrices
from repsim_cli.engine.validity import make_rows_observer
from repsim_cli.engine.without_value import keep_matrices
from repsim_cli.measures import InnerProduct
from repsim_cli.runs.cache import make_cache_key
from repsim_cli.runs.content import Table
from repsim_cli.runs.reader import STATE
from repsim_cli.runs.results import SAVE_EVERY, Run, write


def resume(file: Path, of: str, always: bool = False) -> tuple[State | None, Callable[[State], None]]:
    """The running means that a killed run saved, if any, and a function to save them, always or every few seconds.

    of: a key of what the means are computed from. Saved means with another key are ignored: a run may have several such
        passes.
    """
    timer, mark = Timer(SAVE_EVERY), torch.tensor(list(of.encode()), dtype=torch.uint8)

    def save(state: State) -> None:
        if always or timer.is_due():
            with timer.restart():
                whole = {key: x.cpu().contiguous() for key, x in {**state, "of": mark}.items()}
                write(file, safetensors.torch.save(whole))

    state = safetensors.torch.load_file(file) if file.is_file() else {}
    return state if torch.equal(state.pop("of", mark[:0]), mark) else None, save


def make_cache_content(comparison: Comparison, sequences: Mapping[str, Sequences], identities: Identities) -> Content:
    """Collects what determines the matrices of a comparison whose rows are clustered."""
    estimate, significance, exchanged = comparison.extract.estimate, comparison.significance, comparison.exchanged
    widths = [layer.width for layer in comparison.layers]
    grouped = significance.method != "none" or significance.jackknife or significance.chance
    return Content.collect(
        comparison,
        sequences,
        identities,
        by=__name__,
        significance={
            "method": significance.method,
            "permutations": None if exchanged is None else [significance.permutations, significance.order],
            "segments": None
            if exchanged is None
            else hash_arrays(group for batch in exchanged.batches for group in batch),
            "documents": hash_arrays([comparison.documents]) if grouped else None,
            "jackknife": [significance.jackknife, _needs_jackknife(comparison)],
            "chance": None if (units := comparison.units) is None else hash_arrays([units.units, units.places]),
        },
        floor=significance.floor,
        scatter=comparison.scatter,
        pairs=None if comparison.apart is None else hash_arrays([comparison.apart]),
        wanted=None if comparison.wanted is None else comparison.wanted.tolist(),
        passes=plan_passes(widths, comparison.room) if estimate == "moments" else None,
        sampled=comparison.extract.rows if estimate == "sampled" else None,
    )


def compute_matrices(
    run: Run,
    comparison: Comparison,
    sequences: Mapping[str, Sequences],
    *,
    identities: Identities | None = None,
    blocks: Mapping[str, Sequence[range]] = MappingProxyType({}),
    keep_rows: bool = False,
    tell: bool = True,
) -> tuple[Matrices, dict[str, Table]]:
    """The matrix of all layers of every measure, and the tables of the layers, from the cache where it has them; no
    model runs where it has all.

    comparison: its rows are clustered. identities: where they are known. blocks: of permutations that the cache may
    hold, by the label of the measure. keep_rows: whether the run folder keeps what a page shows of some rows. tell:
    whether warnings of measures and a first map are those of the run.
    """
    identities, measures = identities or hash_models(run, comparison), comparison.measures
    content = make_cache_content(comparison, sequences, identities) if comparison.cache else None
    rows_behind = keep_rows_behind(run, comparison, sequences, content) if keep_rows else nullcontext()
    with open_matrices(run, measures, content) as known, open_tables(run, content) as tables, rows_behind as watch:
        if known.missing or not tables:
            missing = replace(comparison, measures=known.missing)
            with (
                open_pairs(run, known.missing, content, comparison.wanted) as pairs,
                open_nulls(run, known.missing, content, blocks) as fill,
                open_rows(
                    run,
                    comparison,
                    sequences,
                    identities=identities,
                    diagnose=not tables,
                    groups=comparison.groups,
                    look=FirstLook(run, missing).watch if tell and needs_all_rows(comparison.extract) else None,
                ) as rows,
                run.stage("activations and similarity"),
            ):
                try:
                    made: Matrices = {}
                    if not known.missing:
                        deque(rows.stream(partial(run.progress, label="diagnostics", unit="batches")), maxlen=0)
                    elif streamed := BY_ESTIMATE.get(comparison.extract.estimate):
                        made = streamed(run, rows, missing)
                    else:
                        made = estimate_matrices(run, rows, missing, known=pairs, fill=fill, watch=watch)
                except Degenerate as error:
                    raise RunFailed(str(error)) from error
                if not tables:
                    tables |= rows.tables(comparison.layers)
            known.keep(made)
        matrices = keep_matrices(run, {label: known.matrices[label] for label in measures}, comparison.wanted)
    for line in say_notices(matrices) if tell else ():
        run.warn(line)
    return matrices, tables


def needs_all_rows(extract: Extract) -> bool:
    """Tells whether values are known no sooner than all rows have passed."""
    return extract.estimate == "full" or (extract.estimate == "per_batch" and extract.features_changed)


def estimate_matrices(
    run: Run,
    rows: Rows,
    comparison: Comparison,
    *,
    known: Mapping[str, KnownPairs],
    fill: Fill,
    watch: Beside | None = None,
) -> Matrices:
    """The matrices from a single pass over the rows, resumed from the means that an interrupted run saved.

    known: pairs in the cache. fill: takes permutations from there. watch: is given the rows of every batch.
    """
    measures, extract, hardware = comparison.measures, comparison.extract, comparison.hardware
    names, labels = comparison.names, comparison.labels(rows.sequences)
    of = make_cache_key({"models": rows.identities, "layers": names, "extract": asdict(extract)})
    state, save = _resume_means(run, comparison, of)
    jackknifed = _needs_jackknife(comparison)
    with PairWork(
        folder=run.folder,
        processes=hardware.workers,
        progress=run.progress,
        seed=comparison.seed,
        call=of,
        known=known,
        batches=comparison.batches,
        show=make_map_writer(run, comparison),
    ) as work:
        matrices, _ = estimate_all_pairs(
            measures,
            make_batch_stream(run, rows, comparison),
            names=names,
            estimate=extract.estimate,
            tile=hardware.tile,
            labels=labels,
            statistics=judging.make_statistics_observer(
                comparison.significance,
                partial(_list_documents, comparison),
                make_chance_observer(comparison),
                scatter=comparison.scatter and extract.estimate == "full" and comparison.groups is None,
                models=comparison.places,
            ),
            beside=floor.combine_observers(
                [
                    _make_null_observer(run, comparison, rows.sequences, work, fill),
                    _make_alike_observer(comparison),
                    floor.make_floor_observer(comparison, rows.sequences, labels),
                    make_left_out_observer(comparison, labels),
                    watch,
                ]
            ),
            each=_keep(run, comparison) if jackknifed else lambda *_: None,
            state=state,
            save=save,
            wanted=comparison.wanted,
            work=work,
            places=make_places_finder(comparison),
            documents=comparison.documents_apart,
        )
    if jackknifed:
        matrices = {label: _add_jackknife_errors(run, comparison, label, matrix) for label, matrix in matrices.items()}
    _drop_means(run, matrices)
    return matrices


def _add_jackknife_errors(run: Run, comparison: Comparison, label: str, matrix: SimilarityMatrix) -> SimilarityMatrix:
    """The matrix with standard errors from those of its batches, which `_keep` wrote."""
    kept = np.load(_name_batch_file(run, label), mmap_mode="r")[: matrix.batches]
    value = partial(compute_from_sums, comparison.measures[label], names=comparison.names)
    return replace(matrix, se=judging.compute_jackknife_errors(kept, value))


def _resume_means(run: Run, comparison: Comparison, of: str) -> tuple[State | None, Callable[[State], None]]:
    """The running means that a killed run saved, if they are of all that is left to compute, and what saves them."""
    state, save = resume(run.folder / STATE, of, always=comparison.slow)
    files = [_name_batch_file(run, label) for label in comparison.measures] if _needs_jackknife(comparison) else []
    means = (f"{label}.mean" for label in comparison.measures)
    if state is not None and not all([*(mean in state for mean in means), *map(Path.is_file, files)]):
        state = None  # saved while the cache held some of these matrices, or without those of its batches
    return state, save


def _drop_means(run: Run, labels: Iterable[str]) -> None:
    """Removes what a killed run would have resumed from: the means first, since a run without them starts at the first
    batch and writes all files again."""
    shutil.rmtree(run.folder / PACKED, ignore_errors=True)
    (run.folder / STATE).unlink(missing_ok=True)
    for label in labels:
        _name_batch_file(run, label).unlink(missing_ok=True)


def _make_null_observer(
    run: Run, comparison: Comparison, sequences: Mapping[str, Sequences], work: PairWork, fill: Fill
) -> Beside | None:
    """Makes what observes the values of rows that are paired at random, or whether single rows may be. fill: takes
    permutations from the cache."""

    def permutations(steps: Sequence[Any], measure: str) -> Iterator[Any]:
        return run.progress(steps, label=f"permutations, {measure}", unit="steps")

    def notes(batch: int, label: str, shape: Sequence[int]) -> np.ndarray:
        noted = work.notes(batch, f"{note_name(label)}-null", shape)
        fill(batch, label, noted)
        return noted

    if comparison.exchanged is not None:
        return draw_permutations(comparison, sequences, notes, permutations)
    if comparison.groups is None and _is_row_a_unit(comparison):
        return make_rows_observer(comparison.measures, comparison.numbers, comparison.seed)
    return None


def _make_alike_observer(comparison: Comparison) -> Beside | None:
    """Makes what observes whether batches are alike, where there are enough of them, each of all layers."""
    if comparison.extract.estimate not in IN_BATCHES or comparison.batches < FEWEST or comparison.groups is not None:
        return None
    first = next(iter(comparison.measures))
    return make_batches_observer(first, partial(_list_documents, comparison), comparison.seed)


def _list_documents(comparison: Comparison, batch: int) -> np.ndarray:
    """Lists the document of every row of a batch."""
    return comparison.documents[comparison.numbers(batch)]


def make_chance_observer(comparison: Comparison) -> Statistics:
    """Makes what observes chance in every batch."""
    if comparison.units is None or comparison.groups is not None:
        return lambda *_: {}
    return chance.observe_chance(comparison.units, comparison.numbers, comparison.batches, comparison.seed)


def make_places_finder(comparison: Comparison) -> Callable[[int], RowPlaces | None]:
    """Makes what finds the places of a batch's rows, where the exact means of inner products are wanted."""
    units, layers = comparison.units, len(comparison.layers)
    inner = any(isinstance(measure, InnerProduct) for measure in comparison.measures.values())
    if units is None or comparison.groups is not None or not inner:
        return lambda batch: None
    device = comparison.hardware.device
    return lambda batch: index_row_places(units.keep(comparison.numbers(batch)), layers, device)


def _is_row_a_unit(comparison: Comparison) -> bool:
    """Tells whether single rows are what a test or the level of chance pairs at random."""
    units = comparison.units
    alone = units is not None and len(np.unique(units.units)) == len(units.units)
    return alone or comparison.significance.method == "closed_form"


def draw_permutations(
    comparison: Comparison,
    sequences: Mapping[str, Sequences],
    notes: judging.Notes,
    progress: Steps = iterate_silently,
) -> Beside:
    """The permutations."""
    assert comparison.exchanged is not None
    return judging.draw_pairings(
        comparison.significance,
        comparison.measures,
        comparison.exchanged,
        names=comparison.names,
        seed=comparison.seed,
        tile=comparison.hardware.tile,
        labels=comparison.labels(sequences),
        sizes=make_size_lookup(comparison),
        documents=comparison.documents_apart,
        notes=notes,
        progress=progress,
    )


def make_size_lookup(comparison: Comparison) -> Callable[[int], np.ndarray | None]:
    """Makes a function that gives, by batch, the size of the document of each row; None where all are of one size."""
    _, document, count = np.unique(comparison.documents, return_inverse=True, return_counts=True)
    if len(np.unique(count)) == 1:
        return lambda batch: None
    return lambda batch: count[document[comparison.numbers(batch)]]


def _needs_jackknife(comparison: Comparison) -> bool:
    """Tells whether standard errors need every batch's matrix: those of a ratio of sums do not add up over batches."""
    return comparison.significance.bands and comparison.extract.estimate == "ratio_of_sums"


def _name_batch_file(run: Run, label: str) -> Path:
    """The file of every batch's matrix, until the run ends."""
    return run.folder / f".per-batch-{note_name(label)}.npy"


def _keep(run: Run, comparison: Comparison) -> Callable[[int, Mapping[str, Tensor]], None]:
    """Writes every batch's matrix, for the jackknife."""
    count = len(comparison.layers)
    shape, kept = (comparison.batches, count, count), {}
    for label in comparison.measures:
        file = _name_batch_file(run, label)
        whole = file.is_file() and np.load(file, mmap_mode="r").shape == shape
        kept[label] = np.lib.format.open_memmap(file, "r+") if whole else create_npy(file, np.float64, shape)

    def keep(batch: int, values: Mapping[str, Tensor]) -> None:
        for label, matrix in values.items():
            kept[label][batch] = matrix.cpu().numpy()

    return keep
