"""Heatmaps of the difference between two runs, zero in the middle of the colour scale."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from repsim_cli.plots.heatmap import heatmap
from repsim_cli.results import slug

SMALLEST_RANGE = 1e-12


def figures(differences: list, names: tuple[str, str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """One per measure and pair of models (`analysis.comparison.Difference`); names: of the two runs."""
    for number, found in enumerate(differences):
        name = f"{slug(found.measure)}-{number:02d}-{slug(found.rows)}-{slug(found.columns)}"
        yield name, partial(_figure, found, names)


def _figure(found: Any, names: tuple[str, str]) -> Any:
    most = max(float(np.abs(found.block).max()), SMALLEST_RANGE)
    title = f"{found.measure}: difference\n{names[1]} minus {names[0]}"
    figure, axes = heatmap(
        found.block, found.row_layers, found.column_layers, title, "difference", (-most, most), "RdBu_r", "{:.2g}"
    )
    axes.set_ylabel(found.rows, parse_math=False)
    axes.set_xlabel(found.columns, parse_math=False)
    return figure
