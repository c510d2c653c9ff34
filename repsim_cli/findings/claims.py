"""Published findings as claims: one registry, one rule for all verdicts.

A claim *holds* where its statistic lies on the published side of the threshold and a value as far to that side has a
one-sided p of at most 0.05, and *fails* where it lies on the other side and a value as far to that one has. In between
it is *unclear*. Where no value could reach such a p on either side, it is *not testable here*. Facts that are read
without error, such as the shape of a model, have no p and are never unclear.

Each claim declares its unit of replication: what was drawn independently, and what its p or error is over. That is a
model, a seed, a pair of models or a task, never a layer or a row of one model, for these resemble each other. Seeds and
fine-tunings of one base tell of this base alone.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from repsim_cli.base import registry
from repsim_cli.base.errors import BadConfig
from repsim_cli.base.registry import did_you_mean
from repsim_cli.findings.evidence import LEVEL, Evidence
from repsim_cli.runs.content import Verdict

HOLDS, FAILS, UNCLEAR, UNTESTABLE = "holds", "fails", "unclear", "not testable here"
Side = Literal["above", "below"]
Across = Literal["", "models", "groups"]
Unit = Literal["model", "seed", "pair of models", "task", "fact"]


class Weighed(NamedTuple):
    """A value with what chance or its error says of it."""

    value: float
    evidence: Evidence


class Fact(NamedTuple):
    """A value without error, and the verdict on it."""

    value: float
    verdict: str
    why: str = ""


class Untestable(NamedTuple):
    """Why the models at hand give no value."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """value: None where the models at hand give none. p: one-sided, of a value at least as far to the published side;
    opposite_p: to the other side. se: standard error of the value, where p rests on one. units: how many independent
    ones p or the error is over. unit: of what. why: what they are, or why the claim cannot be tested."""

    verdict: str
    value: float | None
    why: str = ""
    p: float | None = None
    opposite_p: float | None = None
    se: float | None = None
    units: int | None = None
    unit: str = ""


def judge_claim(value: float, threshold: float, evidence: Evidence, published: Side = "above") -> Judgement:
    """The verdict by the rule. published: the side of the threshold where the publication has the value."""
    p, opposite, beyond = evidence.above, evidence.below, value >= threshold
    if published == "below":
        p, opposite, beyond = opposite, p, value <= threshold
    units = {"units": evidence.units, "unit": evidence.unit}
    numbers = {"p": p, "opposite_p": opposite, "se": evidence.se, **units}
    if not math.isfinite(value):
        return Judgement(verdict=UNTESTABLE, value=None, why="a value that it rests on is not known", **units)
    if evidence.smallest >= 1:  # no p at all
        why = f"needs {evidence.needs} with a value, got {evidence.how}"  # others may be in the run
        return Judgement(verdict=UNTESTABLE, value=value, why=why, **units)
    if evidence.smallest > LEVEL:
        why = f"no p below {evidence.smallest:.2g} can be reached ({evidence.how}); needs {evidence.needs}"
        return Judgement(verdict=UNTESTABLE, value=value, why=why, **numbers)
    verdict = HOLDS if beyond and p <= LEVEL else FAILS if not beyond and opposite <= LEVEL else UNCLEAR
    return Judgement(verdict=verdict, value=value, why=evidence.how, **numbers)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A published finding.

    source: where it is published.
    says: the paper's sentence.
    statistic, threshold: what is compared with what.
    published: on which side of the threshold the paper has it.
    unit: of replication; `fact` where the value is read without error.
    module: where it is written; the analysis of this file tests it.
    on: the kind of result that its function takes.
    of: how the models that it rests on were trained (`content.BY_BLOCK`, ...); empty: it rests on all of the run.
    across: whether it compares the similarity of different models, or holds their groups against other ways to group
        them.
    """

    name: str
    source: str
    says: str
    statistic: str
    threshold: float
    published: Side
    unit: Unit
    module: str
    on: str
    of: tuple[str, ...]
    across: Across
    function: Callable[..., Weighed | Fact | Untestable]

    @property
    def analysis(self) -> str:
        """The name of the analysis that its module registers, which may be another than that of the file."""
        return registry.analyses.find_name_in(self.module) or self.module.rpartition(".")[2]

    def __call__(self, *given: Any) -> Judgement:
        judgement = self._judge(*given)
        return replace(judgement, unit=judgement.unit or self.unit)

    def _judge(self, *given: Any) -> Judgement:
        answer = self.function(*given)
        if isinstance(answer, Untestable):
            return Judgement(verdict=UNTESTABLE, value=None, why=answer.why)
        if isinstance(answer, Fact):
            return Judgement(verdict=answer.verdict, value=answer.value, why=answer.why)
        return judge_claim(answer.value, self.threshold, answer.evidence, self.published)

    def verdict(self, measure: str, *given: Any) -> Verdict:
        """Makes the verdict as results.json keeps it. measure: the label of the measure that the claim is tested on."""
        about = {key: getattr(self, key) for key in ("name", "source", "says", "statistic", "threshold", "analysis")}
        return Verdict(measure=measure, **about, **vars(self(*given)))

    def untestable(self, measure: str, why: str) -> Verdict:
        """The verdict where a run has nothing to give to the claim."""
        return replace(self, function=lambda: Untestable(why)).verdict(measure)


def claim(  # noqa: PLR0913 - what a claim declares
    source: str,
    *,
    statistic: str,
    threshold: float,
    unit: Unit,
    on: str = "",
    of: tuple[str, ...] = (),
    published: Side = "above",
    across: Across = "",
) -> Callable[[Callable[..., Weighed | Fact | Untestable]], Claim]:
    """Registers a claim under its function's name; the docstring is the paper's sentence, the file the analysis."""

    def register(function: Callable[..., Weighed | Fact | Untestable]) -> Claim:
        made = Claim(
            name=function.__name__,
            source=source,
            says=" ".join((function.__doc__ or "").split()),
            statistic=statistic,
            threshold=threshold,
            published=published,
            unit=unit,
            module=function.__module__,
            on=on,
            of=of,
            across=across,
            function=function,
        )
        registry.claims.register(made.name, made)(function)
        return made

    return register


def find_claims(names: Sequence[str]) -> list[Claim]:
    """Finds the claims of these names. Raises BadConfig with all that do not exist, or are given twice."""
    known = registry.claims.names() if names else []
    if unknown := [name for name in names if name not in known]:
        raise BadConfig([f"claims: unknown claim, got '{name}'; {did_you_mean(name, known)}" for name in unknown])
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        given = f"[{','.join(names)}]"
        raise BadConfig([f"claims: a name twice, got '{name}' in {given}; give each once" for name in twice])
    return [registry.claims.get(name).card for name in names]
