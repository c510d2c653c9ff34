"""A run as its analyses read it: no cell is without a value, so that no analysis has to know of such cells.

A layer is left out where at least half of the measures have no value for it; then a measure that lacks any value still.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from repsim_cli.findings.analysis import Finished
from repsim_cli.runs.content import REMEDY, WITHOUT_VALUE, Matrix, Measured, Side

Layer = tuple[str, str]  # model, name


def complete(run: Finished) -> tuple[Finished | None, list[str]]:
    """Leaves out what lacks values: the run, None where nothing is left, and what is left out, in words."""
    if WITHOUT_VALUE not in run.results.tables or not run.results.measures:
        return run, []
    counts = Counter(layer for measured in run.results.measures for layer in find_lacking(run, measured))
    out = {layer for layer, count in counts.items() if 2 * count >= len(run.results.measures)}
    if run.groups:  # whose models have the same layers
        names = {name for _, name in out}
        out = {
            layer for measured in run.results.measures for layer in list_measured_layers(measured) if layer[1] in names
        }
    left, kept = leave_out_layers(run, out), []
    for measured in left.results.measures:
        if not any(np.isnan(left.array(matrix.values)).any() for matrix in measured.matrices):
            kept.append(measured)
    dropped = [measured.label for measured in left.results.measures if measured not in kept]
    said = [f"the layers {', '.join(f'{model} {name}' for model, name in sorted(out))}"] if out else []
    said += [f"the measures {', '.join(dropped)}"] if dropped else []
    warnings = [f"analyses: {' and '.join(said)} are left out, as they lack values"] if said else []
    empty = not kept or any(0 in np.shape(left.array(x.values)) for measured in kept for x in measured.matrices)
    return None if empty else replace(left, results=replace(left.results, measures=kept)), warnings


def list_measured_layers(measured: Measured) -> set[Layer]:
    return {(side.model, name) for x in measured.matrices for side in (x.rows, x.columns) for name in side.layers}


def find_lacking(run: Finished, measured: Measured) -> Iterator[Layer]:
    """Finds the layers that have no cell with a value."""
    known: Counter[Layer] = Counter()
    for matrix in measured.matrices:
        has = np.isfinite(run.array(matrix.values))
        for side, counts in ((matrix.rows, has.sum(1)), (matrix.columns, has.sum(0))):
            known.update({(side.model, name): int(n) for name, n in zip(side.layers, counts, strict=True)})
    return (layer for layer in list_measured_layers(measured) if not known[layer])


def leave_out_layers(run: Finished, out: Collection[Layer]) -> Finished:
    """Gives the run without these layers, and without the steps of a training that keep none."""
    left, models = {}, run.manifest.get("models", {})

    def find_kept_layers(side: Side) -> list[int]:
        return [i for i, name in enumerate(side.layers) if (side.model, name) not in out]

    def drop_layers(matrix: Matrix) -> Matrix:
        places = find_kept_layers(matrix.rows), find_kept_layers(matrix.columns)
        left.update(dict.fromkeys([*matrix.cells.values(), *matrix.details.values()], np.ix_(*places)))
        rows, columns = (
            replace(side, layers=[side.layers[i] for i in at])
            for side, at in zip((matrix.rows, matrix.columns), places, strict=True)
        )
        return replace(matrix, rows=rows, columns=columns)

    results = run.results
    measures = [
        replace(
            measured,
            matrices=[x for x in map(drop_layers, measured.matrices) if x.rows.layers or x.rows.model in models],
        )
        for measured in results.measures
    ]
    matrices = {k: drop_layers(x) if x.about.get("kind") == REMEDY else x for k, x in results.matrices.items()}
    facts = {}
    for model, about in run.manifest.get("facts", {}).items():
        at = find_kept_layers(Side(model=model, layers=about["layers"]))
        facts[model] = {**about, **{key: [about[key][i] for i in at] for key in ("layers", "widths")}}
    manifest = {**run.manifest, "facts": facts}
    return replace(run, manifest=manifest, results=replace(results, measures=measures, matrices=matrices), left=left)
