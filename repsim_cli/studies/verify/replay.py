"""A pass of the candidate in which every unit works on the reference's own inputs: every error is local, and every
fault shows once."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from repsim_cli.models import precision
from repsim_cli.models.calls import exchange, find_entering
from repsim_cli.studies.verify import rounding
from repsim_cli.studies.verify.found import OUT, Finding
from repsim_cli.studies.verify.inputs import Batch
from repsim_cli.studies.verify.kinds import describe
from repsim_cli.studies.verify.reference import (
    Call,
    Gate,
    Precisions,
    copy_reference,
    make_readable,
    pass_at_once,
    record_points,
)
from repsim_cli.studies.verify.rounding import Judged, Places
from repsim_cli.studies.verify.sketches import compute_checksum, judge_sketches, sketch_rows
from repsim_cli.studies.verify.trace import IN, map_tensors, observe
from repsim_cli.studies.verify.units import ModelUnit, hook_units

FEW = 0.1  # of the rows
GROWN = 10  # times the limit, to which roundings may add up in a unit


@dataclass
class Replayed:
    """What a batch shows.

    order: all units, as they run. faulty: those that differ at their end; right: the others. findings: the places, in
    order of computation. inside: of units that agree, the places inside that do not. worst: the largest (whole, row)
    among what agrees.
    """

    equal: bool = True
    faulty: list[str] = field(default_factory=list)
    right: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    inside: list[Finding] = field(default_factory=list)
    worst: tuple[float, float] = (0.0, 0.0)
    order: Sequence[str] = ()
    reference_out: Tensor | None = None


Given = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a unit."""


@dataclass(frozen=True)
class Judge:
    """The candidate's tensors beside the reference's. made: is told whether all are equal, and the worst of what
    agrees."""

    made: Replayed
    batch: Batch
    places: Places
    precisions: Precisions

    def compare(
        self,
        key: str,
        unit: ModelUnit,
        place: str,
        x: Tensor,
        r: Tensor,
        f: Tensor | None,
        entered: Tensor | None = None,
    ) -> Finding | None:
        """A finding where it differs; of integers, none: what follows from them differs too."""
        if not x.is_floating_point():
            self.made.equal &= x.shape == r.shape and torch.equal(x, r)
            return None
        fitting = rounding.reshape_like(r, x)
        if fitting is None:
            self.made.equal = False
            return Finding(key, unit, place, rounding.judge_lost(), self.batch, x, r)
        mask = self.batch.mask
        if f is not None and len(r) == 1 < len(x) and x.shape[:2] == mask.shape:  # the same for all rows
            f = f.expand(len(x), *f.shape)[mask.to(f.device)]
        found = rounding.judge(x, fitting, f, self.precisions.coarse, self.places)
        if not self.is_off(place, found):
            return None
        return Finding(key, unit, place, found, self.batch, x.detach().clone(), fitting, entered)

    def is_off(self, place: str, found: Judged) -> bool:
        """Says whether a place differs by more than its rounding, and keeps the worst where it does not."""
        made = self.made
        made.equal &= found.equal
        if not found.faulty:
            made.worst = max(made.worst[0], found.whole), max(made.worst[1], found.row)
        # what a module gives beside its output, as the choice of experts, may change in single rows
        few = "[" in place and found.wrong.numel() and found.wrong.double().mean() < FEW
        return found.faulty and not few


