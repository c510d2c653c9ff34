"""Components by name: the name in the registry is the YAML `kind` or file, the JSON key and the axis label.

Functions register themselves by decorator. A registry reads in its files which name is registered where, and imports a
file when one of its names is used, so that a command loads what it uses. Other packages add names by entry points, and
are imported when such a name is used.
"""

import difflib
import importlib
import logging
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatch
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from repsim_cli.base.errors import BadInput

HERE = __name__.partition(".")[0]
PACKAGE = Path(__file__).parent.parent
Registered = TypeVar("Registered", bound=Callable[..., Any])
SHOWN = 20  # names listed where there is no near miss
log = logging.getLogger(__name__)


class RegistryEntry(NamedTuple):
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

    entries: the group of entry points by which other packages add names, as `repsim.measures`.
    said: how a file says the names that it registers, as the first group of what this finds there; a file in which the
    group is empty is imported for its names.
    """

    def __init__(self, noun: str, *patterns: str, said: str, entries: str = ""):
        self.noun = noun
        self.patterns = patterns
        self._group = entries
        self._said = re.compile(said, re.MULTILINE | re.DOTALL)
        self._entries: dict[str, RegistryEntry] = {}
        self._broken: dict[str, str] = {}  # plug-ins, by name, and why

    def register(self, name: str, card: Any = None) -> Callable[[Registered], Registered]:
        def decorate(function: Registered) -> Registered:
            own = vars(self).get("_own", {}).get(name)  # it may be imported later
            if name in self._entries or own not in (None, "", function.__module__):
                raise ValueError(f"{self.noun} '{name}' is registered twice")
            self._entries[name] = RegistryEntry(name, function, card)
            return function

        return decorate

    @cached_property
    def _own(self) -> Mapping[str, str]:
        """Lists the package's own names, each with the module that registers it. A module that does not say its names
        in so many words is imported for them ("")."""
        found: dict[str, str] = {}
        for module, file in [each for pattern in self.patterns for each in match_modules(pattern)]:
            names = self._said.findall(file.read_text("utf-8"))
            if not all(names):
                importlib.import_module(module)
            found |= dict.fromkeys(filter(None, names), module)
        own = dict.fromkeys(self._entries, "") | found
        for name in sorted(own.keys() & self.plugins.keys()):
            log.warning(
                "%s: its %s '%s' is left out, repsim has one", name_package(self.plugins[name]), self.noun, name
            )
        return own

    def own(self, name: str) -> bool:
        """Says whether the name is one of the package's own."""
        return name in self._own

    def add(self, name: str, function: Callable[..., Any], card: Any = None) -> None:
        """Adds a name from outside, or replaces one. Raises BadInput for one of the package's own."""
        if name in self._own:
            raise BadInput(f"{self.noun}: a name of repsim's own, got '{name}'; give another")
        self._entries[name] = RegistryEntry(name, function, card)

    def list_added(self) -> list[str]:
        """Lists the names from outside that this program has used or made so far."""
        return sorted(self._entries.keys() - self._own.keys())

    def forget(self) -> None:
        """Drops the names from outside."""
        if "_own" in vars(self):
            self._entries = {name: entry for name, entry in self._entries.items() if name in self._own}

    @cached_property
    def plugins(self) -> Mapping[str, EntryPoint]:
        """Lists the names of other packages without importing these; where two have one name, the first has it."""
        points = sorted(entry_points(group=self._group), key=name_package, reverse=True) if self._group else ()
        return {point.name: point for point in points}

    def find_name_in(self, module: str) -> str | None:
        """The first of the names that a module registers; None where it registers none. Imports nothing."""
        known = {name: entry.function.__module__ for name, entry in self._entries.items()}
        known |= {name: place for name, place in self._own.items() if place}
        return min((name for name, place in known.items() if place == module), default=None)

    def names(self) -> list[str]:
        return sorted({*self._own, *self._entries, *self.plugins})

    def list_usable(self) -> list[str]:
        """Lists the names without those of plug-ins that cannot be loaded, and warns of each of these once."""
        known = {*self._broken}
        names = [name for name in self.names() if self._say_why_broken(name) is None]
        for name in self._broken.keys() - known:
            log.warning("%s; it is left out", self._broken[name])
        return names

    def get(self, name: str) -> RegistryEntry:
        """Imports what registers the name. Raises BadInput with the near misses for an unknown one, or where a plug-in
        cannot be loaded."""
        if not isinstance(name, str):
            known = did_you_mean("", self.names())
            raise BadInput(f"{self.noun}: not a name, got {name!r:.60}; give one as text, {known}")
        if not any(name in known for known in (self._own, self._entries, self.plugins)):
            raise BadInput(f"unknown {self.noun}, got '{name}'; {did_you_mean(name, self.names())}")
        if name not in self._entries and name in self._own:
            importlib.import_module(self._own[name])
        if why := self._say_why_broken(name):
            raise BadInput(f"{why}; mend or uninstall it")
        return self._entries[name]

    def _say_why_broken(self, name: str) -> str | None:
        """Imports what a plug-in's name stands for, once; says why this cannot be done."""
        if name in self._own or name in self._entries or name in self._broken:
            return self._broken.get(name)
        before = {*self._entries}
        point = self.plugins[name]
        try:
            point.load()
            strange = self._entries.keys() - before - self.plugins.keys() - self._own.keys()
            if name not in self._entries or strange:
                raise LookupError(f"it registers {', '.join(sorted(strange)) or 'nothing of this name'}")
        except Exception as error:  # whatever the code of others may raise
            for added in self._entries.keys() - before - self._own.keys():
                del self._entries[added]
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            self._broken[name] = f"{name_package(point)}: its {self.noun} '{name}' cannot be loaded, got {reason}"
        return self._broken.get(name)


