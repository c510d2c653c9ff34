"""What weights take in memory, and which models are in memory at a time."""

from collections.abc import Sequence

import torch

from repsim_cli.models.loading import BUDGET
from repsim_cli.models.source import Source
from repsim_cli.settings import Hardware


def weight_bytes(source: Source, dtype: str) -> float:
    """Bytes of a model's weights once it is loaded in this dtype."""
    return float(getattr(torch, dtype).itemsize * source.parameters)


def resident_bytes(sources: Sequence[Source], hardware: Hardware, *, together: bool = False) -> float:
    """Bytes of the weights that are in memory at a time. together: all models are, whatever the setting."""
    weights = [weight_bytes(source, hardware.dtype) for source in sources]
    return float(sum(weights)) if together or all_at_once(sources, hardware) else max(weights, default=0.0)


def all_at_once(sources: Sequence[Source], hardware: Hardware) -> bool:
    """Whether all these models are in memory together, and not one after the other: as `hardware.resident` says, or
    where their weights take at most half of the memory."""
    if hardware.resident != "auto":
        return hardware.resident == "all"
    return sum(weight_bytes(source, hardware.dtype) for source in sources) <= BUDGET * _room(hardware)


def _room(hardware: Hardware) -> float:
    """Bytes for the weights of all models: of the GPUs that are named, or the memory limit."""
    named = hardware.devices or [hardware.device]
    places = {torch.device(name) for name in (named.values() if isinstance(named, dict) else named)}
    if any(place.type != "cuda" for place in places) or not torch.cuda.is_available():
        return hardware.memory_limit
    return float(sum(torch.cuda.mem_get_info(place)[0] for place in places))
