"""Tiny models of every architecture, faults to plant in them, and changes that are none."""

import copy
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from helpers.tiny_configs import tiny_config

from repsim_cli.models.library import import_transformers
from repsim_cli.studies.verify import inputs

VOCABULARY, CONTEXT = 96, 64
NORMS = ("norm", "ln_", "layernorm")


def built(name: str, seed: int = 0, attention: str = "eager") -> Any:
    """A model of tests/helpers/tiny_configs.yaml with a head for tokens, weights that hide nothing, and no dropout."""
    settings = tiny_config(name)
    config = import_transformers().AutoConfig.for_model(settings.pop("model_type"), **settings)
    for key, value in list(vars(config).items()):
        if "dropout" in key and isinstance(value, float):
            setattr(config, key, 0.0)
    config.use_cache, config._experts_implementation = False, "eager"
    masked = type(config) in import_transformers().MODEL_FOR_MASKED_LM_MAPPING
    auto = import_transformers().AutoModelForMaskedLM if masked else import_transformers().AutoModelForCausalLM
    torch.manual_seed(seed)
    model = auto.from_config(config, attn_implementation=attention).float().eval()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for path, x in model.named_parameters():
            noise = torch.randn(x.shape, generator=draw)
            if x.ndim > 1:
                table = any(part in path for part in ("emb", "wte", "wpe"))
                x.copy_(noise * (0.7 if table else 0.7 / math.sqrt(x.shape[-1])))
            elif any(part in path.lower() for part in NORMS):
                x.add_(0.15 * noise)
            else:
                x.copy_(0.1 * noise)
    return model


def batches(model: Any = None, context: int = CONTEXT) -> list[inputs.Batch]:
    """model: one whose context may be shorter."""
    shape = None if model is None else inputs.read_input_shape(model)
    context = min(context, (shape and shape.context) or context)
    draw = torch.Generator().manual_seed(3)
    text = torch.randint(3, VOCABULARY, (4, 16), generator=draw).tolist()
    return inputs.make_batches(inputs.InputShape(VOCABULARY, context, (4,), (1, 2), 0), text)


ENDS = {
    "q": ("q_proj", "self.query", "q_lin"),
    "k": ("k_proj", "self.key", "k_lin"),
    "v": ("v_proj", "self.value", "v_lin"),
    "qkv": ("c_attn", "query_key_value", "qkv_proj"),
    "o": ("o_proj", "out_proj", "attn.c_proj", "attention.dense", "attn.dense", "attention.output.dense", "out_lin"),
    "gate": ("gate_proj",),
    "up": ("up_proj", "c_fc", "h_to_4h", "fc1", "fc_in", "intermediate.dense", "lin1"),
    "down": ("down_proj", "mlp.c_proj", "4h_to_h", "fc2", "fc_out", "output.dense", "lin2"),
}
Places = set[tuple[str, str]]


@dataclass
class Parts:
    """Of a model: by block, the paths of its modules by what they do; and what stands outside."""

    model: Any

    def __post_init__(self) -> None:
        lists = [(n, m) for n, m in self.model.named_modules() if isinstance(m, nn.ModuleList) and "expert" not in n]
        self.path, self.blocks = max(lists, key=lambda each: sum(p.numel() for p in each[1].parameters()))
        self.modules = dict(self.model.named_modules())

    def by_role(self, block: int) -> dict[str, str]:
        made: dict[str, str] = {}
        for path, module in self.blocks[block].named_modules():
            name = type(module).__name__.lower()
            if name in ("linear", "conv1d", "falconlinear"):
                fits = (role for role, ends in ENDS.items() if path.endswith(ends) and role not in made)
                role = next((role for role in fits if not (role == "down" and "attention" in path)), None)
                if role:
                    made[role] = path
            elif not list(module.children()) and any(word in name for word in ("act", "gelu", "silu", "relu")):
                made.setdefault("act", path)
            elif "attention" in name and path:
                made["attention"] = path
            elif "expert" in name:
                made.setdefault("experts", path)
            elif "router" in name:
                made["router"] = path
        return made

    def norms(self, block: int) -> list[str]:
        return [path for path, m in self.blocks[block].named_modules() if "norm" in type(m).__name__.lower()]

    def at(self, block: int, path: str) -> Any:
        return self.blocks[block].get_submodule(path)

    def named(self, *words: str) -> Any:
        return next((m for n, m in self.modules.items() if n.rpartition(".")[2] in words), None)

    @property
    def rotary(self) -> Any:
        return next((m for n, m in self.modules.items() if hasattr(m, "inv_freq") and self.path not in n), None)


def weight(module: Any) -> Tensor:
    """(outputs, inputs)."""
    return module.weight.data.T if type(module).__name__ == "Conv1D" else module.weight.data


Plant = Callable[[Parts, int, float, torch.Generator], Places | None]
"""plant(parts, block, size, draw) -> where it stands; None where the model has no such part."""
FAULTS: dict[str, tuple[str, tuple[float, ...], Plant]] = {}
"""By name: the kind, sizes, and what plants it."""
LINEAR = ("q", "k", "v", "qkv", "o", "gate", "up", "down")
ROUNDINGS = 3, 30, 1000
SMALL = tuple(count * 2.0**-24 for count in ROUNDINGS)  # of a value, in float32


def fault(kind: str, *sizes: float) -> Callable[[Plant], Plant]:
    def keep(plant: Plant) -> Plant:
        FAULTS[plant.__name__] = kind, sizes or (1,), plant
        return plant

    return keep


def pick(parts: Parts, block: int, draw: torch.Generator, roles: tuple[str, ...] = LINEAR) -> Any:
    """A projection of the block, and where it stands."""
    there = parts.by_role(block)
    have = [role for role in roles if role in there]
    if not have:
        return None, set()
    path = there[have[int(torch.randint(len(have), (1,), generator=draw))]]
    module = parts.at(block, path)
    # blocks may share their weights
    paths = (dict(each.named_modules()) for each in parts.blocks)
    alike = [number for number, some in enumerate(paths) if getattr(some.get(path), "weight", None) is module.weight]
    return module, {(f"block {number}", path) for number in alike}


def noise(x: Tensor, draw: torch.Generator) -> Tensor:
    return torch.randn(x.shape, generator=draw)


def then(module: Any, change: Callable[..., Any]) -> None:
    """Puts change(output, first input) in place of what a module gives."""
    forward = module.forward.__func__

    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        entered = (args[0] if args else next(iter(kwargs.values()))).clone()
        out = forward(self, *args, **kwargs)
        return change(out, entered) if torch.is_tensor(out) else (change(out[0], entered), *out[1:])

    module.forward = MethodType(changed, module)  # copies of the module call their own


def reordered(module: Any, order: Tensor) -> None:
    weight(module).copy_(weight(module)[order].clone())
    if module.bias is not None:
        module.bias.data = module.bias.data[order].clone()


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


def planted_by(plant: Plant, model: Any, size: float = 1, seed: int = 0) -> tuple[Any, Places | None]:
    """A copy with a fault in a block that is drawn, or in the next that has such a part."""
    broken = copy.deepcopy(model)
    parts, draw = Parts(broken), torch.Generator().manual_seed(seed)
    count = len(parts.blocks)
    first = int(torch.randint(count, (1,), generator=draw))
    with torch.no_grad():
        tried = (plant(parts, (first + more) % count, size, draw) for more in range(count))
        return broken, next((places for places in tried if places is not None), None)
