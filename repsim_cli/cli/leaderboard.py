"""The grades of measures that come with the package: those of `experiment=grounding`, written by scripts/grades."""

import csv
from importlib import resources
from pathlib import Path

FILE = Path(str(resources.files("repsim_cli"))) / "assets" / "grades.csv"


def leaderboard() -> dict[str, dict[str, str]]:
    """By measure, the best first, the columns of the table `measures by grade`."""
    with FILE.open(newline="") as stream:
        rows = csv.DictReader(line for line in stream if not line.startswith("#"))
        return {row["measure"]: row for row in rows}


def grade(measure: str) -> str:
    """What a list says of a measure.

    >>> grade("no such measure")
    ''
    """
    graded = leaderboard()
    return f" [mean rank {graded[measure]['mean rank']} of {len(graded)}]" if measure in graded else ""
