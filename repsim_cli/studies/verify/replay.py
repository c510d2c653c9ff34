"""A pass of the reference with its own rounding, and a pass of the candidate in which every unit works on the
reference's own inputs: every error is local, and every fault shows once."""

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from repsim_cli.models import precision
from repsim_cli.models.calls import exchange, find_entering
from repsim_cli.studies.verify import rounding
from repsim_cli.studies.verify.found import OUT, Finding
from repsim_cli.studies.verify.inputs import Batch
from repsim_cli.studies.verify.kinds import describe
from repsim_cli.studies.verify.rounding import Judged, Places
from repsim_cli.studies.verify.sketches import compute_checksum, judge_sketches, sketch_rows
from repsim_cli.studies.verify.trace import IN, map_tensors, observe
from repsim_cli.studies.verify.units import ModelUnit, hook_units

FEW = 0.1  # of the rows
ROUGH = 4  # roundings of a row
GROWN = 10  # times the limit, to which roundings may add up in a unit
Gate = Callable[[str], None]
"""Called with the key of each unit before it runs, and with OUT before the end."""


class Precisions(NamedTuple):
    """coarse: the coarser of both models. twin: the one beside which the reference's rounding is measured; None: it is
    not, and some roundings of `coarse` stand for it."""

    coarse: torch.dtype
    twin: torch.dtype | None


@dataclass
class Call:
    """A unit of the reference at work: its inputs, what entered it first, what it gave, and its rounding by row.
    kept: it comes from a file, and cannot run again; its points inside may be in the file too."""

    unit: ModelUnit
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    entry: Tensor | None
    out: dict[str, Tensor] = field(default_factory=dict)
    floor: dict[str, Tensor] = field(default_factory=dict)
    hooks: set[int] = field(default_factory=set)
    kept: bool = False
    points: "Points | None" = None


@dataclass
class Points:
    """What the reference computes inside a unit, by place, with its rounding by row. again: of places that a tensor
    reaches a second time, the first. checksums: `refs` are sketches of tensors that have these; None: they are the
    tensors."""

    refs: dict[str, Tensor]
    floors: dict[str, Tensor]
    again: dict[str, str]
    checksums: dict[str, str] | None = None


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


def pass_at_once(key: str) -> None:
    """The gate of a pass that waits for nothing."""


