"""Classifiers of several seeds: accuracy by kind of example, a point a seed, and the loss of their training."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

BY = "hans_lexical_overlap_non_entailment"  # what colours the seeds, where it is there
PANEL = (4.6, 3.2)  # inches


def figures(folder: Path, results: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """`classifiers-all` with the metrics of the table, `classifiers-loss` with the training."""
    if results["study"] == "finetune":
        yield "classifiers-all", partial(_metrics, results)
        yield "classifiers-loss", partial(_loss, results)


def _metrics(results: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    table = results["tables"]["classifiers"]
    names = table["columns"][1:]
    shown = [place for place, name in enumerate(names) if name != "loss"]
    figure = Figure(figsize=PANEL)
    axes = figure.add_subplot()
    shade, by = _shades(results)
    for number, (row, colour) in enumerate(zip(table["rows"], shade, strict=True)):
        aside = 0.36 * (number / max(len(table["rows"]) - 1, 1) - 0.5)
        heights = [row[1 + place] for place in shown]
        axes.plot(np.arange(len(shown)) + aside, heights, "o", color=colour, markersize=4, markeredgewidth=0)
    labels = [names[place].removeprefix("hans_").replace("_non_entailment", "\nnot entailed") for place in shown]
    labels = [label.replace("_entailment", "\nentailed").replace("_", " ") for label in labels]
    axes.set_xticks(range(len(shown)), labels, fontsize=7, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("accuracy")
    axes.grid(axis="y", alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{len(table['rows'])} classifiers{f', bright: {by}' if by else ''}", loc="left", parse_math=False)
    return figure


def _loss(results: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=PANEL)
    axes = figure.add_subplot()
    for curve, colour in zip(results["curves"].values(), _shades(results)[0], strict=True):
        axes.plot(curve["steps"], curve["loss"], color=colour, linewidth=1)
    axes.set_xlabel("step")
    axes.set_ylabel("training loss, nats")
    axes.set_ylim(0, None)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{len(results['curves'])} classifiers", loc="left")
    return figure


def _shades(results: dict[str, Any]) -> tuple[Any, str]:
    """A colour per model, the brighter the more of HANS it gets right, and what that is called."""
    from matplotlib import colormaps

    values = [one.get(BY) for one in results["classifiers"].values()]
    if None in values:
        return colormaps["viridis"](np.linspace(0, 0.9, len(values))), ""
    low, high = min(values), max(values)
    scaled = [(value - low) / ((high - low) or 1.0) for value in values]
    return colormaps["viridis"](0.9 * np.array(scaled)), "right on lexical overlap, not entailed"
