"""Training curves: a number per layer against the step, on a logarithmic and on a linear axis."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from repsim_cli.results import slug

Curves = list[dict[str, Any]]
PANEL = (4.2, 3.0)  # inches
LOSSES = "training loss, nats per token"


def figures(folder: Path, results: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """QUANTITY-POINT-all with the means of all models, and QUANTITY-POINT-NUMBER-MODEL with the layers of each;
    of a pre-training its losses, and of distances between layers MEASURE-view: their mean against step and metrics."""
    if LOSSES in results["curves"]:
        yield "loss", partial(_losses, results["curves"])
    view = results["tables"].get("distance and metrics")
    for measure in dict.fromkeys(row[1] for row in view["rows"]) if view else ():
        yield (
            f"{slug(measure)}-view",
            partial(_view, view["columns"], [row for row in view["rows"] if row[1] == measure]),
        )
    curves = [one for one in results["curves"].values() if isinstance(one, dict) and "percentiles" in one]
    for quantity, point in dict.fromkeys((one["quantity"], one["point"]) for one in curves):
        own = [one for one in curves if (one["quantity"], one["point"]) == (quantity, point)]
        stem = f"{slug(quantity)}-{slug(point)}"
        yield f"{stem}-all", partial(_means, own)
        for number, one in enumerate(own):
            yield f"{stem}-{number:02d}-{slug(one['model'])}", partial(_layers, one)


def _means(curves: Curves) -> Any:
    """Mean over layers and the band between the quartiles, one colour per model, smallest first."""
    figure, panels = _panels(curves)
    order = sorted(curves, key=lambda one: one["parameters"])
    for one, colour in zip(order, _colours(len(order)), strict=True):
        _draw(panels, one, colour, ("25", "75"), f"{one['model']} ({one['parameters']:,} parameters)")
    panels[1].legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _layers(one: dict[str, Any]) -> Any:
    """A thin line per layer from dark to bright, the mean over layers and the band of the 10th to 90th percentile."""
    figure, panels = _panels([one])
    for values, name, colour in zip(one["values"], one["layers"], _colours(len(one["layers"])), strict=True):
        for panel in panels:
            panel.plot(one["steps"], _gaps(values), color=colour, linewidth=0.9, marker=".", markersize=3, label=name)
    _draw(panels, one, "black", ("10", "90"), "mean")
    panels[1].legend(
        fontsize=6, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), ncols=1 + len(one["layers"]) // 16
    )
    return figure


def _view(columns: list[str], rows: list[list[Any]]) -> Any:
    """Mean distance against the step and against every metric; a colour per model, points in the order of steps."""
    from matplotlib.figure import Figure

    against = ["step", *columns[4:]]
    figure = Figure(figsize=(len(against) * 0.75 * PANEL[0], PANEL[1]))
    panels = figure.subplots(1, len(against), sharey=True, squeeze=False, gridspec_kw={"wspace": 0.1})[0]
    models = list(dict.fromkeys(row[0] for row in rows))
    for name, panel in zip(against, panels, strict=True):
        for model, colour in zip(models, _colours(len(models)), strict=True):
            own = [row for row in rows if row[0] == model]
            x = _gaps([row[columns.index(name)] for row in own])
            panel.plot(x, [row[3] for row in own], color=colour, linewidth=1, marker="o", markersize=3.5, label=model)
        panel.set_xlabel(name)
        panel.grid(alpha=0.25, linewidth=0.5)
    panels[0].set_xscale("symlog", linthresh=1, linscale=0.4)
    panels[0].set_xlim(0)
    panels[0].set_ylabel(columns[3], fontsize=8)
    panels[0].set_title(rows[0][1], loc="left", parse_math=False)
    panels[-1].legend(fontsize=7, frameon=False)
    return figure


def _losses(curves: dict[str, Any]) -> Any:
    """Training loss of every step, and held-out loss of the kept ones."""
    losses = curves[LOSSES]
    held_out = curves["held-out loss, nats per token"]
    figure, panels = _axes(range(len(losses) + 1))
    for panel in panels:
        # the loss of step s is that of the weights after s steps
        panel.plot(range(len(losses)), losses, color="0.7", linewidth=0.7, label="training, one batch")
        panel.plot(
            held_out["steps"],
            held_out["mean"],
            color="black",
            linewidth=1.4,
            marker="o",
            markersize=3,
            label="held-out text",
        )
    panels[0].set_ylim(0)
    panels[0].set_ylabel(held_out["label"])
    panels[0].set_title("next-token loss", loc="left")
    panels[1].legend(fontsize=7, frameon=False)
    return figure


def _draw(panels: Sequence[Any], one: dict[str, Any], colour: Any, band: tuple[str, str], label: str) -> None:
    low, high = (_gaps(one["percentiles"][percent]) for percent in band)
    for panel in panels:
        panel.fill_between(one["steps"], low, high, color=colour, alpha=0.15, linewidth=0)
        panel.plot(one["steps"], _gaps(one["mean"]), color=colour, linewidth=1.6, marker="o", markersize=3, label=label)


def _panels(curves: Curves) -> tuple[Any, Sequence[Any]]:
    first = curves[0]
    figure, panels = _axes([step for one in curves for step in one["steps"]])
    low, high = first["bounds"]
    panels[0].set_ylim(low, high if high is None else 1.02 * high)
    panels[0].set_ylabel(first["label"], fontsize=8)
    names = first["model"] if len(curves) == 1 else "all models"
    panels[0].set_title(f"{first['quantity']}, {first['point']}: {names}", loc="left", parse_math=False)
    return figure, panels


def _axes(steps: Sequence[int]) -> tuple[Any, Sequence[Any]]:
    """Two panels with the steps on a logarithmic and on a linear axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2 * PANEL[0], PANEL[1]))
    panels = list(figure.subplots(1, 2, sharey=True, gridspec_kw={"wspace": 0.1}))
    for panel, scale in zip(panels, ("symlog", "linear"), strict=True):
        # the first steps may be 0 and 1: linear up to 1, logarithmic from there
        panel.set_xscale(scale, **({"linthresh": 1, "linscale": 0.4} if scale == "symlog" else {}))
        panel.set_xlim(0 if scale == "linear" else min(steps), max(steps))
        panel.set_xlabel(f"step ({'logarithmic' if scale == 'symlog' else 'linear'})")
        if scale == "symlog" and not any(min(steps) <= 10**power <= max(steps) for power in range(12)):
            panel.set_xticks(sorted(set(steps)), [f"{step:,}" for step in sorted(set(steps))])
            panel.minorticks_off()
        panel.grid(alpha=0.25, linewidth=0.5)
    return figure, panels


def _gaps(values: Sequence[float | int | None]) -> np.ndarray:
    """Missing checkpoints as breaks of the line."""
    return np.array([np.nan if value is None else value for value in values])


def _colours(count: int) -> Sequence[Any]:
    from matplotlib import colormaps

    return list(colormaps["viridis"](np.linspace(0, 0.9, count)))
