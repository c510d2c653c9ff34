"""Measures of representational similarity: pure functions of (n, d) tensors, each with a card of what it claims.

>>> import numpy as np
>>> x = np.array([[0., 0.], [1., 0.], [0., 2.]])
>>> round(get("cka")(x, 2 * x + 1), 12)
1.0
"""

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import RegistryEntry
from repsim_cli.base.schemas import call_checked
from repsim_cli.measures.base import InnerProduct, Measure, OfHsic, Pairwise
from repsim_cli.measures.cards import Card
from repsim_cli.measures.of_attention import OfAttention

__all__ = [
    "Card", "InnerProduct", "Measure", "OfAttention", "OfHsic", "Pairwise", "available", "card", "get", "names",
]  # fmt: skip


def names(reads: str = "activations") -> list[str]:
    """The names of all measures of activations, or of `attention`."""
    return [name for name in registry.measures.list_usable() if card(name).reads == reads]


def available() -> list[str]:
    """The names of the measures whose packages are installed."""
    return [name for name in names() if find_missing(card(name)) is None]


def find_missing(card: Card) -> str | None:
    """The optional package that the measure needs and that is not installed."""
    return card.package if card.package is not None and importlib.util.find_spec(card.package) is None else None


def card(name: str) -> Card:
    """The card of the measure, which says what it claims: range, direction, symmetry, invariances, source."""
    return registry.measures.get(name).card


def check_package(name: str) -> None:
    """Raises BadInput where the measure needs a package that is not installed."""
    if (package := find_missing(card(name))) is not None:
        raise BadInput(f"{package}: needed by {name}, and not installed; pip install -e '.[topology]'")


def get(name: str, /, **settings: Any) -> Measure:
    """The measure with its settings bound; call it with x, y (n, d) for the entry (row x, column y).

    Raises BadInput for an unknown name, settings that the measure does not have or take, or where it needs a package
    that is not installed.
    """
    entry = registry.measures.get(name)
    plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in settings.items()}
    return registry.measures.call(name, lambda: call_checked(name, wrap_function(entry), plain))


@cache
def wrap_function(entry: RegistryEntry) -> Callable[..., Measure]:
    """The function of a measure's settings, which are checked already, that binds the measure to them."""
    function = entry.function
    parameters = inspect.signature(function).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}

    def bind(**settings: Any) -> Measure:
        check_package(entry.name)
        measure = function(**settings)
        bound = replace(entry.card, invariant_to=entry.card.invariant_to - measure.sees)
        return replace(measure, name=entry.name, card=bound, settings={**defaults, **settings})

    bind.__signature__ = inspect.Signature([*parameters])  # type: ignore[attr-defined]
    return bind
