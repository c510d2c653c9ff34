"""Hydra's loader, whose trees are checked before Hydra acts on them: it calls what `hydra.callbacks` names and opens
the files of `hydra.job_logging`, so that a YAML of somebody else would run code and empty files.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError

from repsim_cli.base.documents import show
from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean

Place = tuple[Any, ...]
PLACES = (("run", "dir"), ("sweep", "dir"), ("sweep", "subdir"))
# text, keys of the run, the time, and what Hydra says of a job
PLACE = re.compile(r"(?:(?!\$\{).|\$\{[\w.]+\}|\$\{(?:now|hydra):[^${}]*\})+")
PLUGINS = ("launcher", "sweeper")
SWEPT = ("sweeper", "params")  # further values of a sweep
# Hydra sets them, whatever a YAML says; the last is one of two words
COMPUTED = (("overrides",), ("runtime",), ("job", "override_dirname"), ("job", "config_name"), ("mode",))
VARIABLES = ("REPSIM_OUTPUTS", "REPSIM_CACHE")
ABSENT = object()
OWN_FILES = "own"  # the scheme of the files of --config-dir


class Guarded:
    """Composes by Hydra's loader and checks what it composed; own: the loader for conf/ alone, folder: of --config-dir.
    The processes of launchers get it with their jobs."""

    def __init__(self, own: ConfigLoader, folder: str | None = None) -> None:
        self.own = self.loader = own
        if folder is not None:
            path = deepcopy(own.get_search_path())
            path.prepend("command-line", f"{OWN_FILES}://{Path(folder).resolve()}", SearchPathQuery(provider="schema"))
            self.loader: Any = type(own)(path)  # type: ignore[call-arg]

    def load_configuration(self, primary: str, words: list[str], mode: RunMode = RunMode.RUN) -> Any:
        return self._check(words, lambda: self.loader.load_configuration(primary, words, mode, from_shell=False))

    def load_sweep_config(self, master_config: Any, sweep_overrides: list[str]) -> Any:
        """The configuration of a job, for sweepers and launchers."""
        words = [*master_config.hydra.overrides.hydra, *sweep_overrides]
        return self._check(words, lambda: self.loader.load_sweep_config(master_config, sweep_overrides))

    def get_group_options(self, *given: Any, **named: Any) -> list[str]:
        """The names of a group, for the globs of a sweep."""
        return self.loader.get_group_options(*given, **named)

    def _check(self, words: list[str], load: Callable[[], Any]) -> Any:
        keys = [word.get_key_element().lstrip("+~") for word in OverridesParser.create().parse_overrides(words)]
        if "hydra.searchpath" in keys:
            raise _refuse(("searchpath",))  # a package that it names would be imported
        try:
            config = load()
        except KeyError:  # of a variable that is not set
            raise _refuse(("job", "env_copy")) from None
        check(config, len(words), self.own)
        return config


def check(config: Any, words: int, loader: ConfigLoader) -> None:
    """Raises BadInput where Hydra's part of a tree differs from the package's in more than the places of runs and plain
    values of its launcher and sweeper.

    words: the number of overrides in the command, to which a YAML may not add. loader: for the package's own files.
    """
    tree: Any = OmegaConf.to_container(config.hydra)
    if len(tree["overrides"]["hydra"]) + len(tree["overrides"]["task"]) != words:
        raise _refuse(("overrides",))
    chosen = [f"hydra/{plugin}={tree['runtime']['choices'][f'hydra/{plugin}']}" for plugin in PLUGINS]
    given, own = dict(_list_leaf_values(tree)), _load_own_hydra(loader, *chosen)
    for path in dict.fromkeys((*given, *own)):
        value = given.get(path, ABSENT)
        if value == own.get(path, ABSENT) or any(path[: len(known)] == known for known in COMPUTED):
            continue
        if (path, value) == (SWEPT, ABSENT):  # its items
            continue
        if path in PLACES:
            fine = isinstance(value, str) and value.isprintable() and PLACE.fullmatch(value)
        elif path[0] in PLUGINS and (path in own or path[:-1] == SWEPT) and not str(path[-1]).startswith("_"):
            text = isinstance(value, str) and value.isprintable() and "${" not in value
            fine = text or value is None or isinstance(value, bool | int | float)
        else:
            raise _refuse(path)
        if not fine:
            got = "none" if value is ABSENT else show(value)
            raise BadInput(
                f"{_join(path)}: not a plain value, got {got}; write a number or a line of text, "
                "of a place with no more than ${KEY}, ${now:...} and ${hydra:...}"
            )


def _join(path: Place) -> str:
    return ".".join(map(str, ("hydra", *path)))


def _refuse(path: Place) -> BadInput:
    return BadInput(
        f"hydra: not a setting of a run, got '{_join(path)}'; a configuration may set hydra.run.dir, "
        "hydra.sweep.dir, hydra.sweep.subdir, and a launcher and sweeper that are installed, with plain values"
    )


def _list_leaf_values(value: Any, path: Place = ()) -> Iterator[tuple[Place, Any]]:
    """The values of a tree by their paths."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _list_leaf_values(inner, (*path, key))
    else:
        yield path, value


OWN: dict[tuple[str, ...], dict[Place, Any]] = {}  # composed once in a process


def _load_own_hydra(loader: ConfigLoader, *chosen: str) -> dict[Place, Any]:
    """Hydra's part of the package's own tree with this launcher and sweeper."""
    if chosen in OWN:
        return OWN[chosen]
    for word in chosen:
        group, _, name = word.partition("=")
        known = loader.get_group_options(group)
        if name not in known:
            raise BadInput(f"{group}: no such plugin is installed, got '{name}'; {did_you_mean(name, known)}")
    config = loader.load_configuration("config", [*chosen, "model=[]", "measure=[]"], RunMode.RUN)
    OWN[chosen] = dict(_list_leaf_values(OmegaConf.to_container(config.hydra)))
    return OWN[chosen]


def close_environment() -> None:
    """Lets interpolations read no other variables of the environment than those of the package's own places."""
    OmegaConf.register_new_resolver("oc.env", _read_own_variable, replace=True)


def _read_own_variable(name: str, default: Any = None, *, _node_: Any) -> str | None:
    """Reads a variable of the environment for `oc.env`, in the package's own places alone."""
    if name not in VARIABLES or not str(_node_._get_full_key(None)).startswith("hydra."):
        raise InterpolationResolutionError(f"a variable of the environment, got {name}, which a run does not read")
    return os.environ.get(name, default)
