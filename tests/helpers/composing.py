"""Configurations as the command line composes them."""

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_repository import ConfigRepository
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode

from repsim_cli.base import registry
from repsim_cli.config.compose import GIVEN, OWN, compose, drop_hydra_keys
from repsim_cli.config.words import convert_to_overrides

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
EXPERIMENTS = sorted(str(f.relative_to(CONF / "experiment").with_suffix("")) for f in CONF.glob("experiment/**/*.yaml"))
SHIPPED = {"hydra.conf", str(CONF), ""}  # places of configurations that no test changes; tables have none


def composed(*overrides):
    return drop_hydra_keys(*compose([part for word in overrides for part in convert_to_overrides(word)]))


def is_shipped(*sources: Any) -> bool:
    """Whether what Hydra reads of these is the package's own, and not of --config-dir."""
    return {source.path for source in sources} <= SHIPPED


def list_plugins() -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(part.plugins) for part in (registry.models, registry.measures, registry.data))


@contextmanager
def groups_composed_once() -> Iterator[None]:
    """Reads the files of a configuration, and composes the groups that commands select, once in a process, which takes
    Hydra 50 ms; sets in a copy the values that a command gives, as Hydra does after it has composed the groups."""
    load, known = ConfigLoaderImpl.load_configuration, {}
    read, files = ConfigRepository.load_config, {}

    def read_once(repository: Any, config_path: str) -> Any:
        source = repository._find_object_source(config_path, ObjectType.CONFIG)
        if config_path == GIVEN or source is None or not is_shipped(source):
            return read(repository, config_path)
        key = (list_plugins(), config_path)
        if key not in files:
            files[key] = read(repository, config_path)
        return copy.deepcopy(files[key])

    def compose_once(loader: Any, config_name: str, overrides: list[str], run_mode: RunMode, **how: Any) -> Any:
        parsed = OverridesParser.create().parse_overrides(overrides)
        sweeps = any(each.is_sweep_override() or each.key_or_group.startswith("hydra") for each in parsed)
        if config_name != OWN or run_mode != RunMode.RUN or sweeps or not is_shipped(*loader.repository.sources):
            return load(loader, config_name, overrides, run_mode, **how)
        values = [
            each
            for each in parsed
            if isinstance(each.value(), dict) or not loader.repository.group_exists(each.key_or_group)
        ]
        chosen = [each.input_line for each in parsed if each not in values]
        key = (list_plugins(), *chosen)
        if key not in known:
            known[key] = load(loader, config_name, chosen, run_mode, **how)
        config = copy.deepcopy(known[key])
        try:
            ConfigLoaderImpl._apply_overrides_to_config(values, config)
        except Exception:  # which is said of the whole command
            return load(loader, config_name, overrides, run_mode, **how)
        config.hydra.overrides.task = [each.input_line for each in parsed]
        config.hydra.runtime.cwd = os.getcwd()
        config.hydra.job.override_dirname = get_overrides_dirname(parsed, **config.hydra.job.config.override_dirname)
        return config

    with (
        mock.patch.object(ConfigLoaderImpl, "load_configuration", compose_once),
        mock.patch.object(ConfigRepository, "load_config", read_once),
    ):
        yield
