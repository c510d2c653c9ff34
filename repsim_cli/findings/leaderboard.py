"""The grades of measures that come with the package: of language models by `experiment=grounding`, of image models
by `experiment=grounding_images`, written by scripts/grades."""

import csv
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

FILE = Path(str(resources.files("repsim_cli"))) / "assets" / "grades.csv"


def load_leaderboard() -> dict[str, dict[str, str]]:
    """Loads the columns of the table `measures by grade` by measure, the lowest mean rank on language first. `images`
    is the mean rank on images, `images low` and `images high` its band, and so on."""
    with FILE.open(newline="") as stream:
        rows = csv.DictReader(line for line in stream if not line.startswith("#"))
        return {row["measure"]: row for row in rows}


BY_CHANCE = 0.04  # share of the others that a measure of noise is ahead of, pair by pair (benchmarks/levels.py)
LANGUAGE, IMAGES = ("ahead of", "behind"), ("images ahead of", "images behind")


def count_better_and_worse(measure: str, counts: tuple[str, str] = LANGUAGE) -> tuple[int, int] | None:
    """Counts the graded measures that it beats, and those that beat it: the interval of the difference of the two mean
    ranks excludes 0. None without a grade.

    >>> count_better_and_worse("no such measure") is None
    True
    """
    mine = load_leaderboard().get(measure, {})
    ahead, behind = (mine.get(name, "") for name in counts)
    return (int(ahead), int(behind)) if ahead and behind else None


def grade(measure: str) -> str:
    """Says, for lists of measures, how many graded measures a measure is ahead of and behind, and how many of each
    chance gives; empty without a grade.

    >>> grade("no such measure")
    ''
    """
    told = [count_better_and_worse(measure, counts) for counts in (LANGUAGE, IMAGES)]
    of = [f"ahead of {each[0]}, behind {each[1]}" for each in told if each is not None]
    if len(of) < len(told):
        return ""
    count = len(load_leaderboard())
    return f" [of {count} measures {'; on images '.join(of)}; about {BY_CHANCE * (count - 1):.0f} of each by chance]"


def trust(measures: Iterable[str]) -> dict[str, float]:
    """Computes, by measure, the share of the other graded measures that it beats on language. Those that cannot be told
    apart from it count half; without a grade the share is a half.

    >>> trust(["no such measure"])
    {'no such measure': 0.5}
    """
    others = len(load_leaderboard()) - 1
    told = {name: count_better_and_worse(name) or (0, 0) for name in measures}
    return {name: (1 + (ahead - behind) / others) / 2 for name, (ahead, behind) in told.items()}
