"""Keyword arguments -> values that are checked against a function's signature, with every problem by its key path."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import groupby
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo

from repsim_cli.base.errors import BadConfig, BadInput, Unreachable
from repsim_cli.base.files import explain
from repsim_cli.base.planning import note_under
from repsim_cli.base.ranges import make_example, say_range, write_as_yaml
from repsim_cli.base.registry import did_you_mean

# in the places of pydantic's errors, of a value that may be of several kinds
KINDS = ("constrained-", "literal[", "list[", "dict[")
# pydantic's errors about a value that may be one of several kinds of numbers, of which each asks for its own part
OF_NUMBERS = [
    *("int_type", "int_from_float", "float_type"),
    *("greater_than", "greater_than_equal", "less_than", "less_than_equal"),
]
OF_SEVERAL = ("list_type", "tuple_type", "dict_type")  # of values in place of lists and mappings
ASKED = {"list": "a list", "tuple": "a list", "dictionary": "a mapping"}  # by pydantic's words
Fields = dict[str, Any]
STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=(), allow_inf_nan=False)


def give_up(problems: list[str]) -> None:
    if problems:
        raise BadConfig(list(dict.fromkeys(problems)))


def attempt(problems: list[str], prefix: str, step: Callable[[], Any]) -> Any:
    """The step's value, or None; its problems are noted, each after the prefix of its key path."""
    try:
        return step()
    except Unreachable:  # gathered over all models
        raise
    except BadConfig as error:
        problems += [prefix + problem for problem in error.problems]
    except BadInput as error:
        problems.append(f"{prefix}{error}")
    except OSError as error:
        problems.append(f"{prefix}{explain(error)}")
    return None


def validate_values(schema: type[BaseModel], given: Mapping[Any, Any]) -> Any:
    """The values as the schema. Raises BadConfig with every problem."""
    try:
        return schema.model_validate(given)
    except ValidationError as error:
        raise BadConfig([*_explain(error, schema.model_fields)]) from None


def _explain(error: ValidationError, fields: Mapping[str, FieldInfo]) -> Iterator[str]:
    """Writes pydantic's errors as `key: what is wrong, got VALUE; what to do`."""
    for _, of_one in groupby(error.errors(include_url=False), key=_place):
        problem, *others = of_one  # of a value of several kinds, what each asks for
        path = ".".join(part for part in map(str, _place(problem)) if not part.startswith(KINDS))
        got, kind = repr(problem["input"])[:80], problem["type"]
        if problem["loc"][-1] == "[key]":
            place = path.removesuffix(f".{problem['loc'][-2]}.[key]")
            yield f"{place}: a name that is not text, got {got}; put it in quotes"
        elif kind == "extra_forbidden":
            yield f"{path}: unknown key, got {got}; {did_you_mean(path, fields)}"
        elif kind == "string_pattern_mismatch":
            yield f"{path}: wrong value, got {got}; use letters, digits and . _ - + @, a letter or digit first"
        elif kind == "too_short":
            yield f"{path}: too few, got {got}; give at least {problem.get('ctx', {})['min_length']}"
        elif kind == "missing":
            yield f"{path}: missing; set it"
        elif others and path in fields and all(each["type"] in OF_NUMBERS for each in (problem, *others)):
            yield f"{path}: wrong value, got {got}; give {say_range(fields[path].annotation)}"
        elif path in fields and any(each["type"] in OF_SEVERAL for each in (problem, *others)):
            annotation = fields[path].annotation
            example = write_as_yaml(make_example(annotation))
            yield f"{path}: wrong value, got {got}; give {say_range(annotation)}, e.g. {example}"
        else:
            asked = [x["msg"].removeprefix("Input should be ").removeprefix("a valid ") for x in (problem, *others)]
            yield f"{path}: wrong value, got {got}; give {', or '.join(ASKED.get(each, each) for each in asked)}"


def _place(problem: Any) -> tuple[Any, ...]:
    """The path of a problem, which is that of the value itself where it may be of several kinds."""
    *parts, last = problem["loc"]
    of_kind = str(last).startswith(KINDS) or (last == "str" and parts and not str(parts[-1]).startswith("dict["))
    return tuple(parts) if of_kind else (*parts, last)


def build_schema(parameters: Iterable[inspect.Parameter], convert: Callable[[Any], Any] = lambda kind: kind) -> Any:
    """The schema of keyword arguments. convert(annotation): what is checked in its place."""
    fields: Any = {
        each.name: (
            Any if each.annotation is each.empty else convert(each.annotation),
            ... if each.default is each.empty else each.default,
        )
        for each in parameters
    }
    return create_model("arguments", __config__=STRICT, **fields)


@cache
def _build_schema_of(function: Callable[..., Any]) -> type[BaseModel]:
    return build_schema(inspect.signature(function).parameters.values())


def call_and_note(problems: list[str], path: str, function: Callable[..., Any], arguments: Fields) -> Any:
    """The value of a function of checked arguments, or None; its problems are noted, each by its key path."""
    raised: list[str] = []
    with note_under(path):
        value = attempt(raised, "", lambda: function(**arguments))
    # a problem with one argument starts with its name, and so continues the key path
    problems += [f"{path}{'.' if _begins_with_key(p, arguments) else ': '}{p}" for p in raised]
    return value


def _begins_with_key(problem: str, arguments: Fields) -> bool:
    """Says whether a problem begins with an argument, or with a key inside one that has keys; `text.csv` is a file."""
    name = re.split("[.,:]", problem)[0]
    inside = problem.startswith(f"{name}.")
    return name in arguments and not (inside and isinstance(arguments[name], str | int | float | None))


def call_checked(path: str, function: Callable[..., Any], given: Fields) -> Any:
    """The value of a function of plain keyword arguments. Raises BadConfig with every problem, by its key path."""
    problems: list[str] = []
    values = attempt(problems, f"{path}.", lambda: validate_values(_build_schema_of(function), given))
    give_up(problems)
    made = call_and_note(problems, path, function, {key: getattr(values, key) for key in type(values).model_fields})
    give_up(problems)
    return made
