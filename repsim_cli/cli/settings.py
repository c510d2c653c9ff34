"""The settings of a component: what each means, its range in words, its default and an example."""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen

from repsim_cli.cli.docstrings import parsed

REQUIRED = "???"
EMPTY = inspect.Parameter.empty
WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
    Any: "any value",
}
PLACEHOLDERS = {int: 8, float: 0.1, str: "TEXT", dict: "{...}"}
GUARD = 10**9  # larger bounds only guard against overflow and are not shown


def in_words(annotation: Any) -> str:
    """The range of a setting.

    >>> in_words(Literal["all"] | list[int] | None)
    'all, or a list, each a whole number, or null'
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = [bound for data in inner[1:] for bound in getattr(data, "metadata", [data])]
        return in_words(inner[0]) + "".join(map(_bound, bounds))
    if origin in (Union, UnionType):
        return ", or ".join(map(in_words, inner))
    if origin is Literal:
        return f"one of {', '.join(map(plain, inner))}" if len(inner) > 1 else plain(*inner)
    if origin is list:
        return f"a list, each {in_words(inner[0])}"
    if origin is dict:
        return f"a mapping from {in_words(inner[0])} to {in_words(inner[1])}"
    return WORDS.get(annotation) or ("settings of their own" if is_dataclass(annotation) else "an entry of data")


def _bound(bound: Any) -> str:
    match bound:
        case MinLen(min_length=least):
            return f", at least {least} of them"
        case Ge(ge=int() | float() as limit) if abs(limit) < GUARD:
            return f" from {limit}"
        case Gt(gt=int() | float() as limit):
            return f" above {limit}"
        case Le(le=int() | float() as limit) if abs(limit) < GUARD:
            return f" to {limit}"
        case Lt(lt=int() | float() as limit) if abs(limit) < GUARD:
            return f" below {limit}"
    return ""


def plain(value: Any) -> str:
    """A value as YAML writes it."""
    if isinstance(value, list):
        return f"[{', '.join(map(plain, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {plain(inner)}' for key, inner in value.items())}}}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


class Setting(NamedTuple):
    """The meaning of a keyword argument, its type, and its default (Parameter.empty where it is required)."""

    meaning: str
    annotation: Any
    default: Any

    @property
    def group(self) -> type | None:
        """The dataclass, where the setting is a group of settings."""
        options = _options(self.annotation)
        return next((option for option in options if isinstance(option, type) and is_dataclass(option)), None)


def _options(annotation: Any) -> list[Any]:
    """The types that a value may have, without their bounds."""
    if get_origin(annotation) is Annotated:
        return _options(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [option for part in get_args(annotation) for option in _options(part)]
    return [annotation]


def settings(function: Callable, without: Collection[str] = ()) -> dict[str, Setting]:
    """The keyword arguments of a component, or the fields of a dataclass; those of its bases are described there."""
    classes = [*reversed(inspect.getmro(function))] if isinstance(function, type) else [function]
    meaning = {key: text for source in classes for key, text in parsed(source.__doc__).settings.items()}
    declared = fields(function) if isinstance(function, type) and is_dataclass(function) else ()
    made = {each.name: each.default_factory() for each in declared if each.default_factory is not MISSING}
    return {
        key: Setting(meaning.get(key, ""), parameter.annotation, made.get(key, parameter.default))
        for key, parameter in inspect.signature(function).parameters.items()
        if key not in without
    }


def sample(setting: Setting, value: Any) -> str:
    """An example value: another choice where there are several, 1 for 0, else the current value, or a placeholder."""
    value = setting.default if value is None else value
    if isinstance(value, str) and "${" in value:  # it follows from another setting
        value = None
    options = _options(setting.annotation)
    choices = [choice for option in options if get_origin(option) is Literal for choice in get_args(option)]
    if isinstance(value, bool):
        value = not value
    elif others := [choice for choice in choices if choice != value]:
        value = others[0]
    elif type(value) is int and value == 0:
        value = 1
    elif value is None or value is EMPTY:
        value = next(filter(None, map(_placeholder, options)), "VALUE")
    return plain(value).replace(", ", ",")


def _placeholder(option: Any) -> Any:
    """A placeholder for a value of a type, if there is one."""
    if get_origin(option) is list:
        return [_placeholder(inner) for inner in _options(get_args(option)[0])[:1]]
    return PLACEHOLDERS.get(option)


def range_of(setting: Setting, given: Mapping[str, Any], key: str) -> str:
    """The range of a setting, its default, and its value here."""
    parts = [] if setting.annotation is EMPTY else [in_words(setting.annotation)]
    if setting.default is not EMPTY:
        parts.append(f"default {plain(setting.default)}")
    elif setting.group is None:  # a group that is not given has its own defaults
        parts.append("required")
    if key in given and not setting.group and given[key] not in (setting.default, REQUIRED):
        parts.append(f"here {plain(given[key])}")
    return "; ".join(parts)
