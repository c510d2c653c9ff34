"""Figures as files: one style, and bytes that depend on the data alone."""

import io
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import escape, make_unique_filename
from repsim_cli.base.registry import did_you_mean
from repsim_cli.figures.layout import entitle, limit_room, name_powers, narrow, separate_texts
from repsim_cli.figures.texts import find_axis_objects
from repsim_cli.runs.results import Progress, quiet, write

DPI = 150
STYLE: dict[str, Any] = {
    "font.size": 9,
    "svg.hashsalt": "repsim",
    "image.interpolation": "nearest",
    "axes.titlesize": 10,
    "figure.titlesize": 10,
    "text.hinting": "none",  # as wide in every format and resolution as where the layout measures it
    "pdf.fonttype": 42,  # the fonts themselves, as publishers ask for, instead of outlines
}
COLUMN: dict[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "figure.titlesize": 8.5,
    "axes.labelsize": 8,
}  # about that of captions
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^v<>P"
SHADES = 0.25, 0.85  # of viridis: lines that are seen on white and on the dark scheme of the page
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)))
PLAIN = "DejaVu Sans"  # comes with matplotlib
OTHER_SCRIPTS = ("Noto Sans", "Noto Naskh", "Source Han Sans", "WenQuanYi", "IPA", "Nanum", "Droid Sans Fallback")
OPTIONS: dict[str, dict[str, Any]] = {
    "png": {"dpi": DPI},
    "svg": {"metadata": {"Date": None}},
    "pdf": {"metadata": {"CreationDate": None}},
}
INCHES = {"column": 3.25, "page": 6.75}
MARGIN = 0.05  # inches
KEY = "labels.txt"
TRIES = 4  # drawings of a matrix until its names fit beside it

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
        """Raises BadInput for a colour map or font that is not there, and for a format that is named twice."""
        from matplotlib import colormaps

        if twice := next((each for each in self.format if self.format.count(each) > 1), None):
            raise BadInput(f"format: a name twice, got '{twice}' in {list(self.format)}; give each once")
        if self.colours not in colormaps:
            raise BadInput(
                f"colours: no such colour map, got '{self.colours}'; {did_you_mean(self.colours, colormaps)}"
            )
        if self.font not in _list_fonts():
            raise BadInput(f"font: not installed, got '{self.font}'; {did_you_mean(self.font, _list_fonts())}")


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

    Example: repsim run figures.width=column figures.format=[png,pdf] figures.titles=false
    """

    which: Literal["overview", "all"] = "overview"


SCREEN = Style()


def read_figure_settings(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """The settings of Figures from the value of the key `figures`: a word, or a mapping.

    >>> read_figure_settings("all"), read_figure_settings({"format": ["png", "pdf"]})
    ({'which': 'all'}, {'format': ('png', 'pdf')})
    """
    if isinstance(given, str):
        return {"which": given}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}


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
    style.check()
    written = []
    with _use_style(style):
        given: dict[str, tuple[str, ...]] = {}
        jobs = [(make_unique_filename(name, given), make) for name, make in jobs]
        for name, make in progress(jobs, label="figures", unit="figures"):
            figure = _fit_figure(make, style, folder / KEY)
            folder.mkdir(parents=True, exist_ok=True)  # not before: of what cannot be drawn nothing is left
            box = figure.get_tightbbox()
            room = (INCHES[style.width] - box.width) / 2 if style.width else 2 * MARGIN
            box = box.padded(max(0, room), MARGIN if style.width else 2 * MARGIN)
            for suffix in style.format:
                stream = io.BytesIO()
                options = OPTIONS[suffix]
                named = {**options.get("metadata", {}), "Title": figure.get_label()}
                figure.savefig(stream, format=suffix, bbox_inches=box, **{**options, "metadata": named})
                write(folder / f"{name}.{suffix}", stream.getvalue())
                written.append(folder / f"{name}.{suffix}")
    return written


@contextmanager
def _use_style(style: Style) -> Iterator[None]:
    import matplotlib

    smaller = COLUMN if style.width == "column" else {}
    settings: Any = {**matplotlib.rcParamsDefault, **STYLE, **smaller, "image.cmap": style.colours}
    with matplotlib.rc_context(settings):
        yield


def lay_out(folder: Path, make: Callable[[], Any]) -> Any:
    """Makes a figure that looks as `save` writes it into this folder."""
    with _use_style(SCREEN):
        return _fit_figure(make, SCREEN, folder / KEY)


def _fit_figure(make: Callable[[], Any], style: Style, key: Path) -> Any:
    """A figure in this style. One of matrices is drawn anew until these leave room for the names around them."""
    width = INCHES[style.width] - 2 * MARGIN if style.width else None
    left, figure, title = width, None, ""
    for _ in range(TRIES):
        with limit_room(left) as given:
            figure = _make_legible_figure(make, style.font, key)
        title = figure.get_suptitle()
        figure.suptitle("")
        figure.set_label(title.partition("\n")[0])
        powers = name_powers(figure)
        surplus = 0.0
        if width is None:
            separate_texts(figure)
        else:
            surplus = narrow(figure, width, given.asked)
        for text in powers:
            text.set_visible(False)
        if left is None or surplus <= 0:
            break
        left = min(left, figure.get_size_inches()[0]) - surplus
    if style.titles:
        entitle(figure, title, width)
    _mark(figure)
    return figure


def _mark(figure: Any) -> None:
    """Names, in SVG, the paper, and what stands in cells: the page's dark scheme changes the one and not the other."""
    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        patch.set_gid("paper")
    for axes in figure.axes:
        for artist in (*axes.texts, *axes.lines, *axes.collections) if axes.images else ():
            artist.set_gid("cell")


