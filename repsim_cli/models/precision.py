"""A module in another precision on the same inputs, beside which its rounding is seen, and how far off a harmless
change may be."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from repsim_cli.models.loading import ROTARY

UNIT = {torch.float64: 2.0**-24, torch.float32: 2.0**-24, torch.float16: 2.0**-12, torch.bfloat16: 2.0**-9}


@dataclass(frozen=True)
class Limits:
    """How many times its rounding a candidate may be off: over all rows together, and in any one of them.

    `benchmarks/verify.py benign` prints how far changes come that are none.
    """

    whole: float
    row: float


EXACT, COARSE = Limits(4.0, 10.0), Limits(8.0, 20.0)  # of float32, and of 16 bits


def choose_rounding_limits(dtype: torch.dtype) -> Limits:
    return EXACT if UNIT[dtype] < 1e-6 else COARSE


class Raised(TorchFunctionMode):
    """Casts to float32 inside a model in float64 stay float64."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name == "float" and args and isinstance(args[0], Tensor):
            return args[0].double()
        args = tuple(torch.float64 if each is torch.float32 else each for each in args)
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def choose_twin_dtype(reference: torch.dtype, candidate: torch.dtype) -> torch.dtype:
    """The precision beside which the reference's rounding is seen: a finer one, or the candidate's where it is
    coarser."""
    if UNIT[candidate] > UNIT[reference]:
        return candidate
    return torch.float64 if UNIT[reference] < 1e-6 else torch.float32


def copy_in_precision(module: nn.Module, dtype: torch.dtype, hooks: set[int]) -> nn.Module:
    """A copy in another precision, without these hooks. Rotary frequencies are off by a rounding, since another order
    of operations makes them so, and what that gives grows with the position."""
    twin = copy.deepcopy(module)
    exact = {name: x for name, x in twin.named_buffers() if name.endswith(ROTARY)}
    for each in twin.modules():
        for kept in (each._forward_hooks, each._forward_pre_hooks):  # pyright: ignore[reportPrivateUsage]
            for number in hooks & kept.keys():
                del kept[number]
        config: Any = getattr(each, "config", None)
        if hasattr(config, "_experts_implementation"):
            config._experts_implementation = "eager"  # the grouped product refuses float64
    twin.to(dtype)
    for name, frequencies in exact.items():
        path, _, leaf = name.rpartition(".")
        raised = frequencies.double() * (1 + 2.0**-24) if dtype == torch.float64 else frequencies
        setattr(twin.get_submodule(path), leaf, raised)
    return twin


def cast_inputs(value: Any, dtype: torch.dtype) -> Any:
    """Inputs of a module in another precision."""
    if isinstance(value, Tensor) and value.is_floating_point():
        if UNIT[dtype] > 1e-6:
            ends = torch.finfo(dtype)
            value = value.clamp(ends.min, ends.max)
        return value.to(dtype)
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(cast_inputs(each, dtype) for each in value)
    if type(value) is dict:
        return {key: cast_inputs(each, dtype) for key, each in value.items()}
    return value


def choose_coarser_dtype(*dtypes: torch.dtype) -> torch.dtype:
    return max(dtypes, key=lambda dtype: UNIT[dtype])


def find_main_dtype(model: nn.Module, given: Sequence[Tensor] = ()) -> torch.dtype:
    """The precision of most weights."""
    count: dict[torch.dtype, int] = {}
    for x in [*model.parameters(), *given]:
        if x.is_floating_point():
            count[x.dtype] = count.get(x.dtype, 0) + x.numel()
    return max(count, key=lambda dtype: count[dtype], default=torch.float32)
