"""Hydra's loader, whose trees are checked before Hydra acts on them: it calls what `hydra.callbacks` names and opens
the files of `hydra.job_logging`, so that a YAML of somebody else would run code and empty files.

Once this is imported, Hydra composes by it, and interpolations read no other variables of the environment.
"""

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from hydra._internal import hydra as engine
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError

from repsim_cli.documents import shown
from repsim_cli.errors import BadInput
from repsim_cli.presets import conf_dir
from repsim_cli.registry import did_you_mean

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


class Loader(ConfigLoaderImpl):
    """The processes of launchers get it with their jobs."""

    def load_configuration(self, config_name: str | None, overrides: list[str], *given: Any, **named: Any) -> Any:
        try:
            config = super().load_configuration(config_name, overrides, *given, **named)
        except KeyError:  # of a variable that is not set
            raise _refused(("job", "env_copy")) from None
        check(config, config_name, len(overrides))
        return config

    def _process_config_searchpath(self, config_name: Any, parsed_overrides: Any, repo: Any) -> None:
        if any(override.get_key_element().lstrip("+~") == "hydra.searchpath" for override in parsed_overrides):
            raise _refused(("searchpath",))  # a package that it names would be imported
        super()._process_config_searchpath(config_name, parsed_overrides, repo)


def check(config: Any, name: str | None, words: int) -> None:
    """Raises BadInput where Hydra's part of a tree differs from the package's in more than the places of runs and plain
    values of its launcher and sweeper.

    name: of the primary configuration. words: the number of overrides in the command, to which a YAML may not add.
    """
    tree: Any = OmegaConf.to_container(config.hydra)
    if len(tree["overrides"]["hydra"]) + len(tree["overrides"]["task"]) != words:
        raise _refused(("overrides",))
    launcher, sweeper = (str(tree["runtime"]["choices"][f"hydra/{plugin}"]) for plugin in PLUGINS)
    given, own = dict(_leaves(tree)), _own(name is not None, launcher, sweeper)
    for path in dict.fromkeys((*given, *own)):
        value = given.get(path, ABSENT)
        if value == own.get(path, ABSENT) or any(path[: len(known)] == known for known in COMPUTED):
            continue
        if (path, value) in ((SWEPT, ABSENT), (("searchpath",), [_source()])):  # its items; as `repeated` writes it
            continue
        if path in PLACES:
            fine = isinstance(value, str) and value.isprintable() and PLACE.fullmatch(value)
        elif path[0] in PLUGINS and (path in own or path[:-1] == SWEPT) and not str(path[-1]).startswith("_"):
            text = isinstance(value, str) and value.isprintable() and "${" not in value
            fine = text or value is None or isinstance(value, bool | int | float)
        else:
            raise _refused(path)
        if not fine:
            got = "none" if value is ABSENT else shown(value)
            raise BadInput(
                f"{_dotted(path)}: not a plain value, got {got}; write a number or a line of text, "
                "of a place with no more than ${KEY}, ${now:...} and ${hydra:...}"
            )


def _dotted(path: Place) -> str:
    return ".".join(map(str, ("hydra", *path)))


def _refused(path: Place) -> BadInput:
    return BadInput(
        f"hydra: not a setting of a run, got '{_dotted(path)}'; a configuration may set hydra.run.dir, "
        "hydra.sweep.dir, hydra.sweep.subdir, and a launcher and sweeper that are installed, with plain values"
    )


def _leaves(value: Any, path: Place = ()) -> Iterator[tuple[Place, Any]]:
    """The values of a tree by their paths."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    else:
        yield path, value


def _source() -> str:
    return f"file://{conf_dir().resolve()}"


@cache
def _own(primary: bool, launcher: str, sweeper: str) -> dict[Place, Any]:
    """Hydra's part of the package's own tree."""
    loader = ConfigLoaderImpl(create_config_search_path(str(conf_dir().resolve())))
    for plugin, name in zip(PLUGINS, (launcher, sweeper), strict=True):
        known = loader.get_group_options(f"hydra/{plugin}")
        if name not in known:
            raise BadInput(f"hydra/{plugin}: no such plugin is installed, got '{name}'; {did_you_mean(name, known)}")
    words = [f"hydra/launcher={launcher}", f"hydra/sweeper={sweeper}", *(["model=[]", "measure=[]"] if primary else [])]
    config = loader._load_configuration_impl("config" if primary else None, words, RunMode.RUN)
    return dict(_leaves(OmegaConf.to_container(config.hydra)))


def _variable(name: str, default: Any = None, *, _node_: Any) -> str | None:
    """`oc.env` of the package's own places alone."""
    if name not in VARIABLES or not str(_node_._get_full_key(None)).startswith("hydra."):
        raise InterpolationResolutionError(f"a variable of the environment, got {name}, which a run does not read")
    return os.environ.get(name, default)


engine.ConfigLoaderImpl = Loader  # pyright: ignore[reportPrivateImportUsage]
OmegaConf.register_new_resolver("oc.env", _variable, replace=True)
