"""Every tensor that enters or leaves a module, handed to a function that may put another in its place."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from repsim_cli.models.attention import PRODUCTS
from repsim_cli.models.calls import Hooks, exchange, find_entering

Sink = Callable[[str, Tensor], Tensor]
"""sink(name of the place, tensor there) -> the tensor that goes on from there."""
IN = ":in"
KEYS = ("query", "key", "value")


def map_tensors(value: Any, name: str, sink: Sink) -> Any:
    """Replaces each tensor that a module returns by what the sink gives: the first under the name, others numbered."""
    seen = 0

    def map_inner(inner: Any) -> Any:
        nonlocal seen
        if not isinstance(inner, Tensor):
            return inner
        seen += 1
        return sink(name if seen == 1 else f"{name}[{seen - 1}]", inner)

    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(map_inner, value))
    if isinstance(value, tuple | list):
        return type(value)(map(map_inner, value))
    if isinstance(value, Mapping):
        for key in value:
            value[key] = map_inner(value[key])  # type: ignore[index]
        return value
    return map_inner(value)


class AttentionCalls(TorchFunctionMode):
    """The products and the softmax of attention, by the innermost module that runs.

    running: [name, whether its softmax was seen] of the modules that run, the innermost last.
    """

    def __init__(self, sink: Sink):
        super().__init__()
        self.sink, self.running = sink, list[list[Any]]()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if not self.running:
            return func(*args, **kwargs)
        module, normalised = self.running[-1]
        place = f"{module}:"
        if name == "softmax" and args and args[0].ndim > 2:
            self.running[-1][1] = True
            scores = self.sink(f"{place}scores", args[0])
            return self.sink(f"{place}pattern", func(scores, *args[1:], **kwargs))
        if name == "scaled_dot_product_attention":
            given = dict(zip(KEYS, args, strict=False)) | {key: kwargs[key] for key in KEYS if key in kwargs}
            taken = [self.sink(place + key[0], given[key]) for key in KEYS]
            rest = {key: value for key, value in kwargs.items() if key not in KEYS}
            return self.sink(f"{place}z", func(*taken, *args[3:], **rest))
        if name in PRODUCTS:
            return self._product(place, normalised, func, name, args, kwargs)
        return func(*args, **kwargs)

    def _product(
        self, place: str, normalised: bool, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A product of two activations: of queries and keys, or, after a softmax, of a pattern and values."""
        added = name == "baddbmm"  # the first operand is what is added
        if added:
            args = (*args[:1], *(args[1:] or (kwargs["batch1"], kwargs["batch2"])))
            kwargs = {key: value for key, value in kwargs.items() if key not in ("batch1", "batch2")}
        head, operands = args[:added], args[added:]
        if len(operands) < 2 or any(isinstance(x, nn.Parameter) or x.ndim < 3 for x in operands[:2]):
            return func(*args, **kwargs)
        left, right, *rest = operands
        if normalised:
            right, to = self.sink(f"{place}v", right), "z"
        else:
            left, right, to = self.sink(f"{place}q", left), self.sink(f"{place}k", right.mT).mT, "qk"
        return self.sink(place + to, func(*head, left, right, *rest, **kwargs))


def _is_fused(root: nn.Module, name: str) -> bool:
    """Says whether the module is inside one with the weights of many experts, which chooses the rows that it gets."""
    above = [name[:place] for place, c in enumerate(name) if c == "."]
    return any(x.ndim > 2 for path in above for x in root.get_submodule(path).parameters(recurse=False))


@contextmanager
def observe(
    root: nn.Module, sink: Sink, known: Tensor | None = None, again: dict[str, str] | None = None
) -> Iterator[None]:
    """Calls the sink with every tensor that enters or leaves a module inside the root, in the order of computation, by
    the module's name in it: `mlp.act`, `mlp.down_proj:in`, `attn:q`; of what is seen again, `mlp.act#1`.

    A tensor that the sink has given is not handed to it again where it enters the next module. known: what enters the
    root. again: filled with the place where each tensor was first seen, by the places where it is seen again.
    """
    hooks, calls = Hooks(), Counter[str]()
    given: list[tuple[str, Any]] = [(IN, known)]  # kept, so that no other tensor takes the place of one in memory

    def see(name: str, x: Tensor) -> Tensor:
        for earlier, each in given:
            # what a module leaves as it entered is no less its output
            if x is each and (name.endswith(IN) or earlier.startswith(f"{name}.")):
                if again is not None:
                    again[name] = earlier
                return x
        count, calls[name] = calls[name], calls[name] + 1
        name = f"{name}#{count}" if count else name
        x = sink(name, x)
        given.append((name, x))
        del given[:-32]
        return x

    watch = AttentionCalls(see)

    def watch_module(name: str, module: nn.Module) -> None:
        has_parts = next(module.children(), None) is not None

        def see_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            watch.running.append([name, False])
            found = find_entering(args, kwargs)
            return None if found is None else exchange(args, kwargs, found[0], see(name + IN, found[1]))

        def see_output(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
            watch.running.pop()
            return map_tensors(out, name, see)

        # of a module that has parts, what enters it enters the first of them
        hooks.call_before(module, see_inputs if not has_parts else lambda *_: watch.running.append([name, False]))
        hooks.call_after(module, see_output)

    for name, module in root.named_modules():
        if name and not isinstance(module, nn.ModuleList | nn.ModuleDict) and not _is_fused(root, name):
            watch_module(name, module)
    watch.running.append(["", False])
    try:
        with watch:
            yield
    finally:
        hooks.remove()
