"""Components by name: the name in the registry is the YAML `kind` or file, the JSON key and the axis label.

Functions register themselves by decorator; a registry imports its files when it is first asked for a name, so that
nothing heavy loads at start-up. Other packages add names by entry points, and are imported when such a name is used.
"""

import difflib
import importlib
import logging
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatch
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple, TypeVar

from repsim_cli.base.errors import BadInput

HERE = __name__.partition(".")[0]
Registered = TypeVar("Registered", bound=Callable)
SHOWN = 20  # names listed where there is no near miss
log = logging.getLogger(__name__)


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
    """Names, each with a function and, for measures, a card, from the files of the package that match the patterns.

    entries: the group of entry points by which other packages add names, as `repsim.measures`; empty where they cannot.
    """

    def __init__(self, noun: str, *patterns: str, entries: str = ""):
        self.noun = noun
        self.patterns = patterns
        self._group = entries
        self._entries: dict[str, Entry] = {}
        self._loaded, self._own = False, frozenset[str]()
        self._broken: dict[str, str] = {}  # plug-ins, by name, and why

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
            self._loaded, self._own = True, frozenset(self._entries)
            for name in sorted(self._own & self.plugins.keys()):
                log.warning(
                    "%s: its %s '%s' is left out, repsim has one", package_of(self.plugins[name]), self.noun, name
                )
        return self._entries

    def add(self, name: str, function: Callable[..., Any], card: Any = None) -> None:
        """Adds a name from outside, or replaces one. Raises BadInput for one of the package's own."""
        self._load()
        if name in self._own:
            raise BadInput(f"{self.noun}: a name of repsim's own, got '{name}'; give another")
        self._entries[name] = Entry(name, function, card)

    def added(self) -> list[str]:
        """Lists the names from outside that this program has used or made so far."""
        return sorted(self._load().keys() - self._own)

    def forget(self) -> None:
        """Drops the names from outside."""
        if self._loaded:
            self._entries = {name: entry for name, entry in self._entries.items() if name in self._own}

    @cached_property
    def plugins(self) -> Mapping[str, EntryPoint]:
        """Lists the names of other packages without importing these; where two have one name, the first has it."""
        points = sorted(entry_points(group=self._group), key=package_of, reverse=True) if self._group else ()
        return {point.name: point for point in points}

    def names(self) -> list[str]:
        return sorted({*self._load(), *self.plugins})

    def usable(self) -> list[str]:
        """Lists the names without those of plug-ins that cannot be loaded, and warns of each of these once."""
        known = {*self._broken}
        names = [name for name in self.names() if self._why_broken(name) is None]
        for name in self._broken.keys() - known:
            log.warning("%s; it is left out", self._broken[name])
        return names

    def get(self, name: str) -> Entry:
        """Raises BadInput with the near misses for an unknown name, or where a plug-in cannot be loaded."""
        if name not in self._load() and name not in self.plugins:
            raise BadInput(f"unknown {self.noun}, got '{name}'; {did_you_mean(name, self.names())}")
        if why := self._why_broken(name):
            raise BadInput(f"{why}; mend or uninstall it")
        return self._entries[name]

    def _why_broken(self, name: str) -> str | None:
        """Imports what a plug-in's name stands for, once; says why this cannot be done."""
        if name in self._load() or name in self._broken:
            return self._broken.get(name)
        before = {*self._entries}
        point = self.plugins[name]
        try:
            point.load()
            strange = self._entries.keys() - before - self.plugins.keys()
            if name not in self._entries or strange:
                raise LookupError(f"it registers {', '.join(sorted(strange)) or 'nothing of this name'}")
        except Exception as error:  # whatever the code of others may raise
            for added in self._entries.keys() - before:
                del self._entries[added]
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            self._broken[name] = f"{package_of(point)}: its {self.noun} '{name}' cannot be loaded, got {reason}"
        return self._broken.get(name)


def package_of(point: EntryPoint) -> str:
    """Names the package that an entry point is of, with its version."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value


def matching(pattern: str, package: str = HERE) -> Iterator[str]:
    """The modules whose files below a package match, such as `models/*.py`."""
    first, _, rest = pattern.partition("/")
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        name = f"{package}.{module.name}"
        if rest and module.ispkg and fnmatch(module.name, first):
            yield from matching(rest, name)
        elif not (rest or module.ispkg) and fnmatch(f"{module.name}.py", first):
            yield name


data = Registry("data kind", "data/*.py", entries="repsim.data")
models = Registry(
    "model kind", "models/*.py", "training/*.py", "studies/*/model.py", "studies/*/train.py", entries="repsim.models"
)
measures = Registry("measure", "measures/*.py", entries="repsim.measures")
studies = Registry("study", "studies/*/study*.py", entries="repsim.studies")
analyses = Registry("analysis", "findings/*.py", "studies/*/finding*.py")
claims = Registry("claim", "findings/*.py", "studies/*/finding*.py")
