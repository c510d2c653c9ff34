"""Faults of no listed kind, made after the rules: the exact place is asked for, and a kind that is true, or none.

A plant takes the parts of a model and a block, and gives where the fault stands; None where the model has no such part.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from plants import Parts, Places, change_entering, instead, mask_entering, planted_by, then, weight

ARCHITECTURES = "llama", "gpt2", "mixtral", "qwen3", "bert"
OUTSIDE: dict[str, tuple[set[str], Callable[[Parts, int], Places | None]]] = {}
"""By name: the kinds that are true of it, beside none, and what plants it."""


def outside(*true: str) -> Callable[..., Any]:
    def keep(plant: Callable[[Parts, int], Places | None]) -> Callable[[Parts, int], Places | None]:
        OUTSIDE[plant.__name__] = set(true), plant
        return plant

    return keep


def _at(block: int, *places: str) -> Places:
    return {(f"block {block}", place) for place in places}


def _attention(parts: Parts, block: int) -> tuple[Any, str]:
    path = parts.by_role(block).get("attention", "")
    return parts.at(block, path), path


@outside("factor", "skipped")
def branch_dropped(parts, block):
    module, path = _attention(parts, block)
    then(module, lambda out, _: torch.zeros_like(out))
    return _at(block, path)


@outside("residual")
def residual_of_the_mlp_dropped(parts, block):
    mlp = getattr(parts.blocks[block], "mlp", None)
    if mlp is None:
        return None
    kept = {}
    then(mlp, lambda out, _: kept.setdefault("out", []).append(out) or out)
    then(parts.blocks[block], lambda out, _: kept["out"].pop() * 1.0)
    return _at(block, "")


@outside()
def gate_and_up_change_roles(parts, block):
    mlp = getattr(parts.blocks[block], "mlp", None)
    if not hasattr(mlp, "gate_proj"):
        return None
    mlp.forward = lambda x: mlp.down_proj(mlp.act_fn(mlp.up_proj(x)) * mlp.gate_proj(x))
    return _at(block, "mlp.act_fn", "mlp.act_fn:in", "mlp.down_proj:in")


@outside()
def norm_twice(parts, block):
    path = parts.norms(block)[-1]
    module = parts.at(block, path)
    forward = module.forward
    module.forward = lambda x: forward(forward(x))
    return _at(block, path)


@outside("factor")
def scale_of_another_width(parts, block):
    module, path = _attention(parts, block)
    if not isinstance(getattr(module, "scaling", None), float):
        return None
    module.scaling = parts.model.config.hidden_size**-0.5
    return _at(block, *(f"{path}:{what}" for what in ("scores", "qk", "q")))


@outside("epsilon")
def epsilon_outside_of_the_root(parts, block):
    path = parts.norms(block)[0]
    module = parts.at(block, path)
    if "RMSNorm" not in type(module).__name__:
        return None
    module.forward = lambda x: module.weight * x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-3)
    return _at(block, path)


@outside("permuted")
def keys_repeated_in_another_order(parts, block):
    module, path = _attention(parts, block)
    if getattr(module, "num_key_value_groups", 1) == 1:
        return None
    instead(module, "repeat_kv", lambda _: lambda x, count: x.repeat(1, count, 1, 1))
    return _at(block, *(f"{path}:{what}" for what in "kv"))


@outside("precision")
def softmax_in_16_bits(parts, block):
    module, path = _attention(parts, block)

    class Nn:
        functional = torch.nn.functional

        def __getattr__(self, name):
            return getattr(torch.nn, name)

    class Functional:
        @staticmethod
        def softmax(x, dim=-1, dtype=None):
            return F.softmax(x.bfloat16(), dim=dim).to(x.dtype)

        def __getattr__(self, name):
            return getattr(F, name)

    def other(_):
        made = Nn()
        made.functional = Functional()
        return made

    instead(module, "nn", other)
    return _at(block, f"{path}:scores", f"{path}:pattern", f"{path}:z", path)  # values are multiplied in 16 bits too


@outside("experts", "permuted", "swapped")
def two_experts_swapped(parts, block):
    path = parts.by_role(block).get("experts")
    if not path:
        return None
    for x in parts.at(block, path).parameters(recurse=False):
        x.data[[0, 1]] = x.data[[1, 0]]
    return _at(block, path, path.rpartition(".")[0])


@outside("mask")
def one_later_token_seen(parts, block):
    module, path = _attention(parts, block)

    def change(mask):
        at = torch.arange(mask.shape[-1] - 1)
        mask[..., at, at + 1] = mask[..., at, at]
        return mask

    mask_entering(module, change)
    return None if "bert" in parts.model.config.model_type else _at(block, f"{path}:scores", f"{path}:pattern")


@outside("mask")
def first_key_hidden(parts, block):
    module, path = _attention(parts, block)

    def change(mask):
        mask[..., 1:, 0] = torch.finfo(mask.dtype).min if mask.dtype.is_floating_point else False
        return mask

    mask_entering(module, change)
    return _at(block, f"{path}:scores", f"{path}:pattern")


@outside("positions")
def positions_restart_at_padding(parts, block):
    if not hasattr(parts.model.base_model, "wpe"):
        return None

    def before(_, args, kw):
        mask = kw.get("attention_mask")
        return args, {**kw, "position_ids": (mask.cumsum(1) - 1).clamp_min(0)}

    parts.model.register_forward_pre_hook(before, with_kwargs=True)
    return {("wpe", "")}


@outside()
def embeddings_normalised(parts, block):
    then(parts.model.get_input_embeddings(), lambda out, _: F.normalize(out, dim=-1))
    return {("embed", ""), ("embeddings", "word_embeddings")}


@outside("tokens")
def another_first_token(parts, block):
    def before(_, args, kw):
        ids = kw["input_ids"].clone()
        ids[:, 0] = 5
        return args, {**kw, "input_ids": ids}

    parts.model.register_forward_pre_hook(before, with_kwargs=True)
    return {("embed", ""), ("embeddings", "word_embeddings")}


def _linear(parts: Parts, block: int, role: str) -> tuple[Any, str]:
    path = parts.by_role(block).get(role, "")
    return (parts.at(block, path) if path else None), path


@outside()
def output_clamped(parts, block):
    module, path = _linear(parts, block, "up")
    if module is not None:
        then(module, lambda out, _: out.clamp(-1, 1))
        return _at(block, path)


@outside("activation", "experts")
def activation_clamped(parts, block):
    module, path = _linear(parts, block, "act")
    if module is not None:
        then(module, lambda out, _: out.clamp(max=0.5))
        return _at(block, path, path.partition("experts")[0] + "experts")


@outside("activation", "experts")
def activation_twice(parts, block):
    module, path = _linear(parts, block, "act")
    if module is not None:
        forward = module.forward
        module.forward = lambda x: forward(forward(x))
        return _at(block, path, path.partition("experts")[0] + "experts")


@outside("positions")
def keys_of_the_token_before(parts, block):
    module, path = _linear(parts, block, "k")
    if module is not None:
        then(module, lambda out, _: out.roll(1, 1))
        return _at(block, path)


@outside("rotary")
def cosine_and_sine_change_roles(parts, block):
    if parts.rotary is None:
        return None
    forward = parts.rotary.forward
    parts.rotary.forward = lambda *args, **kw: forward(*args, **kw)[::-1]
    return {("rotary_emb", "")}


@outside("rotary")
def keys_not_rotated(parts, block):
    module, path = _attention(parts, block)
    if not hasattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb"):
        return None
    instead(module, "apply_rotary_pos_emb", lambda kept: lambda q, k, *args, **kw: (kept(q, k, *args, **kw)[0], k))
    return _at(block, f"{path}:k")


@outside("rotary")
def rotated_the_other_way(parts, block):
    module, path = _attention(parts, block)
    if not hasattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb"):
        return None
    instead(
        module,
        "apply_rotary_pos_emb",
        lambda kept: lambda q, k, cos, sin, *args, **kw: kept(q, k, cos, -sin, *args, **kw),
    )
    return _at(block, f"{path}:q", f"{path}:k")


@outside("router", "experts")
def an_expert_too_few(parts, block):
    path = parts.by_role(block).get("router")
    router = parts.at(block, path) if path else None
    if not hasattr(router, "top_k"):
        return None
    router.top_k = 1
    return _at(block, path, path.rpartition(".")[0], f"{path}[1]", f"{path.rpartition('.')[0]}.experts")


@outside("router", "experts")
def chances_of_experts_not_normalised(parts, block):
    path = parts.by_role(block).get("router")
    if not path:
        return None
    module = parts.at(block, path)
    forward = module.forward

    def changed(*args, **kw):
        logits, chances, *rest = forward(*args, **kw)
        return logits, chances * 0.9, *rest

    module.forward = changed
    return _at(block, path, path.rpartition(".")[0], f"{path.rpartition('.')[0]}.experts")


@outside()
def inputs_in_8_bits(parts, block):
    module, path = _linear(parts, block, "o")
    if module is None:
        return None

    def change(x):
        step = x.abs().amax(-1, keepdim=True) / 127
        return (x / step).round() * step

    change_entering(module, change)
    return _at(block, path, f"{path}:in")


@outside()
def values_not_finite(parts, block):
    module, path = _linear(parts, block, "o")
    if module is not None:
        weight(module)[3] = float("nan")
        return _at(block, path)


@outside("offset")
def bias_twice(parts, block):
    module, path = _linear(parts, block, "down")
    if module is not None and module.bias is not None:
        then(module, lambda out, _: out + module.bias)
        return _at(block, path)


@outside()
def mlp_beside_attention(parts, block):
    """Feeds the MLP what attention is fed: in parallel, not one after the other."""
    norm = next((path for path in parts.norms(block) if "post_attention" in path or path == "ln_2"), None)
    if norm is None:
        return None
    kept = {}
    first = parts.at(block, parts.norms(block)[0])
    first.register_forward_pre_hook(lambda _, args: kept.update(x=args[0]))
    module = parts.at(block, norm)
    module.register_forward_pre_hook(lambda _, args: (kept["x"],))
    return _at(block, norm, f"{norm}:in")


@outside()
def output_centred(parts, block):
    module, path = _linear(parts, block, "down")
    if module is not None:
        then(module, lambda out, _: out - out.mean(-1, keepdim=True))
        return _at(block, path)


@outside()
def norm_by_halves(parts, block):
    path = parts.norms(block)[-1]
    module = parts.at(block, path)
    if "RMSNorm" not in type(module).__name__ or module.weight.shape[0] < 16:
        return None

    def changed(x):
        halves = x.unflatten(-1, (2, -1))
        return module.weight * (halves * (halves.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).flatten(-2)

    module.forward = changed
    return _at(block, path)


@outside("positions")
def head_sees_the_token_before(parts, block):
    head = parts.model.get_output_embeddings()
    if type(parts.model).__name__.endswith("MaskedLM"):
        return None
    change_entering(head, lambda x: x.roll(1, 1))
    return {("head", "")}


@outside()
def values_rotated_too(parts, block):
    module, path = _linear(parts, block, "v")
    if module is None:
        return None

    def change(out, _):
        angle = torch.arange(out.shape[1])[None, :, None] / 10
        a, b = out.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    then(module, change)
    return _at(block, path)


def faults(model: Any) -> Iterator[tuple[dict[str, Any], Any, Any, Any]]:
    for number, (name, (true, plant)) in enumerate(OUTSIDE.items()):
        broken, places = planted_by(lambda parts, block, *_, plant=plant: plant(parts, block), model, seed=number)
        if places is not None:
            yield {"what": name, "size": 1, "kind": sorted(true)}, model, broken, places
