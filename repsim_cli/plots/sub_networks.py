"""The layers of one model: their matrix in the order of the network, the distance of each to the next one, and the
sub-networks that were found."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from repsim_cli.plots.heatmap import TIGHT, colour_range, colours, outer_names, together

from repsim_cli.plots.groups import COLOURS
from repsim_cli.results import read_array, slug

INCHES_PER_CELL, SMALLEST, LARGEST = 0.16, 3.4, 8.4  # of the matrix
STRIP, BAND, GAP = 1.0, 0.14, 0.08  # height of the consecutive distances, width of a band of groups, inches
BAR, BAR_GAP = 0.15, 0.2
# beyond the colours of groups of models, for up to ten groups of layers
SHADES = (*COLOURS, "#F0E442", "#000000", "#999999", "#882255")


def figures(folder: Path, results: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """NAME-MODEL-layers of every measure and model whose sub-networks were looked for."""
    for measure in results["measures"]:
        own = {m["rows"]["model"]: m for m in measure["matrices"] if m["rows"] == m["columns"]}
        for model, found in results.get("sub_networks", {}).get(measure["label"], {}).items():
            name = f"{slug(measure['label'])}-{slug(model)}-layers"
            yield name, partial(_layers, folder, measure, model, own[model], found)


def _layers(folder: Path, measure: dict, model: str, matrix: dict, found: dict) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    card, names = measure["card"], found["layers"]
    values = read_array(folder, matrix["values"])[np.ix_(found["order"], found["order"])]
    side = float(np.clip(INCHES_PER_CELL * len(names), SMALLEST, LARGEST))
    bands = len(found["groups"]) * (BAND + GAP)
    width, height = side + bands + BAR_GAP + BAR, side + GAP + STRIP
    figure = Figure(figsize=(width, height))

    def placed(left: float, bottom: float, wide: float, high: float) -> Any:
        return figure.add_axes((left / width, bottom / height, wide / width, high / height))

    axes = placed(0.0, STRIP + GAP, side, side)
    low, high = colour_range(values, card, "values")
    image = axes.imshow(values, cmap=colours(card, "values"), vmin=low, vmax=high, aspect="auto")
    strip = placed(0.0, 0.0, side, STRIP)
    strip.bar(np.arange(len(names) - 1) + 0.5, found["consecutive"], width=0.8, color="0.35")
    strip.set_xlim(axes.get_xlim())
    strip.set_ylabel("to the next", fontsize=7)
    strip.tick_params(axis="y", labelsize=6, length=2)
    strip.spines[["top", "right"]].set_visible(False)
    _ticks(axes.yaxis, axes, names, side)
    _ticks(strip.xaxis, strip, names, side)
    axes.set_xticks([])
    for at, (method, groups) in enumerate(found["groups"].items()):
        band = placed(side + GAP + at * (BAND + GAP), STRIP + GAP, BAND, side)
        shades = [_shade(label) for label in groups["labels"]]
        band.imshow(np.array(shades)[:, None], aspect="auto")
        band.set_xticks([0], [method], fontsize=7, rotation=90)
        band.xaxis.tick_top()
        band.set_yticks([])
        band.tick_params(length=0)
        band.spines[:].set_visible(False)
    segments = found["groups"].get("segments", next(iter(found["groups"].values())))
    for start in segments["boundaries"]:
        strip.axvline(start - 0.5, color="black", linewidth=1.0)
    if "segments" in found["groups"]:
        ends = [0, *segments["boundaries"], len(names)]
        for first, end in pairwise(ends):
            corner, size = (first - 0.5, first - 0.5), end - first
            axes.add_patch(Rectangle(corner, size, size, fill=False, edgecolor="black", linewidth=1.3))
    beside = placed(side + bands + BAR_GAP, STRIP + GAP + 0.1 * side, BAR, 0.8 * side)
    better = "larger" if card["larger_is_closer"] else "smaller"
    figure.colorbar(image, cax=beside).set_label(f"{card['label']} ({better} is closer)", fontsize=8)
    beside.tick_params(labelsize=7)
    said = [_counted(method, groups["count"]) for method, groups in found["groups"].items()]
    rows = f"{measure['estimate']['rows']:,} rows"
    axes.set_title(f"{model}: {card['label']}\n{rows}; {', '.join(said)}", loc="left", parse_math=False, fontsize=9)
    return figure


def _ticks(axis: Any, axes: Any, names: list[str], inches: float) -> None:
    """Short names, heads together, with the blocks beyond them and lines between the blocks."""
    blocks = [(block, len(list(run))) for block, run in groupby(names, key=block_of)]
    ends = np.cumsum([0, *(size for _, size in blocks)])
    several = len(blocks) > 1 and all(block for block, _ in blocks)
    ticks = [(at, name.partition("@")[0] if several else name) for at, name in together(names)]
    step = max(1, int(np.ceil(TIGHT * len(ticks) / inches)))
    at, shown = zip(*ticks[::step], strict=True)
    axis.set_ticks(at, shown, fontsize=6.5, parse_math=False)
    axis.set_tick_params(length=2)
    upright = axis.axis_name == "x"
    if upright:
        axis.set_tick_params(rotation=90)
    draw = axes.axvline if upright else axes.axhline
    for end in ends[1:-1]:
        draw(end - 0.5, color="0.6" if upright else "white", linewidth=0.8, zorder=0 if upright else 2)
        if not upright:
            axes.axvline(end - 0.5, color="white", linewidth=0.8)
    if several:
        outer_names(axes, axis.axis_name, [f"block {block}" for block, _ in blocks], ends, inches, max(map(len, shown)))


def block_of(name: str) -> str:
    return name.partition("@")[2].partition(".")[0]


def _shade(label: int) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    return to_rgb(SHADES[label % len(SHADES)])


def _counted(method: str, count: int) -> str:
    what = {"spectral": "cluster", "segments": "segment"}[method]
    return f"no {what}s" if count == 1 else f"{count} {what}s"
