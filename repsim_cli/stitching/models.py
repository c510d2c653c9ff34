"""Stitched models: blocks 0..l of a head, a stitch layer, blocks m+1..last of a tail and the tail's outputs.

The forward pass of a model computes masks and positions, so that no block is called by hand: the head runs until its
deepest stream is read; the tail runs whole, with the stream in place of its embeddings and without its first blocks. A
layer is the number of a block and means its output; EMBED is the input of the first block.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from repsim_cli.data.base import Sequences
from repsim_cli.errors import BadInput, RepsimError, RunFailed
from repsim_cli.models.architectures import ARCHITECTURES
from repsim_cli.models.decoders import GPT_NEOX
from repsim_cli.models.points import Architecture, first
from repsim_cli.models.source import AnySource, Source

EMBED = -1
Layer = int
Auto = Literal["AutoModelForCausalLM", "AutoModelForSequenceClassification"]


class BlockStack(NamedTuple):
    """Where a whole model keeps its blocks, relative to its backbone, and the module whose output enters the first.

    without: modules that would add to the stream between the two.
    """

    blocks: str
    entry: str
    without: tuple[str, ...] = ()


def _named(*kinds: str) -> dict[str, BlockStack]:
    tables = {**ARCHITECTURES, "gpt_neox": GPT_NEOX}
    return {
        kind: BlockStack(table.blocks, str(table.entry))
        for kind in kinds
        if isinstance(table := tables[kind], Architecture)
    }


STACKS: dict[str, dict[str, BlockStack]] = {
    "AutoModelForCausalLM": {
        **_named("gpt_neox", "gpt2", "llama"),
        "native": BlockStack("layers", "tok_embed", ("pos",)),
    },
    "AutoModelForSequenceClassification": _named("bert", "roberta", "distilbert", "gpt_neox", "gpt2", "llama"),
}


def layer_name(layer: Layer) -> str:
    return "embed" if layer == EMBED else f"resid_post@{layer}"


def check_stitchable(label: str, source: AnySource, auto: Auto) -> BlockStack:
    """The model's blocks. Raises BadInput for a model that cannot be cut, or that has no such head."""
    stacks = STACKS[auto]
    if not isinstance(source, Source) or not source.has_head:
        raise BadInput(f"model.{label}: it cannot be run past its activations, got no model with a head; use another")
    kind = "native" if source.model_type.startswith("native ") else source.model_type
    if kind not in stacks:
        raise BadInput(
            f"model.{label}: its blocks cannot be stitched under {auto}, got model_type '{kind}'; "
            f"use one of {', '.join(stacks)}"
        )
    return stacks[kind]


def output_names(source: Source) -> tuple[str, ...]:
    """The names of a classifier's outputs, in order; () where its config only has LABEL_0, LABEL_1, ..."""
    names = getattr(getattr(source.skeleton, "config", None), "id2label", None) or {}
    outputs = source.labels or tuple(str(names[i]) for i in sorted(names))
    return () if all(re.fullmatch(r"LABEL_\d+", name) for name in outputs) else outputs


class Inputs(NamedTuple):
    """A batch of sequences as models take it."""

    ids: Int[Tensor, "b s"]
    mask: Bool[Tensor, "b s"]
    segments: Int[Tensor, "b s"] | None

    def to(self, device: Any) -> "Inputs":
        return Inputs(
            self.ids.to(device), self.mask.to(device), None if self.segments is None else self.segments.to(device)
        )


def inputs_of(sequences: Sequences, rows: slice | Int[np.ndarray, " b"]) -> Inputs:
    ids, mask = torch.from_numpy(sequences.ids[rows]).long(), torch.from_numpy(sequences.mask[rows])
    return Inputs(ids, mask, None if sequences.segments is None else torch.from_numpy(sequences.segments[rows]).long())


class _Done(Exception):
    """Raised inside a hook when all streams have been read."""


