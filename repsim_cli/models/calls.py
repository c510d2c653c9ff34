"""What enters a module, and hooks around its calls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


def find_entering(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int | str, Tensor] | None:
    """The first tensor of numbers among the inputs of a module, and its position or name."""
    given = [*enumerate(args), *kwargs.items()]
    return next(((key, x) for key, x in given if isinstance(x, Tensor) and x.is_floating_point()), None)


def exchange(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], key: int | str, x: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(key, int):
        return (*args[:key], x, *args[key + 1 :]), dict(kwargs)
    return args, {**kwargs, key: x}


@dataclass
class Hooks:
    """Hooks of one pass. ids: theirs, by which a copy of a module drops them."""

    handles: list[Any] = field(default_factory=list)

    @property
    def ids(self) -> set[int]:
        return {handle.id for handle in self.handles}

    def call_before(self, module: nn.Module, take: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> None:
        self.handles.append(
            module.register_forward_pre_hook(lambda _, args, kwargs: take(args, kwargs), with_kwargs=True)
        )

    def call_after(self, module: nn.Module, take: Callable[[tuple[Any, ...], dict[str, Any], Any], Any]) -> None:
        self.handles.append(
            module.register_forward_hook(lambda _, args, kwargs, out: take(args, kwargs, out), with_kwargs=True)
        )

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
