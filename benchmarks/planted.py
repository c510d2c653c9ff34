"""Faults to plant in models, and where each stands."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from plants import FAULTS, SMALL, Parts, Places, fault, noise, pick, planted_by, reordered, then, weight
from torch import nn


@fault("offset", *SMALL, 1e-1)
def bias_added(parts, block, size, draw):
    module, places = pick(parts, block, draw)
    if module is not None:
        more = size * torch.randn(weight(module).shape[0], generator=draw)
        then(module, lambda out, _: out + more.to(out.dtype))
        return places


@fault("offset")
def bias_lost(parts, block, size, draw):
    module, places = pick(parts, block, draw)
    if module is not None and module.bias is not None:
        module.bias.data.zero_()
        return places


@fault("factor", *SMALL, 1e-1)
def scaled(parts, block, size, draw):
    module, places = pick(parts, block, draw)
    if module is not None:
        module.weight.data.mul_(1 + size)
        if module.bias is not None:
            module.bias.data.mul_(1 + size)
        return places


@fault("part", *SMALL, 1e-1)
def head_scaled(parts, block, size, draw):
    module, places = pick(parts, block, draw, ("v", "q"))
    if module is not None:
        weight(module)[8:16] *= 1 + size
        if module.bias is not None:
            module.bias.data[8:16] *= 1 + size
        return places


@fault("part", *SMALL, 1e-1)
def neuron_scaled(parts, block, size, draw):
    module, places = pick(parts, block, draw, ("up", "gate"))
    if module is not None:
        weight(module)[3] *= 1 + 10 * size
        if module.bias is not None:
            module.bias.data[3] *= 1 + 10 * size
        return places


def one_norm(parts, block, draw):
    path = parts.norms(block)[int(torch.randint(len(parts.norms(block)), (1,), generator=draw))]
    return parts.at(block, path), {(f"block {block}", path)}


@fault("gain", *SMALL, 1e-1)
def gain_changed(parts, block, size, draw):
    module, places = one_norm(parts, block, draw)
    if getattr(module, "weight", None) is not None:
        module.weight.data += size * noise(module.weight, draw)
        return places


@fault("gain")
def gain_without_one(parts, block, size, draw):
    module, places = one_norm(parts, block, draw)
    if getattr(module, "weight", None) is not None:
        module.weight.data += 1 if module.weight.abs().mean() < 0.5 else -1
        return places


@fault("permuted")
def heads_swapped(parts, block, size, draw):
    module, places = pick(parts, block, draw, ("q", "k", "v"))
    if module is not None and len(weight(module)) >= 16:
        order = torch.arange(len(weight(module)))
        order[:16] = order[:16].roll(8)
        reordered(module, order)
        return places


@fault("permuted")
def rotary_halves(parts, block, size, draw):
    there = parts.by_role(block)
    if "q" in there and parts.rotary is not None:
        for role in ("q", "k"):
            module = parts.at(block, there[role])
            order = torch.arange(len(weight(module))).view(-1, 2, 4).transpose(1, 2).flatten()
            reordered(module, order)
        return {(f"block {block}", there["q"]), (f"block {block}", there["k"])}


@fault("permuted")
def neurons_permuted(parts, block, size, draw):
    module, places = pick(parts, block, draw, ("up",))
    if module is not None:
        reordered(module, torch.randperm(len(weight(module)), generator=draw))
        return places


@fault("swapped")
def projections_swapped(parts, block, size, draw):
    there = parts.by_role(block)
    for a, b in (("gate", "up"), ("q", "k")):
        if a in there and b in there:
            one, two = parts.at(block, there[a]), parts.at(block, there[b])
            if one.weight.shape == two.weight.shape:
                one.weight, two.weight = two.weight, one.weight
                one.bias, two.bias = two.bias, one.bias
                return {(f"block {block}", there[a]), (f"block {block}", there[b])}


@fault("transposed")
def transposed(parts, block, size, draw):
    module, places = pick(parts, block, draw, ("o", "q"))
    if module is not None and module.weight.shape[0] == module.weight.shape[1]:
        module.weight.data = module.weight.data.T.contiguous()
        return places


@fault("sign")
def negated(parts, block, size, draw):
    module, places = pick(parts, block, draw)
    if module is not None:
        module.weight.data.neg_()
        return places


ROTARY = {("rotary_emb", "")}


@fault("rotary", *SMALL, 1e-1)
def rotary_base(parts, block, size, draw):
    if parts.rotary is not None:
        ends = torch.linspace(0, 1, parts.rotary.inv_freq.numel())
        parts.rotary.inv_freq = parts.rotary.inv_freq * (1 + 10 * size) ** -ends
        return ROTARY


@fault("rotary", *SMALL, 1e-1)
def rotary_scaling(parts, block, size, draw):
    if parts.rotary is not None:
        parts.rotary.inv_freq = parts.rotary.inv_freq / (1 + 10 * size)
        return ROTARY


@fault("rotary")
def rotary_positions(parts, block, size, draw):
    if parts.rotary is not None:
        kept = parts.rotary.forward
        parts.rotary.forward = lambda x, position_ids=None, *args, **kw: kept(
            x, position_ids + (position_ids > 3).to(position_ids), *args, **kw
        )
        return ROTARY


@fault("positions")
def positions_shifted(parts, block, size, draw):
    for name, module in parts.modules.items():
        if name.rpartition(".")[2] in ("wpe", "embed_positions", "position_embeddings") and hasattr(module, "weight"):
            module.weight.data = module.weight.data.roll(1, 0)
            key = name.removeprefix(f"{parts.model.base_model_prefix}.")
            unit, _, place = key.rpartition(".") if key.startswith("embeddings") else (key, "", "")
            return {(unit, place)}


@fault("mask")
def future_seen(parts, block, size, draw):
    path = parts.by_role(block).get("attention")
    if path is None or type(parts.model).__name__.endswith("MaskedLM"):
        return None

    def before(_, args, kw):
        mask = kw.get("attention_mask")
        return args, {**kw, "attention_mask": torch.zeros_like(mask)} if torch.is_tensor(mask) else kw

    parts.at(block, path).register_forward_pre_hook(before, with_kwargs=True)
    return {(f"block {block}", f"{path}:scores")}


@fault("mask", 64, 5)
def window(parts, block, size, draw):
    config = parts.model.config
    kinds = getattr(config, "layer_types", None)
    if not getattr(config, "sliding_window", None) or (kinds and "sliding_attention" not in kinds):
        return None
    config.sliding_window = int(size)
    return {
        (f"block {each}", f"{parts.by_role(each)['attention']}:scores")
        for each in range(len(parts.blocks))
        if not kinds or kinds[each] == "sliding_attention"
    }


@fault("epsilon", 3, 30, 1000)
def epsilon(parts, block, size, draw):
    module, places = one_norm(parts, block, draw)
    for name in ("variance_epsilon", "eps"):
        if hasattr(module, name):
            setattr(module, name, getattr(module, name) * size)
            return places


@fault("norm missing")
def norm_missing(parts, block, size, draw):
    module, places = one_norm(parts, block, draw)
    module.forward = lambda x, *args, **kw: x
    return places


@fault("norm type")
def norm_without_mean(parts, block, size, draw):
    module, places = one_norm(parts, block, draw)
    if type(module).__name__ == "LayerNorm" and module.bias is not None:
        module.forward = lambda x: F.rms_norm(x, x.shape[-1:], module.weight, module.eps) + module.bias
        return places


@fault("activation", 0, 1, 2)
def activation(parts, block, size, draw):
    path = parts.by_role(block).get("act")
    if path is None:
        return None
    module, x = parts.at(block, path), torch.linspace(-4, 4, 200)
    choice = [F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.silu, F.relu]
    others = sorted(((f(x) - module(x)).norm().item(), i) for i, f in enumerate(choice))
    others = [i for off, i in others if off > 1e-4]
    other = choice[others[min(int(size), len(others) - 1)]]
    module.forward = lambda x: other(x)
    # inside fused experts the place is that of all of them
    whole = path.partition("experts")
    return {(f"block {block}", path), (f"block {block}", whole[0] + whole[1])}


@fault("cap")
def cap_of_scores(parts, block, size, draw):
    path = parts.by_role(block).get("attention")
    if path and getattr(parts.at(block, path), "attn_logit_softcapping", None):
        parts.at(block, path).attn_logit_softcapping = None
        return {(f"block {block}", f"{path}:scores")}


@fault("cap")
def cap_of_logits(parts, block, size, draw):
    if getattr(parts.model.config, "final_logit_softcapping", None):
        parts.model.config.final_logit_softcapping = None
        return {("logits", "")}


@fault("factor", *SMALL, 1e-1)
def scores_scaled(parts, block, size, draw):
    path = parts.by_role(block).get("attention")
    for name in ("scaling", "scale", "inv_norm_factor"):
        if path and isinstance(getattr(parts.at(block, path), name, None), float):
            setattr(parts.at(block, path), name, getattr(parts.at(block, path), name) * (1 + size))
            return {(f"block {block}", f"{path}:{what}") for what in ("scores", "qk", "q")}


@fault("noise", *SMALL, 1e-1)
def head_changed(parts, block, size, draw):
    head = parts.model.get_output_embeddings()
    if head is not None and not type(parts.model).__name__.endswith("MaskedLM"):
        head.weight = nn.Parameter(head.weight.data + size * head.weight.data.std() * noise(head.weight, draw))
        return {("head", "")}


def embeddings(parts: Parts) -> tuple[Any, Places]:
    table = parts.model.get_input_embeddings()
    table.weight = nn.Parameter(table.weight.data.clone())
    return table, {("embed", ""), ("embeddings", "word_embeddings"), ("embeddings", "tok_embeddings")}


@fault("rows")
def row_of_zeros(parts, block, size, draw):
    table, places = embeddings(parts)
    table.weight.data[40] = 0
    return places


@fault("rows")
def rows_swapped(parts, block, size, draw):
    table, places = embeddings(parts)
    table.weight.data[[40, 41]] = table.weight.data[[41, 40]]
    return places


@fault("factor")
def embeddings_scaled(parts, block, size, draw):
    table, places = embeddings(parts)
    if hasattr(table, "embed_scale"):
        table.embed_scale = torch.tensor(1.0)
        return places


@fault("skipped")
def block_skipped(parts, block, size, draw):
    parts.blocks[block].forward = lambda x, *args, **kw: x
    return {(f"block {block}", place) for place in ("", *dict(parts.blocks[block].named_modules()))}


@fault("order")
def blocks_swapped(parts, block, size, draw):
    a, b = (block, block + 1) if block + 1 < len(parts.blocks) else (block - 1, block)
    first = next(iter(dict(parts.blocks[a].named_children())))
    parts.blocks[a], parts.blocks[b] = parts.blocks[b], parts.blocks[a]
    return {(f"block {a}", place) for place in dict(parts.blocks[a].named_modules())} | {(f"block {a}", first)}


@fault("residual", *SMALL, 1e-1)
def residual(parts, block, size, draw):
    then(parts.blocks[block], lambda out, x: out + size * x)
    return {(f"block {block}", "")}


@fault("checkpoint")
def other_checkpoint(parts, block, size, draw):
    for x in parts.model.parameters():
        x.data = x.data.std() * noise(x, draw) + (x.data.mean() if x.ndim == 1 else 0)
    return {("embed", ""), ("embeddings", "word_embeddings"), ("embeddings", "tok_embeddings")}


@fault("adapter", *SMALL, 1e-1)
def adapter(parts, block, size, draw):
    module, places = pick(parts, block, draw)
    if module is not None:
        w = weight(module)
        more = torch.randn(w.shape[0], 2, generator=draw) @ torch.randn(2, w.shape[1], generator=draw)
        w.add_(more / more.norm() * w.norm() * size)
        return places


@fault("noise", 8, 6, 5)
def coarser(parts, block, size, draw):
    module, places = pick(parts, block, draw)
    if module is not None:
        w = weight(module)
        step = w.abs().amax(1, keepdim=True) / (2 ** (int(size) - 1) - 1)
        w.copy_((w / step).round() * step)
        return places


@fault("precision")
def stream_in_16_bits(parts, block, size, draw):
    then(parts.blocks[block], lambda out, _: out.bfloat16().float())
    return {(f"block {block}", "")}


@fault("precision")
def module_in_16_bits(parts, block, size, draw):
    module, places = pick(parts, block, draw)
    if module is not None:
        then(module, lambda out, _: out.bfloat16().float())
        return places


@fault("experts")
def experts_permuted(parts, block, size, draw):
    path = parts.by_role(block).get("experts")
    if path:
        for x in parts.at(block, path).parameters(recurse=False):
            x.data = x.data.roll(1, 0)
        return {(f"block {block}", path), (f"block {block}", path.rpartition(".")[0])}


@fault("router", *SMALL, 1e-1)
def router(parts, block, size, draw):
    path = parts.by_role(block).get("router")
    if path:
        module = parts.at(block, path)
        module.weight.data += size * module.weight.data.std() * noise(module.weight, draw)
        return {(f"block {block}", path)}


@fault("weight", *SMALL, 1)
def one_weight(parts, block, size, draw):
    module, places = pick(parts, block, draw)
    if module is not None:
        weight(module)[3, 5] += size * math.sqrt(weight(module).shape[1]) * weight(module).std()
        return places


def planted(model: Any, name: str, size: float, seed: int = 0) -> tuple[Any, Places | None]:
    """A copy with a fault, and where it stands."""
    return planted_by(FAULTS[name][2], model, size, seed)