def name_package(point: EntryPoint) -> str:
    """Names the package that an entry point is of, with its version."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value


def match_modules(pattern: str, package: str = HERE, folder: Path = PACKAGE) -> Iterator[tuple[str, Path]]:
    """Finds the modules whose files below a package match, such as `models/*.py`, with these files. Imports none."""
    first, _, rest = pattern.partition("/")
    loaded = getattr(sys.modules.get(package), "__path__", [folder])  # to which a program may have added folders
    for finder, name, is_package in pkgutil.iter_modules(map(str, loaded)):
        place = Path(getattr(finder, "path", folder)) / name
        if rest and is_package and fnmatch(name, first):
            yield from match_modules(rest, f"{package}.{name}", place)
        elif not (rest or is_package) and fnmatch(f"{name}.py", first):
            yield f"{package}.{name}", place.with_suffix(".py")


def find_registered(room: str) -> str:
    """Makes what finds the names of a room in a file: `@room.register("NAME"`, or a call of it."""
    return rf'^ *@?(?:\w+\.)?{room}\.register\(\s*(?:"([^"]+)")?'


def find_decorated(word: str) -> str:
    """Makes what finds the functions in a file that are decorated by @WORD(...), or by such as @_WORD_OF(...)."""
    return rf"^@_?{word}\w*\((?:[^\n]*\)|.*?\n\))\ndef (\w+)"


data = Registry("data kind", "data/*.py", entries="repsim.data", said=find_registered("data"))
models = Registry(
    "model kind",
    *("models/*.py", "training/*.py", "studies/*/model.py", "studies/*/train.py"),
    entries="repsim.models",
    said=find_registered("models"),
)
measures = Registry("measure", "measures/*.py", entries="repsim.measures", said=find_registered("measures"))
studies = Registry("study", "studies/*/study*.py", entries="repsim.studies", said=find_registered("studies"))
FINDINGS = ("findings/*.py", "studies/*/finding*.py")
analyses = Registry("analysis", *FINDINGS, said=find_decorated("analysis"))
claims = Registry("claim", *FINDINGS, said=find_decorated("claim"))
