"""What results.json says of a measure and its tests: a file per pair of models, or one where they are many."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from repsim_cli.activations.readings import Reading
from repsim_cli.base.errors import RunFailed
from repsim_cli.base.plain import slug
from repsim_cli.engine import chance, floor
from repsim_cli.engine import significance as judging
from repsim_cli.engine.batches import UNLIKE, WARNING, are_batches_apart
from repsim_cli.engine.comparison import Comparison
from repsim_cli.engine.prepared import SimilarityMatrix
from repsim_cli.engine.scatter import read_scatter
from repsim_cli.engine.streamed import Matrices
from repsim_cli.measures import Measure, Pairwise
from repsim_cli.measures.base import is_cosine, permute_rows
from repsim_cli.runs.content import CHANCE, Matrix, Measured, Side, Table
from repsim_cli.runs.reader import find_closest_cell, name_array_block, read_array
from repsim_cli.runs.results import Run
from repsim_cli.runs.so_far import Writer


def make_card_record(measure: Measure) -> dict[str, Any]:
    """The card as results.json has it. cosine: whether the value is a cosine, whose angle is a metric."""
    return {**measure.card.record(), "cosine": is_cosine(measure)}


UNTESTED = "no test or error: some batch, random pairing or sample without it leaves the measure undefined"
CORRECTED = ("p_family", "q")  # not given for every map
# of a Matrix; all else are details
CELLS = ("values", "se", "p", "p_family", "q", "calibrated", "tested", "low", "high")
APART = 1000  # matrices of a measure that have files of their own; of more all cells stand in one


class Sampled(NamedTuple):
    """The kind of an estimate, and the numbers of its rows, of its batches and of available rows; None: those of the
    run."""

    kind: str
    rows: int
    batches: int
    available: int | None = None


def measure_record(
    run: Run,
    comparison: Comparison,
    label: str,
    matrix: SimilarityMatrix,
    extra: Mapping[str, Any] = MappingProxyType({}),
    null: dict[str, Any] | None = None,
    available: int | None = None,
) -> Measured:
    """A measure in results.json; its matrices are saved, one per pair of models (both ways if asymmetric), where any
    of their cells was wanted. Where these are more than `APART`, they are blocks of one array.

    extra: further numbers of every cell (se, p, ...), saved beside the values; None is left out.
    available: how many rows matrix.rows were taken of, by default the rows of the run. Cells without a value are NaN,
    and listed.
    """
    readings, places, measure = comparison.readings, comparison.places, comparison.measures[label]
    kept = np.ones(matrix.values.shape, bool) if comparison.wanted is None else comparison.wanted.numpy()
    arrays, why = _explain_gaps(run, label, matrix, extra, kept)
    symmetric, count = measure.card.symmetric, len(readings)
    pairs = [(i, j) for i in range(count) for j in range(i if symmetric else 0, count)]
    pairs = [(i, j) for i, j in pairs if kept[places[i], places[j]].any()]
    together = {key: run.write_array(slug(label, key), x) for key, x in arrays.items()} if len(pairs) > APART else {}
    matrices = []
    for i, j in pairs:
        row, column, block = readings[i], readings[j], (places[i], places[j])
        run.without_value += list_undefined(label, row, column, *block, why)
        given = {key: part[block] for key, part in arrays.items()}
        given = {key: part for key, part in given.items() if key not in CORRECTED or not np.isnan(part).all()}
        if together:
            files = {key: name_array_block(together[key], *block) for key in given}
        else:
            stem = slug(label, f"{i:02d}", f"{j:02d}", row.label, column.label)
            names = {key: stem if key == "values" else slug(stem, key) for key in given}
            files = {key: run.write_array(names[key], part) for key, part in given.items()}
        cells: dict[str, Any] = {key: file for key, file in files.items() if key in CELLS}
        matrices.append(
            Matrix(
                rows=Side(model=row.label, layers=[layer.name for layer in row.layers]),
                columns=Side(model=column.label, layers=[layer.name for layer in column.layers]),
                n=matrix.rows,
                details={key: file for key, file in files.items() if key not in CELLS},
                **cells,
            )
        )
    sampled = Sampled(matrix.estimate, matrix.rows, matrix.batches, available)
    measured = _record(run, label, measure, sampled, matrices, null)
    return replace(measured, estimate={**measured.estimate, "pairs": comparison.pairs_of(measure)})


def _explain_gaps(
    run: Run, label: str, matrix: SimilarityMatrix, extra: Mapping[str, Any], kept: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[tuple[int, int], str]]:
    """The arrays of a measure, NaN beside cells without a value, and why cells lack a value or a test, of which the run
    warns. kept: the cells that are written."""
    values, lacking = matrix.values.cpu().numpy(), np.zeros(matrix.values.shape, bool)
    for cell in matrix.undefined:
        lacking[cell] = True
    if not (np.isfinite(values) ^ lacking)[kept].all():
        raise RunFailed(f"{label}: a value is not finite; please report this with the run's config")
    beside = {key: np.where(lacking, np.nan, np.asarray(part)) for key, part in extra.items() if part is not None}
    everywhere = [part for key, part in beside.items() if key not in CORRECTED]
    untested = np.isnan([values, *everywhere]).any(0) & ~lacking & kept
    if untested.any():
        run.warn(f"{label}: {untested.sum():,} cells with a value: {UNTESTED}")
    why = {**matrix.undefined, **{(i, j): UNTESTED for i, j in np.argwhere(untested).tolist()}}
    return {"values": values, **beside}, why


def list_undefined(
    label: str, row: Reading, column: Reading, rows: slice, columns: slice, why: Mapping[tuple[int, int], str]
) -> list[list[str]]:
    """Lists the cells without a value of the matrix of two models, as rows of their table. rows, columns: its place."""
    return [
        [label, row.label, column.label, row.layers[a - rows.start].name, column.layers[b - columns.start].name, text]
        for (a, b), text in sorted(why.items())
        if rows.start <= a < rows.stop and columns.start <= b < columns.stop
    ]


def make_map_writer(run: Run, comparison: Comparison, of: int = 0) -> Writer:
    """Makes the writer that keeps the maps of the run in its folder while they are computed. of: how many rows the run
    has, where these are its first."""
    wanted, batches, rows = comparison.wanted, comparison.batches, len(comparison.numbers(0))
    names = [(layer.model, layer.name) for layer in comparison.layers]
    cells = len(names) ** 2 if wanted is None else int(wanted.sum())
    sampled = Sampled(comparison.extract.estimate, rows, batches, comparison.total)
    records = {
        label: _record(run, label, measure, sampled, matrices=[]) for label, measure in comparison.measures.items()
    }
    return Writer(folder=run.folder, names=names, measures=records, rows=rows, batches=batches, cells=cells, of=of)


def record_square_matrices(
    run: Run,
    label: str,
    measure: Measure,
    blocks: Mapping[str, tuple[Sequence[str], np.ndarray]],
    undefined: Mapping[str, Mapping[tuple[int, int], str]],
    sampled: Sampled,
) -> Measured:
    """A measure in results.json, of separate square matrices: name -> (names of rows and columns, values). undefined:
    by name, why cells have no value."""
    matrices = []
    for i, (name, (layers, values)) in enumerate(blocks.items()):
        why = undefined.get(name, {})
        if {*map(tuple, np.argwhere(~np.isfinite(values)).tolist())} != set(why):
            raise RunFailed(f"{label}: a value of {name} is not finite; please report this with the run's config")
        run.without_value += [[label, name, name, layers[a], layers[b], text] for (a, b), text in sorted(why.items())]
        side = Side(model=name, layers=list(layers))
        file = run.write_array(slug(label, f"{i:03d}", name), values)
        matrices.append(Matrix(rows=side, columns=side, values=file, n=sampled.rows))
    return _record(run, label, measure, sampled, matrices)


def _record(
    run: Run,
    label: str,
    measure: Measure,
    sampled: Sampled,
    matrices: list[Matrix],
    null: dict[str, Any] | None = None,
) -> Measured:
    return Measured(
        name=measure.name,
        label=label,
        settings=dict(measure.settings),
        estimate={
            "kind": sampled.kind,
            "rows": sampled.rows,
            "rows_available": run.manifest["rows"] if sampled.available is None else sampled.available,
            "batches": sampled.batches,
            **({"remedies": remedies} if (remedies := run.manifest.get("remedies")) else {}),
        },
        card=make_card_record(measure),
        matrices=matrices,
        null=null,
    )


CLOSEST = ["measure", "model a", "model b", "layer a", "layer b"]
JUDGED = ["tested", CHANCE, "calibrated", "p", "p_family"]  # beside the value of the closest layers


def say_why_unknown(comparison: Comparison, measure: Measure) -> str:
    """Says why the level of chance is not known, if it is not."""
    if not measure.card.paired:
        return "the measure does not depend on how rows are paired"
    if comparison.groups is not None:
        return "layers are read in groups, for lack of memory; raise hardware.memory_gb"
    if comparison.units is not None and isinstance(measure, Pairwise) and measure.permute is permute_rows:
        return "the measure does not say how its states are permuted (`permute`), or no cell has a value"
    return comparison.unknown or "no cell has a value under random pairings"


def make_measure_records(
    run: Run, comparison: Comparison, matrices: Matrices
) -> tuple[list[Measured], dict[str, Table]]:
    """The measures as results.json has them, and after a test the table of the closest layers of every two models."""
    significance, measured = comparison.significance, list[Measured]()
    table: list[list[Any]] = []
    doubtful = dict[str, None]()
    for label, matrix in matrices.items():
        measure = comparison.measures[label]
        judged = judging.judge_significance(significance, measure, matrix, comparison.exchanged, comparison.places)
        for fault in (judged.null or {}).get("not_valid", ()):
            run.warn(f"significance: {label}: not valid: {fault}")
        by_chance = chance.compute_chance_level(matrix, comparison.units, say_why_unknown(comparison, measure))
        by_chance.about.update(read_scatter(matrix.statistics))
        if judged.null is None and (doubts := judging.explain_doubtful_chance(matrix, comparison.places)):
            by_chance.about["doubtful"] = doubts
            doubtful.update(dict.fromkeys(doubts))
        if judged.null is not None and judged.null.get("heavy"):
            run.warn(
                f"significance: {label}: few rows hold most of the variance, so that the closed form does not know the "
                f"tail of the null: p_family and q are not given for {judged.null['heavy']} of "
                f"{judged.null['families']} families of cells, where p may be off; use significance=permutation"
            )
        extra: dict[str, Any] = {
            "se": matrix.statistics.get("se", matrix.se),
            "p": judged.p,
            "p_family": judged.p_family,
            "q": judged.q,
            "calibrated": judged.calibrated,
            "tested": judged.tested,
            CHANCE: by_chance.cells,
        }
        if measure.slow is not None:
            extra |= {key: matrix.statistics[key] for key in measure.slow.details}
        if significance.bands and extra["se"] is not None:
            extra["low"], extra["high"] = judging.compute_t_intervals(
                matrix.values, extra["se"], matrix.batches, significance, measure.card
            )
        record = measure_record(run, comparison, label, matrix, extra, judged.null)
        record = replace(record, chance=by_chance.about, floor=floor.record(matrix, comparison))
        measured.append(record)
        for each in record.matrices if judged.null is not None else ():
            models = each.rows.model, each.columns.model
            cells = {what: read_array(run.folder, path) for what, path in each.cells.items()}
            if models[0] != models[1] and (found := find_closest_cell(record, each, cells)):
                *layers, numbers = found
                table.append([label, *models, *layers, numbers["values"], *map(numbers.get, JUDGED)])
    for matrix in matrices.values():
        found = matrix.statistics.get(UNLIKE)
        if found is not None and are_batches_apart(found, matrix.batches, comparison.places):
            run.warn(WARNING)
    for doubt in doubtful:
        run.warn(f"chance: it is of random pairings of single rows, which give too little here: {doubt}")
    return measured, {"closest layers": Table(columns=[*CLOSEST, "value", *JUDGED], rows=table)} if table else {}
