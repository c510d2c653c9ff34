"""Which attention heads are alike: every head of one model, or layer, against every one of another."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import slug
from repsim_cli.base.registry import did_you_mean
from repsim_cli.figures.colours import choose_card_colours, choose_colour_range
from repsim_cli.figures.heatmap import draw_heatmap
from repsim_cli.findings.analysis import Job
from repsim_cli.runs.content import Matrix, Measured, Results
from repsim_cli.runs.reader import read_array


class HeadSide(NamedTuple):
    """The heads of a model or of one of its layers: where they stand among all, their names, where layers begin."""

    place: slice
    names: list[str]
    starts: list[int]


def draw_figures(folder: Path, results: Results, rows: str, columns: str) -> Iterator[Job]:
    """heads-MEASURE-ROWS-COLUMNS for every measure that matches heads. rows, columns: a model, or MODEL@LAYER.

    Raises BadInput for a run without matrices of heads, and for a model or layer that it does not have.
    """
    matrices = {x.about["measure"]: x for x in results.matrices.values() if x.rows.model == "heads"}
    if not matrices:
        raise BadInput(f"{folder}: it has no matrices of heads, got --heads; choose a run with e.g. attention_js")
    sides = [_select_heads(results.about["heads"], name) for name in (rows, columns)]
    for measure in (measure for measure in results.measures if measure.label in matrices):
        name = slug("heads", measure.label, rows, columns)
        yield name, partial(_draw_head_map, folder, measure, matrices[measure.label], rows, columns, *sides)


def _select_heads(models: list[dict[str, Any]], name: str) -> HeadSide:
    labels = [model["model"] for model in models]
    label, at, layer = (name, "", "") if name in labels else name.rpartition("@")
    if label not in labels:
        raise BadInput(f"--heads: no such model, got '{name}'; {did_you_mean(label or name, labels)}")
    first = 0
    for model in models[: labels.index(label)]:
        first += len(model["layers"]) * model["heads"]
    model = models[labels.index(label)]
    heads, layers = model["heads"], model["layers"]
    if at:
        numbers = [layer_name.partition("@")[2] for layer_name in layers]
        if layer not in numbers:
            raise BadInput(f"--heads: '{label}' has no such layer, got '{name}'; known: {', '.join(numbers)}")
        first += numbers.index(layer) * heads
        layers = [layers[numbers.index(layer)]]
    names = [f"{layer_name.partition('@')[2]}.h{head}" for layer_name in layers for head in range(heads)]
    return HeadSide(slice(first, first + len(names)), names, list(range(0, len(names), heads)))


def _draw_head_map(
    folder: Path, measure: Measured, matrix: Matrix, rows: str, columns: str, row: HeadSide, column: HeadSide
) -> Any:
    card = measure.card
    values = read_array(folder, matrix.values)[row.place, column.place]
    figure, axes = draw_heatmap(
        values,
        row.names,
        column.names,
        title=f"{card['label']} of heads (dots: best matches)\n{measure.estimate['rows']:,} {measure.estimate['unit']}",
        bar_label=matrix.label,
        limits=choose_colour_range(values, card, "values"),
        colours=choose_card_colours(card, "values"),
        form="{:.2f}",
    )
    for start in row.starts[1:]:
        axes.axhline(start - 0.5, color="white", linewidth=0.6)
    for start in column.starts[1:]:
        axes.axvline(start - 0.5, color="white", linewidth=0.6)
    # each head's best match, of which the layers' similarity is the mean
    for start, end in zip(column.starts, [*column.starts[1:], len(column.names)], strict=True):
        best = start + np.argmax(values[:, start:end], 1)
        at = np.arange(len(values)) - 0.3
        axes.scatter(best + 0.3, at, s=_choose_dot_area(values.shape), c="white", edgecolors="black", linewidths=0.3)
    axes.set_ylabel(rows, parse_math=False)
    axes.set_xlabel(columns, parse_math=False)
    return figure


def _choose_dot_area(shape: tuple[int, ...]) -> float:
    """Area of the mark of a best match, in square points: it fits into a cell of a small matrix, and of a large."""
    return float(np.clip(700 / max(shape), 2, 20))
