"""Measures of representational similarity: pure functions of (n, d) tensors, each with a card of what it claims.

>>> import numpy as np
>>> x = np.array([[0., 0.], [1., 0.], [0., 2.]])
>>> round(get("cka")(x, 2 * x + 1), 12)
1.0
"""

from dataclasses import replace
from typing import Any

from repsim_cli import registry
from repsim_cli.measures.base import Card, Measure

__all__ = ["Card", "Measure", "card", "get", "names"]


def names(reads: str = "activations") -> list[str]:
    """The names of all measures of activations, or of `attention`."""
    return [name for name in registry.measures.names() if card(name).reads == reads]


def card(name: str) -> Card:
    """What the measure claims: range, direction, symmetry, invariances, source."""
    return registry.measures.get(name).card


def get(name: str, **settings: Any) -> Measure:
    """The measure with its settings bound; call it with x, y (n, d) for the entry (row x, column y)."""
    entry = registry.measures.get(name)
    measure = entry.function(**settings)
    defaults = entry.function.__kwdefaults__ or {}
    return replace(measure, name=name, card=entry.card, settings={**defaults, **settings})
