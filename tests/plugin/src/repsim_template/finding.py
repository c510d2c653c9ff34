"""A finding of the study: how many times as large the largest model is as the smallest, and a claim about it."""

from collections.abc import Sequence
from dataclasses import dataclass

from repsim_cli.findings.analysis import Finished, Part, analysis
from repsim_cli.findings.claims import FAILS, HOLDS, Claim, Fact, claim
from repsim_cli.runs.content import Table


@dataclass(frozen=True, kw_only=True)
class SizeRatio:
    """Says how many times as many parameters the largest model has as the smallest.

    digits: of the ratio.
    """

    digits: int = 2


@claim("this package", statistic="parameters of the largest over those of the smallest", threshold=2.0, unit="fact")
def sizes_differ(ratio: float) -> Fact:
    """The largest model has at least twice the parameters of the smallest."""
    return Fact(ratio, HOLDS if ratio >= 2 else FAILS)


@analysis(studies=["parameters"])
def size_ratio(run: Finished, options: SizeRatio, claims: Sequence[Claim]) -> Part:
    sizes = run.results.tables["parameters"].column("parameters")
    ratio = max(sizes) / min(sizes)
    table = Table(columns=["largest over smallest"], rows=[[round(ratio, options.digits)]])
    return Part(tables={"ratio of sizes": table}, claims=[each.verdict("parameters", ratio) for each in claims])
