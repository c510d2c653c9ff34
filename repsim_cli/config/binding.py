"""Plain values -> a function's arguments, checked against its signature; all problems are gathered, by key path."""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import is_dataclass, replace
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import Registry, RegistryEntry, did_you_mean
from repsim_cli.base.schemas import Fields, attempt, build_schema, call_and_note, give_up, validate_values
from repsim_cli.base.settings import EveryData, EveryModel, SeededModel

MISSING = "???"


def check_arguments(
    problems: list[str],
    path: str,
    function: Callable[..., Any],
    given: Mapping[Any, Any],
    without: Collection[str] = (),
) -> Fields:
    """The keyword arguments for `function`, checked against its signature. An argument of type Data is a data entry;
    one whose type is a dataclass is bound from keys of its own, by default from none; so is each value of a mapping of
    names to a dataclass."""
    from repsim_cli.data.base import Data

    parameters = {k: p for k, p in inspect.signature(function).parameters.items() if k not in without}
    given = dict(given)
    for key, parameter in parameters.items():
        annotation = parameter.annotation
        nested, optional = _find_nested(annotation)
        if annotation in (Data, Data | None):
            if key in given and not (given[key] is None and annotation == Data | None):
                given[key] = bind_component(
                    problems, f"{path}.{key}", given[key], registry.data, lambda entry: entry.function
                )
        elif (of_names := _find_inner_dataclass(annotation)) is not None:
            if isinstance(given.get(key), dict):
                given[key] = {
                    name: _bind_nested_keys(problems, f"{path}.{key}.{name}", of_names, inner)
                    for name, inner in given[key].items()
                }
        elif nested is not None:
            inner = given.get(key, {} if parameter.default is parameter.empty else None)
            if isinstance(inner, dict) or (key in given and not (optional and inner is None)):
                given[key] = _bind_nested_keys(problems, f"{path}.{key}", nested, inner)
    schema = _build_arguments_schema(function, frozenset(without))
    values = attempt(problems, f"{path}.", lambda: validate_values(schema, given))
    return {} if values is None else {k: getattr(values, k) for k in parameters}


@cache
def _build_arguments_schema(function: Callable[..., Any], without: frozenset[str]) -> type[BaseModel]:
    """The arguments of a function, of which those that are bound by themselves may be anything."""
    from repsim_cli.data.base import Data

    def convert(annotation: Any) -> Any:
        if annotation in (Data, Data | None) or _find_nested(annotation)[0] is not None:
            return Any
        if _find_inner_dataclass(annotation) is not None:
            return dict[str, Any] | None if isinstance(annotation, UnionType) else dict[str, Any]
        return annotation

    parameters = inspect.signature(function).parameters
    return build_schema([parameter for key, parameter in parameters.items() if key not in without], convert)


def _bind_nested_keys(problems: list[str], path: str, nested: Callable[..., Any], inner: Any) -> Any:
    """A dataclass bound from keys of its own."""
    if isinstance(inner, dict):
        return bind(problems, path, nested, inner)
    names = ", ".join(inspect.signature(nested).parameters)
    problems.append(f"{path}: wrong value, got {inner!r}; give keys of {{{names}}}")


def _find_inner_dataclass(annotation: Any) -> Any:
    """The dataclass of an annotation `dict[str, X]` or `dict[str, X] | None`."""
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    inner = [get_args(kind)[1] for kind in kinds if get_origin(kind) is dict]
    return inner[0] if inner and is_dataclass(inner[0]) else None


def _find_nested(annotation: Any) -> tuple[Any, bool]:
    """The dataclass of an annotation `X` or `X | None`, and whether None may stand in its place."""
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    inner = [kind for kind in kinds if kind is not NoneType]
    return inner[0] if len(inner) == 1 and is_dataclass(inner[0]) else None, len(inner) < len(kinds)


def bind(problems: list[str], path: str, function: Callable[..., Any], given: Fields) -> Any:
    before = len(problems)
    arguments = check_arguments(problems, path, function, given)
    return None if len(problems) > before else call_and_note(problems, path, function, arguments)


