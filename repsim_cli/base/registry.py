"""Components by name: the name in the registry is the YAML `kind` or file, the JSON key and the axis label.

Functions register themselves by decorator; a registry imports its files when it is first asked for a name, so that
nothing heavy loads at start-up.
"""

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from typing import Any, NamedTuple, TypeVar

from repsim_cli.base.errors import BadInput

HERE = __name__.partition(".")[0]
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
    """Names, each with a function and, for measures, a card, from the files of the package that match the patterns."""

    def __init__(self, noun: str, *patterns: str):
        self.noun = noun
        self.patterns = patterns
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
            for module in [module for pattern in self.patterns for module in matching(pattern)]:
                importlib.import_module(module)
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


def matching(pattern: str, package: str = HERE) -> Iterator[str]:
    """The modules whose files below a package match, such as `models/*.py`."""
    first, _, rest = pattern.partition("/")
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        name = f"{package}.{module.name}"
        if rest and module.ispkg and fnmatch(module.name, first):
            yield from matching(rest, name)
        elif not (rest or module.ispkg) and fnmatch(f"{module.name}.py", first):
            yield name


data = Registry("data kind", "data/*.py")
models = Registry("model kind", "models/*.py", "training/*.py", "studies/*/model.py", "studies/*/train.py")
measures = Registry("measure", "measures/*.py")
studies = Registry("study", "studies/*/study*.py")
analyses = Registry("analysis", "findings/*.py", "studies/*/finding*.py")
claims = Registry("claim", "findings/*.py", "studies/*/finding*.py")
