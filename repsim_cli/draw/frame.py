"""Figures as files: one style, and bytes that depend on the data alone."""

import io
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from repsim_cli.errors import BadInput
from repsim_cli.registry import did_you_mean
from repsim_cli.results import Progress, quiet, write

DPI = 150
STYLE: dict[str, Any] = {
    "font.size": 9,
    "svg.hashsalt": "repsim",
    "image.interpolation": "nearest",
    "axes.titlesize": 10,
    "pdf.fonttype": 42,  # the fonts themselves, as publishers ask for, instead of outlines
}
COLUMN: dict[str, Any] = {"font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8}  # about that of captions
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^v<>P"
PLAIN = "DejaVu Sans"  # comes with matplotlib
OTHER_SCRIPTS = ("Noto Sans", "Noto Naskh", "Source Han Sans", "WenQuanYi", "IPA", "Nanum", "Droid Sans Fallback")
OPTIONS: dict[str, dict[str, Any]] = {
    "png": {"dpi": DPI},
    "svg": {"metadata": {"Date": None}},
    "pdf": {"metadata": {"CreationDate": None}},
}
INCHES = {"column": 3.25, "page": 6.75}
MARGIN = 0.05  # inches
APART = 2.0  # pixels between tick labels
LEAST = 4.0  # points: smaller text inside axes is left out
NARROWEST = 1.1  # inches: panels side by side are not made narrower
ROWS = 24  # of a legend
LETTER = 0.6  # the mean width of a letter over the size of the text
NAMES = 0.3  # the share of the width that names beside matrices take at most
KEY = "labels.txt"
MATRIX, SMALL_MATRIX = "matrix", "small matrix"  # the labels of the axes of matrices, which are drawn for their room
TRIES = 4  # drawings of a matrix until its names fit beside it
_AVAILABLE: ContextVar[float | None] = ContextVar("available", default=None)

Width = Literal["column", "page"]
Suffix = Literal["png", "svg", "pdf"]


@dataclass(frozen=True, kw_only=True)
class Style:
    """How figures are drawn.

    width: of a `column` of a paper (3.25 inches) or of a `page` (6.75 inches), where text keeps its size; null: as
        large as the content asks for.
    format: the files of each figure: png, svg, pdf.
    colours: the colour map of maps, by matplotlib's name; standard errors and shares keep theirs, signed values too.
    titles: whether figures have titles; papers have captions instead.
    font: the family of the text; characters that it lacks come from other fonts.
    """

    width: Width | None = None
    format: tuple[Suffix, ...] = ("png", "svg")
    colours: str = "viridis"
    titles: bool = True
    font: str = PLAIN

    def check(self) -> None:
        """Raises BadInput for a colour map or font that is not there."""
        from matplotlib import colormaps

        if self.colours not in colormaps:
            raise BadInput(
                f"colours: no such colour map, got '{self.colours}'; {did_you_mean(self.colours, colormaps)}"
            )
        if self.font not in _installed():
            raise BadInput(f"font: not installed, got '{self.font}'; {did_you_mean(self.font, _installed())}")


@dataclass(frozen=True, kw_only=True)
class Figures(Style):
    """Which figures a run draws, and how.

    which: `overview` leaves out figures of single pairs of models and of standard errors; `all` has them.
    width: of a `column` of a paper (3.25 inches) or of a `page` (6.75 inches), where text keeps its size; null: as
        large as the content asks for.
    format: the files of each figure: png, svg, pdf; the report shows the png.
    colours: the colour map of maps, by matplotlib's name; standard errors and shares keep theirs, signed values too.
    titles: whether figures have titles; papers have captions instead.
    font: the family of the text; characters that it lacks come from other fonts.

    Example: repsim run 'figures={width: column, format: [png, pdf], titles: false}'
    """

    which: Literal["overview", "all"] = "overview"


SCREEN = Style()


def settings_of(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """The settings of Figures from the value of the key `figures`: a word, or a mapping.

    >>> settings_of("all"), settings_of({"format": ["png", "pdf"]})
    ({'which': 'all'}, {'format': ('png', 'pdf')})
    """
    if isinstance(given, str):
        return {"which": given}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}


def available() -> float | None:
    """The inches that matrices and the colour bars beside them have in all; None: as many as they ask for."""
    return _AVAILABLE.get()


def save(
    folder: Path,
    jobs: Sequence[tuple[str, Callable[[], Any]]],
    progress: Progress = quiet,
    style: Style = SCREEN,
) -> list[Path]:
    """Draws (name, function that makes a figure) into folder, as files whose bytes depend on the data and on the
    installed fonts alone.

    Words in characters that no installed font has are numbered, and labels.txt in the folder says what they are. Raises
    BadInput for a style that is not available.
    """
    import matplotlib

    style.check()
    written = []
    smaller = COLUMN if style.width == "column" else {}
    settings: Any = {**matplotlib.rcParamsDefault, **STYLE, **smaller, "image.cmap": style.colours}
    with matplotlib.rc_context(settings):
        for name, make in progress(jobs, label="figures", unit="figures"):
            figure = _fitted(make, style, folder / KEY)
            folder.mkdir(parents=True, exist_ok=True)  # not before: of what cannot be drawn nothing is left
            box = figure.get_tightbbox()
            room = (INCHES[style.width] - box.width) / 2 if style.width else 2 * MARGIN
            box = box.padded(max(0, room), MARGIN if style.width else 2 * MARGIN)
            for suffix in style.format:
                stream = io.BytesIO()
                figure.savefig(stream, format=suffix, bbox_inches=box, **OPTIONS[suffix])
                write(folder / f"{name}.{suffix}", stream.getvalue())
                written.append(folder / f"{name}.{suffix}")
    return written


def _fitted(make: Callable[[], Any], style: Style, key: Path) -> Any:
    """A figure in this style. One of matrices is drawn anew until these leave room for the names around them."""
    width = INCHES[style.width] - 2 * MARGIN if style.width else None
    left, figure = width, None
    for _ in range(TRIES):
        token = _AVAILABLE.set(left)
        try:
            figure = _legible(make, style.font, key)
        finally:
            _AVAILABLE.reset(token)
        if not style.titles:
            _untitled(figure)
        if width is None or left is None or (surplus := _narrowed(figure, width)) <= 0:
            break
        left -= surplus
    return figure


def _untitled(figure: Any) -> None:
    """Without its title; of several panels each keeps its name."""
    figure.suptitle("")
    places = ("left", "center", "right")
    titled = [axes for axes in figure.axes if any(axes.get_title(loc=place) for place in places)]
    for axes in titled if len(titled) == 1 else ():
        for place in places:
            axes.set_title("", loc=place)


def _narrowed(figure: Any, width: float) -> float:
    """Makes the figure so many inches wide, with what stands around its axes. Text around axes keeps its size, tick
    labels that would touch are left out; text inside axes shrinks with them, down to where it cannot be read. Returns
    by how many inches a figure of matrices, which is not scaled, is still too wide."""
    before, legends = figure.get_size_inches()[0], _without_legends_beside(figure)
    matrices = [axes for axes in figure.axes if axes.get_label() in (MATRIX, SMALL_MATRIX)]
    surplus, scale = 0.0, 1.0
    if matrices:
        surplus = _surround(figure, matrices, width)
    elif _are_alike(figure.axes):
        scale = _stack(figure, width)
    else:
        _shrink(figure, width)
        scale = min(1.0, figure.get_size_inches()[0] / before)
    for axes in figure.axes:
        for text in axes.texts:
            text.set_fontsize(text.get_fontsize() * scale)
            text.set_visible(text.get_fontsize() >= LEAST)
    for axis in _axes_of(figure):
        end = None
        for label in axis.get_ticklabels():
            if not label.get_text() or not label.get_visible():
                continue
            extent = label.get_window_extent()
            low, high = (extent.x0, extent.x1) if axis.axis_name == "x" else (-extent.y1, -extent.y0)
            low, high = min(low, high), max(low, high)
            if end is not None and end[0] < high + APART and low < end[1] + APART:
                label.set_visible(False)
            else:
                end = low, high
    for legend in legends:
        _legend_below(figure, legend, width)
    return surplus


def _surround(figure: Any, matrices: Sequence[Any], width: float) -> float:
    """Folds the titles and labels around matrices, and moves what stands above another matrix clear of it. Returns the
    inches by which all is wider than this."""
    for part in (part for axes in matrices for part in (axes, *axes.child_axes)):
        for axis, turned in ((part.xaxis, 90), (part.yaxis, 0)):
            if all(label.get_rotation() == turned for label in axis.get_ticklabels()):
                _shorten_ticks(axis, NAMES * width)
    for axes in figure.axes:
        _fold([axes.yaxis.label], 1.4 * axes.get_window_extent().height / figure.dpi)
    pair = [axes for axes in matrices if axes.get_label() == MATRIX]
    if len(pair) == 2 and pair[0].get_position().y0 > pair[1].get_position().y1:
        _part(figure, *pair)
    least = min(axes.get_tightbbox(for_layout_only=True).x0 for axes in figure.axes)
    titled = matrices[:1] if pair else []
    for axes in titled:  # flush with the names beside the matrix
        box = axes.get_window_extent()
        axes._left_title.set_x((least - box.x0) / box.width)
        _fold(_titles(axes), width)
    if figure._suptitle is not None:
        figure._suptitle.set(x=least / figure.get_window_extent().width, ha="left")
        _fold([figure._suptitle], width)
    return figure.get_tightbbox().width - width


def _part(figure: Any, upper: Any, lower: Any) -> None:
    """Moves axes above each other apart by what stands below the upper ones."""
    width, height = figure.get_size_inches()
    places = [(axes, axes.get_position(original=True)) for axes in figure.axes]
    more = _around(upper)[2] + 0.12 - (upper.get_position().y0 - lower.get_position().y1) * height
    middle, total = lower.get_position().y1, height + more
    figure.set_size_inches(width, total)
    for axes, box in places:
        bottom = box.y0 * height + (more if box.y0 >= middle else 0)
        axes.set_position((box.x0, bottom / total, box.width, box.height * height / total))


def _shrink(figure: Any, width: float) -> None:
    """Scales a figure of unlike panels until it is so many inches wide with what stands around its axes, which does not
    shrink."""
    titled = [axes for axes in figure.axes if any(title.get_text() for title in _titles(axes))]
    columns = {round(axes.get_position().x0, 2) for axes in titled}
    if titled:
        first = min(axes.get_window_extent().x0 for axes in titled) / figure.dpi
        left = first - min(axes.get_tightbbox(for_layout_only=True).x0 for axes in figure.axes) / figure.dpi
        for axes in titled:
            _fold(_titles(axes), 0.97 * (width - left) / len(columns))
    if figure._suptitle is not None:
        _fold([figure._suptitle], 0.9 * width)
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
        _fold([axes.yaxis.label], figure.get_size_inches()[1])


def _are_alike(panels: Sequence[Any]) -> bool:
    """Whether these are one panel, or panels of one size beside and below each other."""
    boxes = [axes.get_position(original=True) for axes in panels]
    places = {(round(box.x0, 3), round(box.y0, 3)) for box in boxes}
    return len(places) == len(boxes) and all(
        abs(box.width - boxes[0].width) + abs(box.height - boxes[0].height) < 0.01 for box in boxes
    )


def _stack(figure: Any, width: float) -> float:
    """Places panels of one size anew in a figure so many inches wide: fewer side by side where they would be too small
    to read, with the room that names and titles need between them. Returns the new width of a panel over the old."""
    panels = figure.axes
    box, size = panels[0].get_position(original=True), figure.get_size_inches()
    wide, high = box.width * size[0], box.height * size[1]
    columns = len({round(axes.get_position(original=True).x0, 3) for axes in panels})
    _shorten_ticks(panels[0].yaxis, 0.5 * width)
    new, left, between = 0.0, 0.0, 0.0
    for across in range(columns, 0, -1):
        _show_outer(panels, across)
        sides = [_around(axes) for axes in panels]
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
        _fold([axes.yaxis.label], high)
        if across == 1 and left > new:  # long names leave little: texts may stand above and below these
            for text in (*_titles(axes), axes.xaxis.label):
                text.set(x=1, ha="right")
            _fold([*_titles(axes), axes.xaxis.label], left + new)
        else:
            _fold(_titles(axes), new)
            _fold([axes.xaxis.label], new + (between if across > 1 else 0))
    grown = max(_around(axes)[0] for axes in panels[::across]) - left  # by labels that were folded
    left, new = left + grown, new - grown / across
    top = 0.0
    if figure._suptitle is not None and figure._suptitle.get_text():
        _fold([figure._suptitle], width)
        top = figure._suptitle.get_window_extent().height / figure.dpi + 0.05
    down = -(-len(panels) // across)
    for _ in range(2):  # what stands above and below panels depends on their size
        sides = [_around(axes) for axes in panels]
        lines = [sides[i * across : (i + 1) * across] for i in range(down)]
        above, below = ([max(side[k] for side in line) for line in lines] for k in (3, 2))
        total = top + sum(above) + sum(below) + down * high + 0.08 * (down - 1)
        figure.set_size_inches(width, total)
        edge = total - top
        for number, axes in enumerate(panels):
            row, column = divmod(number, across)
            if column == 0:
                edge -= above[row] + high
            axes.set_position(((left + column * (new + between)) / width, edge / total, new / width, high / total))
            if column == across - 1:
                edge -= below[row] + 0.08
    if top and figure._suptitle is not None:
        figure._suptitle.set(x=0, y=1 - (top - 0.05) / total, ha="left", va="bottom")
    return min(1.0, new / wide)


def _show_outer(panels: Sequence[Any], across: int) -> None:
    """Of panels that share an axis, those at the left and at the bottom have its names; a label that only some panels
    have stands below the last of them."""
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


def _around(axes: Any) -> tuple[float, float, float, float]:
    """The inches that names, labels and titles take to the left, right, below and above of axes."""
    box, whole = axes.get_window_extent(), axes.get_tightbbox(for_layout_only=True)
    parts = box.x0 - whole.x0, whole.x1 - box.x1, box.y0 - whole.y0, whole.y1 - box.y1
    left, right, below, above = (max(0.0, float(part)) / axes.figure.dpi for part in parts)
    return left, right, below, above


def _titles(axes: Any) -> list[Any]:
    return [axes.title, axes._left_title, axes._right_title]


def _fold(texts: Sequence[Any], inches: float) -> None:
    """Breaks each line of the texts that is longer."""
    for text in texts:
        lines, room = text.get_text().split("\n"), inches * text.figure.dpi
        for most in range(max(map(len, lines)), 7, -1):
            extent = text.get_window_extent()
            if (extent.height if text.get_rotation() == 90 else extent.width) <= room:
                break
            text.set_text("\n".join(textwrap.fill(line, most) for line in lines))


def _shorten_ticks(axis: Any, inches: float) -> None:
    """Names across an axis in smaller letters, and without their middle, where they would take more than this."""
    labels = [label for label in axis.get_ticklabels() if label.get_text()]
    extents = [label.get_window_extent() for label in labels]
    long = max((box.width if axis.axis_name == "y" else box.height for box in extents), default=0.0)
    share = inches * axis.figure.dpi / long if long else 1.0
    if share >= 1 or not all("\n" not in label.get_text() for label in labels):
        return
    size = labels[0].get_fontsize()
    smaller = max(5.0, size * share)
    most = int(max(len(label.get_text()) for label in labels) * share * size / smaller)
    names = [shortened(label.get_text(), most) for label in axis.get_ticklabels()]
    axis.set_ticks(axis.get_ticklocs(), names, fontsize=smaller)


def shortened(name: str, most: int) -> str:
    """The ends of a name that is too long for its place.

    >>> shortened("gelu_trained", 12), shortened("gelu_trained_3l", 8)
    ('gelu_trained', 'gelu…_3l')
    """
    return name if len(name) <= most else f"{name[: most // 2]}…{name[len(name) - (most - 1) // 2 :]}"


def _without_legends_beside(figure: Any) -> list[Any]:
    """Takes away the legends to the right of their axes, which leave no width for these, and returns them."""
    beside = []
    for axes in figure.axes:
        legend = axes.get_legend()
        if legend is not None and legend.get_window_extent().x0 >= axes.get_window_extent().x1 - 1:
            beside.append(legend)
            legend.remove()
    return beside


def _legend_below(figure: Any, legend: Any, width: float) -> None:
    """The legend again, below all that is there, in as many columns as fit into a width in inches; names are shortened
    where it would have more than ROWS rows."""
    names = [text.get_text() for text in legend.get_texts()]
    below = figure.get_tightbbox().y0 / figure.get_size_inches()[1]
    size, least = legend.get_texts()[0].get_fontsize(), -(-len(names) // ROWS)
    for columns in range(max(least, min(len(names), 6)), least - 1, -1):
        if columns == least:
            most = int(72 * width / (LETTER * size * columns)) - 7  # for the line before each name
            names = [shortened(name, max(5, most)) for name in names]
        again = figure.legend(
            legend.legend_handles, names, title=legend.get_title().get_text() or None, title_fontsize=size,
            fontsize=size, frameon=False, loc="upper center", bbox_to_anchor=(0.5, below), ncols=columns,
            columnspacing=1.0,
        )  # fmt: skip
        for text in again.get_texts():
            text.set_parse_math(False)
        if columns == least or again.get_window_extent().width <= width * figure.dpi:
            return
        again.remove()


def _axes_of(figure: Any) -> list[Any]:
    from matplotlib.axis import Axis

    return figure.findobj(Axis)


def _legible(make: Callable[[], Any], font: str, key: Path) -> Any:
    """A figure with characters from other fonts where the first lacks them, and numbers where none has them."""
    import matplotlib

    families = list(dict.fromkeys([font, PLAIN]))
    with matplotlib.rc_context({"font.family": families}):
        figure = make()
    lacking = _lacking(figure, families)
    if not lacking:
        return figure
    families += _others(lacking)
    with matplotlib.rc_context({"font.family": families}):
        figure = make()
    if lacking := _lacking(figure, families):
        _number(figure, lacking, key)
    return figure


def _words(figure: Any) -> Iterator[Any]:
    """All pieces of text, tick labels among them."""
    from matplotlib.text import Text

    for axis in _axes_of(figure):
        axis.get_ticklabels()  # they have no text before
    yield from figure.findobj(Text)


def _lacking(figure: Any, families: Sequence[str]) -> set[str]:
    """The characters of the figure that none of these families has."""
    used = {c for text in _words(figure) for c in text.get_text() if not c.isspace()}
    return {c for c in used if not any(ord(c) in _characters(family) for family in families)}


def _number(figure: Any, lacking: Collection[str], key: Path) -> None:
    """Puts #1, #2, ... for words with these characters, as the key says, to which new ones are added."""
    lines = key.read_text("utf-8").splitlines() if key.is_file() else []
    numbers = {word: number for number, _, word in (line.partition(" ") for line in lines)}

    def numbered(text: str) -> str:
        return re.sub(r"\S+", lambda word: of(word[0]) if set(word[0]) & set(lacking) else word[0], text)

    def of(word: str) -> str:
        return numbers.setdefault(word, f"#{len(numbers) + 1}")

    for axis in _axes_of(figure):
        labels = [label.get_text() for label in axis.get_ticklabels()]
        if any(set(label) & set(lacking) for label in labels):
            axis.set_ticks(axis.get_ticklocs(), [numbered(label) for label in labels])
    for text in _words(figure):
        if set(text.get_text()) & set(lacking):
            text.set_text(numbered(text.get_text()))
    key.parent.mkdir(parents=True, exist_ok=True)
    write(key, "".join(f"{number} {word}\n" for word, number in numbers.items()).encode())


@cache
def _installed() -> frozenset[str]:
    from matplotlib.font_manager import fontManager

    return frozenset(entry.name for entry in fontManager.ttflist)


@cache
def _characters(family: str) -> frozenset[int]:
    """The characters that a family has."""
    from matplotlib.font_manager import fontManager
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(fontManager.findfont(family)).get_charmap())


def _others(lacking: Collection[str]) -> list[str]:
    """Installed families that together have as many of these characters as possible, few of them."""
    left, chosen = {ord(c) for c in lacking}, []
    known = sorted(family for family in _installed() if family.startswith(OTHER_SCRIPTS))
    while left and known:
        best = max(known, key=lambda family: len(left & _characters(family)))
        if not left & _characters(best):
            break
        chosen.append(best)
        left -= _characters(best)
    return chosen


def cycled(values: Sequence[str], count: int) -> list[str]:
    """The first `count` of the values, repeated."""
    return [values[i % len(values)] for i in range(count)]


def several(count: int) -> list[Any]:
    """As many colours: ten that are told apart well, or a scale of more."""
    import numpy as np
    from matplotlib import colormaps

    return list(colormaps["tab10"](range(count)) if count <= 10 else colormaps["turbo"](np.linspace(0, 1, count)))


def shades(count: int) -> list[Any]:
    """As many colours in order, from dark to bright."""
    import numpy as np
    from matplotlib import colormaps

    return list(colormaps["viridis"](np.linspace(0, 0.9, count)))


def legend_beside(axes: Any, **options: Any) -> None:
    """A legend to the right of the axes, whose names are taken as they are."""
    settings = {"fontsize": 7, "frameon": False, "loc": "center left", "bbox_to_anchor": (1, 0.5), **options}
    for text in axes.legend(**settings).get_texts():
        text.set_parse_math(False)
