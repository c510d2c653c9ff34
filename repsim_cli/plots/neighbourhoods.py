"""A batch of rows in the t-SNE plane of each layer, with the neighbours of chosen ones."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from repsim_cli.plots.histograms import columns
from repsim_cli.results import read_array, slug

SIDE = 1.55  # of a panel, inches
MARKERS = "osD^v<>P"
PLAIN = "0.62"
KEPT: dict[str, Any] = {"linewidth": 1.1}
NEW: dict[str, Any] = {"linewidth": 0.6, "linestyle": (0, (1, 1.5)), "alpha": 0.8}
EDGE: dict[str, Any] = {"markeredgecolor": "black", "markeredgewidth": 0.7}


def figures(folder: Path, results: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """`neighbours-NUMBER-MODEL` for every model."""
    views = results.get("views", {})
    for number, one in enumerate(views.get("neighbours", [])):
        yield f"neighbours-{number:02d}-{slug(one['model'])}", partial(_panels, folder, one, views["batch"])


def _panels(folder: Path, one: dict[str, Any], batch: dict[str, Any]) -> Any:
    """Lines lead from each chosen row to its nearest, full where that row was among the nearest in the first layer."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    planes, nearest = read_array(folder, one["planes"]), read_array(folder, one["nearest"]).astype(int)
    inks = {place: colormaps["tab10"](i % 10) for i, place in enumerate(one["samples"])}
    classes = batch["classes"] or [""] * len(batch["rows"])
    shapes = {name: MARKERS[i % len(MARKERS)] for i, name in enumerate(dict.fromkeys(classes))}
    across = columns(len(planes))
    down = -(-len(planes) // across)
    figure = Figure(figsize=(across * SIDE, down * SIDE))
    grid = figure.subplots(down, across, squeeze=False, gridspec_kw={"wspace": 0.06, "hspace": 0.18})
    for number, axes in enumerate(grid.flat):
        if number >= len(planes):
            axes.remove()
            continue
        plane = planes[number]
        for sample, (place, ink) in enumerate(inks.items()):
            kept = np.isin(nearest[number, sample], nearest[0, sample])
            for others, style in ((nearest[number, sample][kept], KEPT), (nearest[number, sample][~kept], NEW)):
                ends = np.stack([np.broadcast_to(plane[place], (len(others), 2)), plane[others]])
                axes.plot(*ends.transpose(2, 0, 1), color=ink, zorder=1, **style)
        for name, shape in shapes.items():
            own = [place for place, other in enumerate(classes) if other == name and place not in inks]
            axes.plot(*plane[own].T, shape, color=PLAIN, markersize=4, markeredgecolor="white", markeredgewidth=0.4)
        for place, ink in inks.items():
            axes.plot(*plane[place], shapes[classes[place]], color=ink, markersize=6, **EDGE)
        axes.set_title(one["layers"][number], fontsize=7, pad=2, loc="left", parse_math=False)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.margins(0.1)
        axes.spines[:].set_color("0.8")
    handles = [
        Line2D(
            [], [], color=ink, marker=shapes[classes[place]], markersize=5, label=f"row {batch['rows'][place]}", **EDGE
        )
        for place, ink in inks.items()
    ]
    handles += [
        Line2D([], [], color=PLAIN, marker=shape, markersize=4, linewidth=0, label=name)
        for name, shape in shapes.items()
        if name
    ]
    handles += [
        Line2D([], [], color="0.3", label="near in the first layer too", **KEPT),
        Line2D([], [], color="0.3", label="near here alone", **NEW),
    ]
    legend = figure.legend(
        handles=handles, fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(0.91, 0.5), borderaxespad=0
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    figure.suptitle(
        f"{one['model']}: t-SNE of {len(batch['rows'])} rows, {one['k']} nearest",
        x=0.125,
        y=0.88 + 0.26 / (down * SIDE),
        ha="left",
        va="bottom",
        fontsize=9,
        parse_math=False,
    )
    return figure
