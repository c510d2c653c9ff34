"""Stitched models: blocks 0..l of a head, a stitch layer, blocks m+1..last of a tail and the tail's outputs.

The forward pass of a model computes masks and positions, so that no block is called by hand: the head runs until its
deepest stream is read; the tail runs whole, but its first blocks compute nothing and the last of them gives the stream.
A layer is the number of a block and means its output; EMBED is the input of the first block.
"""

import copy
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from repsim_cli.base.errors import BadInput, RepsimError, RunFailed
from repsim_cli.data.base import Sequences
from repsim_cli.models.points import guess_architecture, take_hidden_states
from repsim_cli.models.source import Source, find_backbone_path

EMBED = -1
Layer = int
Auto = Literal["AutoModelForCausalLM", "AutoModelForSequenceClassification"]


def name_layer(layer: Layer) -> str:
    return "embed" if layer == EMBED else f"resid_post@{layer}"


def list_output_names(source: Source) -> tuple[str, ...]:
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


def make_input_batch(sequences: Sequences, rows: slice | Int[np.ndarray, " b"]) -> Inputs:
    """A batch of sequences, cut to the longest of them."""
    given = sequences.take(rows, int(sequences.mask[rows].sum(1).max()))
    ids, mask = torch.from_numpy(given.ids).long(), torch.from_numpy(given.mask)
    return Inputs(ids, mask, None if given.segments is None else torch.from_numpy(given.segments).long())


class Returned(NamedTuple):
    """The form in which a block returns the stream: alone, or first in a tuple or list. count: of the things in it."""

    kind: Any
    count: int = 1  # pyright: ignore[reportIncompatibleMethodOverride] - nothing counts items of it


ALONE = Returned(Tensor)


class _StreamsRead(Exception):
    """Raised inside a hook when all streams have been read."""