def record_pass(
    model: nn.Module,
    units: Sequence[ModelUnit],
    batch: Batch,
    precisions: Precisions,
    *,
    calls: dict[str, Call] | None = None,
    gate: Gate = pass_at_once,
) -> dict[str, Call]:
    """A pass of the reference. calls: what is filled with them, as they run; None: a new mapping."""
    calls, (coarse, dtype) = {} if calls is None else calls, precisions
    places = Places(batch.mask)

    def enter(key: str, unit: ModelUnit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        gate(key)
        found = find_entering(args, kwargs)
        entry = None if found is None else found[1].clone()
        if found is not None and entry is not None:
            args, kwargs = exchange(args, kwargs, found[0], entry)
        calls[key] = Call(unit, args, dict(kwargs), entry, hooks=hooks.ids)

    def leave(key: str, unit: ModelUnit, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        call = calls[key]
        map_tensors(_copy(out), "", lambda name, x: call.out.setdefault(name, x.clone()))
        if not isinstance(unit.module, nn.Embedding):
            call.floor = (
                bound_rounding(call.out, places, coarse)
                if dtype is None
                else _measure_floor_norms(repeat(call, dtype), call.out, places)
            )

    with hook_units(units, enter, leave) as hooks, torch.no_grad():
        out = batch.run(model)
    calls[OUT] = Call(units[-1], (), {}, None, {"": out})
    return calls


def record_points(call: Call, places: Places, precisions: Precisions, *, free: bool = False) -> Points:
    """Runs the unit of the reference again, and keeps what each module inside takes and gives. free: the rounding of a
    place is that of all that leads to it in the unit, not of its own step."""
    refs: dict[str, Tensor] = {}

    def keep(name: str, x: Tensor) -> Tensor:
        refs[name] = x.detach().clone()
        return x

    entry = None if call.entry is None else call.entry.clone()
    args, kwargs = call.args, call.kwargs
    if entry is not None:
        key_in = find_entering(args, kwargs)
        assert key_in is not None
        args, kwargs = exchange(args, kwargs, key_in[0], entry)
    again: dict[str, str] = {}
    with observe(call.unit.module, keep, entry, again):
        out = call.unit.module(*args, **kwargs)
    map_tensors(_copy(out), "", keep)
    coarse, twin = precisions
    if twin is None:
        return Points(refs, bound_rounding(refs, places, coarse), again)
    return Points(refs, _measure_floor_norms(repeat(call, twin, {} if free else refs), refs, places), again)


def sketch_left(points: Points, places: Places) -> Points:
    """Makes sketches of these points, for a file that they do not fit into."""
    refs = {name: sketch_rows(x, places) for name, x in points.refs.items() if x.is_floating_point()}
    return replace(points, refs=refs, checksums={name: compute_checksum(x) for name, x in points.refs.items()})


def _measure_floor_norms(floors: Mapping[str, Tensor], refs: Mapping[str, Tensor], places: Places) -> dict[str, Tensor]:
    return {
        name: rounding.measure_rounding_norms(x, refs[name], places)
        for name, x in floors.items()
        if name in refs and refs[name].is_floating_point() and x.shape == refs[name].shape
    }


def bound_rounding(refs: Mapping[str, Tensor], places: Places, dtype: torch.dtype) -> dict[str, Tensor]:
    """Bounds what rounding gives in most places, where it is not measured."""
    return {
        name: ROUGH
        * precision.UNIT[dtype]
        * rounding.zero_masked_values(rounding.raise_precision(places.tokens(x)[0])).float().norm(dim=-1)
        for name, x in refs.items()
        if x.is_floating_point()
    }


def _copy(out: Any) -> Any:
    """A mapping whose values are to be read and not replaced."""
    return dict(out) if isinstance(out, Mapping) else out


def repeat(call: Call, dtype: torch.dtype, forced: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Runs the unit in another precision on the same inputs; with `forced`, every place inside on the reference's
    values."""
    twin = precision.copy_in_precision(call.unit.module, dtype, call.hooks)
    args, kwargs = precision.cast_inputs(call.args, dtype), precision.cast_inputs(call.kwargs, dtype)
    entry = find_entering(args, kwargs)
    got: dict[str, Tensor] = {}

    def sink(name: str, x: Tensor) -> Tensor:
        assert forced is not None
        got[name] = x.clone()
        return _copy_reference(forced.get(name), x)

    with ExitStack() as stack:
        if forced is not None:
            stack.enter_context(observe(twin, sink, None if entry is None else entry[1]))
        if dtype == torch.float64:
            stack.enter_context(precision.Raised())
        out = twin(*args, **kwargs)
    map_tensors(_copy(out), "", lambda name, x: got.setdefault(name, x))
    return got


def _copy_reference(reference: Tensor | None, x: Tensor) -> Tensor:
    """A copy of the reference's tensor in place of this one; a copy, since a model may work in place."""
    fitting = None if reference is None else rounding.reshape_like(reference, x)
    return x if fitting is None else fitting.to(x.dtype).clone()


def replay_pass(  # noqa: C901, PLR0915 - one pass over the parts
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
    made, ran, busy, dtype = Replayed(), set[str](), False, precisions.coarse
    places = Places(batch.mask)
    at: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def is_off(place: str, found: Judged) -> bool:
        made.equal &= found.equal
        if not found.faulty:
            made.worst = max(made.worst[0], found.whole), max(made.worst[1], found.row)
        # what a module gives beside its output, as the choice of experts, may change in single rows
        few = "[" in place and found.wrong.numel() and found.wrong.double().mean() < FEW
        return found.faulty and not few

    def judge(
        key: str, unit: ModelUnit, place: str, x: Tensor, r: Tensor, f: Tensor | None, entered: Tensor | None = None
    ) -> Finding | None:
        """A finding where it differs; of integers, none: what follows from them differs too."""
        if not x.is_floating_point():
            made.equal &= x.shape == r.shape and torch.equal(x, r)
            return None
        fitting = rounding.reshape_like(r, x)
        if fitting is None:
            made.equal = False
            return Finding(key, unit, place, rounding.judge_lost(), batch, x, r)
        if f is not None and len(r) == 1 < len(x) and x.shape[:2] == batch.mask.shape:  # the same for all rows
            f = f.expand(len(x), *f.shape)[batch.mask.to(f.device)]
        found = rounding.judge(x, fitting, f, dtype, places)
        if not is_off(place, found):
            return None
        return Finding(key, unit, place, found, batch, x.detach().clone(), fitting, entered)

    def enter(key: str, unit: ModelUnit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        gate(key)
        if (call := calls.get(key)) is None:
            return None
        found = find_entering(args, kwargs)
        if found is None or call.entry is None:
            at[key] = args, dict(kwargs)
            return None
        if wrong := judge(key, call.unit, IN, found[1], call.entry, None):
            made.findings.append(describe(wrong))
        args, kwargs = exchange(args, kwargs, found[0], _copy_reference(call.entry, found[1]))
        at[key] = exchange(args, kwargs, found[0], _copy_reference(call.entry, found[1]))
        return args, kwargs

    def leave(key: str, unit: ModelUnit, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        nonlocal busy
        if (call := calls.get(key)) is None:
            return None
        ran.add(key)
        given = at.pop(key)
        wrong: list[Finding] = []

        def end(name: str, x: Tensor) -> Tensor:
            if (r := call.out.get(name)) is None:
                return x
            if found := judge(key, call.unit, name, x, r, call.floor.get(name), call.entry):
                wrong.append(found)
            return _copy_reference(r, x)

        out = map_tensors(out, "", end)
        (made.faulty if wrong else made.right).append(key)
        known = call.points is not None or not call.kept
        if (wrong or key in inside) and known and next(unit.module.children(), None) is not None:
            busy = True
            try:
                looked = _look_inside(call, key, unit, given)
            finally:
                busy = False
            forced = call.points is None or call.points.checksums is None
            if wrong and not looked and forced and not any(_is_beyond_rounding(found.judged, dtype) for found in wrong):
                # each step is right: a rounding that grew, as where it changes a choice of experts
                made.faulty.remove(key)
                made.right.append(key)
                wrong = []
            if wrong:
                wrong = looked or wrong
            else:
                made.inside += [replace(found, candidate=None, reference=None, entered=None) for found in looked]
        made.findings += map(describe, wrong)
        return out

    def _look_inside(
        call: Call, key: str, unit: ModelUnit, given: tuple[tuple[Any, ...], dict[str, Any]]
    ) -> list[Finding]:
        points = call.points or record_points(call, places, precisions)
        wrong: list[Finding] = []
        sums = points.checksums

        def read_entering(place: str) -> Tensor | None:
            """Reads what enters the reference's module at a place."""
            enters = place.partition("#")[0] + IN if place else IN
            earlier = points.again.get(enters, enters)
            return call.entry if earlier == IN else points.refs.get(earlier)

        def look(name: str, x: Tensor) -> Tensor:
            at = points.again.get(name, name)  # the candidate may change what the reference hands on
            r = call.entry if at == IN else points.refs.get(at)
            if r is None:
                return x
            if found := judge(key, call.unit, name, x, r, points.floors.get(at), read_entering(name)):
                wrong.append(found)
            return _copy_reference(r, x)

        def compare(name: str, x: Tensor) -> Tensor:
            """Compares sketches: nothing can be put in the place of x, so that all that follows a wrong one is
            wrong."""
            at = points.again.get(name, name)
            if wrong or sums is None or at not in sums or compute_checksum(x) == sums[at]:
                return x
            made.equal = False
            if x.is_floating_point() and at in points.refs:
                c = sketch_rows(x, places)
                r = rounding.adapt_heads(points.refs[at], c.shape[1])
                if is_off(name, found := judge_sketches(c, r, points.floors.get(at), dtype)):
                    c, r = (each[..., :-1].flatten(1) for each in (c, r))
                    wrong.append(Finding(key, unit, name, found, batch, c, r, sketched=True))
            return x

        found = find_entering(*given)
        with observe(unit.module, look if sums is None else compare, None if found is None else found[1]):
            out = unit.module(*given[0], **given[1])
        if not wrong and sums is None:
            map_tensors(_copy(out), "", look)
        return wrong

    with hook_units(units, enter, leave, lambda: busy), torch.no_grad():
        out = batch.run(model)
        gate(OUT)
    made.order, made.reference_out = list(calls), calls[OUT].out[""]
    for key, call in calls.items():
        if key not in ran and key != OUT:
            made.equal = False
            made.faulty.append(key)
            made.findings.append(describe(Finding(key, call.unit, "", rounding.judge_lost(), batch)))
    last = judge(OUT, units[-1], "", *_cut(out, calls[OUT].out[""]), None)
    if last is not None:
        made.findings.append(describe(last))
        made.faulty.append(OUT)
    return made


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
