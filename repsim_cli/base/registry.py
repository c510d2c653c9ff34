"""Components by name: the name in the registry is the YAML `kind` or file, the JSON key and the axis label.

Functions register themselves by decorator. A registry reads in its files which name is registered where, and imports a
file when one of its names is used, so that a command loads what it uses. Other packages add names by entry points, and
are imported when such a name is used.
"""

import difflib
import importlib
import inspect
import logging
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from fnmatch import fnmatch
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from itertools import takewhile
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from repsim_cli.base.errors import BadInput, RepsimError

HERE = __name__.partition(".")[0]
PACKAGE = Path(__file__).parent.parent
Registered = TypeVar("Registered", bound=Callable[..., Any])
Made = TypeVar("Made")
SHOWN = 20  # names listed where there is no near miss
LONGEST = 200  # characters of what the code of others raised
log = logging.getLogger("repsim")


class RegistryEntry(NamedTuple):
    name: str
    function: Callable[..., Any]
    card: Any


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The hint for an unknown name: the near misses (a name's last part counts too), else all names.

    >>> did_you_mean("cka_unbaised", ["cka", "cka_unbiased"])
    "did you mean 'cka_unbiased'?"
    >>> did_you_mean("recipe", [])
    'leave it out, since there are none'
    """
    known = sorted(known)
    if not known:
        return "leave it out, since there are none"
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
        self._warned: set[str] = set()  # names that several packages have, and reasons

    def register(self, name: str, card: Any = None) -> Callable[[Registered], Registered]:
        def decorate(function: Registered) -> Registered:
            if function.__module__.partition(".")[0] != HERE:
                self.add(name, function, card)
                return function
            own = vars(self).get("_own", {}).get(name)  # it may be imported later
            if name in self._entries or own not in (None, "", function.__module__):
                raise ValueError(f"{self.noun} '{name}' is registered twice")
            self._entries[name] = RegistryEntry(name, function, card)
            return function

        return decorate

    @cached_property
    def _own(self) -> Mapping[str, str]:
        """Lists the package's own names, each with the module that registers it. A module whose names are not written
        out is imported for them ("")."""
        found: dict[str, str] = {}
        for module, file in [each for pattern in self.patterns for each in match_modules(pattern)]:
            names = self._said.findall(file.read_text("utf-8"))
            if not all(names):
                importlib.import_module(module)
            found |= dict.fromkeys(filter(None, names), module)
        own = dict.fromkeys(self._entries, "") | found
        for name in sorted(own.keys() & self._points.keys()):
            for point in self._points[name]:
                log.warning("%s: its %s '%s' is left out, repsim has one", name_package(point), self.noun, name)
        return own

    def own(self, name: str) -> bool:
        """Says whether the name is one of the package's own."""
        return name in self._own

    def add(self, name: str, function: Callable[..., Any], card: Any = None) -> None:
        """Adds a name from outside, or replaces one of the program; of a name that two packages have, that of the first
        alone. Raises BadInput for a name of repsim's own, or of a package that does not register it here."""
        if name in self._own:
            raise BadInput(f"{self.noun}: a name of repsim's own, got '{name}'; give another")
        if points := self._points.get(name, []):
            caller = _find_package((frame for frame, _ in walk_stack(inspect.currentframe())), points)
            if caller is None:
                package = name_package(points[0])
                raise BadInput(f"{self.noun}: a name of the package {package}, got '{name}'; give another")
            self._warn_of_others(name)
            if caller is not points[0]:
                return
        self._entries[name] = RegistryEntry(name, function, card)

    def _warn_of_others(self, name: str) -> None:
        """Warns once where several packages have a name."""
        first, *others = map(name_package, self._points[name])
        for package in others if name not in self._warned else ():
            said = "two packages have the %s '%s': that of %s is used, that of %s is left out"
            log.warning(said, self.noun, name, first, package)
        self._warned.add(name)

    def list_foreign(self) -> list[str]:
        """Lists the names whose functions are written outside of repsim."""
        modules = {name: inspect.unwrap(entry.function).__module__ for name, entry in self._entries.items()}
        return sorted(name for name, module in modules.items() if module.partition(".")[0] != HERE)

    def list_added(self) -> list[str]:
        """Lists the names from outside that this program has used or made so far."""
        return sorted(self._entries.keys() - self._own.keys())

    def forget(self) -> None:
        """Drops the names from outside."""
        if "_own" in vars(self):
            self._entries = {name: entry for name, entry in self._entries.items() if name in self._own}

    @cached_property
    def _points(self) -> Mapping[str, list[EntryPoint]]:
        """Lists the entry points of other packages by name, in the order of the packages. Imports none of these."""
        points: dict[str, list[EntryPoint]] = {}
        for point in sorted(entry_points(group=self._group), key=name_package) if self._group else ():
            points.setdefault(point.name, []).append(point)
        return points

    @cached_property
    def plugins(self) -> Mapping[str, EntryPoint]:
        """Lists the names of other packages without importing these; where two have one name, the first has it."""
        return {name: points[0] for name, points in self._points.items()}

    def find_name_in(self, module: str) -> str | None:
        """The first of the names that a module registers; None where it registers none. Imports nothing."""
        known = {name: entry.function.__module__ for name, entry in self._entries.items()}
        known |= {name: place for name, place in self._own.items() if place}
        return min((name for name, place in known.items() if place == module), default=None)

    def names(self) -> list[str]:
        return sorted({*self._own, *self._entries, *self.plugins})

    def list_usable(self) -> list[str]:
        """Lists the names without those of plug-ins that cannot be loaded, and warns of each of these once."""
        names = [name for name in self.names() if self._say_why_broken(name) is None]
        for why in sorted({*self._broken.values()} - self._warned):
            log.warning("%s; it is left out", why)
        self._warned |= {*self._broken.values()}
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
        point = self.plugins[name]
        before = {room: {*room._entries} for room in (self, *ROOMS)}
        self._warn_of_others(name)
        try:
            with redirect_stdout(sys.stderr):
                point.load()
            strange = [
                f"the {room.noun} '{each}'"
                for room, names in before.items()
                for each in room.list_foreign()
                if each not in names and each not in room.plugins
            ]
            if name not in self._entries or strange:
                registered = f"{', '.join(strange)} without an entry point" if strange else "nothing of this name"
                raise BadInput(f"it registers {registered}")
        except (Exception, SystemExit) as error:  # whatever the code of others may raise
            for room, names in before.items():
                for each in {*room.list_foreign(), *([name] if room is self else [])} - names:
                    of = _name_module(room.plugins.get(each, point))
                    if of == _name_module(point) or of not in sys.modules:
                        room._entries.pop(each, None)
                    if of == _name_module(point) and each in room.plugins:
                        said = f"{name_package(point)}: its {room.noun} '{each}' cannot be loaded"
                        room._broken[each] = f"{said}{say_reason(error)}"
        return self._broken.get(name)

    def say_whose(self, name: str) -> str:
        """Names what a name from outside stands for, and the package that it is of."""
        package = f" of {name_package(self.plugins[name])}" if name in self.plugins and not self.own(name) else ""
        return f"{name}: the {self.noun}{package}"

    def call(self, name: str, step: Callable[[], Made], error: type[RepsimError] = BadInput) -> Made:
        """The value of a step in the code that a name stands for. Whatever the code of others raises there, this name's
        or another's, becomes an `error` of one line that names it; errors of repsim's own, and of files, stay as they
        are. What code from outside prints goes to standard error, since standard output is the answer of a command."""
        try:
            with nullcontext() if self.own(name) else redirect_stdout(sys.stderr):
                return step()
        except (RepsimError, OSError):
            raise
        except (Exception, SystemExit) as failed:
            passed = [frame for frame, _ in walk_tb(failed.__traceback__)]
            point = _find_package(reversed(passed), [each for room in ROOMS for each in room.plugins.values()])
            if self.own(name) and point is None:
                raise
            whose = f"the package {name_package(point)}" if self.own(name) and point else self.say_whose(name)
            log.debug("traceback", exc_info=True)
            raise error(f"{whose} fails{say_reason(failed)}; mend it") from failed


def say_reason(error: BaseException) -> str:
    """Says what the code of others raised, in the rest of a line: an error of repsim's own whole."""
    text = " ".join(str(error).split())
    return f": {text}" if isinstance(error, RepsimError) else f", got {type(error).__name__}: {text}"[:LONGEST]


def _name_module(point: EntryPoint) -> str:
    return point.value.partition(":")[0].strip()


def _find_package(frames: Iterable[FrameType], points: Sequence[EntryPoint]) -> EntryPoint | None:
    """Finds the entry point whose package the first of the frames is of, that is of any; of packages in one namespace
    the nearest."""
    modules = [_name_module(point).split(".") for point in points]
    for frame in frames:
        here = str(frame.f_globals.get("__name__")).split(".")
        pairs = [zip(here, module, strict=False) for module in modules]
        shared = [len([*takewhile(lambda pair: pair[0] == pair[1], each)]) for each in pairs]
        if any(shared):
            return points[shared.index(max(shared))]
    return None


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
pages = Registry("page", "studies/*/page.py", said=find_registered("pages"))
FINDINGS = ("findings/*.py", "studies/*/finding*.py")
analyses = Registry("analysis", *FINDINGS, entries="repsim.analyses", said=find_decorated("analysis"))
claims = Registry("claim", *FINDINGS, entries="repsim.claims", said=find_decorated("claim"))
ROOMS = (data, models, measures, studies, analyses, claims)
