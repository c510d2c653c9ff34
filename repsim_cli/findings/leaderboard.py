"""The grades of measures that come with the package: of language models by `experiment=grounding`, of image models
by `experiment=grounding_images`, written by scripts/grades."""

import csv
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

FILE = Path(str(resources.files("repsim_cli"))) / "assets" / "grades.csv"


def leaderboard() -> dict[str, dict[str, str]]:
    """By measure, the best on language first, the columns of the table `measures by grade`; `images`, `images low` and
    `images high` are the mean rank on images and its band."""
    with FILE.open(newline="") as stream:
        rows = csv.DictReader(line for line in stream if not line.startswith("#"))
        return {row["measure"]: row for row in rows}


def grade(measure: str) -> str:
    """What a list says of a measure.

    >>> grade("no such measure")
    ''
    """
    graded = leaderboard()
    if measure not in graded:
        return ""
    row = graded[measure]
    return f" [mean rank {row['mean rank']} of {len(graded)}, on images {row['images']}]"


def trust(measures: Iterable[str]) -> dict[str, float]:
    """By measure, the share of the graded measures that it is better than on average, on language; a half without a
    grade.

    >>> trust(["no such measure"])
    {'no such measure': 0.5}
    """
    graded = leaderboard()
    return {
        name: (len(graded) - float(graded[name]["mean rank"])) / (len(graded) - 1) if name in graded else 0.5
        for name in measures
    }
