"""Where the hook points of a model are: modules of its backbone, and what is read of them.

The table of a type is an Architecture: the path of its list of blocks, and a Point for every kind of hook point, with
paths inside a block. `make_dense_stack`, `vary` and `mark_parallel` make them from layouts; `resolve_points` compares a
table with the modules of a model and says why a block lacks a point.

Blocks are read by hooks, not from `output_hidden_states`, whose last entry is taken after the final norm.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from repsim_cli.models import attention

STACKS = ("encoder", "decoder")
ATTENTION = ("q", "k", "v", "z", "pattern")
NO_ATTENTION = "the block has no attention"
EXPERTS = "its MLP is a mixture of experts, each with its own"
NO_EXPERTS = "its MLP is not a mixture of experts"
PARALLEL = "its attention and MLP run in parallel"
# why a block lacks a point whose module it does not have
ABSENT = {
    **dict.fromkeys((*ATTENTION, "attn_scores", "attn_out"), NO_ATTENTION),
    **dict.fromkeys(("mlp_pre", "mlp_post"), EXPERTS),
    "router": NO_EXPERTS,
    "mlp_out": "the block has no MLP",
    "resid_mid": "the block has one part",
    "cross_out": "it attends to no encoder",
}


def take_hidden_states(value: Any, heads: int = 0) -> Tensor:
    """The hidden states, which a module returns alone or first in a tuple, list or mapping."""
    if isinstance(value, Mapping):
        return next(iter(value.values()))
    return value[0] if isinstance(value, tuple | list) else value


def take_equal_part(number: int, count: int) -> Callable[[Any, int], Tensor]:
    """One of `count` equal parts of the features, as of a projection that holds all q, then all k, then all v."""
    return partial(_take_part, number, count)


def _take_part(number: int, count: int, value: Any, heads: int) -> Tensor:
    return take_hidden_states(value).chunk(count, dim=-1)[number]


def read_interleaved(number: int) -> Callable[[Any, int], Tensor]:
    """The part of number 0, 1 or 2 (q, k or v) of a projection that holds q, k, v head by head."""
    return partial(_take_interleaved, number)


def _take_interleaved(number: int, value: Any, heads: int) -> Tensor:
    fused = take_hidden_states(value)
    by_head = fused.view(*fused.shape[:-1], heads, -1)
    return by_head.chunk(3, dim=-1)[number].flatten(-2)


def put_batch_first(value: Any, heads: int = 0) -> Tensor:
    """Turns the (position, batch, features) that a model uses internally into (batch, position, features)."""
    return take_hidden_states(value).transpose(0, 1)


def copy_tensor(value: Any, heads: int = 0) -> Tensor:
    """Copies the hidden states as they are now, where the model changes the tensor afterwards."""
    return take_hidden_states(value).clone()


def scale_pick(pick: attention.Pick, factor: float, value: Any, heads: int) -> Tensor:
    return pick(value, heads) * factor


class Point(NamedTuple):
    """Where a hook point is read: a module, its side, and pick(the value there, heads) -> tensor.

    side: the module's first input, its output, or, of an attention module, what it computes between its projections
    (an `attention.Attended`).
    call: which of the module's calls in a forward pass is read, for modules that several layers share.
    """

    module: str
    side: Literal["input", "output", "attention"] = "output"
    pick: attention.Pick = take_hidden_states
    call: int = 0


class Heads(NamedTuple):
    """Of an attention module: heads of queries, of keys and values; features per head of q and k, of v and z."""

    queries: int
    keys: int
    width: int
    value_width: int


@dataclass(frozen=True)
class Architecture:
    """Places in the backbone. `block` points are relative to a block, `{blocks}.{layer}`.

    `embed` is what enters the first block; without any block, `end`.

    value: of a block, the projection that computes v, whose weights are studied.
    shared: for layers that share weights, the block of each layer and the number of its call.
    lacks: why a hook point that other architectures have is missing.
    missing: the same, for a kind and layer.
    heads: of layers whose attention module says so itself; the others have those of the config.
    depth: how many blocks a model has; 0 where only the config says it.
    other: how the output of any other module is read.
    stacks: of an encoder-decoder, the tables of `encoder` and `decoder`, with paths from the backbone; then the rest
    is empty.
    guessed: found by structure, without a table for the type.
    end: of a model without blocks, where the stream ends.
    """

    blocks: str
    block: dict[str, Point]
    final_norm: Point | None = None
    value: Point | None = None
    shared: list[tuple[str, int]] | None = None
    lacks: dict[str, str] = field(default_factory=dict)
    missing: dict[tuple[str, int], str] = field(default_factory=dict)
    heads: dict[int, Heads] = field(default_factory=dict)
    depth: int = 0
    other: attention.Pick = take_hidden_states
    stacks: "dict[str, Architecture]" = field(default_factory=dict)
    guessed: bool = False
    end: Point | None = None

    def find(self, kind: str, layer: int | None) -> Point | None:
        """Finds where the hook point is read, with the full module path; None if architecture or block lack it."""
        if kind == "final_norm":
            return self.final_norm
        if kind == "embed" and self.end is not None:
            return self.end
        kind, layer = ("resid_pre", 0) if kind == "embed" else (kind, layer)
        if layer is None or kind not in self.block or (kind, layer) in self.missing:
            return None
        return self._place_in_block(self.block[kind], layer)

    def _place_in_block(self, point: Point, layer: int) -> Point:
        block, call = self.shared[layer] if self.shared else (f"{self.blocks}.{layer}", 0)
        return point._replace(module=f"{block}.{point.module}".rstrip("."), call=point.call + call)

    def projection(self, kind: str, layer: int) -> Point | None:
        """The module whose weights compute attn_out, mlp_out or v, and what of its output that is; or None."""
        if kind == "v":
            return None if self.value is None else self._place_in_block(self.value, layer)
        place = self.find({"attn_out": "z", "mlp_out": "mlp_post"}[kind], layer)
        return None if place is None else place._replace(side="output", pick=take_hidden_states)

    def say_why_missing(self, kind: str, layer: int | None) -> str | None:
        """Says why there is no such hook point; None where that is not known."""
        return self.missing.get((kind, layer)) if layer is not None and kind in self.block else self.lacks.get(kind)


def list_attention_points(module: str, output: str) -> dict[str, Point]:
    """The points of an attention module with its output projection."""
    return {
        "q": Point(module, "attention", attention.read_queries),
        "k": Point(module, "attention", attention.read_keys),
        "v": Point(module, "attention", attention.read_values),
        "pattern": Point(module, "attention", attention.read_pattern),
        "z": Point(output, "input"),
        "attn_out": Point(output),
    }


Tables = dict[str, "Architecture | Callable[[Any], Architecture]"]
"""By `model_type`; a function where the table depends on the config."""

STREAM = {"resid_pre": Point("", "input"), "resid_post": Point("")}


def make_dense_stack(
    blocks: str,
    attention: tuple[str, str],
    mlp: tuple[str, str],
    mid: Point | str | None,
    *,
    value: Point | str | None = None,
    final_norm: str | None = None,
) -> Architecture:
    """A stack of blocks that add an attention and an MLP to the stream.

    attention: the attention module, and its output projection, whose output is added.
    mlp: the first projection (of a gated MLP, that of the gate) and the last, whose output is added.
    mid: where the stream between the two is read; a path: at the input of the norm there; None: they run in parallel.
    """
    table = Architecture(
        blocks=blocks,
        final_norm=None if final_norm is None else Point(final_norm),
        value=Point(value) if isinstance(value, str) else value,
        block={
            **STREAM,
            **({} if mid is None else {"resid_mid": Point(mid, "input") if isinstance(mid, str) else mid}),
            **list_attention_points(*attention),
            "mlp_pre": Point(mlp[0]),
            "mlp_post": Point(mlp[1], "input"),
            "mlp_out": Point(mlp[1]),
        },
    )
    return table if mid is not None else mark_parallel(table)


def vary(table: Architecture, *, block: Mapping[str, Point] | None = None, **more: Any) -> Architecture:
    """The table with other points of a block, or other fields."""
    return replace(table, block={**table.block, **(block or {})}, **more)


def drop_hook_points(table: Architecture, why: str, *kinds: str) -> Architecture:
    block = {kind: point for kind, point in table.block.items() if kind not in kinds}
    return replace(table, block=block, lacks={**table.lacks, **dict.fromkeys(kinds, why)})


def mark_parallel(table: Architecture) -> Architecture:
    return drop_hook_points(table, PARALLEL, "resid_mid")


def scale_additions(table: Architecture, factor: float) -> Architecture:
    """The table where what attention and MLP add to the stream is multiplied by a factor."""
    points = {kind: table.block[kind] for kind in ("attn_out", "mlp_out") if kind in table.block}
    return vary(table, block={kind: p._replace(pick=partial(scale_pick, p.pick, factor)) for kind, p in points.items()})


def _has(table: Architecture, kind: str, layer: int, modules: Collection[str]) -> bool:
    """Tells whether the block has the module of a hook point and, for attention, also its output projection, by which
    blocks differ."""
    points = (
        table.find(each, layer) for each in ((kind, "z") if kind in ATTENTION else (kind,)) if each in table.block
    )
    return all(point is not None and point.module in modules for point in points)


def resolve_points(table: Architecture, skeleton: nn.Module) -> Architecture:
    """The table with the points that some or all blocks of a model lack, as `missing` and `lacks`."""
    if table.stacks:
        return replace(table, stacks={name: resolve_points(stack, skeleton) for name, stack in table.stacks.items()})
    modules = dict(skeleton.named_modules())
    if table.shared is None:  # children() leaves blocks out that occur again
        layers = range(len(skeleton.get_submodule(table.blocks)._modules))  # pyright: ignore[reportPrivateUsage]
    else:
        layers = range(len(table.shared))
    if not layers:
        end = Point("") if table.final_norm is None else table.final_norm._replace(side="input")
        return replace(table, block={}, lacks=dict.fromkeys(table.block, "the model has no blocks"), end=end)
    missing = {
        (kind, layer): table.say_why_missing(kind, layer) or ABSENT.get(kind, f"the block has no {point.module}")
        for kind, point in table.block.items()
        for layer in layers
        if not _has(table, kind, layer, modules)
    }
    everywhere = {kind for kind in table.block if all((kind, layer) in missing for layer in layers)}
    lacks = {kind: missing[kind, 0] for kind in everywhere}
    return replace(
        table,
        block={kind: point for kind, point in table.block.items() if kind not in everywhere},
        lacks={**table.lacks, **lacks},
        missing={place: why for place, why in missing.items() if place[0] not in everywhere},
        depth=len(layers),
        heads={layer: heads for layer in layers if (heads := _read_heads(table, modules, layer)) is not None},
    )


COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
KEY_COUNTS = ("num_kv_heads", "kv_heads", "num_key_value_heads")
WIDTHS = ("head_dim", "head_size", "attention_head_size", "key_value_proj_dim")


def _read_heads(table: Architecture, modules: Mapping[str, nn.Module], layer: int) -> Heads | None:
    """Reads the number of heads and their widths from an attention module and its output projection; None where these
    do not say enough."""
    place, end = table.find("q", layer), table.find("z", layer)
    if place is None or place.side != "attention" or place.module not in modules:
        return None
    module = modules[place.module]
    inputs = _count_inputs(modules.get(end.module)) if end else None
    count, width = _find_number(module, *COUNTS), _find_number(module, "v_head_dim", *WIDTHS)
    count = count or (inputs // width if inputs and width else None)
    width = width or (inputs // count if inputs and count else None)
    if count is None or width is None:
        return None
    groups = _find_number(module, "num_key_value_groups")
    keys = count // groups if groups else _find_number(module, *KEY_COUNTS) or count
    return Heads(count, keys, _find_number(module, "qk_head_dim", *WIDTHS) or width, width)


def _find_number(module: nn.Module, *names: str) -> int | None:
    return next((value for name in names if isinstance(value := getattr(module, name, None), int) and value > 0), None)


def _count_inputs(projection: nn.Module | None) -> int | None:
    """The number of features that a projection takes; GPT-2's holds its weights as (inputs, outputs)."""
    given = getattr(projection, "in_features", None)
    return int(projection.weight.shape[0]) if type(projection).__name__ == "Conv1D" else given  # type: ignore


