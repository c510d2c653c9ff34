"""Components by name: the name in the registry is the YAML `kind` or file, the JSON key and the axis label.

Functions register themselves by decorator; a registry imports its packages when it is first asked for a name, so that
nothing heavy loads at start-up.
"""

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from repsim_cli.errors import BadInput

Registered = TypeVar("Registered", bound=Callable)
SHOWN = 20  # names listed where there is no near miss


class Entry(NamedTuple):
    name: str
    function: Callable[..., Any]
    card: Any


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The hint for an unknown name: the near misses (a name's last part counts too), else all names.

    >>> did_you_mean("cka_unbaised", ["cka", "cka_unbiased"])
    "did you mean 'cka_unbiased'?"
    """
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    near += [k for k in known if k.split("/")[-1] == name.split("/")[-1] and k not in near]
    if near:
        return "did you mean " + " or ".join(f"'{n}'" for n in near) + "?"
    return "known: " + ", ".join(known[:SHOWN]) + (", ..." if len(known) > SHOWN else "")


class Registry:
    """The names of some packages, each with a function and, for measures, a card."""

    def __init__(self, noun: str, *packages: str):
        self.noun = noun
        self.packages = packages
        self._entries: dict[str, Entry] = {}
        self._loaded = False

    def register(self, name: str, card: Any = None) -> Callable[[Registered], Registered]:
        def decorate(function: Registered) -> Registered:
            if name in self._entries:
                raise ValueError(f"{self.noun} '{name}' is registered twice")
            self._entries[name] = Entry(name, function, card)
            return function

        return decorate

    def _load(self) -> dict[str, Entry]:
        if not self._loaded:
            for name in self.packages:
                for module in pkgutil.iter_modules(importlib.import_module(name).__path__):
                    importlib.import_module(f"{name}.{module.name}")
            self._loaded = True
        return self._entries

    def names(self) -> list[str]:
        return sorted(self._load())

    def get(self, name: str) -> Entry:
        """Raises BadInput with the near misses for an unknown name."""
        entries = self._load()
        if name not in entries:
            raise BadInput(f"unknown {self.noun}, got '{name}'; {did_you_mean(name, entries)}")
        return entries[name]


data = Registry("data kind", "repsim_cli.data")
models = Registry("model kind", "repsim_cli.models", "repsim_cli.training")
measures = Registry("measure", "repsim_cli.measures")
studies = Registry("study", "repsim_cli.studies")
analyses = Registry("analysis", "repsim_cli.findings")
claims = Registry("claim", "repsim_cli.findings")
