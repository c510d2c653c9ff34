"""Documents in JSON and YAML of unknown origin: regular files of bounded size, read without expansion."""

import gc
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

MOST = 1 << 28  # bytes of a JSON document
MOST_YAML = 1 << 20  # the parser reads about 100 kB a second
HALF = re.compile("[\0\ud800-\udfff]")
MOST_VALUES = 100_000  # of a document whose aliases are spelled out
WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", list: "a list"}
WORDS |= {dict: "a mapping", type(None): "null"}


class Unreadable(ValueError):
    """The reason why a document cannot be read."""


def read(file: Path, most: int = MOST) -> str:
    """The text of a regular file of at most `most` bytes; a pipe would block, and a device never end.

    Raises Unreadable, and OSError where the file may not be read.
    """
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("no regular file")
        if status.st_size > most:
            raise Unreadable(f"{status.st_size:,} bytes, more than {most:,}")
        return file.read_bytes().decode()
    except FileNotFoundError as error:
        raise Unreadable(f"'{error.strerror}'") from None
    except UnicodeDecodeError:
        raise Unreadable("text that is not UTF-8") from None


@contextmanager
def _pause_collection() -> Iterator[None]:
    """Stops collecting garbage where the stack may be full: finalizers of other objects would fail on it, and Python
    would print that."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def read_json(file: Path) -> Any:
    """Strict JSON, whose numbers are finite. Raises Unreadable."""

    def finite(kind: Any) -> Any:
        def parse(digits: str) -> Any:
            value = kind(digits)
            if not abs(value) <= sys.float_info.max:
                raise Unreadable(f"the number {digits[:20]}, which is not finite")
            return value

        return parse

    text = read(file)
    try:
        with _pause_collection():
            return json.loads(text, parse_constant=finite(float), parse_float=finite(float), parse_int=finite(int))
    except RecursionError:
        raise Unreadable("a document nested too deeply") from None
    except ValueError as error:
        raise Unreadable(str(error)) from None


def read_yaml(file: Path) -> Any:
    """YAML without aliases, which let a small file expand to a huge document. Raises Unreadable."""
    import yaml

    class Plain(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise Unreadable("an alias (*name)")
            return super().compose_node(parent, index)

    text = read(file, MOST_YAML)
    with _explain_yaml_errors():
        return yaml.load(text, Plain)


def list_leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Lists the leaves of nested mappings as (key path, text).

    >>> list(list_leaves({"data": {"kind": "pile", "seeds": [0, 1]}, "cache": True}))
    [('data.kind', 'pile'), ('data.seeds', '[0, 1]'), ('cache', 'true')]
    """
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from list_leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def check_yaml(file: Path) -> None:
    """Raises Unreadable where a file is not one mapping in YAML, or nothing, that another reader may expand: a bounded
    number of values once its aliases are spelled out, none of them inside itself."""
    import yaml

    text = read(file, MOST_YAML)
    with _explain_yaml_errors():
        top = yaml.compose(text, yaml.SafeLoader)
        if not isinstance(top, yaml.MappingNode | None):
            raise Unreadable(f"{'a list' if isinstance(top, yaml.SequenceNode) else 'a text'} where keys should be")
        if _count_values(top, {}) > MOST_VALUES:
            raise Unreadable(f"aliases (*name) that make more than {MOST_VALUES:,} values")


def _count_values(node: Any, known: dict[int, int]) -> int:
    """Counts the values of a tree of YAML with its aliases spelled out. known: by node, 0 while it is counted.
    Raises Unreadable where an alias is inside what it names.
    """
    if id(node) not in known:
        known[id(node)] = 0
        inner = node.value if node is not None and not isinstance(node.value, str) else ()
        parts = (part for item in inner for part in (item if isinstance(item, tuple) else (item,)))
        known[id(node)] = 1 + sum(_count_values(part, known) for part in parts)
    elif not known[id(node)]:
        raise Unreadable("an alias (*name) inside what it names")
    return known[id(node)]


@contextmanager
def _explain_yaml_errors() -> Iterator[None]:
    """Turns what a parser of YAML raises inside the block into Unreadable."""
    import yaml

    try:
        with _pause_collection():
            yield
    except RecursionError:
        raise Unreadable("a document nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise Unreadable(" ".join(str(error).split())) from None


def list_texts(value: Any) -> Iterator[str]:
    """Lists all texts in a tree, keys and paths among them."""
    if isinstance(value, dict | list | tuple):
        for inner in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from list_texts(inner)
    elif isinstance(value, str | os.PathLike):
        yield str(value)


def find_interpolation(value: Any) -> str | None:
    """The first text in a tree that OmegaConf would replace by something else; None where there is none."""
    return next((text for text in list_texts(value) if "${" in text), None)


def find_unwritable_text(value: Any) -> str | None:
    """The first text in a tree that no document and no path can hold: with a NUL, or half of a surrogate pair, as
    Python reads names of files that are not UTF-8. None where there is none."""
    return next((text for text in list_texts(value) if HALF.search(text)), None)


def find_misfit(value: Any, shape: Any, path: str = "") -> str | None:
    """Finds where and how a document differs from this shape; None where it fits.

    A shape is a type (or several, `str | None`), a list with the shape of its items, a mapping {str: shape}, or a
    record of shapes by key. A record may have further keys, and may lack keys that end in `?`.

    >>> find_misfit({"seed": 0, "timings": None}, {"seed": int, "timings": {str: float}})
    'timings: not a mapping, got null'
    >>> find_misfit({"seed": 0}, {"seed": int, "timings?": {str: float}})
    """
    at = f"{path}: " if path else ""
    kind = type(shape) if isinstance(shape, list | dict) else shape
    if not _is_of_kind(value, kind):
        return f"{at}not {' or '.join(WORDS[item] for item in get_args(kind) or [kind])}, got {show(value)}"
    if kind is shape:
        return None
    if isinstance(shape, list):
        inner = [(i, item, shape[0]) for i, item in enumerate(value)]
    elif str in shape:
        inner = [(key, item, shape[str]) for key, item in value.items()]
    else:
        missing = [key for key in shape if not key.endswith("?") and key not in value]
        if missing:
            return f"{at}no {missing[0]}, got {show(list(value))}"
        keys = {key.removesuffix("?"): item for key, item in shape.items()}
        inner = [(key, value[key], item) for key, item in keys.items() if key in value]
    other = ((key, item, form) for key, item, form in inner if type(item) is not form)  # the others fit
    problems = (find_misfit(item, form, f"{path}.{key}" if path else str(key)) for key, item, form in other)
    return next(filter(None, problems), None)


def _is_of_kind(value: Any, kind: Any) -> bool:
    """isinstance, except that truth values are not numbers."""
    return kind in (bool, object) if isinstance(value, bool) else isinstance(value, kind)


def show(value: Any) -> str:
    """A value in an error message."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
