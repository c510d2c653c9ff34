"""What an attention module computes between its projections, read from outside while it runs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from repsim_cli.base.errors import RunFailed

PRODUCTS = ("matmul", "__matmul__", "bmm", "baddbmm")


@dataclass
class Attended:
    """One call of an attention module, heads apart.

    scores: the operands of the matrix products before the softmax, (batch, heads, query, d) and (batch, heads, d, key).
    weights: (batch, heads, query, key), what the values are weighed by; None if a fused kernel computed them.
    values: (batch, heads, key, e). Keys and values may have fewer heads than queries, or be repeated to as many.
    """

    scores: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    weights: Tensor | None = None
    values: Tensor | None = None
    normalised: bool = False

    def see(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keeps what belongs to the attention of a call of a function of torch."""
        if self.values is not None:
            return
        if name == "softmax":
            self.normalised = bool(self.scores)
        elif name == "scaled_dot_product_attention":
            q, k, v = (args[i] if i < len(args) else kwargs[key] for i, key in enumerate(("query", "key", "value")))
            self.scores, self.values = [(q, k.mT)], v
        elif name in PRODUCTS:
            if name == "baddbmm":  # the first operand is what is added
                args = (*args[1:], *(kwargs[key] for key in ("batch1", "batch2") if key in kwargs))
            left, right = args[0], args[1] if len(args) > 1 else next(iter(kwargs.values()))
            if self.normalised:
                self.weights, self.values = left, right
            else:
                self.scores.append((left, right))


class Watch(TorchFunctionMode):
    """While this context lasts, the calls of torch in this thread are seen by the attention modules that run.

    running: the innermost last; `begin` and `end` are called by hooks around a module's forward pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self.running: list[Attended] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.running:
            self.running[-1].see(func.__name__, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def begin(self) -> None:
        self.running.append(Attended())

    def end(self) -> Attended:
        return self.running.pop()


def read_queries(seen: Attended, heads: int) -> Tensor:
    """Reads queries (batch, position, heads x d), as they enter the product with the keys."""
    return join_heads(_take_last_scores(seen)[0], heads)


def read_keys(seen: Attended, heads: int) -> Tensor:
    """Reads keys (batch, position, heads x d) for this many heads, as they enter the product with the queries."""
    return join_heads(_take_last_scores(seen)[1].mT, heads)


def read_values(seen: Attended, heads: int) -> Tensor:
    """Reads values (batch, position, heads x e) for this many heads."""
    _take_last_scores(seen)
    assert seen.values is not None
    return join_heads(seen.values, heads)


def read_pattern(seen: Attended, heads: int) -> Tensor:
    """Reads attention weights (batch, heads, query, key). Raises RunFailed where a fused kernel computed them."""
    if seen.weights is None:
        raise RunFailed("the model returns no attention weights, got None; use one that runs with eager attention")
    return _split_heads(seen.weights, heads)


def _take_last_scores(seen: Attended) -> tuple[Tensor, Tensor]:
    if seen.values is None or not seen.scores:
        raise RunFailed("no attention was computed by a product, a softmax and a product; read another point")
    return seen.scores[-1]


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """Splits (batch x heads, position, d) into (batch, heads, position, d); what has four dimensions stays as it is."""
    return x if x.ndim == 4 else x.unflatten(0, (-1, heads))


def join_heads(x: Tensor, heads: int) -> Tensor:
    """Joins heads to (batch, position, heads x d), one of each group where they were repeated for groups of queries."""
    x = _split_heads(x, heads)
    return x[:, :: x.shape[1] // heads].transpose(1, 2).flatten(2)


Pick = Callable[[Any, int], Tensor]
