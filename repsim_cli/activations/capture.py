"""Reading hook points during one forward pass of a backbone, which stops after the deepest of them."""

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
    """Raised inside a hook when all that was asked for has been read."""


@contextmanager
def capture(model: nn.Module, source: Source, points: Sequence[HookPoint]) -> Iterator[Reader]:
    """A reader of hook points: ids (batch, position) or pixel values, mask, and what else the model is given
    by name -> {hook point: (batch, position, features)}.

    The tensors are the model's own, in its dtype and on its device: copy what is kept. Hooks are removed when
    the context ends, whatever happens inside.
    """
    found: dict[HookPoint, Tensor] = {}
    calls: Counter[HookPoint] = Counter()
    modules = source.modules(model)
    main: Any = getattr(model, "main_input_name", "input_ids")

    def keep(point: HookPoint, place: Point, value: Any) -> None:
        calls[point] += 1
        if calls[point] != place.call + 1:
            return
        found[point] = place.pick(value, source.heads)
        if len(found) == len(points):
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
            found.clear()
            calls.clear()
            try:
                model(**{main: inputs}, attention_mask=mask.long(), **more)
            except _Done:
                return {point: found[point] for point in points}
            missing = ", ".join(str(point) for point in points if point not in found)
            raise RunFailed(f"{missing}: never reached in a forward pass of {source.model_type}; choose another")

        yield read
    finally:
        for handle in handles:
            handle.remove()


def _before(take: Callable[[Any], None], module: nn.Module, args: tuple, kwargs: dict) -> None:
    take(args[0] if args else next(iter(kwargs.values())))


def _after(take: Callable[[Any], None], module: nn.Module, args: tuple, output: Any) -> None:
    take(output)