@dataclass(frozen=True)
class Whole:
    """A model with its output head, frozen and on its device, that can be a head, a tail or both."""

    label: str
    source: Source
    model: Any
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

    @cached_property
    def path(self) -> str:
        """The path of the list of blocks. What TransformerLens wraps is a model of transformers, or its own."""
        backbone = find_backbone_path(self.model, self.source)
        table = (
            self.source.architecture if self.source.plain else guess_architecture(self.model.get_submodule(backbone))
        )
        assert table is not None
        return f"{backbone}.{table.blocks}"

    @property
    def blocks(self) -> list[nn.Module]:
        return list(self.model.get_submodule(self.path).children())

    @cached_property
    def returns(self) -> list[Returned]:
        """The form in which each block returns the stream: alone, or first in a tuple or list, by a trial pass."""
        returned: dict[int, Returned] = {}

        def keep(layer: Layer, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, tuple | list):
                returned[layer] = Returned(type(output), len(output))

        handles = [block.register_forward_hook(partial(keep, layer)) for layer, block in enumerate(self.blocks)]
        try:
            self.outputs(make_trial_inputs())
        finally:
            for handle in handles:
                handle.remove()
        return [returned.get(layer, ALONE) for layer in range(len(handles))]

    @torch.no_grad()
    def outputs(self, inputs: Inputs) -> Tensor:
        """Logits of the model as it is."""
        with self.autocast():
            return self.model(**self.make_inputs(inputs.to(self.device))).logits

    def check(self) -> None:
        """Raises BadInput where more than the stream passes between blocks, so that a cut changes the outputs."""
        inputs = make_trial_inputs()
        whole = self.outputs(inputs)
        for layer in sorted({0, (self.depth - 1) // 2}):
            try:
                stream = self.streams(inputs, [layer])[layer]
                if stream.shape[:-1] != inputs.ids.shape:
                    raise ValueError(f"a stream of the shape {tuple(stream.shape)}, no vector per token")
                with torch.no_grad():
                    cut = self.tail(layer)(stream, inputs)
            except Exception as error:  # whatever a model's own code raises
                reason = " ".join(str(error).split())
                raise BadInput(
                    f"model.{self.label}: it does not run when cut after block {layer}, got {reason[:200]} "
                    f"({self.source.model_type}); use another model"
                ) from error
            if not torch.allclose(cut, whole, rtol=1e-3, atol=1e-3 * float(whole.abs().max())):
                raise BadInput(
                    f"model.{self.label}: more than the stream passes between its blocks, got other outputs when cut "
                    f"after block {layer} ({self.source.model_type}); use another model"
                )

    def make_inputs(self, inputs: Inputs) -> dict[str, Tensor]:
        more = {} if inputs.segments is None or not self.source.segments else {"token_type_ids": inputs.segments}
        return {"input_ids": inputs.ids, "attention_mask": inputs.mask.long(), **more}

    def autocast(self) -> Any:
        """Mixed precision where another dtype than float32 is asked for."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    @torch.no_grad()
    def streams(self, inputs: Inputs, layers: Sequence[Layer]) -> dict[Layer, Float[Tensor, "b s d"]]:
        """The residual stream at these layers, from one forward pass that stops after the deepest."""
        blocks = self.blocks
        streams: dict[Layer, Tensor] = {}

        def keep(layer: Layer, value: Any) -> None:
            streams[layer] = take_hidden_states(value)
            if len(streams) == len(set(layers)):
                raise _StreamsRead

        handles = [
            blocks[0].register_forward_pre_hook(partial(_keep_entering, keep), with_kwargs=True)
            if layer == EMBED
            else blocks[layer].register_forward_hook(partial(_take_leaving, partial(keep, layer)))
            for layer in set(layers)
        ]
        try:
            with self.autocast():
                self.model(**self.make_inputs(inputs.to(self.device)))
        except _StreamsRead:
            return streams
        finally:
            for handle in handles:
                handle.remove()
        raise RunFailed(f"model.{self.label}: not all of {sorted(layers)} were reached; please report the model")

    def tail(self, after: Layer) -> "Tail":
        return Tail(self, after)


def _keep_entering(keep: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    keep(EMBED, args[0] if args else kwargs["hidden_states"])


def _take_leaving(take: Any, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    take(output)


class Tail:
    """The blocks of a model after one layer, and its outputs. It shares all weights with the model.

    Blocks keep their places, since models choose masks by them.
    """

    def __init__(self, whole: Whole, after: Layer):
        self.whole, self.stream = whole, torch.empty(0)
        blocks, returns = whole.blocks, whole.returns
        names = list(whole.model.get_submodule(whole.path)._modules)
        if after == EMBED:
            parts = {names[0]: copy_doing(blocks[0], partial(self._enter, blocks[0].forward))}
        else:
            parts = {names[i]: copy_doing(blocks[i], partial(self._gives, returns[i])) for i in range(after + 1)}
        model = whole.model
        for name, part in parts.items():
            model = graft(model, [*whole.path.split("."), name], part)
        self.model: Any = model

    def _gives(self, returned: Returned, *args: Any, **kwargs: Any) -> Any:
        """Returns the stream of the head in the form in which the block returns it, and computes nothing."""
        alone = returned.kind is Tensor
        return self.stream if alone else returned.kind([self.stream, *[None] * (returned.count - 1)])

    def _enter(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs the first block on the stream of the head in place of the embeddings."""
        if args:
            return forward(self.stream, *args[1:], **kwargs)
        return forward(**{**kwargs, "hidden_states": self.stream})

    def __call__(self, stream: Float[Tensor, "b s d"], inputs: Inputs) -> Tensor:
        """Computes the logits from the stream of the head. inputs: the batch that the stream is from."""
        self.stream = stream.to(self.whole.device)
        try:
            with self.whole.autocast():
                return self.model(**self.whole.make_inputs(inputs.to(self.whole.device))).logits
        finally:
            self.stream = torch.empty(0)


def copy_doing(block: nn.Module, forward: Callable[..., Any]) -> nn.Module:
    """A copy of the block, with the attributes that its model reads, that computes something else; without hooks."""
    other = copy.copy(block)
    # not by assignment, which TransformerLens passes on to what a block wraps
    vars(other).update(forward=forward, _forward_hooks=OrderedDict(), _forward_pre_hooks=OrderedDict())
    return other


def make_trial_inputs() -> Inputs:
    """A short sequence, to see how a model works."""
    return Inputs(torch.arange(1, 5)[None], torch.ones(1, 4, dtype=torch.bool), None)


def graft(module: nn.Module, path: Sequence[str], part: nn.Module) -> nn.Module:
    """A copy of the module that shares all with it except the part at the path."""
    name, *rest = path
    grown = copy.copy(module)
    parts: dict[str, Any] = module._modules  # pyright: ignore[reportPrivateUsage] - torch has no other way
    grown._modules = {**parts, name: graft(parts[name], rest, part) if rest else part}  # pyright: ignore[reportPrivateUsage]
    return grown


def open_whole(label: str, source: Source, auto: Auto, device: str, dtype: torch.dtype = torch.float32) -> Whole:
    """The model with its head on the device, frozen. Raises BadInput where it lacks the head, or does
    not run when it is cut."""
    try:
        model: Any = source.with_head(auto)
    except RepsimError as error:
        raise type(error)(f"model.{label}.{error}") from None
    whole = Whole(label, source, model.to(device).requires_grad_(False).eval(), dtype)
    whole.check()
    return whole


def scramble(whole: Whole, auto: Auto, seed: int) -> Whole:
    """The same model with random weights: the entries of every tensor in an order drawn under the seed."""
    other = open_whole(whole.label, whole.source, auto, "cpu", whole.dtype)
    draw = torch.Generator().manual_seed(seed)
    for weights in other.model.parameters():
        flat = weights.data.flatten()
        weights.data = flat[torch.randperm(len(flat), generator=draw)].reshape(weights.shape)
    other.model.to(whole.device)
    return other
