"""The grades of measures that come with the package: of language models by `experiment=grounding`, of image models
by `experiment=grounding_images`, written by scripts/grades."""

import csv
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

FILE = Path(str(resources.files("repsim_cli"))) / "assets" / "grades.csv"


def load_leaderboard() -> dict[str, dict[str, str]]:
    """By measure, the lowest mean rank on language first, columns of the table `measures by grade`; `images` is the
    mean rank on images, `images low` and `images high` its band, and so on."""
    with FILE.open(newline="") as stream:
        rows = csv.DictReader(line for line in stream if not line.startswith("#"))
        return {row["measure"]: row for row in rows}


LANGUAGE, IMAGES = ("ahead of", "behind"), ("images ahead of", "images behind")


def count_better_and_worse(measure: str, counts: tuple[str, str] = LANGUAGE) -> tuple[int, int] | None:
    """Of how many graded measures it is told to be better, and worse: the interval of the difference of both mean ranks
    does not hold 0; None without a grade.

    >>> count_better_and_worse("no such measure") is None
    True
    """
    mine = load_leaderboard().get(measure, {})
    ahead, behind = (mine.get(name, "") for name in counts)
    return (int(ahead), int(behind)) if ahead and behind else None


def grade(measure: str) -> str:
    """What a list says of a measure.

    >>> grade("no such measure")
    ''
    """
    told = [count_better_and_worse(measure, counts) for counts in (LANGUAGE, IMAGES)]
    of = [f"ahead of {each[0]}, behind {each[1]}" for each in told if each is not None]
    return f" [of {len(load_leaderboard())} measures {'; on images '.join(of)}]" if len(of) == len(told) else ""


def trust(measures: Iterable[str]) -> dict[str, float]:
    """By measure, the share of the other graded measures that it is told to be better than, on language, of which those
    that it is not told apart from count half; a half without a grade.

    >>> trust(["no such measure"])
    {'no such measure': 0.5}
    """
    others = len(load_leaderboard()) - 1
    told = {name: count_better_and_worse(name) or (0, 0) for name in measures}
    return {name: (1 + (ahead - behind) / others) / 2 for name, (ahead, behind) in told.items()}
