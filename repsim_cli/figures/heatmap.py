"""Heatmaps: a matrix with the names of its rows and columns, and the colours that a measure's card asks for."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from repsim_cli.figures.chance import Chance
from repsim_cli.figures.colours import (
    choose_card_colours,
    choose_colour_range,
    say_direction,
    write_bar_label,
)
from repsim_cli.figures.layout import MATRIX, find_available_width
from repsim_cli.figures.panels import add_colour_bar, draw_path, find_outer_panels, make_panels, set_headline
from repsim_cli.figures.texts import shorten, shorten_names

WRITTEN = 144  # cells up to which their values are written into them
INCHES_PER_CELL = 0.32
SMALLEST, LARGEST = 2.6, 11.0  # side of the matrix, inches
BAR, BAR_GAP = 0.15, 0.15  # width of the colour bar and its distance, inches
MOST = 24  # characters of a model's name that stands across its axis
LONGEST, NARROW = 48, 14  # characters of a layer's name; beside the names of models in a figure of a given width
LETTERS = 7  # of a name that is shortened to stand along its axis, at least
TICK, TIGHT = 0.15, 0.09  # inches that a layer's name needs, and at least where heads stand together
TREE = 0.7  # inches that a tree takes
APART = 0.85  # inches between two matrices, for the labels of a colour bar
STRIP, STRIP_GAP = 0.1, 0.04  # height of a strip above a matrix and its distance, inches
SMALL, ACROSS = 1.4, 4  # side of a small matrix in inches, and how many stand side by side
MEASURES_ACROSS, SMALLEST_MEASURE = 5, 0.7  # small matrices of measures side by side, and their least side in inches
MARK = "#b34700"  # of chance
HALF, SMALLER = 1.7, 0.9  # inches below which two matrices, and small ones, do not stand side by side


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A matrix and how it is coloured. label: of its colour bar."""

    values: np.ndarray
    label: str
    limits: tuple[float, float]
    colours: str


def draw_heatmap(
    values: np.ndarray,
    rows: list[str],
    columns: list[str],
    title: str,
    bar_label: str,
    limits: tuple[float, float],
    colours: Any,
    form: str,
    starts: Sequence[int] = (0,),
    crossed: np.ndarray | None = None,
    chance: Chance | None = None,
    beside: Panel | None = None,
) -> tuple[Any, Any]:
    """A matrix with the names of its rows and columns; values are written into the cells where there are few.

    starts: where tick labels begin anew (the first layer of each model). crossed: cells that are crossed out. chance:
    its level, marked on the colour bar. beside: a second matrix of the same rows and columns, to the right. Returns
    the figure and the axes of the first matrix; `find_matrix_axes(figure)` has those of both.
    """
    from matplotlib.figure import Figure

    cell = compute_matrix_inches(max(values.shape)) / max(values.shape)
    height, width = (max(cell * n, 1.2) for n in values.shape)
    aside = beside is not None
    if (limit := find_available_width()) is not None:
        half = (limit - APART) / 2 - BAR - BAR_GAP
        aside = aside and half >= min(HALF, width)
        most = max(0.5, half if aside else limit - BAR - BAR_GAP)
        cell, height, width = (size * min(1.0, most / width) for size in (cell, height, width))
    longest = LONGEST if limit is None else NARROW if len(starts) > 1 else MOST
    rows, columns = shorten_names(rows, longest), shorten_names(columns, longest)
    matrix_width = width + BAR + BAR_GAP
    parts = [Panel(values=values, label=bar_label, limits=limits, colours=colours)]
    parts += [] if beside is None else [beside]
    across = len(parts) if aside else 1
    down = len(parts) // across
    total, tall = across * matrix_width + (across - 1) * APART, down * height + (down - 1) * APART
    # labels stand outside this canvas; the figure is cropped to what is drawn
    figure = Figure(figsize=(total, tall))
    marked = crossed is not None and bool(crossed[np.isnan(values)].any())  # in another way
    for number, part in enumerate(parts):
        left = number * (matrix_width + APART) if aside else 0.0
        bottom = 0.0 if aside else (len(parts) - 1 - number) * (height + APART)
        axes, image, bar = _draw_matrix(figure, part, (left, bottom, width, height), small=limit is not None)
        if not marked:
            hatch(axes)
        for axis, names, length in ((axes.yaxis, rows, height), (axes.xaxis, columns, width)):
            _name_layers(axis, names, length, starts)
        axes.tick_params(axis="x", rotation=0 if max(map(len, columns)) < 3 else 90)
        axes.tick_params(length=2)
        if number and aside:
            axes.set_yticks([])
        if not number and chance is not None:
            _mark(bar, chance)
        if values.size <= WRITTEN:
            _write(axes, image, part.values, form, cell)
        if crossed is not None:
            _cross_out(axes, crossed, 72 * cell)
    first = find_matrix_axes(figure)[0]
    set_headline(figure, title if marked else note_lacking(title, values))
    return figure, first


