"""Published bugs of ports, rebuilt in tiny models: what `repsim verify` says of each.

Command: python benchmarks/ports.py [NAME ...]
"""

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from plants import Parts, batches, built, reordered
from torch import nn

from repsim_cli.studies.verify.answer import Answer
from repsim_cli.studies.verify.study import verify_models


@dataclass(frozen=True)
class Port:
    """architecture: of the model. reported: where the bug was. place, kind: what has to be found. build: changes a copy
    of the model into the port."""

    architecture: str
    reported: str
    place: tuple[str, str]
    kind: str
    build: Callable[[Any], Any]


def _without_bias(model: Any) -> None:
    for name, module in model.named_modules():
        if name.endswith(("q_proj", "k_proj", "v_proj")):
            module.bias = None


def _without_one(model: Any) -> None:
    for module in model.modules():
        if "RMSNorm" in type(module).__name__:
            module.weight.data -= 1


def _interleaved(model: Any) -> None:
    parts = Parts(model)
    for block in range(len(parts.blocks)):
        for role in ("q", "k"):
            module = parts.at(block, parts.by_role(block)[role])
            width = model.config.head_dim
            order = torch.arange(len(module.weight)).view(-1, 2, width // 2).transpose(1, 2).flatten()
            reordered(module, order)


def _without_cap(model: Any) -> None:
    model.config.final_logit_softcapping = None


def _without_window(model: Any) -> None:
    model.config.sliding_window = None


def _untied(model: Any) -> None:
    head = model.get_output_embeddings()
    head.weight = nn.Parameter(0.02 * torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(1)))


def _without_mask(model: Any) -> None:
    model.register_forward_pre_hook(lambda _, args, kw: (args, {**kw, "attention_mask": None}), with_kwargs=True)


PORTS = {
    "attention biases are not loaded": Port(
        "qwen2", "sbryngelson/ANEForge#253", ("block 0", "self_attn.q_proj"), "offset", _without_bias
    ),
    "norms multiply by w, not by 1 + w": Port(
        "gemma3_text", "linkedin/Liger-Kernel#74", ("block 0", "input_layernorm"), "gain", _without_one
    ),
    "queries and keys in the other rotary layout": Port(
        "llama", "ooples/AiDotNet#2074", ("block 0", "self_attn.q_proj"), "permuted", _interleaved
    ),
    "the soft cap of the logits is missing": Port(
        "gemma2", "NVIDIA-NeMo/Megatron-Bridge#4610", ("logits", ""), "cap", _without_cap
    ),
    "the sliding window is ignored": Port(
        "mistral", "huggingface/candle#1789", ("block 0", "self_attn:scores"), "mask", _without_window
    ),
    "a tied head is drawn anew": Port("gpt2", "huggingface/transformers#43429", ("head", ""), "weights", _untied),
    "padding is attended to": Port(
        "bert", "OpenNMT/OpenNMT-py#2532", ("block 0", "attention.self:scores"), "mask", _without_mask
    ),
}


def port(name: str) -> Answer:
    """Verifies a port of this name."""
    found = PORTS[name]
    model = built(found.architecture)
    other = copy.deepcopy(model)
    with torch.no_grad():
        found.build(other)
    return verify_models(model, other, batches(model))


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:] or PORTS:
        found, answer = PORTS[name], port(name)
        first = answer.differences[0]
        right = (first.unit, first.place) == found.place and first.kind == found.kind
        print(f"{name} ({found.architecture}, {found.reported}): {'right' if right else 'NOT AS EXPECTED'}")
        print(*(f"    {line}" for line in answer.lines()), sep="\n")


if __name__ == "__main__":
    main()
