"""Documents in JSON and YAML that anybody may have written: regular files of bounded size, read without expansion."""

import json
import stat
import sys
from pathlib import Path
from typing import Any, get_args

MOST = 1 << 28  # bytes of a JSON document
MOST_YAML = 1 << 20  # the parser reads about 100 kB a second
WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", list: "a list"}
WORDS |= {dict: "a mapping", type(None): "null"}


class Unreadable(ValueError):
    """Why a document cannot be read, in a few words."""


def read(file: Path, most: int = MOST) -> str:
    """The text of a regular file of at most `most` bytes: a pipe would block, a device never end.

    Raises Unreadable, and OSError where the file may not be read.
    """
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("no regular file")
        if found.st_size > most:
            raise Unreadable(f"{found.st_size:,} bytes, more than {most:,}")
        return file.read_bytes().decode()
    except FileNotFoundError as error:
        raise Unreadable(f"'{error.strerror}'") from None
    except UnicodeDecodeError:
        raise Unreadable("text that is not UTF-8") from None


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
        return json.loads(text, parse_constant=finite(float), parse_float=finite(float), parse_int=finite(int))
    except RecursionError:
        raise Unreadable("a document nested too deeply") from None
    except ValueError as error:
        raise Unreadable(str(error)) from None


def read_yaml(file: Path) -> Any:
    """YAML without aliases, by which a small file becomes a huge document. Raises Unreadable."""
    import yaml

    class Plain(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise Unreadable("an alias (*name)")
            return super().compose_node(parent, index)

    text = read(file, MOST_YAML)
    try:
        return yaml.load(text, Plain)
    except RecursionError:
        raise Unreadable("a document nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise Unreadable(" ".join(str(error).split())) from None


def misfit(value: Any, shape: Any, path: str = "") -> str | None:
    """Where and how a document does not have this shape; None where it has.

    A shape is a type (or several, `str | None`), a list of one shape, a mapping {str: shape}, or a record of shapes by
    key; more keys may be there, and those that end in `?` may be absent.

    >>> misfit({"seed": 0, "timings": None}, {"seed": int, "timings": {str: float}})
    'timings: not a mapping, got null'
    >>> misfit({"seed": 0}, {"seed": int, "timings?": {str: float}})
    """
    at = f"{path}: " if path else ""
    kind = type(shape) if isinstance(shape, list | dict) else shape
    if not _of_kind(value, kind):
        return f"{at}not {' or '.join(WORDS[one] for one in get_args(kind) or [kind])}, got {shown(value)}"
    if kind is shape:
        return None
    if isinstance(shape, list):
        inner = [(i, one, shape[0]) for i, one in enumerate(value)]
    elif str in shape:
        inner = [(key, one, shape[str]) for key, one in value.items()]
    else:
        missing = [key for key in shape if not key.endswith("?") and key not in value]
        if missing:
            return f"{at}no {missing[0]}, got {shown(list(value))}"
        keys = {key.removesuffix("?"): one for key, one in shape.items()}
        inner = [(key, value[key], one) for key, one in keys.items() if key in value]
    found = (misfit(one, own, f"{path}.{key}" if path else str(key)) for key, one, own in inner)
    return next(filter(None, found), None)


def _of_kind(value: Any, kind: Any) -> bool:
    """isinstance, but that truth values are no numbers."""
    return kind in (bool, object) if isinstance(value, bool) else isinstance(value, kind)


def shown(value: Any) -> str:
    """A value in an error message."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
