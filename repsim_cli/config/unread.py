"""What a command or its YAML sets and its study can never use."""

import inspect
from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import studies
from repsim_cli.base.schemas import Fields
from repsim_cli.base.settings import Extract, Hardware, Significance
from repsim_cli.config.compose import read_start
from repsim_cli.config.executor import OF_RUNS, READ_BY
from repsim_cli.config.presets import GROUPS, TABLES, describe_group, read_preset
from repsim_cli.config.words import write_override_value

SETTINGS = {"extract": Extract, "significance": Significance, "hardware": Hardware}
TOGETHER = {"hardware.tile": "measure", "hardware.resident": "model"}  # settings that are read of these groups alone


def say_unread(config: Any) -> Iterator[str]:
    """Says what a configuration sets that its study can never use: groups that it does not take, and settings of which
    it says that it never reads them. What stands in the primary configuration, which was changed, and in the files that
    are selected, is not set.

    config: as composed, with Hydra's part.
    """
    keys: Any = OmegaConf.to_container(config)
    name, choices = str(keys.get("study")), keys["hydra"]["runtime"]["choices"]
    try:
        study: Any = studies.get(name).function
    except BadInput:  # which `validate` says
        return
    taken, start = inspect.signature(study).parameters, read_start(keys["hydra"]["job"]["config_name"])
    for group in (group for group in GROUPS if group in start and isinstance(keys.get(group), dict)):
        values: Fields = keys[group]
        if group not in taken and group not in OF_RUNS:
            if given := _find_changed(values, start[group]):
                got = ", ".join(label if group in TABLES else f"{label}={_write(x)}" for label, x in given.items())
                yield f"{group}: the study {name} does not read it, got {got:.100}; leave it out"
        elif group in SETTINGS:
            yield from _say_unread_settings(name, study, group, values, start, choices.get(group))
    if keys.get("skip_unsuitable") is True and "skip_unsuitable" not in taken and not start["skip_unsuitable"]:
        yield f"skip_unsuitable: the study {name} takes no measures, got true; leave it out"


def _say_unread_settings(
    name: str, study: Any, group: str, values: Fields, start: Fields, choice: str | None
) -> Iterator[str]:
    """Says which settings of a group are set and never read: those of a selected file together, others one by one."""
    parameters = inspect.signature(study).parameters
    taken = group in parameters
    never = {*study.unread, *(path for path, of in TOGETHER.items() if studies.own(name) and of not in parameters)}
    chosen = _read_chosen(group, choice, start, values)
    changed = _find_changed(values, {**_list_defaults(group), **(chosen if taken else start[group])})
    unread = {
        key: value
        for key, value in changed.items()
        if f"{group}.{key}" in never or not (taken or _is_of_runs(group, key, values))
    }
    of_file = [key for key, value in unread.items() if choice and value == chosen.get(key)]
    if of_file:
        yield f"{group}: the study {name} does not read {' and '.join(of_file)}, got {choice}; leave it out"
    for key in (key for key in unread if key not in of_file):
        yield f"{group}.{key}: the study {name} does not read it, got {_write(unread[key])}; leave it out"


def _find_changed(values: Fields, known: Fields) -> Fields:
    """Finds the values that are not as they were known."""
    return {key: value for key, value in values.items() if key not in known or value != known[key]}


def _write(value: Any) -> str:
    """Writes a value as a command does, without quotes."""
    if isinstance(value, list):
        return f"[{', '.join(map(_write, value))}]"
    return value if isinstance(value, str) else write_override_value(value)


def _read_chosen(group: str, choice: str | None, start: Fields, values: Fields) -> Fields:
    """Reads the settings of the file that is selected. What is in a file of one's own is not known to be meant for the
    study, and passes."""
    if choice is None:
        return start[group]
    return read_preset(group, choice) if choice in describe_group(group) else values


def _list_defaults(group: str) -> Fields:
    """Lists the settings that a group has where its file says nothing."""
    return {key: parameter.default for key, parameter in inspect.signature(SETTINGS[group]).parameters.items()}


def _is_of_runs(group: str, key: str, values: Fields) -> bool:
    """Tells whether a run of any study reads a setting: by its device, workers of a cluster ask for GPUs."""
    asks = key == "device" and values.get("executor") in READ_BY["gpus_per_worker"]
    return asks or key in OF_RUNS[group]
