"""A pass of the reference: what enters and leaves each of its parts, what its modules inside give, and how far rounding
may carry that."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from repsim_cli.models import precision
from repsim_cli.models.calls import exchange, find_entering
from repsim_cli.studies.verify import rounding
from repsim_cli.studies.verify.found import OUT
from repsim_cli.studies.verify.inputs import Batch
from repsim_cli.studies.verify.rounding import Places
from repsim_cli.studies.verify.sketches import compute_checksum, sketch_rows
from repsim_cli.studies.verify.trace import map_tensors, observe
from repsim_cli.studies.verify.units import ModelUnit, hook_units

ROUGH = 4  # roundings of a row
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
        map_tensors(make_readable(out), "", lambda name, x: call.out.setdefault(name, x.clone()))
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
    map_tensors(make_readable(out), "", keep)
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


def make_readable(out: Any) -> Any:
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
        return copy_reference(forced.get(name), x)

    with ExitStack() as stack:
        if forced is not None:
            stack.enter_context(observe(twin, sink, None if entry is None else entry[1]))
        if dtype == torch.float64:
            stack.enter_context(precision.Raised())
        out = twin(*args, **kwargs)
    map_tensors(make_readable(out), "", lambda name, x: got.setdefault(name, x))
    return got


def copy_reference(reference: Tensor | None, x: Tensor) -> Tensor:
    """A copy of the reference's tensor in place of this one; a copy, since a model may work in place."""
    fitting = None if reference is None else rounding.reshape_like(reference, x)
    return x if fitting is None else fitting.to(x.dtype).clone()
