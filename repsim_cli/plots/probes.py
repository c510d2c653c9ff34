"""Errors of probes: representations along, targets down, a panel per probe, with its control beneath."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from repsim_cli.findings.layers import block_of
from repsim_cli.results import read_array, slug

CELL = 0.115, 0.17  # inches
GAP, SMALLEST = 0.16, 1.5
COLOURS = "viridis_r"


def figures(folder: Path, results: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """`probes-MODEL`."""
    errors = results.get("probes", {}).get("errors", [])
    for model in dict.fromkeys(one["model"] for one in errors):
        yield f"probes-{slug(model)}", partial(_model, folder, [one for one in errors if one["model"] == model])


def _model(folder: Path, errors: list[dict[str, Any]]) -> Any:
    from matplotlib.figure import Figure

    layers, targets = errors[0]["layers"], errors[0]["targets"]
    blocks = [block_of(layer) for layer in layers]
    width, height = max(CELL[0] * len(layers), SMALLEST), CELL[1] * len(targets)
    rows = [(one, way) for one in errors for way in ("values", "control")]
    # probes stand apart, a control close to its probe
    tops = [number * height + GAP * (number // 2 + 0.5 * number) for number in range(len(rows))]
    total = tops[-1] + height
    figure = Figure(figsize=(width, total))
    used: list[Any] = []
    image: Any = None
    for (one, way), top in zip(rows, tops, strict=True):
        axes = figure.add_axes((0, 1 - (top + height) / total, 1, height / total))
        values = read_array(folder, one[way]).T
        image = axes.imshow(values, cmap=COLOURS, vmin=0, vmax=1, aspect="auto")
        axes.set_yticks(range(len(targets)), targets, fontsize=7, parse_math=False)
        axes.set_xticks([])
        axes.tick_params(length=2)
        said = f"{one['label']}\n{one['error']}" if way == "values" else "shuffled\ntargets"
        axes.text(-0.32 / width, 0.5, said, transform=axes.transAxes, fontsize=7, ha="right", va="center")
        for place in range(1, len(blocks)):
            if blocks[place - 1] != blocks[place]:
                axes.axvline(place - 0.5, color="white", linewidth=1.5)
        used.append(axes)
    used[-1].set_xticks(range(len(layers)), layers, fontsize=5, rotation=90)
    beside = figure.add_axes((1 + 0.15 / width, 0.1, 0.12 / width, 0.8))
    figure.colorbar(image, cax=beside, extend="max").set_label("held-out error (0: perfect)", fontsize=8)
    beside.tick_params(labelsize=7)
    used[0].set_title(errors[0]["model"], loc="left", parse_math=False)
    return figure
