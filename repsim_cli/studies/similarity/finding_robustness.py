"""Which cells of a map rest on a few features or rows: the map under each remedy, side by side."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import slug
from repsim_cli.base.remedies import REMEDIES, say_treatment
from repsim_cli.base.settings import From0, Positive
from repsim_cli.figures.colours import choose_card_colours, choose_colour_range
from repsim_cli.figures.heatmap import TICK, hatch, name_by_block
from repsim_cli.figures.panels import add_colour_bar, find_outer_panels, make_panels, name_panels, set_headline
from repsim_cli.findings.analysis import Finished, Job, LayerMap, Part, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.runs.content import Matrix, Side, Table

NONE = "none"  # the rows as models give them
COLUMNS = ["measure", "remedy", "cells", "cells that change", "share", "largest change", "row", "column"]
CELLS = "cells that change most"
SIDE, SMALLEST = 2.0, 0.8  # inches


@dataclass(frozen=True, kw_only=True)
class Robustness:
    """The map of every measure under each remedy (`extract.skip`, `normalise`, `drop_features`): which cells change.

    change: a cell changes where its value differs by more than this from that of the raw rows.
    most: how many cells, those of the largest changes, the table has of each measure.
    """

    change: From0 = 0.1
    most: Positive = 50


def read_remedy_maps(run: Finished) -> dict[str, dict[str, LayerMap]]:
    """Reads the maps by measure and remedy, of the measures that have a map with and without a remedy."""
    whole = run.results.index_by_remedy()
    maps = {label: {name: run.map_of(m) for name, m in by_remedy.items()} for label, by_remedy in whole.items()}
    return {label: by_remedy for label, by_remedy in maps.items() if NONE in by_remedy and len(by_remedy) > 1}


def compute_remedy_changes(maps: Mapping[str, LayerMap]) -> dict[str, np.ndarray]:
    """Computes by remedy how far every cell is from that without one. Cells on the diagonal, and those that mirror
    others of a symmetric measure, are NaN."""
    base = maps[NONE]
    seen = np.triu(np.ones_like(base.values, dtype=bool), 1)
    if not base.measure.card["symmetric"]:
        seen |= seen.T
    return {name: np.where(seen, layers.values - base.values, np.nan) for name, layers in maps.items() if name != NONE}


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """robustness-MEASURE: a panel per remedy; cells that change are marked."""
    change = run.results.analyses["robustness"]["options"]["change"]
    for label, maps in read_remedy_maps(run).items():
        yield slug("robustness", label), partial(_draw_remedy_changes, label, maps, change)


def _draw_remedy_changes(label: str, maps: Mapping[str, LayerMap], change: float) -> Any:
    """The map of the raw rows, and beside it what each remedy changes."""
    base = maps[NONE]
    card, names = base.measure.card, base.names
    in_words = {name: say_treatment(remedy) for name, remedy in REMEDIES.items()}
    changed = {name: layers.values - base.values for name, layers in maps.items() if name != NONE}
    most = max([float(np.nanmax(np.abs(cells))) for cells in changed.values()] + [1e-12])
    low, high = choose_colour_range(base.values[np.isfinite(base.values)], card, "values")
    figure, axes = make_panels(len(maps), min(3, len(maps)), SIDE, SIDE, gaps=(0.15, 0.28), least=SMALLEST)
    side = axes[0].get_window_extent().width / figure.dpi
    shown, said = name_by_block(names)
    step = max(1, int(np.ceil(TICK * len(names) / side)))
    at = range(0, len(names), step)
    for axis, (first, lowest), name in zip(axes, find_outer_panels(axes), [NONE, *changed], strict=True):
        style = {"cmap": choose_card_colours(card, "values"), "vmin": low, "vmax": high}
        style = style if name == NONE else {"cmap": "PuOr", "vmin": -most, "vmax": most}
        axis.imshow(base.values if name == NONE else changed[name], **style)
        hatch(axis)
        for end in [place.start for place in base.places.values()][1:]:
            axis.axhline(end - 0.5, color="white" if name == NONE else "0.5", linewidth=0.8)
            axis.axvline(end - 0.5, color="white" if name == NONE else "0.5", linewidth=0.8)
        axis.set_yticks(at, [shown[i] for i in at] if first else [], fontsize=6, parse_math=False)
        axis.set_xticks(at, [shown[i] for i in at] if lowest else [], fontsize=6, rotation=90, parse_math=False)
        axis.tick_params(length=1.5)
    name_panels(
        axes,
        [f"raw rows: {low:.2g} to {high:.2g}", *(f"changes: {in_words.get(name, name)}" for name in changed)],
    )
    image = axes[min(1, len(axes) - 1)].images[0]
    add_colour_bar(figure, image, f"change of {card['label']}")
    count = sum(int((np.abs(cells) > change).sum()) for cells in changed.values())
    cells = sum(cells.size for cells in changed.values())
    seen = f"What each remedy changes in {label}: more than {change:g} in {count:,} of {cells:,} cells"
    set_headline(figure, seen, said)
    return figure


@analysis(studies=("similarity",), figures=draw_figures, within=True, needs="robustness")
def robustness(run: Finished, options: Robustness, claims: Sequence[Claim]) -> Part:
    rows, cells, matrices = [], [], {}
    whole = read_remedy_maps(run)
    if not whole:
        raise BadInput("the run has no maps under remedies; run it again with analyses.robustness={}")
    remedies = list(dict.fromkeys(name for maps in whole.values() for name in maps))
    for label, maps in whole.items():
        base, changed = maps[NONE], compute_remedy_changes(maps)
        names = [f"{model} {name}" for model, place in base.places.items() for name in base.names[place]]
        for name, change in changed.items():
            size = np.abs(change)
            known, many = int(np.isfinite(size).sum()), int((size > options.change).sum())
            a, b = np.unravel_index(np.nanargmax(size), size.shape) if known else (0, 0)
            largest = float(change[a, b]) if known else None
            rows.append([label, name, known, many, many / known if known else None, largest, names[a], names[b]])
        largest = np.nanmax([np.nan_to_num(np.abs(change), nan=-1.0) for change in changed.values()], axis=0)
        for place in np.argsort(-largest, axis=None, kind="stable")[: options.most].tolist():
            a, b = divmod(place, len(names))
            if largest[a, b] > options.change:
                values = [float(maps[name].values[a, b]) if name in maps else None for name in remedies]
                cells.append([label, names[a], names[b], *values])
        count = sum((np.nan_to_num(np.abs(maps[name].values - base.values)) > options.change) for name in changed)
        side = Side(model="layers", layers=names)
        matrices[f"remedies that change a cell, {label}"] = (
            np.asarray(count, float),
            Matrix(rows=side, columns=side, label="remedies that change a cell", bounds=[0.0, float(len(changed))]),
        )
    tables = {
        "robustness": Table(columns=COLUMNS, rows=rows),
        CELLS: Table(columns=["measure", "row", "column", *remedies], rows=cells),
    }
    return Part(tables=tables, matrices=matrices)
