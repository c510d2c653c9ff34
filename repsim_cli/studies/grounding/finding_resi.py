"""Grades of measures beside those that ReSi published (Klabunde et al. 2024): do both rank the measures alike?"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import scipy
from jaxtyping import Float

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean
from repsim_cli.findings.analysis import Finished, Part, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.findings.evidence import normalise_ranks
from repsim_cli.runs.content import Table
from repsim_cli.studies.grounding.finding import read_cases
from repsim_cli.studies.grounding.grading import grade_all, rank

FILE = Path(str(resources.files("repsim_cli"))) / "assets" / "published" / "resi.csv"
PUBLISHED = ("labels", "shortcut", "augmentation")
BESIDE = ["measure", "test", "score", "rank", "published", "published rank"]
AGREEMENT = ["test", "measures", "Spearman's rho", "low", "high"]
FEWEST = 8  # measures, for an interval
NEAR_ONE = 1 - 1e-12  # rho whose z is finite
ALL = "all, by mean rank"


@dataclass(frozen=True, kw_only=True)
class Resi:
    """The average precision of `separation` beside the one published for BERT models, averaged over SST-2 and MNLI, and
    Spearman's rho of both over measures, with an interval as if measures were drawn independently of each other.

    tests: {TEST of this run: labels, shortcut or augmentation, the test that it repeats}; null: labels, shortcut, and
        noise for augmentation.
    """

    tests: dict[str, str] | None = None

    @property
    def pairs(self) -> dict[str, str]:
        return (
            {"labels": "labels", "shortcut": "shortcut", "noise": "augmentation"} if self.tests is None else self.tests
        )

    def __post_init__(self) -> None:
        for name, published in self.pairs.items():
            if published not in PUBLISHED:
                raise BadInput(f"tests.{name}: no such test, got '{published}'; {did_you_mean(published, PUBLISHED)}")


def read_published() -> dict[str, dict[str, float]]:
    """Reads the published average precision of every measure in each test, averaged over the data sets that have it."""
    lines = FILE.read_text().splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    tests: dict[str, dict[str, float]] = {}
    for test in PUBLISHED:
        for row in rows:
            values = [float(value) for name, value in row.items() if name.startswith(f"{test},") and value]
            if values:
                tests.setdefault(test, {})[row["measure"]] = float(np.mean(values))
    return tests


def correlate_with_interval(
    x: Float[np.ndarray, " k"], y: Float[np.ndarray, " k"], level: float
) -> tuple[float, float | None, float | None]:
    """Spearman's rho, and its interval if pairs were drawn independently: of Fisher's z with the error of Bonett and
    Wright (2000), which covers 0.95 to 0.98 at 8 to 23 pairs; none of fewer than eight."""
    value = float(normalise_ranks(x) @ normalise_ranks(y))
    if len(x) < FEWEST:
        return value, None, None
    z, error = np.arctanh(np.clip(value, -NEAR_ONE, NEAR_ONE)), np.sqrt((1 + value**2 / 2) / (len(x) - 3))
    low, high = np.tanh(z + error * scipy.stats.norm.ppf([(1 - level) / 2, (1 + level) / 2]))
    return value, float(low), float(high)


@analysis(studies=("grounding",))
def resi(run: Finished, options: Resi, claims: Sequence[Claim]) -> Part:
    ours = average_separation_scores(run, options.pairs)
    theirs = read_published()
    rows, agreements = [], []
    places: dict[str, list[tuple[float, float]]] = {}
    for test, measures in ours.items():
        known = theirs[options.pairs[test]]
        both = [measure for measure in measures if measure in known]
        if len(both) < 3:
            continue
        x, y = (np.array([each[measure] for measure in both]) for each in (measures, known))
        for measure, *numbers in zip(both, x, rank(x), y, rank(y), strict=True):
            rows.append([measure, test, *map(float, numbers)])
            places.setdefault(measure, []).append((numbers[1], numbers[3]))
        agreements.append([test, len(both), *correlate_with_interval(x, y, run.level)])
    if not rows:
        raise BadInput(
            f"tests: none has groups and three measures that were published, got {', '.join(options.pairs)}; "
            "name the tests of the run"
        )
    x, y = (np.array([np.mean([place[side] for place in each]) for each in places.values()]) for side in (0, 1))
    agreements.append([ALL, len(places), *correlate_with_interval(x, y, run.level)])
    return Part(
        tables={
            "measures beside ReSi": Table(columns=BESIDE, rows=rows),
            "agreement with ReSi": Table(columns=AGREEMENT, rows=agreements),
        }
    )


def average_separation_scores(run: Finished, tests: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Averages the average precision of every measure in each of these tests over samples and hook points."""
    precisions: dict[str, dict[str, list[float]]] = {}
    for case in read_cases(run, "accuracy"):
        for each in grade_all(case) if case.test in tests else ():
            if each.test == "separation":
                for measure, (value, _) in each.scores.items():
                    precisions.setdefault(case.test, {}).setdefault(measure, []).append(value)
    return {
        test: {measure: float(np.mean(values)) for measure, values in measures.items()}
        for test, measures in precisions.items()
    }
