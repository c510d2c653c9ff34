"""A number per layer, a line per model: means over the other layers, localization, similarity to a base model."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from repsim_cli.results import slug

PANEL = (4.4, 3.2)  # inches
TITLES = {
    "row": "row mean: its neurons, in the others",
    "column": "column mean: the others' neurons, in it",
    "same layer": "same layer of both",
    "t-SNE plane": "in the plane of a t-SNE",
    "full space": "in the full space",
}
MARKERS = "osD^v<>P"
NAMED = 14  # layers up to which each has its name


def figures(folder: Path, results: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """by-layer-NAME for every such curve."""
    for name, one in results["curves"].items():
        if isinstance(one, dict) and "by_layer" in one:
            yield f"by-layer-{slug(name)}", partial(_lines, one)


def _lines(one: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    models = one["by_layer"]
    ways = [way for way in next(iter(models.values())) if way != "layers"]
    # of a symmetric measure row and column are one
    if len(ways) == 2 and all(np.allclose(own[ways[0]], own[ways[1]]) for own in models.values()):
        ways = ways[:1]
    figure = Figure(figsize=(len(ways) * PANEL[0], PANEL[1]))
    panels = figure.subplots(1, len(ways), sharey=True, squeeze=False, gridspec_kw={"wspace": 0.1})[0]
    longest = max((own["layers"] for own in models.values()), key=len)
    common = all(own["layers"] == longest[: len(own["layers"])] for own in models.values())
    for panel, way in zip(panels, ways, strict=True):
        for number, ((label, own), colour) in enumerate(zip(models.items(), _colours(len(models)), strict=True)):
            panel.plot(
                range(len(own["layers"])),
                own[way],
                color=colour,
                marker=MARKERS[number % len(MARKERS)],
                markersize=3.5,
                linewidth=1.3,
                label=label,
            )
        if common:
            step = -(-len(longest) // NAMED)
            at = range(0, len(longest), step)
            panel.set_xticks(at, [longest[i] for i in at], rotation=90, fontsize=7, parse_math=False)
        else:
            panel.set_xlabel("layer, in order")
        if len(ways) > 1:
            panel.set_title(TITLES[way], loc="left", fontsize=9)
        panel.tick_params(axis="y", labelsize=7)
        panel.grid(alpha=0.25, linewidth=0.5)
    panels[0].set_ylabel(one["label"], fontsize=8, parse_math=False)
    legend = panels[-1].legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def _colours(count: int) -> Sequence[Any]:
    from matplotlib import colormaps

    return list(colormaps["tab10"](range(count)) if count <= 10 else colormaps["turbo"](np.linspace(0, 1, count)))
