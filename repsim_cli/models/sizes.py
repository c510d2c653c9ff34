"""What weights take in memory, and which models are in memory at a time."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from repsim_cli.base.errors import BadInput
from repsim_cli.base.planning import check_device
from repsim_cli.base.settings import Hardware
from repsim_cli.models.loading import BUDGET
from repsim_cli.models.parts import explain_block_refusal, list_block_names
from repsim_cli.models.source import Source


def count_weight_bytes(source: Source, dtype: str) -> float:
    """Bytes of a model's weights once it is loaded in this dtype, of linear layers in fewer bits where they are
    quantized."""
    item, packed = getattr(torch, dtype).itemsize, 0
    if source.bits is not None:
        packed = sum(x.weight.numel() for x in source.skeleton.modules() if isinstance(x, nn.Linear))
    return item * (source.parameters - packed) + packed * (source.bits or 0) / 8


def goes_by_block(source: Source, hardware: Hardware) -> bool:
    """Tells whether a model is run by block: as `hardware.by_block` says, or where its weights take more than half of
    the memory. Raises BadInput where it must and cannot be."""
    if hardware.shard == "auto":
        if hardware.by_block == "always":
            raise BadInput(
                "hardware.by_block: hardware.shard=auto spreads models instead, got always; drop one of the two"
            )
        return False
    if hardware.by_block == "auto":
        return (
            count_weight_bytes(source, hardware.dtype) > BUDGET * _count_available_bytes(hardware)
            and explain_block_refusal(source) is None
        )
    if hardware.by_block == "always" and (why := explain_block_refusal(source)) is not None:
        raise BadInput(f"hardware.by_block: a {source.model_type} cannot be run by block ({why}), got always; set auto")
    return hardware.by_block == "always"


def count_by_block_bytes(source: Source, dtype: str) -> float:
    """Bytes of the weights that a pass by block holds at a time: those outside of blocks, and the largest block."""
    sizes = [
        sum(x.numel() for x in source.skeleton.get_submodule(block).parameters()) for block in list_block_names(source)
    ]
    return count_weight_bytes(source, dtype) * (source.parameters - sum(sizes) + max(sizes)) / source.parameters


def count_resident_bytes(sources: Sequence[Source], hardware: Hardware, *, together: bool = False) -> float:
    """Bytes of the weights that are in memory at a time. together: all models are, whatever the setting."""
    by_block = [] if together else [source for source in sources if goes_by_block(source, hardware)]
    others = [source for source in sources if together or not goes_by_block(source, hardware)]
    weights = [count_weight_bytes(source, hardware.dtype) for source in others]
    if hardware.shard == "auto":
        weights = [min(size, _count_host_bytes(hardware)) for size in weights]
    at_once = float(sum(weights)) if together or are_resident_together(others, hardware) else max(weights, default=0.0)
    return max([at_once, *(count_by_block_bytes(source, hardware.dtype) for source in by_block)])


def list_models_alone(sources: Mapping[str, Source], hardware: Hardware) -> list[str]:
    """The labels of the models that are in memory alone, one after the other: those that run by block, and the others
    too where not all of them are in memory at once."""
    others = [label for label, source in sources.items() if not goes_by_block(source, hardware)]
    together = len(others) < 2 or are_resident_together([sources[label] for label in others], hardware)
    return [label for label in sources if not together or label not in others]


def are_resident_together(sources: Sequence[Source], hardware: Hardware) -> bool:
    """Tells whether all these models are in memory together, and not one after the other: as `hardware.resident` says,
    or where their weights take at most half of the memory."""
    if hardware.resident != "auto":
        return hardware.resident == "all"
    return sum(count_weight_bytes(source, hardware.dtype) for source in sources) <= BUDGET * _count_available_bytes(
        hardware
    )


def _count_available_bytes(hardware: Hardware) -> float:
    """Bytes for the weights of all models: of the GPUs that are named, or the memory limit."""
    named = hardware.devices or [hardware.device]
    names = named.values() if isinstance(named, dict) else named
    try:
        places = {torch.device(name) for name in names}
        if all(place.type == "cuda" for place in places) and torch.cuda.is_available():
            return float(sum(torch.cuda.mem_get_info(place)[0] for place in places))
    except (RuntimeError, AssertionError):  # a device that is not here, of which `check_device` tells
        pass
    return hardware.memory_limit


def _count_host_bytes(hardware: Hardware) -> float:
    """The most bytes of weights in the host's memory where models are spread."""
    if hardware.max_memory_gb is not None:
        return 1e9 * hardware.max_memory_gb.get("cpu", 0.0)
    return BUDGET * hardware.memory_limit


def check_spread(hardware: Hardware) -> None:
    """Raises BadInput for settings of spread models that cannot be used."""
    if hardware.shard == "none":
        if hardware.max_memory_gb is not None:
            raise BadInput(
                f"hardware.max_memory_gb: only for hardware.shard=auto, got none and {hardware.max_memory_gb}; drop it"
            )
        return
    if find_spec("accelerate") is None:
        raise BadInput(
            "hardware.shard: needs the package accelerate, which is not installed; pip install -e '.[shard]'"
        )
    if hardware.devices is not None:
        raise BadInput(f"hardware.devices: shard=auto chooses the devices, got {hardware.devices}; drop one of the two")
    for device in hardware.max_memory_gb or {}:
        if not re.fullmatch(r"cpu|cuda\d+", device):
            raise BadInput(f"hardware.max_memory_gb: no such device, got '{device}'; name cpu, cuda0, cuda1, ...")
        check_device("hardware.max_memory_gb", device.replace("cuda", "cuda:"))


def find_spread(hardware: Hardware) -> dict[int | str, int] | None:
    """The most bytes of weights on each device, as accelerate names them; None where models are not spread."""
    if hardware.shard == "none":
        return None
    if hardware.max_memory_gb is not None:
        sizes = {"cpu": 0.0, **hardware.max_memory_gb}
        return {int(name[4:]) if name != "cpu" else name: int(1e9 * size) for name, size in sizes.items()}
    from accelerate.utils import get_max_memory

    every: dict[Any, Any] = get_max_memory()
    return {**every, "cpu": int(_count_host_bytes(hardware))}


def describe_placement(source: Source, hardware: Hardware) -> str:
    """Says on which devices the weights of a spread model go, in GB; empty for others."""
    spread = find_spread(hardware)
    if spread is None or not hasattr(source.skeleton, "_no_split_modules"):
        return ""
    from accelerate import infer_auto_device_map
    from accelerate.utils import compute_module_sizes, get_balanced_memory

    skeleton: Any = source.skeleton
    dtype, whole = getattr(torch, hardware.dtype), [*(skeleton._no_split_modules or [])]
    room = get_balanced_memory(skeleton, {**spread}, no_split_module_classes=whole, dtype=dtype)
    sizes, totals = compute_module_sizes(skeleton, dtype=dtype), Counter()
    for name, device in infer_auto_device_map(skeleton, room, no_split_module_classes=whole, dtype=dtype).items():
        totals[f"cuda:{device}" if isinstance(device, int) else device] += sizes[name]
    return ", ".join(f"{size / 1e9:.3g} GB on {device}" for device, size in totals.items())
