"""Draws the matrix of a model's layers with the groups that they fall into."""

from itertools import groupby, pairwise
from typing import Any

import numpy as np

from repsim_cli.figures.colours import choose_card_colours, write_bar_label
from repsim_cli.figures.frame import COLOURS
from repsim_cli.figures.heatmap import TIGHT, add_model_names, merge_head_names, name_by_block
from repsim_cli.figures.layout import find_available_width
from repsim_cli.figures.lines import mark_gaps
from repsim_cli.figures.panels import add_colour_bar, set_headline
from repsim_cli.findings.analysis import Finished
from repsim_cli.findings.layers import order_layers, read_block_number
from repsim_cli.runs.content import Curve, Matrix, Measured

NEXT = "to the next layer"  # what a curve is of
INCHES_PER_CELL, SMALLEST, LARGEST = 0.16, 3.4, 8.4  # of the matrix
STRIP, BAND, GAP = 1.0, 0.14, 0.08  # height of the values to the next layer, width of a band of groups, inches
BAR, BAR_GAP = 0.15, 0.2
# beyond the colours of groups of models, for up to ten groups of layers
SHADES = (*COLOURS, "#F0E442", "#000000", "#999999", "#882255")


def draw_sub_networks(run: Finished, measure: Measured, matrix: Matrix, labels: Curve, following: Curve) -> Any:
    """The matrix in the order of the network, the value of each layer and the next, and the sub-networks."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    card, names, order = measure.card, labels.at, order_layers(matrix.rows.layers)
    groups = {method: mark_gaps(line).astype(int) for method, line in labels.lines.items() if "given" not in method}
    bounds = {method: (np.flatnonzero(np.diff(line)) + 1).tolist() for method, line in groups.items()}
    values = run.array(matrix.values)[np.ix_(order, order)]
    side = float(np.clip(INCHES_PER_CELL * len(names), SMALLEST, LARGEST))
    bands = len(groups) * (BAND + GAP)
    if (limit := find_available_width()) is not None:
        side = min(side, limit - bands)
    width, height = side + bands, side + GAP + STRIP
    figure = Figure(figsize=(width, height))

    def place(left: float, bottom: float, wide: float, high: float) -> Any:
        return figure.add_axes((left / width, bottom / height, wide / width, high / height))

    axes = place(0.0, STRIP + GAP, side, side)
    low, high = run.limits(measure)
    image = axes.imshow(values, cmap=choose_card_colours(card, "values"), vmin=low, vmax=high, aspect="auto")
    strip = place(0.0, 0.0, side, STRIP)
    steps, best = mark_gaps(following.lines[NEXT]), card["bounds"][1] if card["larger_is_closer"] else None
    strip.bar(np.arange(len(names) - 1) + 0.5, steps if best is None else best - steps, width=0.8, color="0.35")
    strip.set_xlim(axes.get_xlim())
    strip.set_ylabel("to the next" if best is None else f"{best:g} - to the next", fontsize=7)
    strip.tick_params(axis="y", labelsize=6, length=2)
    strip.spines[["top", "right"]].set_visible(False)
    _set_layer_ticks(axes.yaxis, axes, names, side)
    _set_layer_ticks(strip.xaxis, strip, names, side)
    axes.set_xticks([])
    for at, (method, line) in enumerate(groups.items()):
        band = place(side + GAP + at * (BAND + GAP), STRIP + GAP, BAND, side)
        band.imshow(np.array([_shade(int(label)) for label in line])[:, None], aspect="auto")
        band.set_xticks([0], [method], fontsize=7, rotation=90)
        band.xaxis.tick_top()
        band.set_yticks([])
        band.tick_params(length=0)
        band.spines[:].set_visible(False)
    for start in bounds.get("segments", next(iter(bounds.values()))):
        strip.axvline(start - 0.5, color="black", linewidth=1.0)
    if "segments" in groups:
        for first, end in pairwise([0, *bounds["segments"], len(names)]):
            corner, size = (first - 0.5, first - 0.5), end - first
            axes.add_patch(Rectangle(corner, size, size, fill=False, edgecolor="black", linewidth=1.3))
    add_colour_bar(figure, image, write_bar_label(card))
    doubtful = labels.about.get("as walks", [])
    said = [_count(method, int(line.max()) + 1, method in doubtful) for method, line in groups.items()]
    each = ", a colour each" if any(line.max() for line in groups.values()) else ""
    of = f"{card['label']}, {measure.estimate['rows']:,} rows; bands: {', '.join(said)}{each}"
    told = any(line.max() and method not in doubtful for method, line in groups.items())
    set_headline(
        figure, f"{matrix.rows.model}: {'where its layers part' if told else 'how far apart its layers are'}", of
    )
    return figure


def _set_layer_ticks(axis: Any, axes: Any, names: list[str], inches: float) -> None:
    """Short names, heads together, with the blocks beyond them and lines between the blocks."""
    shown, said = name_by_block(names)
    if said:
        step = max(1, int(np.ceil(TIGHT * len(names) / inches)))
        axis.set_ticks(range(0, len(names), step), shown[::step], fontsize=6.5, parse_math=False)
        axis.set_tick_params(length=2)
        if axis.axis_name == "x":
            axis.set_tick_params(rotation=0 if max(map(len, shown)) < 3 else 90)
            axes.set_xlabel(said, fontsize=7, parse_math=False)
        return
    blocks = [(block, len(list(layers))) for block, layers in groupby(names, key=read_block_number)]
    ends = np.cumsum([0, *(size for _, size in blocks)])
    several = len(blocks) > 1 and all(block is not None for block, _ in blocks)
    ticks = [(at, name.partition("@")[0] if several else name) for at, name in merge_head_names(names)]
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
        add_model_names(axes, axis.axis_name, [f"block {block}" for block, _ in blocks], ends)


def _shade(label: int) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    return to_rgb(SHADES[label % len(SHADES)])


def _count(method: str, count: int, as_walks: bool) -> str:
    what = {"spectral": "cluster", "segments": "segment"}[method]
    told = " (no clearer than those of a random walk over layers)" if as_walks else ""
    return f"no {what}s" if count == 1 else f"{count} {what}s{told}"
