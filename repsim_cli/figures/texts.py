"""Text around axes: folded into lines, shortened, turned or left out where it would touch."""

import itertools
import re
import textwrap
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

APART = 2.0  # pixels between tick labels
_FOLDED: WeakKeyDictionary[Any, tuple[str, str]] = WeakKeyDictionary()  # of texts: what they were, and are
LINES = textwrap.TextWrapper()
LINES.wordsep_re = re.compile(r"(\s+|(?<=[_/@])(?=\w)|(?<=\.)(?=[A-Za-z*]))")  # type: ignore[misc]


def separate_tick_labels(axis: Any) -> None:
    """Names below an axis that touch are folded, and turned where that is not enough; of other labels that touch every
    second, third ... stays."""
    low, high = sorted(axis.get_view_interval())
    ticks = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=False)
    shown = [
        label for at, label in ticks if low <= at <= high and label.get_text().strip() and label.get_visible()
    ]  # fmt: skip
    if len(shown) < 2 or shown[0].get_rotation() not in (0, 90) or not _touch(shown, axis):
        return
    words = sum(any(map(str.isalpha, label.get_text())) for label in shown) > len(shown) / 2
    if axis.axis_name == "x" and words and all(label.get_rotation() == 0 for label in shown):
        pitch = axis.axes.get_window_extent().width / axis.axes.figure.dpi / len(shown)
        fold_lines(shown, pitch, least=4)
        if not _touch(shown, axis):
            return
        for label in shown:
            label.set(text=label.get_text().replace("\n", ""), rotation=90)
    for step in range(2, len(shown)):
        if not _touch(shown[::step], axis):
            break
    else:
        step = len(shown)
    for place, label in enumerate(shown if _touch(shown, axis) else ()):
        label.set_visible(place % step == 0)


def _touch(labels: Sequence[Any], axis: Any) -> bool:
    boxes = [label.get_window_extent() for label in labels]
    ends = sorted((box.x0, box.x1) if axis.axis_name == "x" else (box.y0, box.y1) for box in boxes)
    return any(start < end + APART for (_, end), (start, _) in itertools.pairwise(ends))


def fold_lines(texts: Sequence[Any], inches: float, least: int = 7) -> None:
    """Breaks each line of the texts that is longer than `inches`; lines that were broken for another room are joined
    first. least: letters of a line, at the fewest."""
    for text in texts:
        whole, folded = _FOLDED.get(text, (text.get_text(), text.get_text()))
        text.set_text(whole if text.get_text() == folded else text.get_text())
        whole = text.get_text()
        lines, room = text.get_text().split("\n"), inches * text.figure.dpi
        length, most = _measure_text_length(text), max(map(len, lines))
        LINES.width = most = min(most, int(1.15 * most * room / length) + 1) if length > room else most
        while length > room and most > least:
            text.set_text("\n".join(LINES.fill(line) for line in lines))
            length, most = _measure_text_length(text), most - 1
            LINES.width = most
        _FOLDED[text] = whole, text.get_text()


def _measure_text_length(text: Any) -> float:
    """Measures a text along its lines, in pixels."""
    extent = text.get_window_extent()
    return extent.height if text.get_rotation() == 90 else extent.width


def shorten_ticks(axis: Any, inches: float) -> None:
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
    names = shorten_names([label.get_text() for label in axis.get_ticklabels()], most)
    axis.set_ticks(axis.get_ticklocs(), names, fontsize=smaller)


def shorten_names(names: Sequence[str], most: int) -> list[str]:
    """The names with at most `most` letters; without their common ends where they would otherwise be the same.

    >>> shorten_names(["encoder.0.attention.output", "encoder.1.attention.output"], 12)
    ['…0.…', '…1.…']
    """
    short = [shorten(name, most) for name in names]
    if len(set(short)) == len(set(names)):
        return short
    parts = [re.split(r"(?<=[._@/])", name) for name in names]
    first = _count_alike(parts)
    last = min(_count_alike([part[::-1] for part in parts]), min(map(len, parts)) - first - 1)
    middles = [shorten("".join(part[first : len(part) - last]), most - 2) for part in parts]
    return [f"{'…' * bool(first)}{middle}{'…' * bool(last)}" for middle in middles]


def _count_alike(parts: Sequence[Sequence[str]]) -> int:
    """Counts the parts that all have alike at their beginning."""
    return len(list(itertools.takewhile(lambda each: len(set(each)) == 1, zip(*parts, strict=False))))


def shorten(name: str, most: int) -> str:
    """The ends of a name that is too long for its place, or of both names of a pair.

    >>> shorten("gelu_trained", 12), shorten("gelu_trained_3l", 8), shorten("gelu_trained_1 → gelu_trained_2", 17)
    ('gelu_trained', 'gelu…_3l', 'gel…d_1 → gel…d_2')
    """
    if len(name) <= most:
        return name
    if (said := re.fullmatch(r"(.+)( \([^()]*\))", name)) and len(said[2]) < most / 2:
        return shorten(said[1], most - len(said[2])) + said[2]
    for between in (" → ", " – "):
        if between in name:
            return between.join(shorten(part, (most - len(between)) // 2) for part in name.split(between))
    return f"{name[: most // 2]}…{name[len(name) - (most - 1) // 2 :]}"


def find_axis_objects(figure: Any) -> list[Any]:
    from matplotlib.axis import Axis

    return figure.findobj(Axis)


def list_titles(axes: Any) -> list[Any]:
    return [axes.title, axes._left_title, axes._right_title]