@dataclass(frozen=True)
class Whole:
    """A model with its output head, frozen and on its device, that can be a head, a tail or both."""

    label: str
    source: Source
    model: Any
    stack: BlockStack
    dtype: torch.dtype = torch.float32

    @property
    def depth(self) -> int:
        return self.source.layers

    @property
    def width(self) -> int:
        return self.source.width

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def prefix(self) -> str:
        return f"{self.model.base_model_prefix}."

    def given(self, inputs: Inputs) -> dict[str, Tensor]:
        more = {} if inputs.segments is None or not self.source.segments else {"token_type_ids": inputs.segments}
        return {"input_ids": inputs.ids, "attention_mask": inputs.mask.long(), **more}

    def autocast(self) -> Any:
        """Mixed precision where another dtype than float32 is asked for."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    @torch.no_grad()
    def streams(self, inputs: Inputs, layers: Sequence[Layer]) -> dict[Layer, Float[Tensor, "b s d"]]:
        """The residual stream at these layers, from one forward pass that stops after the deepest."""
        blocks: Any = self.model.get_submodule(self.prefix + self.stack.blocks)
        streams: dict[Layer, Tensor] = {}

        def keep(layer: Layer, value: Any) -> None:
            streams[layer] = first(value)
            if len(streams) == len(set(layers)):
                raise _Done

        handles = [
            blocks[0].register_forward_pre_hook(partial(_entering, keep), with_kwargs=True)
            if layer == EMBED
            else blocks[layer].register_forward_hook(partial(_leaving, partial(keep, layer)))
            for layer in set(layers)
        ]
        try:
            with self.autocast():
                self.model(**self.given(inputs.to(self.device)))
        except _Done:
            return streams
        finally:
            for handle in handles:
                handle.remove()
        raise RunFailed(f"model.{self.label}: not all of {sorted(layers)} were reached; please report the model")

    def tail(self, after: Layer) -> "Tail":
        return Tail(self, after)


def _entering(keep: Any, module: nn.Module, args: tuple, kwargs: dict) -> None:
    keep(EMBED, args[0] if args else kwargs["hidden_states"])


def _leaving(take: Any, module: nn.Module, args: tuple, output: Any) -> None:
    take(output)


class Feed(nn.Module):
    """Stands where a model's embeddings are computed and gives the stream instead."""

    stream: Tensor

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.stream


class Tail:
    """The blocks of a model after one layer, and its outputs. It shares all weights with the model."""

    def __init__(self, whole: Whole, after: Layer):
        blocks: Any = whole.model.get_submodule(whole.prefix + whole.stack.blocks)
        self.whole, self.feed = whole, Feed()
        parts = {whole.stack.blocks: nn.ModuleList(blocks[after + 1 :]), whole.stack.entry: self.feed}
        model = whole.model
        for name, part in (*parts.items(), *((name, None) for name in whole.stack.without)):
            model = graft(model, (whole.prefix + name).split("."), part)
        self.model: Any = model

    def __call__(self, stream: Float[Tensor, "b s d"], inputs: Inputs) -> Tensor:
        """Logits."""
        self.feed.stream = stream.to(self.whole.device)
        try:
            with self.whole.autocast():
                return self.model(**self.whole.given(inputs.to(self.whole.device))).logits
        finally:
            del self.feed.stream


def graft(module: nn.Module, path: Sequence[str], part: nn.Module | None) -> nn.Module:
    """A copy of the module that shares all with it except the part at the path."""
    name, *rest = path
    grown = copy.copy(module)
    inner: Any = module._modules[name]
    grown._modules = {**module._modules, name: graft(inner, rest, part) if rest else part}
    return grown


def open_whole(label: str, source: Source, auto: Auto, device: str, dtype: torch.dtype = torch.float32) -> Whole:
    """The model with its head on the device, frozen. Raises BadInput where it cannot be stitched, or lacks the head."""
    stack = check_stitchable(label, source, auto)
    try:
        model: Any = source.with_head(auto)
    except RepsimError as error:
        raise type(error)(f"model.{label}.{error}") from None
    return Whole(label, source, model.to(device).requires_grad_(False).eval(), stack, dtype)


def scrambled(whole: Whole, auto: Auto, seed: int) -> Whole:
    """The same model with random weights: the entries of every tensor in an order drawn under the seed."""
    other = open_whole(whole.label, whole.source, auto, "cpu", whole.dtype)
    draw = torch.Generator().manual_seed(seed)
    for weights in other.model.parameters():
        flat = weights.data.flatten()
        weights.data = flat[torch.randperm(len(flat), generator=draw)].reshape(weights.shape)
    other.model.to(whole.device)
    return other


def shuffled(
    streams: Mapping[Layer, Float[Tensor, "b s d"]], mask: Bool[Tensor, "b s"], seed: int
) -> dict[Layer, Float[Tensor, "b s d"]]:
    """The rows of a batch in another order, the same at every layer; padding stays where it is."""
    rows = mask.flatten().nonzero().flatten()
    order = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
    out = {}
    for layer, stream in streams.items():
        flat = stream.flatten(0, 1).clone()
        flat[rows.to(flat.device)] = flat[order.to(flat.device)]
        out[layer] = flat.reshape(stream.shape)
    return out
