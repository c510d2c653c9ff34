"""Reading hook points during a forward pass of a backbone, which stops after the deepest of them."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from repsim_cli.activations.hook_points import HookPoint, locate
from repsim_cli.errors import RunFailed
from repsim_cli.models.architectures import Point
from repsim_cli.models.source import Source

Reader = Callable[..., dict[HookPoint, Tensor]]


class _Done(Exception):
    """Raised inside a hook once everything has been read."""


@contextmanager
def capture(model: nn.Module, source: Source, points: Sequence[HookPoint]) -> Iterator[Reader]:
    """A reader of hook points: ids (batch, position) or pixel values, a mask, and further inputs of the model by name
    -> {hook point: (batch, position, features)}.

    The tensors belong to the model, in its dtype and on its device: copy what is kept. Hooks are removed when the
    context ends, whatever happens inside.
    """
    captured: dict[HookPoint, Tensor] = {}
    calls: Counter[HookPoint] = Counter()
    modules = source.modules(model)
    main: Any = getattr(model, "main_input_name", "input_ids")

    def keep(point: HookPoint, place: Point, value: Any) -> None:
        calls[point] += 1
        if calls[point] != place.call + 1:
            return
        captured[point] = place.pick(value, source.heads)
        if len(captured) == len(points):
            raise _Done

    handles = []
    try:
        for point in points:
            place = locate(point, source)
            module, take = modules[place.module], partial(keep, point, place)
            if place.side == "input":
                handles.append(module.register_forward_pre_hook(partial(_before, take), with_kwargs=True))
            else:
                handles.append(module.register_forward_hook(partial(_after, take)))

        @torch.inference_mode()
        def read(inputs: Tensor, mask: Bool[Tensor, "b s"], **more: Tensor) -> dict[HookPoint, Tensor]:
            captured.clear()
            calls.clear()
            try:
                model(**{main: inputs}, attention_mask=mask.long(), **more)
            except _Done:
                return {point: captured[point] for point in points}
            missing = ", ".join(str(point) for point in points if point not in captured)
            raise RunFailed(f"{missing}: never reached in a forward pass of {source.model_type}; choose another")

        yield read
    finally:
        for handle in handles:
            handle.remove()


def _before(take: Callable[[Any], None], module: nn.Module, args: tuple, kwargs: dict) -> None:
    take(args[0] if args else next(iter(kwargs.values())))


def _after(take: Callable[[Any], None], module: nn.Module, args: tuple, output: Any) -> None:
    take(output)