def _make_legible_figure(make: Callable[[], Any], font: str, key: Path) -> Any:
    """A figure with characters from other fonts where the first lacks them, and numbers where none has them."""
    import matplotlib

    families = list(dict.fromkeys([font, PLAIN]))
    with matplotlib.rc_context({"font.family": families}):
        figure = _strip_control(make)
    lacking = _find_lacking(figure, families)
    if not lacking:
        return figure
    families += _find_other_families(lacking)
    with matplotlib.rc_context({"font.family": families}):
        figure = _strip_control(make)
    if lacking := _find_lacking(figure, families):
        _number(figure, lacking, key)
    return figure


def _strip_control(make: Callable[[], Any]) -> Any:
    """A figure without control characters."""
    figure = make()
    _replace_texts(figure, lambda text: "\n".join(map(escape, text.split("\n"))))
    return figure


def _find_figure_texts(figure: Any) -> Iterator[Any]:
    """Finds all pieces of text of a figure, tick labels among them."""
    from matplotlib.text import Text

    for axis in find_axis_objects(figure):
        axis.get_ticklabels()  # they have no text before
    yield from figure.findobj(Text)


def _find_lacking(figure: Any, families: Sequence[str]) -> set[str]:
    """The characters of the figure that none of these families has."""
    used = {c for text in _find_figure_texts(figure) for c in text.get_text() if not c.isspace()}
    return {c for c in used if not any(ord(c) in _list_font_characters(family) for family in families)}


def _number(figure: Any, lacking: Collection[str], key: Path) -> None:
    """Puts #1, #2, ... for words with these characters, as the key says, to which new ones are added."""
    lines = key.read_text("utf-8").splitlines() if key.is_file() else []
    numbers = {word: number for number, _, word in (line.partition(" ") for line in lines)}

    def number_word(text: str) -> str:
        return re.sub(r"\S+", lambda word: find_number(word[0]) if set(word[0]) & set(lacking) else word[0], text)

    def find_number(word: str) -> str:
        return numbers.setdefault(word, f"#{len(numbers) + 1}")

    _replace_texts(figure, number_word)
    key.parent.mkdir(parents=True, exist_ok=True)
    write(key, "".join(f"{number} {word}\n" for word, number in numbers.items()).encode())


def _replace_texts(figure: Any, changed: Callable[[str], str]) -> None:
    """Puts changed(text) for each text of a figure."""
    for axis in find_axis_objects(figure):
        labels = [label.get_text() for label in axis.get_ticklabels()]
        if (others := list(map(changed, labels))) != labels:
            axis.set_ticks(axis.get_ticklocs(), others)
    for text in _find_figure_texts(figure):
        if (other := changed(text.get_text())) != text.get_text():
            text.set_text(other)


@cache
def _list_fonts() -> frozenset[str]:
    from matplotlib.font_manager import fontManager

    return frozenset(entry.name for entry in fontManager.ttflist)


@cache
def _list_font_characters(family: str) -> frozenset[int]:
    """The characters that a family has."""
    from matplotlib.font_manager import fontManager
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(fontManager.findfont(family)).get_charmap())


def _find_other_families(lacking: Collection[str]) -> list[str]:
    """Installed families that together have as many of these characters as possible, few of them."""
    left, chosen = {ord(c) for c in lacking}, []
    known = sorted(family for family in _list_fonts() if family.startswith(OTHER_SCRIPTS))
    while left and known:
        best = max(known, key=lambda family: len(left & _list_font_characters(family)))
        if not left & _list_font_characters(best):
            break
        chosen.append(best)
        left -= _list_font_characters(best)
    return chosen


def repeat_values(values: Sequence[str], count: int) -> list[str]:
    """The first `count` of the values, repeated."""
    return [values[i % len(values)] for i in range(count)]


def choose_line_styles(count: int) -> list[dict[str, Any]]:
    """Gives as many styles of lines, for matplotlib: colours of the palette, with dashes and markers, so that no two
    of the first 24 are alike in both colour and dashes, and lines can be told apart without colours.

    >>> [(style["color"], style["linestyle"]) for style in choose_line_styles(2)]
    [('#0072B2', '-'), ('#D55E00', (0, (5, 1.5)))]
    """
    turn = len(COLOURS) * len(DASHES) // 2
    return [
        {
            "color": COLOURS[i % len(COLOURS)],
            "linestyle": DASHES[(i + i // turn) % len(DASHES)],
            "marker": MARKERS[i % len(MARKERS)],
        }
        for i in range(count)
    ]


def choose_shades(count: int) -> list[Any]:
    """Chooses `count` colours in order, from dark to bright."""
    import numpy as np
    from matplotlib import colormaps

    return list(colormaps["viridis"](np.linspace(*SHADES, count)))


def add_legend_beside(axes: Any, **options: Any) -> None:
    """A legend to the right of the axes, whose names are taken as they are."""
    settings = {
        "fontsize": 7,
        "frameon": False,
        "handlelength": 3,
        "loc": "center left",
        "bbox_to_anchor": (1, 0.5),
        **options,
    }
    for text in axes.legend(**settings).get_texts():
        text.set_parse_math(False)
