"""Keeps what a config says of its model in the cache: where it is known, nothing imports transformers or builds the
model, unless it runs."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from importlib import import_module
from typing import Any

from repsim_cli.base.closure import collect_code
from repsim_cli.base.planning import may_use_known, write_once_checked
from repsim_cli.data.base import Modality
from repsim_cli.models.points import Architecture, Heads, Point
from repsim_cli.runs.cache import Entry, make_cache_key

KIND = "configs"
MAKER = "repsim_cli.models.configs"  # what describes configs; its code is part of the key
FUNCTIONS = "repsim_cli.models."  # where functions of a table are from
ANOTHER = b'"configuration_files"'  # transformers reads another file than this one


@dataclass(frozen=True, kw_only=True)
class Described:
    """What is known of a backbone without its weights.

    context: the longest sequence, None if unlimited. padding: the id by which positions are counted, or None.
    rotary, segments, labels, bits: as of a `Source`. config_hash: of the settings that, with the weights, determine
    activations. quantized: its config says how. lists: the names of its lists of as many modules as it has layers.
    of_library: config and modules are those of transformers and torch.
    """

    layers: int
    heads: int
    kv_heads: int
    head_width: int
    width: int
    context: int | None
    padding: int | None
    parameters: int
    vocabulary: int
    architecture: Architecture | None
    model_type: str
    rotary: int
    modality: Modality
    segments: bool
    labels: tuple[str, ...]
    bits: int | None
    config_hash: str
    quantized: bool
    lists: tuple[str, ...]
    of_library: bool


def describe_once(read: Callable[[], bytes], describe: Callable[[], Described], maker: str = MAKER) -> Described:
    """Describes the config whose text is read: as `describe` does, or from the cache, where it described this text
    before, in the code of the module `maker`, under these versions of packages.

    Kept are models of text whose weights are not quantized, by code of transformers alone: others depend on more code,
    and on the machine.
    """
    text = read()
    code = collect_code(maker) if may_use_known() and ANOTHER not in text else None
    if code is None:
        return describe()
    entry = Entry(KIND, make_cache_key({"config": hashlib.sha256(text).hexdigest(), "code": code.key}))
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, ImportError):
        entry.load()
        if entry.complete:
            return Described(**{name: _decode(value) for name, value in entry.meta["says"].items()})
    says = describe()

    def write() -> None:
        with suppress(OSError, ValueError, AttributeError, ImportError):  # it is described again
            entry.finish(says={each.name: _encode(getattr(says, each.name)) for each in fields(says)})

    if says.modality == "text" and says.of_library and not says.quantized and read() == text:
        write_once_checked(write)
    return says


def _encode(value: Any) -> Any:
    """The value in terms of JSON. Raises ValueError for what is none of the parts of a table of hook points."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Architecture):
        return {"Architecture": [_encode(getattr(value, each.name)) for each in fields(value)]}
    if isinstance(value, tuple | list):  # a Point or Heads too
        return {type(value).__name__: [*map(_encode, value)]}
    if isinstance(value, dict):
        return {"dict": [[_encode(key), _encode(part)] for key, part in value.items()]}
    if isinstance(value, partial) and not value.keywords:
        return {"partial": [_encode(value.func), *map(_encode, value.args)]}
    name = f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', '')}"
    if _find_function(name) is not value:
        raise ValueError(f"no part of a table: {value!r:.60}")
    return {"function": [name]}


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, parts),) = value.items()
    if kind == "dict":
        return {_decode(key): _decode(part) for key, part in parts}
    if kind == "function":
        return _find_function(*parts)
    return MAKERS[kind](map(_decode, parts))


MAKERS: dict[str, Callable[[Any], Any]] = {
    "Architecture": lambda parts: Architecture(*parts),
    "Point": lambda parts: Point(*parts),
    "Heads": lambda parts: Heads(*parts),
    "partial": lambda parts: partial(*parts),
    "tuple": tuple,
    "list": list,
}


def _find_function(name: str) -> Any:
    """The function MODULE:NAME of this folder. Raises ValueError for any other name."""
    module, _, function = name.partition(":")
    if not module.startswith(FUNCTIONS) or not function.isidentifier():
        raise ValueError(f"no function of a table: {name:.60}")
    return getattr(import_module(module), function)
