"""Tiny models of every architecture, their parts, and how a fault is planted in one."""

import copy
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any

import torch
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


def planted_by(plant: Plant, model: Any, size: float = 1, seed: int = 0) -> tuple[Any, Places | None]:
    """A copy with a fault in a block that is drawn, or in the next that has such a part."""
    broken = copy.deepcopy(model)
    parts, draw = Parts(broken), torch.Generator().manual_seed(seed)
    count = len(parts.blocks)
    first = int(torch.randint(count, (1,), generator=draw))
    with torch.no_grad():
        tried = (plant(parts, (first + more) % count, size, draw) for more in range(count))
        return broken, next((places for places in tried if places is not None), None)


def instead(module: Any, name: str, other: Callable[..., Any]) -> None:
    """While the module runs, a function of its file is another."""
    forward, file = module.forward, sys.modules[type(module).__module__]

    def changed(*args: Any, **kwargs: Any) -> Any:
        kept = getattr(file, name)
        setattr(file, name, other(kept))
        try:
            return forward(*args, **kwargs)
        finally:
            setattr(file, name, kept)

    module.forward = changed


def mask_entering(module: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Another mask enters an attention module."""

    def before(_: Any, args: tuple, kw: dict) -> Any:
        mask = kw.get("attention_mask")
        return args, {**kw, "attention_mask": change(mask.clone())} if torch.is_tensor(mask) else kw

    module.register_forward_pre_hook(before, with_kwargs=True)


def change_entering(module: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    forward = module.forward
    module.forward = lambda x, *args, **kw: forward(change(x), *args, **kw)
