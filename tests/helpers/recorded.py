"""results.json of a finished run as plain values."""

from typing import Any

from repsim_cli.runs import reader
from repsim_cli.runs.schema import to_json


def recorded(folder) -> dict[str, Any]:
    return to_json(reader.read_results(folder))
