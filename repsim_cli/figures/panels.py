"""Small panels on a grid, a page's width or about as many side by side as below each other."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from repsim_cli.base.plain import escape, slug
from repsim_cli.figures.layout import find_available_width
from repsim_cli.figures.texts import fold_lines
from repsim_cli.runs.content import ON

Item = TypeVar("Item")
ACROSS = 4  # panels side by side, or more where there are many
FRAME = 0.46 * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1)])  # about the middle of a cell
THICK, LONG = 0.1, (0.8, 2.2)  # of a colour bar, inches


def count_columns(panels: int) -> int:
    """Counts the panels that stand side by side.

    >>> count_columns(3), count_columns(14), count_columns(30)
    (3, 4, 6)
    """
    return min(panels, max(ACROSS, int(np.ceil(panels**0.5))))


def make_panels(
    count: int, across: int, width: float, height: float, *, gaps: tuple[float, float], least: float | None = None
) -> tuple[Any, list[Any]]:
    """A figure with `count` panels, `across` of them side by side, each of this size in inches. gaps: inches between
    columns and rows. least: how narrow panels may become where a figure has less room; where that is not enough, fewer
    stand side by side. None: they are placed anew when the figure is fitted into its width."""
    from matplotlib.figure import Figure

    if least is not None and (limit := find_available_width()) is not None:
        across = max(1, min(across, int((limit + gaps[0]) / (least + gaps[0]))))
        narrow = min(width, (limit - (across - 1) * gaps[0]) / across)
        width, height = narrow, height * narrow / width if width == height else height
    down = -(-count // across)
    figure = Figure(figsize=(across * (width + gaps[0]) - gaps[0], down * (height + gaps[1]) - gaps[1]))
    between = {"wspace": gaps[0] / width, "hspace": gaps[1] / height, "left": 0, "right": 1, "bottom": 0, "top": 1}
    grid = figure.subplots(down, across, squeeze=False, gridspec_kw=between)
    for axes in grid.flat[count:]:
        axes.remove()
    return figure, list(grid.flat[:count])


def split_into_pages(name: str, items: Sequence[Item], most: int) -> Iterator[tuple[str, Sequence[Item]]]:
    """The items of each figure, at most `most` and about the same number in each; figures are numbered where there are
    several.

    >>> [(name, list(items)) for name, items in split_into_pages("all", range(5), 2)]
    [('all-01', [0, 1]), ('all-02', [2, 3]), ('all-03', [4])]
    """
    count = -(-len(items) // most)
    each = -(-len(items) // max(count, 1))
    for number in range(count):
        yield slug(name, f"{number + 1:02d}") if count > 1 else name, items[number * each : (number + 1) * each]


def find_outer_panels(axes: Sequence[Any]) -> list[tuple[bool, bool]]:
    """Says of each panel whether it is the first of its row, and whether it is the lowest of its column."""
    across = axes[0].get_subplotspec().get_gridspec().ncols
    return [(number % across == 0, number + across >= len(axes)) for number in range(len(axes))]


def add_colour_bar(figure: Any, image: Any, label: str, **options: Any) -> Any:
    """A colour bar to the right of all panels, at their top: its axes. options: of matplotlib's colorbar."""
    width, height = figure.get_size_inches()
    long = float(np.clip(height, *LONG))
    axes = figure.add_axes((1 + 0.1 / width, 1 - long / height, THICK / width, long / height))
    bar = figure.colorbar(image, cax=axes, **options)
    bar.set_label(label, fontsize=7)
    axes.tick_params(labelsize=6)
    fold_lines([axes.yaxis.label], long)
    return axes


def set_headline(figure: Any, *lines: str) -> None:
    """The title of a figure: what is seen, of which models; then, small, the measure, the rows and what was done to
    them. `layout.entitle` places it."""
    figure.suptitle("\n".join(filter(None, lines)), parse_math=False)


def list_models(models: Sequence[str]) -> str:
    r"""Names models for a title, or counts them where they are many: one that read several columns is one. A line break
    in a label ends no line.

    >>> list_models(["a"]), list_models(["a", "b", "c"]), list_models("abcde")
    ('a', 'a, b and c', '5 models')
    >>> print(list_models(["a\nb"]))
    a\nb
    >>> list_models(["a on de", "a on en", "b on de", "b on en"])
    'a and b on 2 columns'
    """
    models = [*map(escape, models)]
    if len(models) <= 3:
        return " and ".join(filter(None, [", ".join(models[:-1]), models[-1]]))
    read = [model.rsplit(ON, 1) for model in models]
    if all(len(each) == 2 for each in read):
        names, columns = (list(dict.fromkeys(side)) for side in zip(*read, strict=True))
        if len(models) == len(names) * len(columns) and len(columns) > 1:
            return f"{list_models(names)}{ON}{len(columns)} columns"
    return f"{len(models)} models"


def name_panels(axes: Sequence[Any], names: Sequence[str]) -> None:
    for panel, name in zip(axes, names, strict=True):
        panel.set_title(name, fontsize=7, pad=2, loc="left", parse_math=False)


def draw_path(axes: Any, columns: Sequence[int | None], *, outlined: bool = False) -> None:
    """A line through the given column of each row of a matrix, broken where a row has none. outlined: these cells have
    a frame instead, where values are written into them."""
    at = np.array([np.nan if column is None else column for column in columns])
    y = np.arange(len(at))
    for ink, width, size in (("white", 2.0, 3.2), ("black", 0.8, 1.8)):
        if outlined:
            axes.plot(at + FRAME[:, :1], y + FRAME[:, 1:], color=ink, linewidth=width)
        else:
            axes.plot(at, y, color=ink, linewidth=width, marker="o", markersize=size, markeredgewidth=0)