def _draw_matrix(figure: Any, part: Panel, box: tuple[float, float, float, float], small: bool) -> tuple[Any, Any, Any]:
    """Draws a matrix and its colour bar, in a box of inches (left, bottom, width, height) of the matrix. Returns the
    axes, the image and the axes of the bar."""
    left, bottom, width, height = box
    total, tall = figure.get_size_inches()
    axes = figure.add_axes((left / total, bottom / tall, width / total, height / tall), label=MATRIX)
    low, high = part.limits
    image = axes.imshow(part.values, cmap=part.colours, vmin=low, vmax=high, aspect="auto")
    upright = (bottom + 0.1 * height) / tall, 0.8 * height / tall
    bar = figure.add_axes(((left + width + BAR_GAP) / total, upright[0], BAR / total, upright[1]))
    figure.colorbar(image, cax=bar).set_label(part.label, fontsize=7 if small else None)
    if small:
        bar.tick_params(labelsize=7)
    return axes, image, bar


def _cross_out(axes: Any, crossed: np.ndarray, points: float) -> None:
    """Crosses cells out. points: the side of a cell."""
    if crossed.any():
        i, j = crossed.nonzero()
        for ink, thick in (("white", points / 5), ("black", points / 11)):
            axes.scatter(j, i, marker="x", s=(0.8 * points) ** 2, c=ink, linewidths=min(1.6, thick))


def hatch(axes: Any) -> None:
    """The ground of a matrix, which its cells without a value leave open."""
    axes.patch.set(hatch="//////", facecolor="0.93", edgecolor="0.6")


def note_lacking(title: str, *matrices: np.ndarray) -> str:
    """The title of matrices, with a line on how their cells without a value are drawn, where there are any."""
    count = sum(int(np.isnan(values).sum()) for values in matrices)
    return f"{title}\nhatched: no value, in {count:,} of {sum(x.size for x in matrices):,} cells" if count else title


def find_matrix_axes(figure: Any) -> list[Any]:
    """The axes of a heatmap and of the one beside it."""
    return [axes for axes in figure.axes if axes.get_label() == MATRIX]


