"""results.json of a finished run as plain values."""

from typing import Any

from repsim_cli.runs import results
from repsim_cli.runs.content import to_json


def recorded(folder) -> dict[str, Any]:
    return to_json(results.read_results(folder))
