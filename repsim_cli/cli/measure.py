"""`repsim measure`: a measure, or all measures, between two arrays."""

import argparse
import json
import warnings
from collections.abc import Sequence
from typing import Any

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput, RepsimError
from repsim_cli.base.files import expand_path, open_npy
from repsim_cli.cli.terminal import Bar, check_torch, log, name_where_slow, say
from repsim_cli.config.words import parse_settings

ALL = "all"


def measure_command(parsed: argparse.Namespace) -> int:
    """Answers `repsim measure`: one measure, or all with their defaults, of two arrays in files."""
    check_torch()
    from repsim_cli import measures

    if expand_path(parsed.name).is_file() and parsed.name not in (ALL, *measures.names()):
        raise BadInput(
            f"NAME: the name of a measure comes before the files, got the file '{parsed.name}'; write repsim measure "
            "NAME X.npy Y.npy, NAME of repsim list measure, or all"
        )
    settings = parse_settings(parsed.settings)
    if parsed.name == ALL and settings:
        raise BadInput(f"settings: all measures run with their defaults, got {', '.join(settings)}; name one measure")
    bound = None if parsed.name == ALL else _bind(parsed.name, settings)
    x, y = (_load_array(name) for name in (parsed.x, parsed.y))
    labels = _load_array(parsed.labels) if parsed.labels else None
    if labels is not None and bound is not None and not bound.card.labelled:
        raise BadInput(f"--labels: {bound.name} reads no labels, got {parsed.labels}; drop it")
    if bound is None:
        return _measure_all(parsed, x, y, labels)
    record = _apply(bound, x, y, labels)
    if record["error"]:
        raise BadInput(f"{record['measure']}: {record['error']}")
    if parsed.json:
        say(*json.dumps(record, indent=1, allow_nan=False).split("\n"))
    else:
        _warn(record)
        say(str(record["value"]))
    return 0


def _bind(name: str, settings: dict[str, Any]) -> Any:
    from repsim_cli import measures

    try:
        registry.measures.get(name)
    except BadInput as error:
        raise BadInput(f"NAME: {error}") from None
    return measures.get(name, **settings)


def _measure_all(parsed: argparse.Namespace, x: Any, y: Any, labels: Any) -> int:
    """Prints a line per measure once it is computed, then the measures that do not apply; or all as JSON."""
    from repsim_cli import measures

    names = Bar()(measures.names(), label="measures", unit="measures") if parsed.json else measures.names()
    records = []
    for name in names:
        records.append(record := _measure_by_name(name, x, y, labels))
        if record["value"] is not None and not parsed.json:
            _warn(record)
            say(_write_value_line(record))
    if all(record["value"] is None for record in records):
        raise BadInput(f"{parsed.x}, {parsed.y}: no measure applies, got: {records[0]['error']}")
    if parsed.json:
        say(*json.dumps(records, indent=1, allow_nan=False).split("\n"))
    else:
        for record in records:
            if record["error"]:
                say(f"not applicable: {record['measure']}: {record['error']}")
    return 0


def _warn(record: dict[str, Any]) -> None:
    for text in record["warnings"]:
        log.warning("%s: %s", record["measure"], text)


def _measure_by_name(name: str, x: Any, y: Any, labels: Any) -> dict[str, Any]:
    """A measure with its defaults, or why it is not available."""
    from repsim_cli import measures

    try:
        measure = measures.get(name)
    except BadInput as error:
        return _record(name, measures.card(name), {}, len(x), error=str(error).removeprefix(f"{name}: "))
    return _apply(measure, x, y, labels)


def _apply(measure: Any, x: Any, y: Any, labels: Any) -> dict[str, Any]:
    """The value (row x, column y), of an asymmetric measure also (row y, column x); or why there is none."""
    import torch

    from repsim_cli.engine.claimed import check_symmetry
    from repsim_cli.measures.base import MeasureWarning, is_added

    values, error = [], None
    once = measure.card.symmetric and not is_added(measure)  # the claims of others are checked
    sides = [(x, y)] if once else [(x, y), (y, x)]
    with warnings.catch_warnings(record=True) as caught, name_where_slow(lambda: measure.name):
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", MeasureWarning)
        try:
            values = [measure(row, column, labels) for row, column in sides]
            check_symmetry(measure, *torch.tensor([values[0], values[-1]], dtype=torch.float64))
            values = values[:1] if measure.card.symmetric else values
        except RepsimError as refusal:
            error = str(refusal).removeprefix(f"{measure.name}: ")
    notices = list(dict.fromkeys(str(notice.message) for notice in caught))
    return _record(measure.name, measure.card, dict(measure.settings), len(x), values, error, notices)


def _record(
    name: str,
    card: Any,
    settings: dict[str, Any],
    n: int,
    values: Sequence[float] = (),
    error: str | None = None,
    notices: Sequence[str] = (),
) -> dict[str, Any]:
    return {
        "measure": name,
        "value": values[0] if values else None,
        "value_y_to_x": values[1] if len(values) > 1 else None,
        "error": error,
        "warnings": list(notices),
        "settings": settings,
        "n": n,
        "card": card.record(),
    }


def _write_value_line(record: dict[str, Any]) -> str:
    better = "larger" if record["card"]["larger_is_closer"] else "smaller"
    other = "" if record["value_y_to_x"] is None else f"  (y to x: {record['value_y_to_x']:.6g})"
    return f"{record['measure']:30}  {record['value']:12.6g}  {better} is closer{other}"


def _load_array(name: str) -> Any:
    file = expand_path(name)
    if not file.exists():
        raise BadInput(f"{name}: no such file; check the path")
    if not file.is_file():  # opening a pipe blocks
        raise BadInput(f"{name}: not a regular file, got another kind; save it with numpy.save")
    try:
        array = open_npy(file)
    except (ValueError, EOFError, OverflowError, MemoryError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{name}: cannot be read as .npy ({reason}); save it with numpy.save") from None
    if array.dtype.kind not in "fiu":
        raise BadInput(f"{name}: not an array of numbers, got {array.dtype}; use .npy of floats")
    return array
