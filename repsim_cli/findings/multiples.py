"""Small multiples: the layers of one pair of models under every measure of a run."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from repsim_cli.base.plain import slug
from repsim_cli.figures.heatmap import OfMeasure, draw_measure_maps, name_by_block
from repsim_cli.figures.panels import list_models, split_into_pages
from repsim_cli.findings.analysis import Finished, Job
from repsim_cli.findings.answering import find_closest_columns
from repsim_cli.findings.chance import find_chance_of_values
from repsim_cli.runs.content import Matrix, Measured

MOST_PAIRS = 3  # pairs of models up to which each has a figure of its own in the overview
MEASURES = 12  # small maps of a figure at most


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """measures-MODEL-MODEL: every pair of models, or each model where none are compared with others; on demand, or
    where there are few."""
    by_pair: dict[tuple[str, str], list[tuple[Measured, Matrix]]] = {}
    for measured in run.results.measures:
        for matrix in measured.matrices:
            if min(len(matrix.rows.layers), len(matrix.columns.layers)) > 1:
                by_pair.setdefault((matrix.rows.model, matrix.columns.model), []).append((measured, matrix))
    by_pair = {pair: parts for pair, parts in by_pair.items() if len(parts) > 1}
    several = {pair: parts for pair, parts in by_pair.items() if pair[0] != pair[1]} or by_pair
    for pair, parts in several.items() if whole or len(several) <= MOST_PAIRS else ():
        for name, some in split_into_pages(slug("measures", *pair), parts, MEASURES):
            yield name, partial(_draw_pair_measures, run, some)


def _draw_pair_measures(run: Finished, parts: Sequence[tuple[Measured, Matrix]]) -> Any:
    """One pair of models, a small matrix per measure."""
    leading, first = parts[0]
    models = first.rows.model, first.columns.model
    drawn = []
    for measured, matrix in parts:
        values = run.array(matrix.values)
        sides = ([model] * size for model, size in zip(models, values.shape, strict=True))
        chance, _ = find_chance_of_values(run, measured, values, *sides)
        line = find_closest_columns(values, measured.larger_is_closer) if len(set(models)) == 2 else []
        drawn.append(
            OfMeasure(
                name=measured.label,
                values=values,
                card=measured.card,
                chance=chance,
                path=line,
                limits=run.limits(measured),
            )
        )
    _, said = name_by_block([*first.rows.layers, *first.columns.layers])
    rows, columns = (name_by_block(side.layers)[0] if said else side.layers for side in (first.rows, first.columns))
    known = sum(part.chance is not None for part in drawn)
    level = {0: "chance is not drawn", len(drawn): "▸ beside the colours: chance"}.get(
        known, "▸ beside the colours: chance, where it is known"
    )
    sides = "models" if leading.card.get("reads") == "outputs" else "the layers"
    title = f"{list_models(list(dict.fromkeys(models)))}: how alike {sides} are, by measure"
    closest = f"line: the closest of {models[1]}; " if any(i is not None for x in drawn for i in x.path) else ""
    title += f"\n{said + '; ' if said else ''}bright is close; {closest}{level}"
    return draw_measure_maps(drawn, rows, columns, models, title)