@dataclass
class Replay:
    """The candidate's units at work: each is given what entered the reference's, and hands on what the reference's
    gave. ran: those that did. busy: one runs again, to be looked into. given: to those that have begun."""

    calls: Mapping[str, Call]
    judge: Judge
    inside: Container[str]
    gate: Gate
    ran: set[str] = field(default_factory=set)
    busy: bool = False
    given: dict[str, Given] = field(default_factory=dict)

    def enter(self, key: str, unit: ModelUnit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Judges what enters a unit, and gives it what entered the reference's."""
        self.gate(key)
        if (call := self.calls.get(key)) is None:
            return None
        found = find_entering(args, kwargs)
        if found is None or call.entry is None:
            self.given[key] = args, dict(kwargs)
            return None
        if wrong := self.judge.compare(key, call.unit, IN, found[1], call.entry, None):
            self.judge.made.findings.append(describe(wrong))
        args, kwargs = exchange(args, kwargs, found[0], copy_reference(call.entry, found[1]))
        self.given[key] = exchange(args, kwargs, found[0], copy_reference(call.entry, found[1]))
        return args, kwargs

    def leave(self, key: str, unit: ModelUnit, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        """Judges what a unit gave, looks into it where that is wrong or it is to be, and hands on the reference's."""
        if (call := self.calls.get(key)) is None:
            return None
        self.ran.add(key)
        made, given, wrong = self.judge.made, self.given.pop(key), list[Finding]()

        def end(name: str, x: Tensor) -> Tensor:
            if (r := call.out.get(name)) is None:
                return x
            if found := self.judge.compare(key, call.unit, name, x, r, call.floor.get(name), call.entry):
                wrong.append(found)
            return copy_reference(r, x)

        out = map_tensors(out, "", end)
        looked: list[Finding] = []
        known = call.points is not None or not call.kept
        if (wrong or key in self.inside) and known and next(unit.module.children(), None) is not None:
            looked = self._look_inside(call, key, unit, given)
            if not looked and self._is_rounding_that_grew(call, wrong):
                wrong = []
        (made.faulty if wrong else made.right).append(key)
        if wrong:
            made.findings += map(describe, looked or wrong)
        else:
            made.inside += [replace(found, candidate=None, reference=None, entered=None) for found in looked]
        return out

    def _is_rounding_that_grew(self, call: Call, wrong: Sequence[Finding]) -> bool:
        """Says whether an error at the end, where each step is right, is rounding that grew, as where it changes a
        choice of experts."""
        forced = call.points is None or call.points.checksums is None
        coarse = self.judge.precisions.coarse
        return forced and not any(_is_beyond_rounding(found.judged, coarse) for found in wrong)

    def _look_inside(self, call: Call, key: str, unit: ModelUnit, given: Given) -> list[Finding]:
        self.busy = True
        try:
            return look_inside(self.judge, call, key, unit, given)
        finally:
            self.busy = False


def replay_pass(
    model: nn.Module,
    units: Sequence[ModelUnit],
    batch: Batch,
    calls: Mapping[str, Call],
    precisions: Precisions,
    *,
    inside: Container[str] = (),
    gate: Gate = pass_at_once,
) -> Replayed:
    """A pass of the candidate on the reference's inputs. calls: those that the reference has run, all of them behind
    the last gate. inside: units that are looked into even where their end is right."""
    made = Replayed()
    judge = Judge(made, batch, Places(batch.mask), precisions)
    replay = Replay(calls, judge, inside, gate)
    with hook_units(units, replay.enter, replay.leave, lambda: replay.busy), torch.no_grad():
        out = batch.run(model)
        gate(OUT)
    made.order, made.reference_out = list(calls), calls[OUT].out[""]
    for key, call in calls.items():
        if key not in replay.ran and key != OUT:
            made.equal = False
            made.faulty.append(key)
            made.findings.append(describe(Finding(key, call.unit, "", rounding.judge_lost(), batch)))
    last = judge.compare(OUT, units[-1], "", *_cut(out, calls[OUT].out[""]), None)
    if last is not None:
        made.findings.append(describe(last))
        made.faulty.append(OUT)
    return made


def look_inside(judge: Judge, call: Call, key: str, unit: ModelUnit, given: Given) -> list[Finding]:
    """Runs a unit of the candidate again, each module inside on the reference's inputs, and finds the places that
    differ; of sketches, the first alone, since nothing can be put in the place of x: all that follows is wrong."""
    points = call.points or record_points(call, judge.places, judge.precisions)
    wrong: list[Finding] = []
    sums = points.checksums

    def read_entering(place: str) -> Tensor | None:
        """Reads what enters the reference's module at a place."""
        enters = place.partition("#")[0] + IN if place else IN
        earlier = points.again.get(enters, enters)
        return call.entry if earlier == IN else points.refs.get(earlier)

    def compare(name: str, x: Tensor) -> Tensor:
        at = points.again.get(name, name)  # the candidate may change what the reference hands on
        r = call.entry if at == IN else points.refs.get(at)
        if r is None:
            return x
        if found := judge.compare(key, call.unit, name, x, r, points.floors.get(at), read_entering(name)):
            wrong.append(found)
        return copy_reference(r, x)

    def compare_sketches(name: str, x: Tensor) -> Tensor:
        at = points.again.get(name, name)
        if wrong or sums is None or at not in sums or compute_checksum(x) == sums[at]:
            return x
        judge.made.equal = False
        if x.is_floating_point() and at in points.refs:
            c = sketch_rows(x, judge.places)
            r = rounding.adapt_heads(points.refs[at], c.shape[1])
            found = judge_sketches(c, r, points.floors.get(at), judge.precisions.coarse)
            if judge.is_off(name, found):
                c, r = (each[..., :-1].flatten(1) for each in (c, r))
                wrong.append(Finding(key, unit, name, found, judge.batch, c, r, sketched=True))
        return x

    found = find_entering(*given)
    with observe(unit.module, compare if sums is None else compare_sketches, None if found is None else found[1]):
        out = unit.module(*given[0], **given[1])
    if not wrong and sums is None:
        map_tensors(make_readable(out), "", compare)
    return wrong


def _is_beyond_rounding(found: Judged, dtype: torch.dtype) -> bool:
    """Says whether an error is more than rounding may grow to in a unit; few tokens may be off by a changed choice."""
    few = found.wrong.numel() > 0 and found.wrong.double().mean() < 0.5
    return found.whole > GROWN * precision.choose_rounding_limits(dtype).whole and not few


def _cut(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Logits over the rows of the vocabulary that both models have."""
    if x.ndim == r.ndim and x.shape[:-1] == r.shape[:-1]:
        width = min(x.shape[-1], r.shape[-1])
        return x[..., :width], r[..., :width]
    return x, r