def _name_layers(axis: Any, names: list[str], room: float, starts: Sequence[int]) -> None:
    """Names layers on an axis, as many as `room` inches take; heads by their hook points where room is short.
    Of several models with room for less than two names each, no layer is named. starts: the first layer of each model.
    """
    if len(starts) > 1 and room < 2 * TICK * len(starts):
        axis.set_ticks([])
        return
    if TICK * len(names) > room >= TIGHT * len(heads := merge_head_names(names)) and len(heads) < len(names):
        axis.set_ticks(*zip(*heads, strict=True), fontsize=6, parse_math=False)
        return
    step = max(1, int(np.ceil(TICK * len(names) / room)))
    at = [i for a, b in pairwise([*starts, len(names)]) for i in range(a, max(b - step // 2, a + 1), step)]
    axis.set_ticks(at, [names[i] for i in at], fontsize=7, parse_math=False)


def _write(axes: Any, image: Any, cells: np.ndarray, form: str, inches: float) -> None:
    """The values into their cells."""
    size = min(6.0, 72 * inches / 3)
    for (i, j), value in np.ndenumerate(cells):
        if np.isnan(value):  # a cell without a value, which is crossed out or hatched
            continue
        red, green, blue, _ = image.cmap(image.norm(value))
        ink = "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 else "white"
        text = re.sub(r"^-(?=[0.]+$)", "", form.format(value))  # what rounds to zero has no sign
        text = f"{value:.0f}" if "e+" in text else text
        axes.text(j, i, text, ha="center", va="center", fontsize=size, color=ink)


def _mark(bar: Any, chance: Chance) -> None:
    """The level of chance beside a colour bar: a line over its range, a triangle at its median."""
    low, high = bar.get_ylim()
    at = np.clip([chance.low, chance.high, chance.middle], low, high)
    place = {"transform": bar.get_yaxis_transform(), "clip_on": False, "color": MARK}
    bar.plot([-0.25, -0.25], at[:2], linewidth=1.6, solid_capstyle="butt", **place)
    bar.plot([-0.3], at[2:], marker=">", markersize=7, markeredgewidth=0, **place)


def add_strips(axes: Any, shares: Mapping[str, np.ndarray]) -> None:
    """Draws a row of cells per share of the columns along the top of a matrix, from white (0) to black (1).
    shares: by name, a share per column.
    """
    size = axes.figure.get_size_inches()
    box = axes.get_position()
    for number, (name, share) in enumerate(reversed([*shares.items()])):
        bottom = box.y1 + (STRIP_GAP + number * STRIP) / size[1]
        strip = axes.figure.add_axes((box.x0, bottom, box.width, STRIP / size[1]))
        strip.imshow(share[None], cmap="Greys", vmin=0, vmax=1, aspect="auto")
        strip.set_xticks([])
        strip.set_yticks([0], [name], fontsize=6)
        strip.tick_params(length=0, pad=2)
        strip.spines[:].set_linewidth(0.4)


def draw_small_heatmaps(
    matrices: Sequence[tuple[str, np.ndarray, list[str], list[str]]],
    card: Mapping[str, Any],
    title: str,
    chance: Chance | None = None,
) -> tuple[Any, list[Any]]:
    """Small matrices side by side in one scale of colours: each with its name, and the layers of its rows and columns.
    chance: its level, marked on the colour bar. Returns the figure and the axes of each."""
    low, high = choose_colour_range(np.concatenate([values.ravel() for _, values, _, _ in matrices]), card, "values")
    figure, used = make_panels(
        len(matrices), min(ACROSS, len(matrices)), SMALL, SMALL, gaps=(0.14, 0.32), least=SMALLER
    )
    side = used[0].get_window_extent().width / figure.dpi
    image: Any = None
    for axes, (first, lowest), (name, values, rows, columns) in zip(
        used, find_outer_panels(used), matrices, strict=True
    ):
        image = axes.imshow(values, cmap=choose_card_colours(card, "values"), vmin=low, vmax=high)
        hatch(axes)
        axes.set_title(shorten(name, int(14 * side)), fontsize=7, pad=3, parse_math=False)
        for axis, layers, shown in ((axes.yaxis, rows, first), (axes.xaxis, columns, lowest)):
            names, _ = name_by_block(layers)
            step = max(1, int(np.ceil(TICK * len(names) / side)))
            at = range(0, len(names), step)
            axis.set_ticks(at, [names[i] for i in at] if shown else [], fontsize=6, parse_math=False)
        axes.tick_params(axis="x", rotation=90)
        axes.tick_params(length=1.5)
    bar = add_colour_bar(figure, image, write_bar_label(card))
    if chance is not None:
        _mark(bar, chance)
    set_headline(figure, note_lacking(title, *(values for _, values, _, _ in matrices)))
    return figure, used


@dataclass(frozen=True, kw_only=True)
class OfMeasure:
    """One pair of models under one measure. path: the column of each row through which a line is drawn. limits: of the
    colours."""

    name: str
    values: np.ndarray
    card: Mapping[str, Any]
    chance: Chance | None
    limits: tuple[float, float]
    path: Sequence[int | None] = ()


def draw_measure_maps(
    parts: Sequence[OfMeasure], rows: list[str], columns: list[str], models: tuple[str, str], title: str
) -> Any:
    """Small matrices of the same layers under several measures, bright where layers are close, each on the whole range
    of its measure: one bar of colours where all have one scale, else one each, with the level of chance. models: those
    of the rows and of the columns."""
    scales = [(*part.limits, choose_card_colours(part.card, "values")) for part in parts]
    common = len(set(scales)) == 1 and not any(part.chance for part in parts)
    gap = 0.14 if common else 0.5
    across = min(MEASURES_ACROSS, len(parts))
    figure, used = make_panels(len(parts), across, SMALL, SMALL, gaps=(gap, 0.32), least=SMALLEST_MEASURE)
    width = figure.get_size_inches()[0]
    image: Any = None
    for axes, (first, lowest), part, (low, high, scale) in zip(
        used, find_outer_panels(used), parts, scales, strict=True
    ):
        image = axes.imshow(part.values, cmap=scale, vmin=low, vmax=high, aspect="auto")
        hatch(axes)
        draw_path(axes, part.path)
        axes.set_title(part.name, loc="left", fontsize=6.5, pad=3, parse_math=False)
        side = axes.get_window_extent().width / figure.dpi
        for axis, names, model, shown in (
            (axes.yaxis, rows, models[0], first),
            (axes.xaxis, columns, models[1], lowest),
        ):
            step = max(1, int(np.ceil(TICK * len(names) / side)))
            at = range(0, len(names), step)
            axis.set_ticks(at, [names[i] for i in at] if shown else [], fontsize=6, parse_math=False)
            if shown:
                axis.set_label_text(shorten(model, int(14 * side)), fontsize=6, parse_math=False)
        axes.tick_params(axis="x", rotation=90)
        axes.tick_params(length=1.5)
        if not common:
            box = axes.get_position()
            bar = figure.add_axes((box.x1 + 0.05 / width, box.y0, 0.06 / width, box.height))
            figure.colorbar(image, cax=bar, ticks=[low, high], format=lambda end, _: write_end(end))
            bar.tick_params(labelsize=6, length=1.5, pad=1)
            for label, side in zip(bar.get_yticklabels(), ("bottom", "top"), strict=True):
                label.set_verticalalignment(side)
            if part.chance is not None:
                place = {"transform": bar.get_yaxis_transform(), "clip_on": False, "color": MARK}
                at = float(np.clip(part.chance.middle, low, high))
                bar.plot([-0.5], [at], marker=">", markersize=4, markeredgewidth=0, **place)
    if common:
        same = len({part.card["label"] for part in parts}) == 1
        add_colour_bar(figure, image, write_bar_label(parts[0].card) if same else say_direction(parts[0].card))
    set_headline(figure, note_lacking(title, *(part.values for part in parts)))
    return figure


def write_end(end: float) -> str:
    """Writes the end of a narrow colour bar, which has room for few digits.

    >>> write_end(1.414), write_end(-0.00498), write_end(12345.6)
    ('1.41', '-0.005', '1e+04')
    """
    text = f"{end:.3g}"
    return text if len(text) <= ROOM else f"{end:.1g}"


ROOM = 5  # digits beside a narrow colour bar
BLOCK = re.compile(r"(\w+)@(\d+)|((?=.*\.)(?:[^@]*\.)?)(\d+)((?:\.[^@]*)?)")  # of a hook point, or a module's path


def name_by_block(names: Sequence[str]) -> tuple[list[str], str]:
    """The names of layers as their blocks alone where those of blocks are all of one hook point, or of one module in
    each block, and what is then said once.

    >>> name_by_block(["embed", "resid_post@0", "resid_post@1"])
    (['embed', '0', '1'], 'resid_post by block')
    >>> name_by_block(["encoder.0.mlp", "encoder.1.mlp"])
    (['0', '1'], 'encoder.*.mlp by block')
    >>> name_by_block(["attn_out@0", "resid_post@0"])
    (['attn_out@0', 'resid_post@0'], '')
    """
    matches = [BLOCK.fullmatch(name) for name in names]
    kinds = {match[1] or f"{match[3]}*{match[5]}" for match in matches if match}
    if len(kinds) != 1 or any("@" in name for name, match in zip(names, matches, strict=True) if not match):
        return list(names), ""
    shown = [match[2] or match[4] if match else name for name, match in zip(names, matches, strict=True)]
    return shown, f"{kinds.pop()} by block"


def merge_head_names(names: Sequence[str]) -> list[tuple[float, str]]:
    """The heads of one hook point under one name, at their middle.

    >>> merge_head_names(["q@0.h0", "q@0.h1", "resid_post@0"])
    [(0.5, 'q@0'), (2.0, 'resid_post@0')]
    """
    stems = [name.partition(".h")[0] for name in names]
    runs = [list(run) for _, run in groupby(range(len(stems)), key=lambda i: stems[i])]
    return [((run[0] + run[-1]) / 2, stems[run[0]] if len(run) > 1 else names[run[0]]) for run in runs]


def compute_matrix_inches(cells: int) -> float:
    return float(np.clip(INCHES_PER_CELL * cells, SMALLEST, LARGEST))


def add_model_names(axes: Any, which: str, models: list[str], ends: np.ndarray, below: str = "") -> None:
    """Model names below (x) or left of (y) the layer names, along the axis in the size that the narrowest model leaves
    room for, or across it where there is little; every second or third of very many. below: what is written below the
    names of an x axis."""
    upright = which == "y"
    extent = axes.get_window_extent()
    room = (extent.height if upright else extent.width) / axes.figure.dpi * np.diff(ends) / ends[-1]
    size = float(100 * min(r / len(name) for name, r in zip(models, room, strict=True)))
    fitting = [shorten(name, int(20 * r)) for name, r in zip(models, room, strict=True)]  # at 5 points
    readable = int(20 * room.min()) >= LETTERS and len(set(fitting)) == len(set(models))
    along = size >= 5 or readable
    step = 1
    if along:
        size = float(np.clip(size, 5, 9))
    else:
        size = float(np.clip(45 * room.min(), 5, 7))
        step = int(np.ceil(size / 60 / room.min()))
    axis = axes.secondary_yaxis("left") if upright else axes.secondary_xaxis("bottom")
    middles = (ends[:-1] + ends[1:] - 1) / 2
    names = [shorten(name, MOST) for name in models] if not along else fitting if size == 5 else models
    turned = 90 * (upright == along)
    axis.set_ticks(middles[::step], names[::step], fontsize=size, parse_math=False, rotation=turned)
    for label in axis.get_yticklabels() if upright else ():
        label.set_verticalalignment("center")
    if below and not upright:
        axis.set_xlabel(below, fontsize=7, labelpad=1)
    inner = [len(label.get_text()) for label in (axes.get_yticklabels() if upright else axes.get_xticklabels())]
    axis.tick_params(length=0, pad=12 + 4.2 * max(inner) if inner else 2)
    axis.spines[:].set_visible(False)


def add_tree(figure: Any, axes: Any, linkage: np.ndarray, label: str) -> Any:
    """The tree of a matrix whose columns come in the order of its leaves, above it: its axes."""
    from scipy.cluster.hierarchy import dendrogram

    height, box = figure.get_size_inches()[1], axes.get_position()
    tree = figure.add_axes((box.x0, box.y1 + 0.1 / height, box.width, TREE / height))
    drawn = dendrogram(linkage, no_plot=True)
    for along, depth in zip(drawn["icoord"], drawn["dcoord"], strict=True):
        # leaves stand at 5, 15, 25 ... in the tree, at 0, 1, 2 ... in the matrix
        tree.plot((np.asarray(along) - 5) / 10, depth, color="0.25", linewidth=1)
    tree.set_xlim(axes.get_xlim())
    tree.set_ylim(0, None)
    tree.set_xticks([])
    tree.set_ylabel(label, fontsize=7)
    tree.tick_params(labelsize=6, length=2)
    tree.spines[["top", "right", "bottom"]].set_visible(False)
    return tree
