"""How far the matrices of two runs differ, matched by measure, model labels and layer names."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import slug
from repsim_cli.figures.heatmap import heatmap
from repsim_cli.runs.reader import read_array, read_results

SMALLEST_RANGE = 1e-12


class Difference(NamedTuple):
    """A pair of models under a measure; `block` is the second run minus the first on the layers that both have, NaN
    where a run has no value."""

    measure: str
    rows: str
    columns: str
    row_layers: list[str]
    column_layers: list[str]
    block: np.ndarray

    @property
    def known(self) -> np.ndarray:
        """The sizes of the differences where both runs have a value."""
        return np.abs(self.block[~np.isnan(self.block)])

    @property
    def largest(self) -> float:
        return float(self.known.max())

    @property
    def mean(self) -> float:
        return float(self.known.mean())


def compare(first: Path, second: Path) -> tuple[list[Difference], list[str]]:
    """The differences, and what only one of the runs has. Raises BadInput where they share nothing."""
    left, right = _blocks(first), _blocks(second)
    differences, unmatched = [], []
    for key in [*left, *(k for k in right if k not in left)]:
        if key not in left or key not in right:
            where = first if key in left else second
            unmatched.append(f"{key[0]}: {key[1]} x {key[2]} only in {where}")
            continue
        (rows_a, columns_a, a), (rows_b, columns_b, b) = left[key], right[key]
        rows = [name for name in rows_a if name in rows_b]
        columns = [name for name in columns_a if name in columns_b]
        if not rows or not columns:
            unmatched.append(f"{key[0]}: {key[1]} x {key[2]} have no layer in common")
            continue
        taken = [
            values[np.ix_([r.index(n) for n in rows], [c.index(n) for n in columns])]
            for values, r, c in ((a, rows_a, columns_a), (b, rows_b, columns_b))
        ]
        block = taken[1] - taken[0]
        if np.isnan(block).all():
            unmatched.append(f"{key[0]}: {key[1]} x {key[2]} have no cell with a value in both")
            continue
        differences.append(Difference(*key, rows, columns, block))
    if not differences:
        raise BadInput(f"RUN: the runs share no measure and pair of models, got {first} and {second}; compare others")
    return differences, unmatched


def _blocks(folder: Path) -> dict[tuple[str, str, str], tuple[list[str], list[str], np.ndarray]]:
    """(measure, row model, column model) -> layers and values; symmetric pairs both ways."""
    blocks = {}
    for measure in read_results(folder).measures:
        for matrix in measure.matrices:
            rows, columns = matrix.rows, matrix.columns
            values = read_array(folder, matrix.values)
            if measure.card["symmetric"] and rows.model > columns.model:
                rows, columns, values = columns, rows, values.T
            blocks[measure.label, rows.model, columns.model] = (rows.layers, columns.layers, values)
    return blocks


def table(differences: list[Difference]) -> list[dict[str, Any]]:
    """A row per measure and pair of models."""
    return [
        {
            "measure": d.measure,
            "rows": d.rows,
            "columns": d.columns,
            "layers": d.known.size,
            "largest": d.largest,
            "mean": d.mean,
        }
        for d in differences
    ]


def figures(differences: list[Difference], names: tuple[str, str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """A heatmap per measure and pair of models, zero in the middle of the scale. names: of the two runs."""
    for number, difference in enumerate(differences):
        name = slug(difference.measure, f"{number:02d}", difference.rows, difference.columns)
        yield name, partial(_figure, difference, names)


def _figure(difference: Difference, names: tuple[str, str]) -> Any:
    most = max(difference.largest, SMALLEST_RANGE)
    title = f"{difference.measure}: difference\n{names[1]} minus {names[0]}"
    figure, axes = heatmap(
        difference.block,
        difference.row_layers,
        difference.column_layers,
        title,
        "difference",
        (-most, most),
        "RdBu_r",
        "{:.2g}",
    )
    axes.set_ylabel(difference.rows, parse_math=False)
    axes.set_xlabel(difference.columns, parse_math=False)
    return figure
