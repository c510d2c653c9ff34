"""Weights rounded to as many values as a few bits can tell apart; the arithmetic stays float32."""

import re
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from repsim_cli.models.loading import WHOLE, keep_in_one_place
from repsim_cli.models.source import Source

IN_A_BLOCK = re.compile(r"(^|\.)\d+(\.|$)")


@dataclass(frozen=True, kw_only=True)
class Quantize:
    """How the weights are made coarser.

    method: `round`: every weight matrix of the blocks is rounded to whole multiples of a step, one step for each row of
        weights into one output: its largest absolute weight / (2^(bits - 1) - 1). The arithmetic stays that of
        hardware.dtype. `torchao` (extra `torchao`): matrices of linear layers are stored as integers and multiplied in
        hardware.dtype. `bitsandbytes` (extra `bitsandbytes`): LLM.int8() with 8 bits (inputs are rounded too), NF4 with
        4. `gptq` needs texts to fit the weights to and is refused: give a checkpoint that was quantized by it.
    bits: of a weight; of torchao and bitsandbytes 8 or 4, where 4 bits of torchao need a GPU.

    Example: repsim run model=[tiny_a] +model.rounded='{kind: transformers, path: DIR, quantize: {bits: 8}}'
    """

    method: Literal["round", "torchao", "bitsandbytes", "gptq"] = "round"
    bits: Annotated[int, Field(ge=2, le=16)] = 8


def mark_rounding(source: Source, quantize: Quantize) -> Source:
    """The source, whose identity says how its weights are made coarser."""

    def identity() -> dict[str, Any]:
        known = source.identity()
        how = f"{quantize.method} to {quantize.bits} bits"
        return {**known, "quantize": how, "weights_hash": f"{known['weights_hash']}, {how}"}

    return replace(source, identity=identity)


def add_rounding(source: Source, quantize: Quantize) -> Source:
    return replace(
        mark_rounding(source, quantize),
        load=lambda eager, how=WHOLE: round_weights(source.load(eager, keep_in_one_place(how)), quantize.bits),
        with_head=lambda auto, how=WHOLE: round_weights(source.with_head(auto, keep_in_one_place(how)), quantize.bits),
        parts=False,
    )


def round_weights(model: nn.Module, bits: int) -> nn.Module:
    """The model, its weight matrices in the blocks rounded in place."""
    for name, module in model.named_modules():
        if IN_A_BLOCK.search(name):
            for matrix, inputs in list_weight_matrices(module):
                matrix.data = round_to_steps(matrix.data.float(), bits, inputs).to(matrix.dtype)
    return model


def list_weight_matrices(module: nn.Module) -> list[tuple[nn.Parameter, int]]:
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


def round_to_steps(weights: Float[Tensor, "..."], bits: int, inputs: int) -> Float[Tensor, "..."]:
    """The weights, rounded to multiples of a step per output.

    >>> round_to_steps(torch.tensor([[1.0, -0.6, 0.2]]), bits=2, inputs=1)
    tensor([[ 1., -1.,  0.]])
    """
    step = weights.abs().amax(dim=inputs, keepdim=True) / (2 ** (bits - 1) - 1)
    return torch.where(step > 0, (weights / step).round() * step, weights)
