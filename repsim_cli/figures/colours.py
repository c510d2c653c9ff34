"""Chooses the colours of a map: which are bright, where they begin and end, and what the bar says."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def choose_colour_range(values: np.ndarray, card: Mapping[str, Any], what: str) -> tuple[float, float]:
    """The values at which the colours of a map begin and end: the card's bounds, but 0 where no value is below it.
    Where the card has no bound on a side, the data's own. what: what the values are; standard errors (`se`) begin at 0.
    """
    values = values[np.isfinite(values)]
    if what == "se":
        return 0.0, float(values.max(initial=1e-12))
    # models of one training say nearly the same: on the whole range their differences would not be seen
    low, high = (0.0, None) if card.get("reads") == "outputs" else card["bounds"]
    least = float(values.min(initial=0.0))
    low = least if low is None else max(low, 0.0) if least >= 0 else low
    high = float(values.max(initial=0.0)) if high is None else high
    return low, high


def write_bar_label(card: Mapping[str, Any]) -> str:
    return f"{card['label']} ({say_direction(card)})"


def say_direction(card: Mapping[str, Any]) -> str:
    return f"{'larger' if card['larger_is_closer'] else 'smaller'} is closer"


def choose_card_colours(card: Mapping[str, Any], what: str, scale: str = "") -> str:
    """Bright is close. scale: by default that of the style of figures.

    >>> [choose_card_colours({"larger_is_closer": False}, "values", name) for name in ("viridis", "magma_r")]
    ['viridis_r', 'magma']
    """
    if what == "se":
        return "cividis"
    return choose_colours(small_is_bright=not card["larger_is_closer"], scale=scale)


def choose_colours(*, small_is_bright: bool = False, scale: str = "") -> str:
    """The colour map of the style of figures, or the same the other way round."""
    if not scale:
        from matplotlib import rcParams

        scale = rcParams["image.cmap"]
    if not small_is_bright:
        return scale
    return scale.removesuffix("_r") if scale.endswith("_r") else f"{scale}_r"
