"""What people write by hand to compare two models: a number of the logits, or the outputs of modules in a loop."""

from collections.abc import Callable
from typing import Any

import torch
from planted import Parts, Places
from torch import Tensor

from repsim_cli.studies.verify.inputs import Batch

Close = Callable[[Tensor, Tensor], bool]


def _asserted(a: Tensor, b: Tensor) -> bool:
    try:
        torch.testing.assert_close(b, a, equal_nan=True)
    except AssertionError:
        return False
    return True


LOGITS, MODULES = "logits", "modules"
CHECKS: dict[str, tuple[str, Close]] = {
    "NMSE of the logits below 1e-4 (llama.cpp)": (
        LOGITS,
        lambda a, b: bool((a - b).double().square().sum() < 1e-4 * a.double().square().sum()),
    ),
    "outputs of modules within 1e-3 (TransformerLens)": (
        MODULES,
        lambda a, b: torch.allclose(b.float(), a.float(), atol=1e-3, rtol=0, equal_nan=True),
    ),
    "torch.testing.assert_close on the outputs of modules": (MODULES, _asserted),
}


def outputs(model: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits, and what each module gives when it is first called, in order."""
    found: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def after(_: Any, __: Any, out: Any) -> None:
            out = out[0] if isinstance(out, tuple) else out
            if isinstance(out, Tensor):
                found.setdefault(name, out.detach().clone())

        return after

    hooks = [module.register_forward_hook(keep(name)) for name, module in model.named_modules() if name]
    try:
        return batch.run(model), found
    finally:
        for hook in hooks:
            hook.remove()


def said_by_hand(reference: Any, candidate: Any, batch: Batch, places: Places) -> dict[str, tuple[bool, bool]]:
    """By check, whether it calls the two different, and whether the first module that does is where the fault stands.

    Generous: a module inside the place, or around a point of it, is right too; places outside of the blocks are right
    when any module outside of them is named.
    """
    (a, ours), (b, theirs) = outputs(reference, batch), outputs(candidate, batch)
    blocks = Parts(reference).path
    said = {}
    for name, (what, close) in CHECKS.items():
        if what == LOGITS:
            said[name] = not close(a, b), False
            continue
        first = next((x for x in ours if x in theirs and not close(ours[x], theirs[x])), None)
        said[name] = first is not None, first is not None and any(_at(first, blocks, *place) for place in places)
    return said


def _at(module: str, blocks: str, unit: str, place: str) -> bool:
    if not unit.startswith("block "):
        return not module.startswith(f"{blocks}.")
    wanted = f"{blocks}.{unit.removeprefix('block ')}.{place.partition(':')[0]}".rstrip(".")
    return module == wanted or module.startswith(f"{wanted}.")
