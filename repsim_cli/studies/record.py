"""Matrices of all layers as results.json keeps them: one file per pair of models."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from repsim_cli.activations.rows import Reading
from repsim_cli.errors import RunFailed
from repsim_cli.measures import Measure
from repsim_cli.results import Run, slug
from repsim_cli.similarity import SimilarityMatrix, Wanted


def places_of(found: Sequence[Reading]) -> list[slice]:
    """Where each model's layers stand among all."""
    ends = np.cumsum([0, *(len(reading.layers) for reading in found)])
    return [slice(start, end) for start, end in itertools.pairwise(ends)]


def measure_record(
    run: Run,
    found: Sequence[Reading],
    label: str,
    measure: Measure,
    matrix: SimilarityMatrix,
    extra: Mapping[str, Any],
    null: dict[str, Any] | None,
    available: int | None = None,
    wanted: Wanted | None = None,
) -> dict[str, Any]:
    """One measure in results.json, its matrices saved: one per pair of models (both ways if asymmetric).

    extra: what else is known of every cell (se, p, ...), saved beside the values where it is there; integers as such.
    available: what matrix.rows were taken of, by default the rows of the run. wanted: which cells the run is about;
    the matrix of two models is saved where one is.
    """
    places = places_of(found)
    values = matrix.values.cpu().numpy()
    beside = {key: np.asarray(part) for key, part in extra.items() if part is not None}
    kept = np.ones(values.shape, bool) if wanted is None else wanted.numpy()
    if not np.isfinite(values[kept]).all():
        raise RunFailed(f"{label}: a value is not finite; please report this with the run's config")
    records = []
    for i, row in enumerate(found):
        for j, column in enumerate(found):
            if measure.card.symmetric and j < i:
                continue
            block = (places[i], places[j])
            if not kept[block].any():
                continue
            stem = f"{slug(label)}-{i:02d}-{j:02d}-{slug(row.label)}-{slug(column.label)}"
            records.append(
                {
                    "rows": {"model": row.label, "layers": [layer.name for layer in row.layers]},
                    "columns": {"model": column.label, "layers": [layer.name for layer in column.layers]},
                    "values": run.write_array(stem, values[block]),
                    **dict.fromkeys(("se", "p")),
                    **{key: run.write_array(f"{stem}-{key}", part[block], _kept(part)) for key, part in beside.items()},
                    "n": matrix.rows,
                }
            )
    return _record(run, label, measure, matrix.estimate, matrix.rows, matrix.batches, null, records, available)


def _kept(part: np.ndarray) -> Any:
    """The type that numbers are saved as."""
    return part.dtype if part.dtype.kind == "i" else np.float64


def blocks_record(
    run: Run,
    label: str,
    measure: Measure,
    blocks: Mapping[str, tuple[Sequence[str], np.ndarray]],
    *,
    estimate: str,
    rows: int,
    batches: int,
) -> dict[str, Any]:
    """One measure in results.json, of square matrices that stand alone: name -> (names of rows and columns, values)."""
    records = []
    for i, (name, (layers, values)) in enumerate(blocks.items()):
        if not np.isfinite(values).all():
            raise RunFailed(f"{label}: a value of {name} is not finite; please report this with the run's config")
        side = {"model": name, "layers": list(layers)}
        file = run.write_array(f"{slug(label)}-{i:03d}-{slug(name)}", values)
        records.append({"rows": side, "columns": side, "values": file, **dict.fromkeys(("se", "p")), "n": rows})
    return _record(run, label, measure, estimate, rows, batches, None, records)


def _record(
    run: Run,
    label: str,
    measure: Measure,
    estimate: str,
    rows: int,
    batches: int,
    null: dict[str, Any] | None,
    matrices: list[dict[str, Any]],
    available: int | None = None,
) -> dict[str, Any]:
    return {
        "name": measure.name,
        "label": label,
        "settings": dict(measure.settings),
        "estimate": {
            "kind": estimate,
            "rows": rows,
            "rows_available": run.manifest["rows"] if available is None else available,
            "batches": batches,
        },
        "null": null,
        "card": measure.card.record(),
        "matrices": matrices,
    }
