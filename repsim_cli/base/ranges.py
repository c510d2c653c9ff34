"""What a setting may be, in words."""

from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen

WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
    Any: "any value",
}
GUARD = 10**9  # larger bounds only guard against overflow and are not shown


def say_range(annotation: Any) -> str:
    """The range of a setting.

    >>> say_range(Literal["all"] | list[int] | None)
    'all, or a list, each a whole number, or null'
    >>> say_range(tuple[Literal["png", "svg"], ...])
    'a list, each one of png, svg'
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = [bound for data in inner[1:] for bound in getattr(data, "metadata", [data])]
        return say_range(inner[0]) + "".join(map(_say_bound, bounds))
    if origin in (Union, UnionType):
        return ", or ".join(map(say_range, inner))
    if origin is Literal:
        return f"one of {', '.join(map(write_as_yaml, inner))}" if len(inner) > 1 else write_as_yaml(*inner)
    if origin in (list, tuple):
        return f"a list, each {say_range(inner[0])}"
    if origin is dict:
        return f"a mapping from {say_range(inner[0])} to {say_range(inner[1])}"
    return WORDS.get(annotation) or ("settings of their own" if is_dataclass(annotation) else "an entry of data")


def make_example(annotation: Any) -> Any:
    """An example of a list or a mapping; None of a setting that is neither.

    >>> make_example(tuple[Literal["png", "svg"], ...]), make_example(dict[str, list[str]] | None)
    (['png'], {'NAME': ['TEXT']})
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return make_example(inner[0])
    if origin in (Union, UnionType):
        return next((made for made in map(make_example, inner) if made is not None), None)
    if origin in (list, tuple):
        return [_make_cell(inner[0])]
    if origin is dict:
        return {"NAME": _make_cell(inner[1])}
    return None


def _make_cell(annotation: Any) -> Any:
    """An example of what stands in a list or a mapping."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)[0]
    if get_origin(annotation) is Annotated:
        return _make_cell(get_args(annotation)[0])
    made = make_example(annotation)
    return {int: 1, float: 0.5, str: "TEXT"}.get(annotation, "VALUE") if made is None else made


def _say_bound(bound: Any) -> str:
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
        case _:
            return ""


def write_as_yaml(value: Any) -> str:
    """A value as YAML writes it."""
    if isinstance(value, list):
        return f"[{', '.join(map(write_as_yaml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {write_as_yaml(inner)}' for key, inner in value.items())}}}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
