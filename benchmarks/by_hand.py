"""What people use to compare two models: a number of the logits, the outputs of modules in a loop, debug traces, or
each module alone on equal inputs."""

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from plants import Parts, Places
from torch import Tensor

from repsim_cli.models.library import import_transformers
from repsim_cli.studies.verify.inputs import Batch

Said = tuple[bool, str | None]
"""Whether the two are called different, and the first module that is; None where none is named."""


def _nmse(reference: Any, candidate: Any, batch: Batch) -> Said:
    a, b = batch.run(reference), batch.run(candidate)
    return not bool((a - b).double().square().sum() < 1e-4 * a.double().square().sum()), None


def _modules(close: Callable[[Tensor, Tensor], bool]) -> Callable[..., Said]:
    """The outputs of modules of two runs, in the order in which they end."""

    def said(reference: Any, candidate: Any, batch: Batch) -> Said:
        ours, theirs = (_calls(model, batch) for model in (reference, candidate))
        first = next((x for x in ours if x in theirs and not close(ours[x][2], theirs[x][2])), None)
        return first is not None, first

    return said


def _calls(model: Any, batch: Batch) -> dict[str, tuple[tuple, dict, Tensor]]:
    """Records what each module takes and gives when it is first called, by its name."""
    found: dict[str, tuple[tuple, dict, Tensor]] = {}

    def keep(name: str) -> Callable[..., None]:
        def after(_: Any, args: tuple, kwargs: dict, out: Any) -> None:
            out = out[0] if isinstance(out, tuple) else out
            if isinstance(out, Tensor):
                found.setdefault(name, (_cloned(args), _cloned(kwargs), out.detach().clone()))

        return after

    named = [(name, module) for name, module in model.named_modules() if name]
    hooks = [module.register_forward_hook(keep(name), with_kwargs=True) for name, module in named]
    try:
        batch.run(model)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _cloned(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, tuple | list):
        return type(value)(map(_cloned, value))
    return {key: _cloned(each) for key, each in value.items()} if isinstance(value, dict) else value


def _components(reference: Any, candidate: Any, batch: Batch) -> Said:
    """Runs each module of the candidate alone, on what the reference's module gets.
    Says whether one differs, and the first that does.
    """
    theirs = dict(candidate.named_modules())
    off = 0.3 if next(reference.parameters()).dtype == torch.bfloat16 else 1e-4
    for name, (args, kwargs, r) in _calls(reference, batch).items():
        with torch.no_grad():
            out = theirs[name](*args, **kwargs) if name in theirs else r
        out = out[0] if isinstance(out, tuple) else out
        if out.shape != r.shape or not torch.allclose(out.float(), r.float(), atol=off, rtol=off, equal_nan=True):
            return True, name
    return False, None


def _traces(reference: Any, candidate: Any, batch: Batch) -> Said:
    """The first line that a diff of the two summaries shows."""
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = (_leaves(model, batch, folder) for model in (reference, candidate))
    first = next((name for (name, r), (_, c) in zip(ours, theirs, strict=False) if r != c), None)
    return first is not None or ours != theirs, first


def _leaves(model: Any, batch: Batch, folder: str) -> list[tuple[str, Any]]:
    debugged = import_transformers().model_debugging_utils.model_addition_debugger_context
    with debugged(model, debug_path=folder, do_prune_layers=False), contextlib.suppress(AttributeError):
        batch.run(model)
    (summary,) = Path(folder).glob("*_SUMMARY.json")

    def walked(node: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for child in node.get("children", ()):
            yield from walked(child)
        if node.get("outputs"):
            yield node["module_path"].partition(".")[2], node["outputs"]

    return list(walked(json.loads(summary.read_text())))


def _asserted(a: Tensor, b: Tensor) -> bool:
    try:
        torch.testing.assert_close(b, a, equal_nan=True)
    except AssertionError:
        return False
    return True


CHECKS: dict[str, Callable[[Any, Any, Batch], Said]] = {
    "NMSE of the logits below 1e-4 (llama.cpp)": _nmse,
    "first difference of debug traces (transformers)": _traces,
    "activations within 1e-3 (TransformerLens)": _modules(
        lambda a, b: torch.allclose(b.float(), a.float(), atol=1e-3, rtol=0, equal_nan=True)
    ),
    "components alone within 1e-4 (TransformerLens)": _components,
    "torch.testing.assert_close on the outputs of modules": _modules(_asserted),
}


def said_by_hand(reference: Any, candidate: Any, batch: Batch, places: Places) -> dict[str, tuple[bool, bool]]:
    """Says, by check, whether it calls the two different, and whether the first module that does is where the fault
    stands.

    Generous: a module inside the place, or around a point of it, is right too; places outside of the blocks are right
    when any module outside of them is named.
    """
    blocks = Parts(reference).path
    said = {}
    for name, check in CHECKS.items():
        differs, first = check(reference, candidate, batch)
        said[name] = differs, first is not None and any(_at(first, blocks, *place) for place in places)
    return said


def _at(module: str, blocks: str, unit: str, place: str) -> bool:
    if not unit.startswith("block "):
        return not module.startswith(f"{blocks}.")
    wanted = f"{blocks}.{unit.removeprefix('block ')}.{place.partition(':')[0]}".rstrip(".")
    return module == wanted or module.startswith(f"{wanted}.")
