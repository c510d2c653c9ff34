"""Distances within the layers of a model: a panel per layer, in bins of the model's own."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from repsim_cli.results import read_array, slug

ACROSS = 4  # panels side by side, or more where there are many
WIDTH, HEIGHT = 1.75, 1.2  # of a panel, inches
SCALES = {"none": "Euclidean distance of two rows", "mean": "distance of two rows over their layer's mean"}
FILL, BEFORE = "#3b75af", "0.45"


def figures(folder: Path, results: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """`histograms-NUMBER-MODEL` for every model."""
    for number, one in enumerate(results.get("views", {}).get("histograms", [])):
        yield f"histograms-{number:02d}-{slug(one['model'])}", partial(_panels, folder, one)


def _panels(folder: Path, one: dict[str, Any]) -> Any:
    """The share of all pairs of rows in each bin; the layer before is outlined, with KL(layer || layer before)."""
    from matplotlib.figure import Figure

    edges, counts = read_array(folder, one["edges"]), read_array(folder, one["counts"])
    shares = counts / counts.sum(1, keepdims=True)
    across = columns(len(shares))
    down = -(-len(shares) // across)
    figure = Figure(figsize=(across * WIDTH, down * HEIGHT))
    grid = figure.subplots(down, across, squeeze=False, gridspec_kw={"wspace": 0.08, "hspace": 0.32})
    for number, axes in enumerate(grid.flat):
        if number >= len(shares):
            axes.remove()
            continue
        axes.stairs(shares[number], edges, fill=True, color=FILL, alpha=0.85)
        if number:
            axes.stairs(shares[number - 1], edges, color=BEFORE, linewidth=0.8)
            about = {"transform": axes.transAxes, "ha": "right", "va": "top", "fontsize": 7}
            axes.text(0.97, 0.95, f"KL {one['kl'][number - 1]:.2g}", **about)
        axes.set_title(one["layers"][number], fontsize=7, pad=2, loc="left", parse_math=False)
        axes.set_xlim(0, edges[-1])
        axes.set_ylim(0, 1.3 * shares[number].max())
        axes.set_yticks([])
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(labelsize=6, length=2)
        if number + across < len(shares):
            axes.set_xticklabels([])
    figure.supylabel("share of pairs, each to its height", fontsize=8, x=0.125 - 0.2 / (across * WIDTH))
    figure.supxlabel(
        f"{SCALES[one['scale']]} (outlined: the layer before)", fontsize=8, y=0.11 - 0.3 / (down * HEIGHT), va="top"
    )
    pairs = one["rows"] * (one["rows"] - 1) // 2
    figure.suptitle(
        f"{one['model']}: distances within layers, {pairs:,} pairs of rows",
        x=0.125,
        y=0.88 + 0.28 / (down * HEIGHT),
        ha="left",
        va="bottom",
        fontsize=9,
        parse_math=False,
    )
    return figure


def columns(panels: int) -> int:
    """How many stand side by side: a page's width, or about as many as below each other."""
    return min(panels, max(ACROSS, int(np.ceil(panels**0.5))))
