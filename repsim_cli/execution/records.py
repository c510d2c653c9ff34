"""The records of attempts at units, in the run folder: a line of JSON each."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "units.jsonl"


def note(folder: Path, record: Mapping[str, Any]) -> None:
    with open(folder / FILE, "a") as stream:
        stream.write(json.dumps(record) + "\n")


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Reads all records of a run, in the order of their ends; a line that a killed run left in half is left out."""
    file = folder / FILE
    lines = file.read_text().split("\n") if file.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("}")]
