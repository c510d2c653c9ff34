"""The settings of a component: what each means, its range in words, its default and an example."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from repsim_cli.base.ranges import say_range, write_as_yaml
from repsim_cli.cli.docstrings import parse

REQUIRED = "???"
EMPTY = inspect.Parameter.empty
PLACEHOLDERS = {int: 8, float: 0.1, str: "TEXT", dict: "{...}"}
DATA = (NoneType, bool, int, float, str, list, dict)  # of YAML and JSON


class Setting(NamedTuple):
    """A keyword argument, as data: what a user reads of it, which a file can hold.

    range: in words; "" where any is taken. default: as YAML has it; `???` where it is required. choices: the words that
    it may be. placeholder: a value, where there are none. inner: the settings of a group.
    """

    meaning: str
    range: str
    default: Any
    choices: Sequence[Any] = ()
    placeholder: Any = None
    inner: Mapping[str, "Setting"] | None = None


def read_setting(meaning: str, annotation: Any, default: Any) -> Setting:
    """Makes data of an annotation and a default (Parameter.empty where there is none)."""
    options, group = _list_type_options(annotation), group_of(annotation)
    return Setting(
        meaning=meaning,
        range="" if annotation is EMPTY else say_range(annotation),
        default=REQUIRED if default is EMPTY else default if isinstance(default, DATA) else str(default),
        choices=[choice for option in options if get_origin(option) is Literal for choice in get_args(option)],
        placeholder=next(filter(None, map(_find_placeholder, options)), None),
        inner=None if group is None else read_settings(group),
    )


def group_of(annotation: Any) -> type | None:
    """Finds the dataclass, where the setting is a group of settings."""
    return next(
        (option for option in _list_type_options(annotation) if isinstance(option, type) and is_dataclass(option)), None
    )


def _list_type_options(annotation: Any) -> list[Any]:
    """The types that a value may have, without their bounds."""
    if get_origin(annotation) is Annotated:
        return _list_type_options(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [option for part in get_args(annotation) for option in _list_type_options(part)]
    return [annotation]


def read_settings(function: Callable[..., Any], without: Collection[str] = ()) -> dict[str, Setting]:
    """The keyword arguments of a component, or the fields of a dataclass; those of its bases are described there."""
    classes = [*reversed(inspect.getmro(function))] if isinstance(function, type) else [function]
    meaning = {key: text for source in classes for key, text in parse(source.__doc__).settings.items()}
    declared = fields(function) if isinstance(function, type) and is_dataclass(function) else ()
    made = {each.name: each.default_factory() for each in declared if each.default_factory is not MISSING}
    return {
        key: read_setting(meaning.get(key, ""), parameter.annotation, made.get(key, parameter.default))
        for key, parameter in inspect.signature(function).parameters.items()
        if key not in without
    }


def make_example_value(setting: Setting, value: Any) -> str:
    """An example value: another choice where there are several, 1 for 0, else the current value, or a placeholder."""
    value = setting.default if value is None else value
    if isinstance(value, str) and "${" in value:  # it follows from another setting
        value = None
    if isinstance(value, bool):
        value = not value
    elif others := [choice for choice in setting.choices if choice != value]:
        value = others[0]
    elif type(value) is int and value == 0:
        value = 1
    elif value in (None, REQUIRED):
        value = "VALUE" if setting.placeholder is None else setting.placeholder
    return write_as_yaml(value).replace(", ", ",")


def _find_placeholder(option: Any) -> Any:
    """A placeholder for a value of a type, if there is one."""
    if get_origin(option) is list:
        return [_find_placeholder(inner) for inner in _list_type_options(get_args(option)[0])[:1]]
    return PLACEHOLDERS.get(option)


def say_range_and_default(setting: Setting, given: Mapping[str, Any], key: str) -> str:
    """The range of a setting, its default, and its value here."""
    parts = [setting.range] if setting.range else []
    if setting.default != REQUIRED:
        parts.append(f"default {write_as_yaml(setting.default)}")
    elif setting.inner is None:  # a group that is not given has its own defaults
        parts.append("required")
    if key in given and setting.inner is None and given[key] not in (setting.default, REQUIRED):
        parts.append(f"here {write_as_yaml(given[key])}")
    return "; ".join(parts)
