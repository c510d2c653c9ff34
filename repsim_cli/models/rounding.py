"""Weights rounded to as many values as a few bits can tell apart; the arithmetic stays float32."""

import re
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from repsim_cli.models.loading import WHOLE, in_one_place
from repsim_cli.models.source import Source

IN_A_BLOCK = re.compile(r"(^|\.)\d+(\.|$)")


@dataclass(frozen=True, kw_only=True)
class Quantize:
    """How the weights are made coarser after loading.

    method: `round`: every weight matrix of the blocks is rounded to whole multiples of a step, one step for each row of
        weights into one output: its largest absolute weight / (2^(bits - 1) - 1). The arithmetic stays float32.
    bits: of a rounded weight.

    Example: repsim run model=[tiny_a] +model.rounded='{kind: transformers, path: DIR, quantize: {bits: 8}}'
    """

    method: Literal["round"] = "round"
    bits: Annotated[int, Field(ge=2, le=16)] = 8


def with_rounding(source: Source, quantize: Quantize) -> Source:
    def identity() -> dict[str, Any]:
        known = source.identity()
        how = f"{quantize.method} to {quantize.bits} bits"
        return {**known, "quantize": how, "weights_hash": f"{known['weights_hash']}, {how}"}

    return replace(
        source,
        load=lambda eager, how=WHOLE: rounded(source.load(eager, in_one_place(how)), quantize.bits),
        with_head=lambda auto, how=WHOLE: rounded(source.with_head(auto, in_one_place(how)), quantize.bits),
        identity=identity,
    )


def rounded(model: nn.Module, bits: int) -> nn.Module:
    """The model, its weight matrices in the blocks rounded in place."""
    for name, module in model.named_modules():
        if IN_A_BLOCK.search(name):
            for matrix, inputs in matrices(module):
                matrix.data = to_steps(matrix.data.float(), bits, inputs).to(matrix.dtype)
    return model


def matrices(module: nn.Module) -> list[tuple[nn.Parameter, int]]:
    """The weight matrices of a module itself, each with the dimension of its inputs."""
    if isinstance(module, nn.Embedding):
        return []
    if type(module).__name__ == "Conv1D":  # of GPT-2
        return [(module.weight, 0)]  # type: ignore[list-item]
    experts = [weight for weight in module.parameters(recurse=False) if weight.ndim == 3]
    if type(module).__name__.endswith("Experts"):
        return [(weight, 1 if getattr(module, "is_transposed", False) else 2) for weight in experts]
    weight = getattr(module, "weight", None)
    return [(weight, 1)] if isinstance(weight, nn.Parameter) and weight.ndim == 2 else []


def to_steps(weights: Float[Tensor, "..."], bits: int, inputs: int) -> Float[Tensor, "..."]:
    """The weights, rounded to multiples of a step per output.

    >>> to_steps(torch.tensor([[1.0, -0.6, 0.2]]), bits=2, inputs=1)
    tensor([[ 1., -1.,  0.]])
    """
    step = weights.abs().amax(dim=inputs, keepdim=True) / (2 ** (bits - 1) - 1)
    return torch.where(step > 0, (weights / step).round() * step, weights)
