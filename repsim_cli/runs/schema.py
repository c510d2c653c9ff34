"""results.json, written and checked: the schema is the dataclasses of `content.py`."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from repsim_cli.base.documents import Unreadable, show
from repsim_cli.runs.content import Results

SCHEMA = 2


def to_json(results: Results) -> dict[str, Any]:
    return {"schema": SCHEMA, **dataclasses.asdict(results)}


@functools.cache
def _make_results_adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Results)


def from_json(document: Mapping[str, Any]) -> Results:
    """Makes the results of their JSON document. Raises Unreadable where a key is missing, or a value has another type
    than its field."""
    from pydantic import ValidationError

    for key in (part.name for part in dataclasses.fields(Results)):
        if key not in document:
            raise Unreadable(f"no {key}, got {show(list(document))}")
    try:
        return _make_results_adapter().validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(map(str, first["loc"]))
        what = first["msg"].removeprefix("Input should be ")
        raise Unreadable(f"{path}: {what}, got {show(first['input'])}") from None