def bind_component(
    problems: list[str], path: str, entry: Any, room: Registry, function: Callable[[RegistryEntry], Callable[..., Any]]
) -> Any:
    """Binds `{kind: NAME, **keywords}`: calls NAME's function with the keywords."""
    if isinstance(entry, dict) and (dotted := _find_dotted(path, entry)):
        group, _, label = dotted.partition(".")
        problems.append(
            f"{group}: a label with a dot cannot be a key, got '{label}'; write '+{group}={{{label}: {{kind: ...}}}}'"
        )
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str):
        problems.append(
            f"{path}.kind: missing, got {entry!r}; write {{kind: NAME, ...}}, {did_you_mean('', room.names())}"
        )
        return None
    registered = attempt(problems, f"{path}.kind: ", lambda: room.get(entry["kind"]))
    if registered is None or MISSING in entry.values():
        return None
    given = {k: v for k, v in entry.items() if k != "kind"}
    step = partial(bind, problems, path, function(registered), given)
    return attempt(problems, f"{path}: ", lambda: room.call(registered.name, step))


def _find_dotted(path: str, entry: Fields) -> str | None:
    """The key path of an entry whose label was read as several nested keys; None where it was not."""
    while "kind" not in entry and len(entry) == 1:
        ((key, inner),) = entry.items()
        if not isinstance(inner, dict):
            return None
        path, entry = f"{path}.{key}", inner
        if "kind" in entry:
            return path
    return None


def bind_components(
    problems: list[str],
    group: str,
    keys: Fields,
    room: Registry,
    function: Callable[..., Any],
    written: Mapping[str, str],
) -> dict[str, Any]:
    """Binds the entries of a group by their labels. written: the labels that stand in the configuration, where these
    were made of them."""
    return {
        label: bind_component(problems, f"{group}.{written.get(label, label)}", entry, room, function)
        for label, entry in keys[group].items()
    }


def expand_families(problems: list[str], entries: Mapping[str, Any]) -> dict[str, Any]:
    """The models by label, with the members of families in place of the families."""
    from repsim_cli.models.source import Family

    models: dict[str, Any] = {}
    for label, model in entries.items():
        members = {label: model}
        if isinstance(model, Family):
            members = {f"{label}_{key}": replace(member, entry=label) for key, member in model.sources.items()}
        for name in sorted(members.keys() & models.keys()):
            problems.append(f"model.{label}: two models have the same label, got '{name}' again; rename an entry")
        models |= members
    return models


@cache
def wrap_model_function(entry: RegistryEntry) -> Callable[..., Any]:
    """The function of a kind of model, which also takes the keys that every model has, and those of models with a
    seed."""
    from repsim_cli.models.source import Family, Model, apply_keys

    make = partial(_make_checked, registry.models, entry, Model, "Source")
    parameters = inspect.signature(entry.function).parameters
    common = inspect.signature(EveryModel).parameters
    of_seeds = inspect.signature(SeededModel).parameters if "seed" in parameters else {}

    def bind(**settings: Any) -> Any:
        keys = EveryModel(**{key: settings.pop(key) for key in common})
        several = SeededModel(**{key: settings.pop(key) for key in of_seeds})
        if several.seeds is None:
            return apply_keys(make(**settings), keys)
        each = {str(seed): make(**settings | {"seed": seed}) for seed in several.seeds}
        return apply_keys(Family(sources=each), keys)

    taken = [*parameters.values(), *of_seeds.values(), *common.values()]
    bind.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    return bind


@cache
def wrap_data_function(entry: RegistryEntry) -> Callable[..., Any]:
    """The function of a kind of data, which also takes the keys that every text has."""
    from repsim_cli.data.base import Data, apply_keys

    common = inspect.signature(EveryData).parameters

    def bind(**settings: Any) -> Any:
        keys = EveryData(**{key: settings.pop(key) for key in common})
        return apply_keys(_make_checked(registry.data, entry, Data, "Text", **settings), keys)

    parameters = inspect.signature(entry.function).parameters
    bind.__signature__ = inspect.Signature([*parameters.values(), *common.values()])  # type: ignore[attr-defined]
    return bind


def _make_checked(room: Registry, entry: RegistryEntry, kinds: Any, asked: str, /, **settings: Any) -> Any:
    """Makes what the function of an entry gives. Raises BadInput for anything else than was asked for."""
    made = entry.function(**settings)
    if not isinstance(made, kinds):
        whose = room.say_whose(entry.name)
        raise BadInput(f"{whose} must give {asked}, got {type(made).__name__}; return one")
    return made


def wrap_measure_function(entry: RegistryEntry) -> Callable[..., Any]:
    from repsim_cli import measures

    return measures.wrap_function(entry)


def bind_model(label: str, entry: Fields) -> Any:
    """A model entry with checked settings. Raises BadConfig with every problem."""
    problems: list[str] = []
    bound = bind_component(problems, f"model.{label}", entry, registry.models, wrap_model_function)
    give_up(problems)
    return bound