def guess_architecture(skeleton: nn.Module, sides: Sequence[str] = ()) -> Architecture | None:
    """The stream of a model without a table: its largest list of modules, and the norm after it. None without any.

    sides: the modules that hold the stacks of an encoder-decoder.
    """
    if sides:
        stacks = {side: _guess_largest_stack(skeleton, f"{side}.") for side in sides}
        largest = {side: stack for side, stack in stacks.items() if stack is not None}
        return Architecture("", {}, stacks=largest, guessed=True) if len(largest) == len(sides) else None
    return _guess_largest_stack(skeleton, "")


def _guess_largest_stack(skeleton: nn.Module, prefix: str) -> Architecture | None:
    lists = {
        name: module
        for name, module in skeleton.named_modules()
        if isinstance(module, nn.ModuleList) and name.startswith(prefix)
    }
    # a list of experts or branches is inside one of blocks, or smaller
    blocks = max(lists, key=lambda name: sum(p.numel() for p in lists[name].parameters()), default=None)
    if blocks is None:
        return None
    above, _, name = blocks.rpartition(".")
    siblings = list(skeleton.get_submodule(above).named_children())
    after = siblings[[child for child, _ in siblings].index(name) + 1 :]
    norms = [child for child, module in after if "norm" in type(module).__name__.lower()]
    return Architecture(
        blocks=blocks,
        block=dict(STREAM),
        final_norm=Point(f"{above}.{norms[0]}".lstrip(".")) if norms else None,
        depth=len(lists[blocks]),
        lacks=dict.fromkeys(_ADDED, "the type has no table, and its stream alone was found"),
        guessed=True,
    )


_ADDED = ("resid_mid", "attn_out", "mlp_out", *ATTENTION, "attn_scores", "mlp_pre", "mlp_post", "router")
