"""What every claim gives: a statistic, a threshold and a verdict, reported whatever it is.

The rule is the same for all. A claim *holds* where its statistic lies on the published side of the threshold and a
value as far to that side has a one-sided p of at most 0.05, and *fails* where it lies on the other side and a value as
far to that one has. In between it is *unclear*. Where no value could reach such a p on either side, it is *not
testable here*. Facts that are read without error, such as the shape of a model, have no p and are never unclear.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repsim_cli.errors import BadInput
from repsim_cli.findings.evidence import LEVEL, Evidence
from repsim_cli.registry import did_you_mean

HOLDS, FAILS, UNCLEAR, UNTESTABLE = "holds", "fails", "unclear", "not testable here"


@dataclass(frozen=True)
class Finding:
    """statistic: what the number is. value: None where the models at hand give none. p: one-sided, of a value at least
    as far to the published side; opposite: to the other side. se: standard error of the value, where p rests on one.
    why: what p or the error is over, or why the claim cannot be tested."""

    statistic: str
    threshold: float
    verdict: str
    value: float | None
    why: str = ""
    p: float | None = None
    opposite: float | None = None
    se: float | None = None


def untestable(statistic: str, threshold: float, why: str) -> Finding:
    return Finding(statistic, threshold, UNTESTABLE, None, why)


def exact(statistic: str, threshold: float, holds: bool, value: float, why: str = "") -> Finding:
    """The verdict on a fact that has no error."""
    return Finding(statistic, threshold, HOLDS if holds else FAILS, value, why)


def judged(statistic: str, threshold: float, value: float, evidence: Evidence, *, published: str = "above") -> Finding:
    """The verdict by the rule. published: the side of the threshold where the publication has the value."""
    p, opposite = evidence.above, evidence.below
    beyond = value >= threshold
    if published == "below":
        p, opposite, beyond = opposite, p, value <= threshold
    numbers = {"p": p, "opposite": opposite, "se": evidence.se}
    if evidence.smallest > LEVEL:
        why = f"no p below {evidence.smallest:.2g} can be reached ({evidence.how}); needs more"
        return Finding(statistic, threshold, UNTESTABLE, value, why, **numbers)
    verdict = HOLDS if beyond and p <= LEVEL else FAILS if not beyond and opposite <= LEVEL else UNCLEAR
    return Finding(statistic, threshold, verdict, value, evidence.how, **numbers)


def check_names(names: Sequence[str], known: Mapping[str, Any]) -> None:
    """Raises BadInput for a claim that does not exist."""
    for name in names:
        if name not in known:
            raise BadInput(f"options.claims: unknown claim, got '{name}'; {did_you_mean(name, known)}")


def record(claim: Callable[..., Finding], measure: str, finding: Finding) -> dict[str, Any]:
    """A claim's verdict as results.json keeps it. measure: what it was tested on."""
    return {
        "name": claim.__name__,
        "source": " ".join((claim.__doc__ or "").split()),
        "measure": measure,
        "statistic": finding.statistic,
        "value": finding.value,
        "se": finding.se,
        "threshold": finding.threshold,
        "p": finding.p,
        "opposite_p": finding.opposite,
        "verdict": finding.verdict,
        "why": finding.why,
    }
