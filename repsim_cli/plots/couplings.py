"""Couplings of the rows of two layers: a small matrix per pair of layers."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from repsim_cli.results import read_array, slug

SIDE = 1.8  # of a panel, inches
ACROSS = 5  # as published


def figures(folder: Path, results: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """`couplings-NUMBER-MODEL` for every model, with all its pairs of layers."""
    views = results.get("views", {})
    found = views.get("couplings", [])
    for number, model in enumerate(dict.fromkeys(one["model"] for one in found)):
        own = [one for one in found if one["model"] == model]
        yield f"couplings-{number:02d}-{slug(model)}", partial(_panels, folder, model, own, views["batch"])


def _panels(folder: Path, model: str, found: list[dict[str, Any]], batch: dict[str, Any]) -> Any:
    """The mass of every cell over that of a row, 1 / n; lines part classes."""
    from matplotlib.figure import Figure

    n, ways = len(batch["rows"]), list(dict.fromkeys(one["starts"] for one in found))
    of_each = len(found) // len(ways)
    across = min(of_each, ACROSS)
    down = len(ways) * -(-of_each // across)
    figure = Figure(figsize=(across * SIDE, down * SIDE))
    grid = figure.subplots(down, across, squeeze=False, gridspec_kw={"wspace": 0.25, "hspace": 0.55})
    classes = batch["classes"]
    ends = [i + 0.5 for i, (a, b) in enumerate(pairwise(classes)) if a != b] if classes else []
    used: dict[int, Any] = {}
    image: Any = None
    for number, one in enumerate(found):
        pair, way = divmod(number, len(ways))
        place = (pair // across * len(ways) + way) * across + pair % across
        axes = used[place] = grid.flat[place]
        image = axes.imshow(n * read_array(folder, one["coupling"]), cmap="Greys", vmin=0, vmax=1)
        axes.plot([-0.5, n - 0.5], [-0.5, n - 0.5], color="#c44e52", linewidth=0.6, alpha=0.8)
        for end in ends:
            axes.axhline(end, color="#3b75af", linewidth=0.7)
            axes.axvline(end, color="#3b75af", linewidth=0.7)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_ylabel(one["rows"], fontsize=7, labelpad=2, parse_math=False)
        axes.set_xlabel(one["columns"], fontsize=7, labelpad=2, parse_math=False)
        axes.set_title(
            f"{one['starts']}\non the diagonal {one['diagonal']:.2f}\nobjective {one['objective']:.2g}",
            fontsize=6.5,
            pad=3,
            loc="left",
        )
    for place, axes in enumerate(list(grid.flat)):
        if place not in used:
            axes.remove()
    bar = figure.colorbar(image, ax=list(used.values()), fraction=0.12 / (across * SIDE), pad=0.015, shrink=0.8)
    bar.set_label("share of the row's mass", fontsize=7)
    bar.ax.tick_params(labelsize=6)
    order = f", by class ({', '.join(dict.fromkeys(classes))})" if classes else ""
    figure.suptitle(
        f"{model}: couplings of {n} rows{order}",
        x=0.125,
        y=0.88 + 0.5 / (down * SIDE),
        ha="left",
        va="bottom",
        fontsize=9,
        parse_math=False,
    )
    return figure
