"""A panel whose x axis is the step of a training."""

from collections.abc import Sequence
from typing import Any

PANEL = (4.6, 3.2)  # inches
MARGIN = 0.02
DECADES = 100  # steps are on a logarithmic axis where the last is this many times the first


def make_step_panel(steps: Sequence[int]) -> tuple[Any, Any]:
    """A figure of one panel over steps: the figure and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=PANEL)
    panel = figure.subplots()
    set_step_axis(panel, steps)
    panel.grid(alpha=0.25, linewidth=0.5)
    return figure, panel


def set_step_axis(panel: Any, steps: Sequence[int]) -> None:
    """Makes the x axis logarithmic where steps span two decades or more, else linear, and names it."""
    from matplotlib.ticker import MaxNLocator

    logarithmic = max(steps) >= DECADES * min((step for step in steps if step > 0), default=1)
    if logarithmic:
        # the first steps may be 0 and 1: linear up to 1, logarithmic from there
        panel.set_xscale("symlog", linthresh=1, linscale=0.4)
    else:
        panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        panel.xaxis.set_major_formatter("{x:,.0f}")
    first, last = min(steps), max(*steps, min(steps) + 1)
    ends = panel.transScale.transform([(first, 0), (last, 0)])[:, 0]
    aside = MARGIN * (ends[1] - ends[0])  # so that the first and the last mark are whole
    panel.set_xlim(*panel.transScale.inverted().transform([(ends[0] - aside, 0), (ends[1] + aside, 0)])[:, 0])
    panel.set_xlabel(f"step{' (logarithmic)' if logarithmic else ''}")
