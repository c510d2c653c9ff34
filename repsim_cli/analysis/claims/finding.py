"""What every claim gives: a statistic, a threshold and a verdict, reported whatever it is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repsim_cli.errors import BadInput
from repsim_cli.registry import did_you_mean


@dataclass(frozen=True)
class Finding:
    """statistic: what the number is. value: None where the models at hand cannot test it, because of `why`."""

    statistic: str
    threshold: float
    holds: bool | None
    value: float | None
    why: str = ""


def untestable(statistic: str, threshold: float, why: str) -> Finding:
    return Finding(statistic, threshold, None, None, why)


def check_names(names: Sequence[str], known: Mapping[str, Any]) -> None:
    """Raises BadInput for a claim that does not exist."""
    for name in names:
        if name not in known:
            raise BadInput(f"options.claims: unknown claim, got '{name}'; {did_you_mean(name, known)}")


def record(claim: Callable[..., Finding], measure: str, finding: Finding) -> dict[str, Any]:
    """A claim's verdict as results.json keeps it. measure: what it was tested on."""
    words = {True: "holds", False: "fails", None: "not testable here"}
    return {
        "name": claim.__name__,
        "source": " ".join((claim.__doc__ or "").split()),
        "measure": measure,
        "statistic": finding.statistic,
        "value": finding.value,
        "threshold": finding.threshold,
        "verdict": words[finding.holds],
        "why": finding.why,
    }
