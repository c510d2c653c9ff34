"""The linear layers of a model on a CPU, by the fastest product that gives float32."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from repsim_cli.base.gram import find_onednn_product


def speed_up_linear_layers(weights: Tensor) -> AbstractContextManager[Any]:
    """A context, to be entered any number of times, in which linear layers of a model with these weights run by
    oneDNN where that is faster (`find_onednn_product`), without gradients; elsewhere nothing changes."""
    fast = weights.dtype == torch.float32 and weights.device.type == "cpu" and find_onednn_product() is not None
    return _ByOneDNN() if fast else nullcontext()


class _ByOneDNN(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        product = find_onednn_product()
        if func in _OPERANDS and not kwargs and product is not None:
            x, weight, bias = _OPERANDS[func](*args)
            if _can_multiply(x, weight, bias):
                return product(x.contiguous(), weight, bias)
        return func(*args, **(kwargs or {}))


# by function of torch: its rows (..., d), weights (e, d) and bias
_OPERANDS: dict[Callable[..., Any], Callable[..., tuple[Any, Any, Any]]] = {
    nn.functional.linear: lambda x, weight, bias=None: (x, weight, bias),
    torch.addmm: lambda bias, x, weight: (x, weight.T, bias),  # Conv1D of GPT-2
}


def _can_multiply(x: Any, weight: Any, bias: Any) -> bool:
    parts = [x, weight] if bias is None else [x, weight, bias]
    plain = all(type(part) in (Tensor, nn.Parameter) for part in parts)
    if not plain or any(part.dtype != torch.float32 or part.device.type != "cpu" for part in parts):
        return False
    return x.numel() > 0 and weight.ndim == 2 and (bias is None or bias.ndim == 1)
