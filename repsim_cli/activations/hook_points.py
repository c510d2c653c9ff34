"""Hook points: their names, and what they mean in a model.

Names: `embed`, `final_norm`, `KIND@LAYER` with blocks counted from 0, `KIND@LAYER.hHEAD` for one head of q, k, v,
z, attn_scores or pattern (`.h*`: every head separately), and `module:dotted.name` for the output of any other module
(in its first call, if there are several). `module:layers.*.mlp` stands for every module that matches: `*`, `?` and
`[...]` match within a part of the name, never across a dot. In an encoder-decoder all but modules begin with their
stack: `encoder.resid_post@3`, `decoder.embed`.

q and k are what enters their product, after norms and rotation; v is before it is repeated for groups of heads, z what
enters the output projection, pattern what the values are weighed by. attn_out and mlp_out are what is added to the
stream, cross_out what the decoder's attention to the encoder adds; router: the scores of a mixture of experts, before
any softmax. A convolutional network has conv, norm, relu, pool and linear: the output of that module in block LAYER.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean
from repsim_cli.base.settings import Extract
from repsim_cli.models.architectures import REFUSED
from repsim_cli.models.points import Architecture, Heads, Point
from repsim_cli.models.source import Source

OUTSIDE = ("embed", "final_norm")
IN_BLOCK = (
    "resid_pre", "resid_post", "resid_mid", "q", "k", "v", "z", "attn_scores", "pattern", "attn_out", "mlp_pre",
    "mlp_post", "mlp_out", "router", "cross_out",
)  # fmt: skip
OF_CONVOLUTIONS = ("conv", "norm", "relu", "pool", "linear")
KINDS = (*OUTSIDE, *IN_BLOCK, *OF_CONVOLUTIONS)
ATTENTION = ("attn_scores", "pattern")
BY_HEAD = ("q", "k", "v", "z", *ATTENTION)
EVERY = "*"
CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # they hold modules, and have no output

_NAME = re.compile(r"((?P<stack>encoder|decoder)\.)?(?P<kind>[a-z_]+)(?:@(?P<layer>-?\d+))?(?:\.h(?P<head>\d+|\*))?")


@dataclass(frozen=True)
class HookPoint:
    """A kind of hook point, and where it applies.

    layer: None outside blocks, or for every layer.
    head: None for all heads together, `*` for each of them.
    module: the dotted name, of the kind `module`.
    stack: of an encoder-decoder, `encoder` or `decoder`.
    """

    kind: str
    layer: int | None = None
    head: int | Literal["*"] | None = None
    module: str | None = None
    stack: str | None = None

    def __str__(self) -> str:
        if self.module is not None:
            return f"module:{self.module}"
        at = "" if self.layer is None else f"@{self.layer}"
        stack = "" if self.stack is None else f"{self.stack}."
        return f"{stack}{self.kind}{at}{'' if self.head is None else f'.h{self.head}'}"


LOGITS = HookPoint("logits")  # of a whole model, with its output head; not for configurations


class NoSuchLayer(BadInput):
    """A layer that was selected for all hook points, and that the model does not have."""


def parse_hook_point(name: str) -> HookPoint:
    """The hook point of this name.

    >>> parse_hook_point("q@3.h2")
    HookPoint(kind='q', layer=3, head=2, module=None, stack=None)
    """
    if name.startswith("module:") and len(name) > len("module:"):
        return HookPoint("module", module=name.removeprefix("module:"))
    match = _NAME.fullmatch(name)
    if match is None or match["kind"] not in KINDS:
        kind = match["kind"] if match else name.split("@")[0]
        raise BadInput(f"unknown hook point, got '{name}'; {did_you_mean(kind, KINDS)}")
    kind, layer, head = match["kind"], match["layer"], match["head"]
    if kind in OUTSIDE and (layer or head):
        raise BadInput(f"{kind} has no layer or head, got '{name}'; write {kind}")
    if head and kind not in BY_HEAD:
        raise BadInput(f"{kind} has no heads, got '{name}'; heads belong to {', '.join(BY_HEAD)}")
    heads = EVERY if head == EVERY else None if head is None else int(head)
    return HookPoint(kind, None if layer is None else int(layer), heads, stack=match["stack"])


def choose_hook_points(label: str, source: Source, extract: Extract) -> list[HookPoint]:
    """The hook points that are read of a model: those of its entry, or of the run. Raises BadInput, key path first."""
    try:
        return expand(list(source.hook_points) or extract.hook_points, extract.layers, source)
    except NoSuchLayer as error:
        raise BadInput(f"extract.layers, model.{label}: {error}") from None
    except BadInput as error:
        where = f"model.{label}.hook_points" if source.hook_points else f"extract.hook_points, model.{label}"
        raise BadInput(f"{where}: {error}") from None


def expand(names: list[str], layers: str | list[int], source: Source) -> list[HookPoint]:
    """The hook points of a model, in the given order; `resid_post` stands for every selected layer.

    With layers=all, a kind that only some blocks have stands for these. Raises BadInput for a layer, head or hook point
    that the model does not have.
    """
    points: list[HookPoint] = []
    for name in names:
        point = parse_hook_point(name)
        if point.module is not None:
            points += [HookPoint("module", module=path) for path in _match_modules(point.module, source)]
            continue
        if point.kind in OUTSIDE:
            points.append(point)
            continue
        depth = count_stack_blocks(point, source)
        if point.layer is not None:
            points.append(replace(point, layer=_resolve_layer_number(point.layer, depth, name)))
        elif isinstance(layers, str):
            points += _list_in_blocks(point, depth, source)
        else:
            points += [replace(point, layer=_resolve_layer_number(layer, depth)) for layer in layers]
    points = [single for point in points for single in _expand_heads(point, source)]
    if not points:
        raise BadInput(f"no hook point is left, got layers {layers} of a model with {source.layers}; select some")
    for point in points:
        locate(point, source)
    if len(set(points)) < len(points):
        twice = next(str(p) for p in points if points.count(p) > 1)
        raise BadInput(f"hook_points: '{twice}' occurs twice; name each once")
    return points


def _match_modules(pattern: str, source: Source) -> list[str]:
    """The modules of the backbone that a dotted name or a glob stands for, in the model's order.

    The name may begin as in the whole model (`model.layers.0`, `transformer.h.0`), which holds the backbone.
    """
    modules = source.skeleton_modules
    spelled = [pattern]
    for prefix in (getattr(source.skeleton, "base_model_prefix", ""), "language_model"):
        spelled += [name.removeprefix(f"{prefix}.") for name in spelled if prefix and name.startswith(f"{prefix}.")]
    for name in spelled:
        paths = [path for path in modules if path and _matches_module_pattern(path, name)]
        running = [path for path in paths if not isinstance(modules[path], CONTAINERS)]
        if running:
            return running
        if paths:
            raise BadInput(f"a list of modules has no output, got 'module:{pattern}'; write 'module:{pattern}.*'")
    raise BadInput(f"no such module, got 'module:{pattern}'; {_say_nearest_modules(spelled[-1], modules)}")


def _matches_module_pattern(path: str, pattern: str) -> bool:
    parts, patterns = path.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def _say_nearest_modules(pattern: str, paths: Iterable[str]) -> str:
    """The near misses among the modules, else the outermost modules."""
    paths = [path for path in paths if path]
    near = did_you_mean(pattern, paths)
    outermost = ", ".join(path for path in paths if "." not in path)
    return near if near.startswith("did") else f"the model consists of {outermost}"


def _list_in_blocks(point: HookPoint, depth: int, source: Source) -> list[HookPoint]:
    """The hook point in every block that has it, or in all blocks where none does, so that it is refused by name."""
    points = [replace(point, layer=layer) for layer in range(depth)]
    if source.architecture is None:
        return points
    stack = stack_of(point, source)
    return [each for each in points if stack.find(each.kind, each.layer)] or points


def stack_of(point: HookPoint, source: Source) -> Architecture:
    """The table that the hook point belongs to. Raises BadInput where a stack is not named, or does not exist."""
    assert source.architecture is not None
    stacks = source.architecture.stacks
    if point.stack is None and not stacks:
        return source.architecture
    if point.stack in stacks:
        return stacks[str(point.stack)]
    if not stacks:
        raise BadInput(f"{source.model_type} has no {point.stack}, got '{point}'; leave '{point.stack}.' out")
    both = " or ".join(f"{stack}.{replace(point, stack=None)}" for stack in stacks)
    raise BadInput(f"{source.model_type} has several stacks of blocks, got '{point}'; write {both}")


def count_stack_blocks(point: HookPoint, source: Source) -> int:
    """The number of blocks of its stack."""
    return (source.architecture and stack_of(point, source).depth) or source.layers


def _expand_heads(point: HookPoint, source: Source) -> list[HookPoint]:
    """The hook point itself, or a hook point for each head."""
    if point.head != EVERY:
        return [point]
    locate(replace(point, head=None), source)
    return [replace(point, head=head) for head in range(count_heads(point, source))]


def count_heads(point: HookPoint, source: Source) -> int:
    of_keys = point.kind in ("k", "v")
    heads = _find_layer_heads(point, source)
    if heads is None:
        return source.kv_heads if of_keys else source.heads
    return heads.keys if of_keys else heads.queries


def find_head_width(point: HookPoint, source: Source) -> int:
    """Features per head of q, k, v or z."""
    heads = _find_layer_heads(point, source)
    if heads is None:
        return source.head_width
    return heads.width if point.kind in ("q", "k") else heads.value_width


def _find_layer_heads(point: HookPoint, source: Source) -> Heads | None:
    if source.architecture is None or point.layer is None:
        return None
    return stack_of(point, source).heads.get(point.layer)


def _resolve_layer_number(layer: int, depth: int, name: str = "") -> int:
    """Counts a negative layer from the end. Raises BadInput for one that the model does not have; NoSuchLayer where
    `name` is empty.

    layer: as it was given.
    depth: how many layers the model has.
    name: the hook point that names it, "" for one that every hook point has.
    """
    if not -depth <= layer < depth:
        has = f"layers 0 to {depth - 1}" if depth else "no blocks"
        said = f"layer out of range, got {layer}; the model has {has}"
        raise BadInput(f"{name}: {said}") if name else NoSuchLayer(said)
    return layer % depth


def locate(point: HookPoint, source: Source) -> Point:
    """The module to hook and how to read it; its `pick` gives (batch, position, features)."""
    if point == LOGITS:
        return Point("", pick=lambda output, heads: output.logits)
    if point.module is not None:
        return Point(point.module, pick=source.architecture.other) if source.architecture else Point(point.module)
    if source.architecture is None:
        why = f" ({REFUSED[source.model_type]})" if source.model_type in REFUSED else ""
        raise BadInput(
            f"no blocks are known in {source.model_type}{why}, got '{point}'; name modules as module:dotted.name"
        )
    stack = stack_of(point, source)
    place = stack.find(point.kind, point.layer)
    if place is None:
        why = stack.say_why_missing(point.kind, point.layer)
        raise BadInput(
            f"{source.model_type} has no {point.kind}{f' ({why})' if why else ''}, got '{point}'; "
            "choose another hook point"
        )
    heads = count_heads(point, source)
    if isinstance(point.head, int):
        if point.head >= heads:
            raise BadInput(f"head out of range, got '{point}'; the model has heads 0 to {heads - 1}")
        pick = _pick_map if point.kind in ATTENTION else _pick_head
        return place._replace(pick=partial(pick, place.pick, point.head, heads))
    return place


def _pick_head(pick: Any, head: int, heads: int, value: Any, fused_heads: int) -> Tensor:
    everything = pick(value, fused_heads)
    return everything.unflatten(-1, (heads, -1))[..., head, :]


def _pick_map(pick: Any, head: int, heads: int, value: Any, fused_heads: int) -> Tensor:
    """Takes the map (batch, query, key) of a head from (batch, heads, query, key)."""
    return pick(value, fused_heads)[:, head]
