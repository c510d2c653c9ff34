"""The width of figures: what stands around axes keeps its size, and nothing is written over anything else."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from repsim_cli.figures.texts import (
    find_axis_objects,
    fold_lines,
    list_titles,
    separate_tick_labels,
    shorten,
    shorten_ticks,
)

LEAST = 5.0  # points: smaller text inside axes is left out
NARROWEST = 1.1  # inches: panels side by side are not made narrower
ROWS = 24  # of a legend
SHADED = "shaded: "  # how a legend names a band
LETTER = 0.6  # the mean width of a letter over the size of the text
NAMES = 0.3  # the share of the width that names beside axes take at most
CLEAR = 0.06  # inches between rows of panels, and below titles
SMALL = 6.5  # points of the lines of a title below the first
TITLED = 4.0  # inches that a title takes at least where there is room
MATRIX = "matrix"  # the label of the axes of matrices that belong together


@dataclass
class Room:
    """inches: in all. asked: whether the figure was drawn for them."""

    inches: float | None
    asked: bool = False


_ROOM: ContextVar[Room] = ContextVar("room")


@contextmanager
def limit_room(inches: float | None) -> Iterator[Room]:
    """Tells the figures that are drawn inside the block how many inches they have in all."""
    given = Room(inches)
    token = _ROOM.set(given)
    try:
        yield given
    finally:
        _ROOM.reset(token)


def find_available_width() -> float | None:
    """The inches that axes and the colour bars beside them have in all; None: as many as they ask for. A figure that
    asks is drawn for its room, and not scaled."""
    given = _ROOM.get(Room(None))
    given.asked = True
    return given.inches


def narrow(figure: Any, width: float, asked: bool) -> float:
    """Makes the figure `width` inches wide, with what stands around its axes. Text around axes keeps its size, tick
    labels that would touch are folded, turned or left out; text inside axes shrinks with them, down to where it cannot
    be read. asked: whether it was drawn for its room. Returns by how many inches such a figure, which is not scaled, is
    still too wide."""
    before, legends = figure.get_size_inches()[0], _remove_wide_legends(figure, width)
    surplus, scale = 0.0, 1.0
    if asked:
        surplus = _surround(figure, width)
    elif _are_alike(figure.axes):
        scale = _stack(figure, width)
        over = max(0.0, figure.get_tightbbox().width - width)
        if over > 0 or _do_panels_touch(figure):  # ticks changed with the size
            scale *= _stack(figure, width - over)
    else:
        _shrink(figure, width)
        scale = min(1.0, figure.get_size_inches()[0] / before)
    for axes in figure.axes:
        inside = axes.get_window_extent()
        for text in (text for text in axes.texts if inside.overlaps(text.get_window_extent())):
            text.set_fontsize(text.get_fontsize() * scale)
            text.set_visible(text.get_fontsize() >= LEAST)
    for axis in find_axis_objects(figure):
        separate_tick_labels(axis)
    for legend in legends:
        _move_legend_below(figure, legend, width)
    return surplus


def name_powers(figure: Any) -> list[Any]:
    """Puts the powers of ten of axes, which would stand over their labels or beside a title, into their labels. Returns
    the texts, which are hidden until something else changes the ticks."""
    figure.get_tightbbox()
    powers = []
    for axes in figure.axes:
        shared = {"x": axes.get_shared_x_axes(), "y": axes.get_shared_y_axes()}
        for axis in (axes.xaxis, axes.yaxis):
            alike = [getattr(other, f"{axis.axis_name}axis") for other in shared[axis.axis_name].get_siblings(axes)]
            texts = [other.get_offset_text() for other in (axis, *alike)]
            power = next((text.get_text() for text in texts if text.get_text()), "")
            if power and axis.get_label_text():
                axis.set_label_text(f"{axis.get_label_text()}, in {power}")
                powers += texts
    for text in powers:
        text.set_visible(False)
    return powers


def entitle(figure: Any, title: str, width: float | None) -> None:
    """Writes the first line of a title, what is seen, above all that is drawn, and its other lines small below that.
    width: what they may take, in inches; None: as much as the figure."""
    box, (wide, high) = figure.get_tightbbox(), figure.get_size_inches()
    edge = box.y1 + CLEAR
    within = max(box.width, TITLED) if width is None else width
    first, _, others = title.partition("\n")
    place = {"ha": "left", "va": "bottom", "parse_math": False}
    for words in filter(None, (others, first)):
        made = figure.suptitle(words, **place) if words is first else figure.text(0, 0, words, fontsize=SMALL, **place)
        made.set(x=box.x0 / wide, y=edge / high)
        fold_lines([made], within)
        edge = made.get_window_extent().y1 / figure.dpi + CLEAR / 2


def _list_titled(figure: Any) -> list[Any]:
    return [axes for axes in figure.axes if any(title.get_text() for title in list_titles(axes))]


def separate_texts(figure: Any) -> None:
    """Folds the titles of panels that stand side by side, and tick labels, where they would run into each other."""
    for axis in find_axis_objects(figure):
        separate_tick_labels(axis)
    titled = _list_titled(figure)
    if len({round(axes.get_position().x0, 3) for axes in titled}) > 1:
        fold_titles(figure, titled)


def fold_titles(figure: Any, panels: Sequence[Any]) -> None:
    """Folds the titles and labels of panels to their width, and moves rows of them apart by what that takes."""
    for axes in panels:
        fold_lines([*list_titles(axes), axes.xaxis.label], axes.get_window_extent().width / figure.dpi + CLEAR)
    if panels:
        _spread_rows(figure, panels)


def _surround(figure: Any, width: float) -> float:
    """Folds the titles and labels around axes, and moves what stands above other axes clear of them. Returns the inches
    by which all is wider than this."""
    _fold_labels(figure, width)
    pair = [axes for axes in figure.axes if axes.get_label() == MATRIX]
    if len(pair) == 2 and pair[0].get_position().y0 > pair[1].get_position().y1:
        _move_axes_apart(figure, *pair)
    fold_titles(figure, _list_titled(figure))
    if figure._supxlabel is not None:
        whole, first = figure.get_window_extent(), min(axes.get_window_extent().x0 for axes in figure.axes)
        least = min(axes.get_tightbbox(for_layout_only=True).x0 for axes in figure.axes)
        if figure._supylabel is not None:
            least = min(least, figure._supylabel.get_window_extent().x0)
        figure._supxlabel.set(x=first / whole.width, ha="left")
        fold_lines([figure._supxlabel], width - (first - least) / figure.dpi)
    return figure.get_tightbbox().width - width


def _fold_labels(figure: Any, width: float) -> None:
    """Folds the labels of axes, and shortens the names beside them."""
    for part in (part for axes in figure.axes for part in (axes, *axes.child_axes)):
        for axis, turned in ((part.xaxis, 90), (part.yaxis, 0)):
            if all(label.get_rotation() == turned for label in axis.get_ticklabels()):
                shorten_ticks(axis, NAMES * width)
    for axes in figure.axes:
        if axes.get_label() == MATRIX:
            below = [part.xaxis.label for part in (axes, *axes.child_axes)]
            fold_lines(below, axes.get_window_extent().width / figure.dpi)
        if axes.yaxis.label.get_rotation() == 90:
            higher = 1.0 if axes.get_label() == MATRIX else 1.4
            fold_lines([axes.yaxis.label], higher * axes.get_window_extent().height / figure.dpi)


def _spread_rows(figure: Any, panels: Sequence[Any]) -> None:
    """Moves rows of panels apart where their names and titles would touch; what stands beside them grows with them."""
    width, height = figure.get_size_inches()
    rows: dict[float, list[Any]] = {}
    for axes in sorted(panels, key=lambda axes: axes.get_position().y0):
        rows.setdefault(round(axes.get_position().y0 * height, 2), []).append(axes)
    old, new, above = [], [], 0.0
    for number, (bottom, line) in enumerate(rows.items()):
        box, sides = line[0].get_position(), [_measure_margins(axes) for axes in line]
        start = bottom
        if number:
            start = new[-1] + max(bottom - old[-1], above + max(side[2] for side in sides) + CLEAR)
        old += [bottom, bottom + box.height * height]
        new += [start, start + box.height * height]
        above = max(side[3] for side in sides)
    more = new[-1] - old[-1]
    if more <= 0:
        return
    places = [(axes, axes.get_position()) for axes in figure.axes]
    figure.set_size_inches(width, height + more)
    for axes, box in places:
        low, high = np.interp([box.y0 * height, box.y1 * height], old, new) / (height + more)
        axes.set_position((box.x0, low, box.width, high - low))
    if figure._supxlabel is not None:
        figure._supxlabel.set_y(figure._supxlabel.get_position()[1] * height / (height + more))


def _move_axes_apart(figure: Any, upper: Any, lower: Any) -> None:
    """Moves axes above each other apart by what stands below the upper ones."""
    width, height = figure.get_size_inches()
    places = [(axes, axes.get_position(original=True)) for axes in figure.axes]
    more = _measure_margins(upper)[2] + 0.12 - (upper.get_position().y0 - lower.get_position().y1) * height
    middle, total = lower.get_position().y1, height + more
    figure.set_size_inches(width, total)
    for axes, box in places:
        bottom = box.y0 * height + (more if box.y0 >= middle else 0)
        axes.set_position((box.x0, bottom / total, box.width, box.height * height / total))


def _shrink(figure: Any, width: float) -> None:
    """Scales a figure of unlike panels to a width in inches, which includes what stands around its axes and does not
    shrink."""
    titled = _list_titled(figure)
    columns = {round(axes.get_position().x0, 2) for axes in titled}
    if titled:
        first = min(axes.get_window_extent().x0 for axes in titled) / figure.dpi
        left = first - min(axes.get_tightbbox(for_layout_only=True).x0 for axes in figure.axes) / figure.dpi
        for axes in titled:
            fold_lines(list_titles(axes), 0.97 * (width - left) / len(columns))
    # text takes more of a small panel: only squares have to shrink in height as in width
    taller = 0.3 if all(axes.get_aspect() == "auto" for axes in figure.axes) else 1.0
    for turn in range(12):  # that ticks change with the size may take more turns
        surplus = figure.get_tightbbox().width - width
        if -0.05 < surplus <= 0:
            break
        wide, high = figure.get_size_inches()
        smaller = max(0.7, 1 - (surplus + 0.005 * (turn + 1)) / wide)
        figure.set_size_inches(wide * smaller, high * smaller**taller)
    for axes in figure.axes:
        fold_lines([axes.yaxis.label], figure.get_size_inches()[1])


def _are_alike(panels: Sequence[Any]) -> bool:
    """Says whether these are one panel, or panels of one size beside and below each other."""
    boxes = [axes.get_position(original=True) for axes in panels]
    places = {(round(box.x0, 3), round(box.y0, 3)) for box in boxes}
    return len(places) == len(boxes) and all(
        abs(box.width - boxes[0].width) + abs(box.height - boxes[0].height) < 0.01 for box in boxes
    )


def _do_panels_touch(figure: Any) -> bool:
    boxes = [axes.get_tightbbox(for_layout_only=True) for axes in figure.axes]
    return any(first.overlaps(second) for first, second in combinations(boxes, 2))


def _stack(figure: Any, width: float) -> float:
    """Places panels of one size anew in a figure of `width` inches: fewer side by side where they would be too small to
    read, with the room that names and titles need between them. Returns the new width of a panel over the old."""
    panels = figure.axes
    box, size = panels[0].get_position(original=True), figure.get_size_inches()
    wide, high = box.width * size[0], box.height * size[1]
    columns = len({round(axes.get_position(original=True).x0, 3) for axes in panels})
    shorten_ticks(panels[0].yaxis, 0.5 * width)
    new, left, between, across = 0.0, 0.0, 0.0, columns
    for across in range(columns, 0, -1):
        _show_outer(panels, across)
        sides = [_measure_margins(axes) for axes in panels]
        left = max(side[0] for side in sides[::across])
        right = max(side[1] for side in sides)
        inner = [side[0] for i, side in enumerate(sides) if i % across]
        between = max(inner, default=0.0) + right + 0.08
        new = (width - left - right - (across - 1) * between) / across
        if new >= min(NARROWEST, wide):
            break
    square = any(axes.get_aspect() != "auto" for axes in panels)
    # text takes more of a small panel: only squares have to shrink in height as in width
    high *= new / wide if square else min(1.0, new / wide) ** 0.3
    for axes in panels:
        fold_lines([axes.yaxis.label], high)
        if across == 1 and left > new:  # long names leave little: texts may stand above and below these
            for text in (*list_titles(axes), axes.xaxis.label):
                text.set(x=1, ha="right")
            fold_lines([*list_titles(axes), axes.xaxis.label], left + new)
        else:
            fold_lines(list_titles(axes), new)
            fold_lines([axes.xaxis.label], new + (between if across > 1 else 0))
    grown = max(_measure_margins(axes)[0] for axes in panels[::across]) - left  # by labels that were folded
    left, new = left + grown, new - grown / across
    down = -(-len(panels) // across)
    for _ in range(2):  # what stands above and below panels depends on their size
        sides = [_measure_margins(axes) for axes in panels]
        lines = [sides[i * across : (i + 1) * across] for i in range(down)]
        above, below = ([max(side[k] for side in line) for line in lines] for k in (3, 2))
        total = sum(above) + sum(below) + down * high + 0.08 * (down - 1)
        figure.set_size_inches(width, total)
        edge = total
        for number, axes in enumerate(panels):
            row, column = divmod(number, across)
            if column == 0:
                edge -= above[row] + high
            axes.set_position(((left + column * (new + between)) / width, edge / total, new / width, high / total))
            if column == across - 1:
                edge -= below[row] + 0.08
    return min(1.0, new / wide)


def _show_outer(panels: Sequence[Any], across: int) -> None:
    """Leaves the names of a shared axis to the panels at the left and at the bottom.
    A label that one panel alone has stands below the middle of the last row. across: panels in a row.
    """
    labels = {axes.get_xlabel() for axes in panels} - {""}
    alone = len(labels) == 1 and sum(bool(axes.get_xlabel()) for axes in panels) == 1
    for number, axes in enumerate(panels):
        if len(axes.get_shared_y_axes().get_siblings(axes)) > 1:
            sizes = [label.get_fontsize() for label in panels[0].get_yticklabels()[:1]]
            axes.tick_params(axis="y", labelleft=number % across == 0, **({"labelsize": sizes[0]} if sizes else {}))
        if len(axes.get_shared_x_axes().get_siblings(axes)) > 1:
            axes.tick_params(labelbottom=number + across >= len(panels))
        if alone:
            last = len(panels) - 1 - (len(panels) - 1) % across
            axes.set_xlabel(*labels if number == last + (len(panels) - 1 - last) // 2 else ("",))


def _measure_margins(axes: Any) -> tuple[float, float, float, float]:
    """The inches that names, labels and titles take to the left, right, below and above of axes."""
    box, whole = axes.get_window_extent(), axes.get_tightbbox(for_layout_only=True)
    parts = box.x0 - whole.x0, whole.x1 - box.x1, box.y0 - whole.y0, whole.y1 - box.y1
    left, right, below, above = (max(0.0, float(part)) / axes.figure.dpi for part in parts)
    return left, right, below, above


def _remove_wide_legends(figure: Any, width: float) -> list[Any]:
    """Takes away the legends that stand beside all axes, and wider ones than the figure, and returns them."""
    away = []
    for axes in figure.axes:
        legend = axes.get_legend()
        if legend is not None:
            box = legend.get_window_extent()
            if box.x0 >= axes.get_window_extent().x1 - 1 or box.width > width * figure.dpi:
                away.append(legend)
    away += figure.legends
    for legend in away:
        legend.remove()
    return away


def _move_legend_below(figure: Any, legend: Any, width: float) -> None:
    """The legend again, below all that is there, in as many columns as fit into a width in inches; names are shortened
    where it would have more than ROWS rows, and what is shaded stands in its title then."""
    entries = [
        (text.get_text(), handle) for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True)
    ]
    title = legend.get_title().get_text()
    if len(entries) > ROWS:
        shaded = [name for name, _ in entries if name.startswith(SHADED)]
        entries = [entry for entry in entries if entry[0] not in shaded]
        title = "\n".join(filter(None, [title, *shaded]))
    names, handles = (list(part) for part in zip(*entries, strict=True))
    box, (wide, high) = figure.get_tightbbox(), figure.get_size_inches()
    middle, below = (box.x0 + box.x1) / 2 / wide, box.y0 / high
    size, least = legend.get_texts()[0].get_fontsize(), -(-len(names) // ROWS)
    for columns in range(max(least, min(len(names), 6)), least - 1, -1):
        if columns == least:
            most = int(72 * width / (LETTER * size * columns)) - 7  # for the line before each name
            names = [shorten(name, max(5, most)) for name in names]
        again = figure.legend(
            handles, names, title=title or None, title_fontsize=size,
            fontsize=size, frameon=False, loc="upper center", bbox_to_anchor=(middle, below), ncols=columns,
            columnspacing=1.0,
        )  # fmt: skip
        for text in again.get_texts():
            text.set_parse_math(False)
        if columns == least or again.get_window_extent().width <= width * figure.dpi:
            return
        again.remove()
