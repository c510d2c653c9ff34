"""Learning curves of models of modular sums: loss and accuracy against the epoch, on training and validation rows."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

PANEL = (3.6, 2.9)  # inches
STYLES = {"validation": "-", "training": "--"}


def figures(folder: Path, results: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """`learning-curves`."""
    if results["study"] == "modular_training":
        yield "learning-curves", partial(_curves, list(results["curves"].values()))


def _curves(curves: list[dict[str, Any]]) -> Any:
    """Both quantities side by side; a colour per model and stage."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    quantities = list(dict.fromkeys(one["quantity"] for one in curves))
    stages = list(dict.fromkeys((one["model"], one["stage"]) for one in curves))
    alone = {model for model, _ in stages if sum(model == other for other, _ in stages) == 1}
    shades = colormaps["tab10"](range(len(stages)))
    figure = Figure(figsize=(len(quantities) * PANEL[0], PANEL[1]))
    panels = figure.subplots(1, len(quantities), gridspec_kw={"wspace": 0.28})
    for panel, quantity in zip(panels, quantities, strict=True):
        own = [one for one in curves if one["quantity"] == quantity]
        for one in own:
            model, stage = one["model"], one["stage"]
            named = one["rows"] == "validation"
            panel.plot(
                one["steps"],
                one["mean"],
                STYLES[one["rows"]],
                color=shades[stages.index((model, stage))],
                linewidth=1.4 if named else 1.0,
                label=(model if model in alone else f"{model}, {stage}") if named else "_",
            )
        panel.set_xscale("log")
        panel.set_xlabel("epoch")
        panel.set_ylabel(own[0]["label"], fontsize=8)
        panel.set_title(quantity, loc="left")
        panel.grid(alpha=0.25, linewidth=0.5)
        panel.spines[["top", "right"]].set_visible(False)
    panels[quantities.index("loss")].set_yscale("log")
    panels[quantities.index("accuracy")].set_ylim(-0.02, 1.03)
    for rows, style in STYLES.items():
        panels[-1].plot([], [], style, color="0.3", linewidth=1.2, label=f"{rows} rows")
    legend = panels[-1].legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5))
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure
