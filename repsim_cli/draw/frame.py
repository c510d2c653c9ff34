"""Figures as files: one style, and bytes that depend on the data alone."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from repsim_cli.results import Progress, quiet, write

DPI = 150
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "svg.hashsalt": "repsim",
    "image.interpolation": "nearest",
    "axes.titlesize": 10,
}
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^v<>P"


def save(folder: Path, jobs: Sequence[tuple[str, Callable[[], Any]]], progress: Progress = quiet) -> list[Path]:
    """Draws (name, function that makes a figure) into folder, as .png and .svg whose bytes depend on the data alone."""
    import warnings

    import matplotlib

    written = []
    settings: Any = {**matplotlib.rcParamsDefault, **STYLE}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        for name, make in progress(jobs, label="figures", unit="figures"):
            figure = make()
            folder.mkdir(parents=True, exist_ok=True)  # not before: of what cannot be drawn nothing is left
            box = figure.get_tightbbox().padded(0.1)
            for suffix, options in (("png", {"dpi": DPI}), ("svg", {"metadata": {"Date": None}})):
                stream = io.BytesIO()
                figure.savefig(stream, format=suffix, bbox_inches=box, **options)
                write(folder / f"{name}.{suffix}", stream.getvalue())
                written.append(folder / f"{name}.{suffix}")
    return written


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
