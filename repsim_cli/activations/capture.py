"""Reading hook points during a forward pass of a backbone, which stops after the deepest of them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from repsim_cli.activations.hook_points import ATTENTION, LOGITS, HookPoint, count_heads, locate
from repsim_cli.base.errors import RunFailed
from repsim_cli.models.attention import Watch
from repsim_cli.models.points import Point, take_hidden_states
from repsim_cli.models.seq2seq import shift
from repsim_cli.models.source import Source, find_backbone_path

MASKED = ("text", "numbers")  # images have no padding
Reader = Callable[..., dict[HookPoint, Tensor]]


class _AllRead(Exception):
    """Raised inside a hook once everything has been read."""


@contextmanager
def capture(model: nn.Module, source: Source, points: Sequence[HookPoint]) -> Iterator[Reader]:
    """A reader of hook points: ids (batch, position) or pixel values, a mask, and further inputs of the model by name
    -> {hook point: (batch, position, features)}.

    Without a mask (e.g. where there are no weights) the model gets none, and its stream is not checked. With LOGITS
    among the points, `model` is the whole model with its output head. The tensors belong to the model, in its dtype and
    on its device: copy what is kept. Hooks are removed when the context ends, whatever happens inside.
    """
    captured: dict[HookPoint, Tensor] = {}
    calls: Counter[HookPoint] = Counter()
    shape: list[torch.Size] = []  # of the inputs
    backbone = model.get_submodule(find_backbone_path(model, source)) if LOGITS in points else model
    modules = {**source.modules(backbone), "": model}
    main: Any = getattr(model, "main_input_name", "input_ids")

    def keep(point: HookPoint, place: Point, value: Any) -> None:
        if not shape:  # the stream is being checked
            return
        calls[point] += 1
        if calls[point] != place.call + 1:
            return
        x = place.pick(value, count_heads(point, source))
        if point.module is not None:  # any module may be followed by one that works in place
            x = x.clone()
        captured[point] = x if point.kind in ATTENTION else _arrange_by_position(x, shape[0])
        if len(captured) == len(points):
            raise _AllRead

    with _watch_hook_points(points, source, modules, keep) as watch:
        guessed = source.architecture is not None and source.architecture.guessed
        unchecked = guessed and any(point.module is None for point in points)

        @torch.inference_mode()
        def read(inputs: Tensor, mask: Bool[Tensor, "b s"] | None, **more: Tensor) -> dict[HookPoint, Tensor]:
            nonlocal unchecked
            given = {main: inputs, **more}
            if mask is not None:
                given |= _make_mask_inputs(model, source, inputs, mask)
            if unchecked and mask is not None:
                _check_stream(backbone, source, given)
                unchecked = False
            captured.clear()
            calls.clear()
            if watch is not None:
                watch.running.clear()
            shape[:] = [inputs.shape]
            try:
                with watch or nullcontext():
                    model(**given)
            except _AllRead:
                return {point: captured[point] for point in points}
            missing = ", ".join(str(point) for point in points if point not in captured)
            raise RunFailed(f"{missing}: never reached in a forward pass of {source.model_type}; choose another")

        yield read


@contextmanager
def _watch_hook_points(
    points: Sequence[HookPoint],
    source: Source,
    modules: Mapping[str, Any],
    keep: Callable[[HookPoint, Point, Any], None],
) -> Iterator[Watch | None]:
    """Keeps what passes at hook points while the context lasts. Yields what a pass must run inside of where attention
    modules are read, else None."""
    watch = Watch()
    attending: dict[str, list[Callable[[Any], None]]] = {}  # what reads an attention module, by its name
    handles = []
    try:
        for point in points:
            place = locate(point, source)
            assert place.module in modules, f"hook-point table of {source.model_type} is wrong at {place.module}"
            module, take = modules[place.module], partial(keep, point, place)
            if place.side == "attention":
                attending.setdefault(place.module, []).append(take)
            elif place.side == "input":
                handles.append(module.register_forward_pre_hook(partial(_take_input, take), with_kwargs=True))
            else:
                handles.append(module.register_forward_hook(partial(_take_output, take)))
        for name, takes in attending.items():
            handles.append(modules[name].register_forward_pre_hook(lambda *_: watch.begin()))
            handles.append(modules[name].register_forward_hook(partial(_attend, watch, takes)))
        yield watch if attending else None
    finally:
        for handle in handles:
            handle.remove()


def _make_mask_inputs(model: Any, source: Source, inputs: Tensor, mask: Bool[Tensor, "b s"]) -> dict[str, Tensor]:
    """Makes what the model is given beside its inputs, by name: the mask, and what its decoder reads."""
    given: dict[str, Tensor] = {}
    if source.modality in MASKED:
        given["attention_mask"] = mask.long()
    if source.modality == "text" and source.architecture and source.architecture.stacks:
        given["decoder_input_ids"], behind = shift(model.config, inputs, mask)
        given["decoder_attention_mask"] = behind.long()
    return given


def _check_stream(model: nn.Module, source: Source, given: dict[str, Tensor]) -> None:
    """Raises RunFailed unless blocks that were found by structure pass one stream on, each from the one before."""
    assert source.architecture is not None
    modules, seen = source.modules(model), {}
    tables = list(source.architecture.stacks.values()) or [source.architecture]

    def keep(name: str, value: Any) -> None:
        seen[name] = take_hidden_states(value).clone()

    handles = []
    try:
        for name in (f"{table.blocks}.{layer}" for table in tables for layer in range(table.depth)):
            enter, leave = partial(keep, f"into {name}"), partial(keep, f"out of {name}")
            handles.append(modules[name].register_forward_pre_hook(partial(_take_input, enter), with_kwargs=True))
            handles.append(modules[name].register_forward_hook(partial(_take_output, leave)))
        model(**given)
    finally:
        for handle in handles:
            handle.remove()
    for table, layer in ((each, layer) for each in tables for layer in range(1, each.depth)):
        left, entered = (seen.get(f"{side} {table.blocks}.{layer - i}") for side, i in (("out of", 1), ("into", 0)))
        if left is None or entered is None or not torch.equal(left, entered):
            raise RunFailed(
                f"what enters block {layer} is not what leaves block {layer - 1}, got {source.model_type}, whose "
                f"blocks were guessed to be {table.blocks}; name modules as module:dotted.name"
            )


def _take_input(take: Callable[[Any], None], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    take(args[0] if args else next(iter(kwargs.values())))


def _take_output(take: Callable[[Any], None], module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    take(output)


def _attend(watch: Watch, takes: Sequence[Callable[[Any], None]], *_: Any) -> None:
    seen = watch.end()
    for take in takes:
        take(seen)


SIDE = 64  # pixels, of a model that reads images of any size


def find_output_shapes(source: Source, points: Sequence[HookPoint]) -> dict[HookPoint, tuple[int, int]]:
    """Places and features of hook points, from a pass without weights; empty where that is not possible.

    Of text: two tokens. Of images: of the size that the config names.
    """
    skeleton = source.skeleton
    config: Any = getattr(skeleton, "config", None)
    if source.modality not in ("text", "images") or any(p.device.type != "meta" for p in skeleton.parameters()):
        return {}
    if source.modality == "text":
        inputs = torch.zeros(2, 2, dtype=torch.long, device="meta")
    else:
        side = getattr(config, "image_size", SIDE)
        height, width = (side, side) if isinstance(side, int) else side
        inputs = torch.zeros(2, config.num_channels, height, width, device="meta")
    try:
        with capture(skeleton, source, points) as read:
            outputs = read(inputs, None)
    except Exception:  # of any model: what depends on values, as the choice of experts, has none here
        return {}
    return {point: (x.shape[1], x.shape[2]) for point, x in outputs.items() if x.ndim == 3}


def _arrange_by_position(x: Tensor, inputs: torch.Size) -> Tensor:
    """Arranges as (batch, position, features) what a module computes for all tokens of a batch in one list, or the
    maps (batch, features, height, width) of an image model, row by row."""
    if len(inputs) == 4 and x.ndim == 4:
        return x.flatten(2).transpose(1, 2)
    tokens = len(inputs) == 2 and x.ndim == 2 and inputs[1] > 1 and len(x) == inputs.numel()
    return x.unflatten(0, inputs) if tokens else x
