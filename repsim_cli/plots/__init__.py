"""Figures, one file per kind, drawn from the run folder's files and never from live tensors.

Each kind is a function `figures(folder, results)` that yields (name, matplotlib Figure); `draw` writes them as
PNG and SVG whose bytes depend on the files alone.
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from repsim_cli.results import Progress, marked, quiet, read_results, write

DPI = 150
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "svg.hashsalt": "repsim",
    "image.interpolation": "nearest",
    "axes.titlesize": 10,
}


def draw(folder: Path, progress: Progress = quiet) -> list[Path]:
    """Draws all figures of a run into figures/ and returns their paths; models below their aim are marked in them."""
    from repsim_cli.plots import (
        agreement,
        classifiers,
        couplings,
        groups,
        heatmap,
        histograms,
        learning,
        localization,
        neighbourhoods,
        probes,
        stitching,
        sub_networks,
        training,
    )

    results = read_results(folder)
    kinds = (
        heatmap,
        sub_networks,
        agreement,
        groups,
        localization,
        training,
        learning,
        probes,
        classifiers,
        stitching,
        histograms,
        neighbourhoods,
        couplings,
    )
    names = [name for kind in kinds for name, _ in kind.figures(folder, results)]
    makers = [make for kind in kinds for _, make in kind.figures(folder, marked(results))]
    jobs = list(zip(names, makers, strict=True))
    return save(folder / "figures", jobs, progress) if jobs else []


def save(folder: Path, jobs: Sequence[tuple[str, Callable[[], Any]]], progress: Progress = quiet) -> list[Path]:
    """Draws (name, function that makes a figure) into folder, as .png and .svg whose bytes depend on the data alone."""
    import warnings

    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    settings: Any = {**matplotlib.rcParamsDefault, **STYLE}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        for name, make in progress(jobs, label="figures", unit="figures"):
            figure = make()
            box = figure.get_tightbbox().padded(0.1)
            for suffix, options in (("png", {"dpi": DPI}), ("svg", {"metadata": {"Date": None}})):
                stream = io.BytesIO()
                figure.savefig(stream, format=suffix, bbox_inches=box, **options)
                write(folder / f"{name}.{suffix}", stream.getvalue())
                written.append(folder / f"{name}.{suffix}")
    return written
