"""Panels whose x axis is the step of a training."""

from collections.abc import Sequence
from typing import Any

PANEL = (4.2, 3.0)  # inches


def step_panels(steps: Sequence[int]) -> tuple[Any, Sequence[Any]]:
    """A figure of two panels with the steps on a logarithmic and on a linear axis."""
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
