"""Small panels on a grid, a page's width or about as many side by side as below each other."""

from collections.abc import Sequence
from typing import Any

import numpy as np

ACROSS = 4  # panels side by side, or more where there are many


def columns(panels: int) -> int:
    """How many panels stand side by side.

    >>> columns(3), columns(14), columns(30)
    (3, 4, 6)
    """
    return min(panels, max(ACROSS, int(np.ceil(panels**0.5))))


def panels(count: int, across: int, width: float, height: float, *, gaps: tuple[float, float]) -> tuple[Any, list[Any]]:
    """A figure with so many panels, so many of them side by side, each of this size in inches. gaps: between columns
    and rows, in parts of a panel."""
    from matplotlib.figure import Figure

    down = -(-count // across)
    figure = Figure(figsize=(across * width, down * height))
    grid = figure.subplots(down, across, squeeze=False, gridspec_kw={"wspace": gaps[0], "hspace": gaps[1]})
    for axes in grid.flat[count:]:
        axes.remove()
    return figure, list(grid.flat[:count])


def headline(figure: Any, text: str, inches: float) -> None:
    """A title above all panels, so many inches above them and flush with the first."""
    y = 0.88 + inches / figure.get_figheight()
    figure.suptitle(text, x=0.125, y=y, ha="left", va="bottom", fontsize=9, parse_math=False)


def name_panels(axes: Sequence[Any], names: Sequence[str]) -> None:
    for panel, name in zip(axes, names, strict=True):
        panel.set_title(name, fontsize=7, pad=2, loc="left", parse_math=False)
