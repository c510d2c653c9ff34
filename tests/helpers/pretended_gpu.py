"""A GPU that is none: tensors of the device `card`, computed on the CPU, that refuse to be mixed with those of the CPU.

Code that would fail on a GPU fails here too: tensors of two devices in one step, `numpy()` of a tensor on the device.
What a GPU computes otherwise, and how fast, it does not show.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from helpers.forks import forget_repsim
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "card"
aten = torch.ops.aten
# steps that take tensors of the CPU beside those of the device, as a GPU does: moves, and numbers of places
MIXED = {aten._to_copy.default, aten.copy_.default, aten.index.Tensor, aten.index_put_.default, aten.index_put.default}


class Pretended(Tensor):
    """A tensor on the card; `inner` has its numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Pretended":
        kept = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, device=torch.device(NAME, 0), **kept)
        made.inner = inner
        return made

    def __repr__(self, **_: Any) -> str:
        return f"{self.inner}, on the card"

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run_step(func, args, kwargs or {})


def run_step(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a step on the numbers, and puts on the card what would be there. Raises RuntimeError where tensors are on two
    devices."""
    given, places = tree_flatten((args, kwargs))
    found = [x for x in given if isinstance(x, Tensor)]
    here = any(isinstance(x, Pretended) for x in found)
    others = any(not isinstance(x, Pretended) and x.ndim for x in found)
    if here and others and func not in MIXED:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, got those of the card and the CPU in {func}"
        )
    device = kwargs.get("device")
    to_card = here if device is None else torch.device(device).type == NAME
    args_inside, kwargs_inside = tree_unflatten([x.inner if isinstance(x, Pretended) else x for x in given], places)
    if device is not None and to_card:
        kwargs_inside["device"] = torch.device("cpu")
    out = func(*args_inside, **kwargs_inside)
    if func is aten.copy_.default:
        return args[0]
    if not to_card:
        return out
    wrapped = tree_map(lambda x: Pretended(x) if isinstance(x, Tensor) else x, out)
    known = here and isinstance(func, torch._ops.OpOverload)
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if known else wrapped


class _Card(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(
        cls,
    ) -> bool:  # where nothing is compiled there is nothing to skip, which takes half of a step
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run_step(func, args, kwargs or {})


class _Calls(TorchFunctionMode):
    """Functions that look at the device before any step is dispatched."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            return run_step(func, args, kwargs)
        if func is torch.tensor and kwargs.get("device") is not None:
            return torch.tensor(*args, **{**kwargs, "device": "cpu"}).to(kwargs["device"])
        if func is Tensor.new_tensor and isinstance(args[0], Pretended):
            return Pretended(args[0].inner.new_tensor(*args[1:], **kwargs))
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], Pretended):
            places = args[1] if isinstance(args[1], tuple) else (args[1],)
            places = tuple(
                torch.as_tensor(np.array(at, dtype=None if len(at) else int))
                if isinstance(at, list | np.ndarray)
                else at
                for at in places
            )
            args = (args[0], places if isinstance(args[1], tuple) else places[0], *args[2:])
        return func(*args, **kwargs)


@cache
def _name_device() -> None:
    _setup_privateuseone_for_python_backend(NAME)


@contextmanager
def pretend_gpu() -> Iterator[None]:
    """A block in which the device `card` is there."""
    _name_device()
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    # tensors of inference mode have no versions, which every wrapped tensor sets
    with patch.object(torch, "inference_mode", torch.no_grad), _Card(), _Calls():
        yield
    torch.__future__.set_overwrite_module_params_on_conversion(before)


def run_commands(commands: list[list[str]]) -> None:
    """Runs commands with the device, in the copy of a process: the name of the device stays, and other code asks it for what
    it lacks."""
    forget_repsim()  # which chooses `inference_mode` when it is imported
    with pretend_gpu():
        from repsim_cli.cli import main

        with patch("repsim_cli.findings.analyse.draw", return_value=[]), patch("repsim_cli.report.save"):
            for words in commands:
                try:
                    main(words)
                except SystemExit as ended:
                    if ended.code:
                        raise
