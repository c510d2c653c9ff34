"""The parts that a model runs one after another: its blocks, and the modules before, between and behind them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any

from torch import nn

from repsim_cli.models.architectures import find_architecture
from repsim_cli.models.calls import Hooks
from repsim_cli.models.points import Architecture
from repsim_cli.studies.verify.trace import IN

WHOLE = "module"  # the key of a model that is one unit


@dataclass(frozen=True)
class ModelUnit:
    """A part of a model. key: what it is called in both models. short: its path without the prefix of the backbone.
    block: its number, of a block."""

    key: str
    short: str
    module: nn.Module
    block: int | None = None

    @property
    def prefix(self) -> str:
        """The beginning of the names of its own modules and weights."""
        return f"{self.short}." if self.short else ""


def find_hook_point_table(model: nn.Module) -> Architecture | None:
    """The hook points of a model of transformers; None where it has no table."""
    backbone = getattr(model, "base_model", None)
    config = getattr(model, "config", None)
    if backbone is None or not hasattr(config, "model_type"):
        return None
    try:
        table = find_architecture(config, backbone)
    except (AttributeError, KeyError, TypeError):  # of a module with a config of its own
        return None
    return None if table is None or table.guessed else table


def index_point_kinds(table: Architecture | None, stack: str | None = None) -> dict[str, str]:
    """Places in a block -> the kind of hook point that they are."""
    if table is None:
        return {}
    block = table.stacks[stack].block if stack in table.stacks else table.block
    ends = {"input": IN, "output": "", "attention": ":"}
    return {
        point.module + ends[point.side] + (kind.replace("attn_", "") if point.side == "attention" else ""): kind
        for kind, point in block.items()
        if not (kind == "resid_pre" or point.call)
    }


def split_into_units(model: nn.Module) -> list[ModelUnit]:
    """Blocks are the members of the outermost lists of modules; then every module that holds none of them and is in no
    other such module. A model without modules is one unit."""
    modules = dict(model.named_modules())
    if len(modules) == 1:
        return [ModelUnit(WHOLE, "", model)]
    lists = [name for name, module in modules.items() if isinstance(module, nn.ModuleList) and len(module)]
    lists = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    opened = {"", *(name[:place] for name in lists for place, c in enumerate(name) if c == "."), *lists}
    within, made = set[str](), []
    roles = _find_module_roles(model, modules)
    for name, module in modules.items():
        above = name.rpartition(".")[0]
        if name in opened:
            continue
        if above in within or any(name.startswith(f"{done}.") for done in within):
            continue
        within.add(name)
        if above in lists:
            number = int(name.rpartition(".")[2])
            side = _name_block_list(above) if len(lists) > 1 else ""
            made.append(ModelUnit(f"{side}block {number}", shorten_name(model, name), module, number))
        else:
            made.append(ModelUnit(roles.get(name, shorten_name(model, name)), shorten_name(model, name), module))
    return made


def _name_block_list(blocks: str) -> str:
    """Names one of several lists of blocks: `encoder` or `decoder`, else the list's own name."""
    return f"{next((part for part in blocks.split('.') if part in ('encoder', 'decoder')), blocks)} "


def find_unit_key(name: str, units: Sequence[ModelUnit]) -> str:
    """Finds the key of the unit that a tensor belongs to; empty where it belongs to none."""
    return next((unit.key for unit in units if name.startswith(unit.prefix)), "")


def shorten_name(model: nn.Module, name: str) -> str:
    """The name of a module without the prefix of the backbone."""
    prefix = getattr(model, "base_model_prefix", "")
    return name.removeprefix(f"{prefix}.") if prefix else name


def _find_module_roles(model: nn.Module, modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """The names of the modules that most models have under other names: the embeddings, the final norm, the head."""
    made = {}
    for role, get in (("embed", "get_input_embeddings"), ("head", "get_output_embeddings")):
        try:
            wanted = getattr(model, get)() if hasattr(model, get) else None
        except NotImplementedError:
            wanted = None
        made |= {name: role for name, module in modules.items() if wanted is not None and module is wanted}
    table = find_hook_point_table(model)
    if table is not None and table.final_norm is not None:
        made |= {name: "final_norm" for name in modules if shorten_name(model, name) == table.final_norm.module}
    return made


Enter = Callable[[str, ModelUnit, tuple[Any, ...], dict[str, Any]], Any]
Leave = Callable[[str, ModelUnit, tuple[Any, ...], dict[str, Any], Any], Any]


@contextmanager
def hook_units(
    units: Sequence[ModelUnit], enter: Enter, leave: Leave, paused: Callable[[], bool] = lambda: False
) -> Iterator[Hooks]:
    """Calls enter(key, unit, args, kwargs) and leave(key, unit, args, kwargs, output) around each unit of a model; both
    may return what goes on in place of the inputs or the output. The key of a unit that runs again has a number. Passes
    of other threads through the same units are none of this one's business."""
    hooks, running, thread = Hooks(), list[str](), get_ident()
    calls: dict[str, int] = {}

    def enter_unit(unit: ModelUnit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if paused() or get_ident() != thread:
            return None
        count = calls[unit.key] = calls.get(unit.key, 0) + 1
        running.append(unit.key if count == 1 else f"{unit.key} (call {count})")
        return enter(running[-1], unit, args, kwargs)

    def leave_unit(unit: ModelUnit, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        return None if paused() or get_ident() != thread else leave(running.pop(), unit, args, kwargs, out)

    try:
        for unit in units:
            hooks.call_before(unit.module, lambda args, kwargs, unit=unit: enter_unit(unit, args, kwargs))
            hooks.call_after(unit.module, lambda args, kwargs, out, unit=unit: leave_unit(unit, args, kwargs, out))
        yield hooks
    finally:
        hooks.remove()
