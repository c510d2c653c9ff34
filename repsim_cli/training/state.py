"""The saved state of a training: a killed training resumes from it and ends with the same bits."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from repsim_cli.base.arrays import hash_tensors
from repsim_cli.runs.results import write

log = logging.getLogger("repsim")


def list_running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """The running statistics of batch norms, which training changes beside the weights."""
    kind = nn.modules.batchnorm._BatchNorm  # pyright: ignore[reportPrivateUsage] - of all dimensions
    norms = {name: part for name, part in model.named_modules() if isinstance(part, kind)}
    return {f"{name}.{key}": x for name, norm in norms.items() for key, x in norm.named_buffers()}


def save_state(
    file: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    draw: np.random.Generator,
    more: Mapping[str, Tensor],
) -> None:
    """Weights, running statistics, moments, torch's generators and `more` as safetensors; the generator of batches in
    their metadata."""
    tensors: dict[str, Tensor] = {f"weights.{name}": x.detach() for name, x in model.named_parameters()}
    tensors |= {f"statistics.{name}": x for name, x in list_running_statistics(model).items()}
    for i, moments in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{i}.{key}": x for key, x in moments.items()}
    tensors |= {f"more.{name}": x for name, x in more.items()}
    tensors["torch"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    held = {name: x.contiguous() for name, x in tensors.items()}
    metadata = {"draw": json.dumps(draw.bit_generator.state), "digest": hash_tensors(sorted(held.items()))}
    write(file, safetensors.torch.save(held, metadata))


def is_resumable(file: Path | None) -> bool:
    """Tells whether a training was left in this file, with all its bytes as they were; drops a damaged one."""
    if file is None or not file.is_file():
        return False
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            known = opened.metadata() or {}
        whole = "draw" in known and known.get("digest") == hash_tensors(
            sorted(safetensors.torch.load_file(file).items())
        )
    except safetensors.SafetensorError:
        whole = False
    if not whole:
        log.warning("%s: the state of a training is damaged; it is dropped, and the training begins again", file)
        file.unlink()
    return whole


def restore_state(
    file: Path, model: nn.Module, optimiser: torch.optim.Optimizer, draw: np.random.Generator
) -> dict[str, Tensor]:
    """Restores a saved state; returns the tensors saved as `more`."""
    tensors = safetensors.torch.load_file(file)
    with safetensors.safe_open(file, framework="pt") as opened:
        draw.bit_generator.state = json.loads(opened.metadata()["draw"])
    with torch.no_grad():
        for name, x in model.named_parameters():
            x.copy_(tensors[f"weights.{name}"])
        for name, x in list_running_statistics(model).items():
            x.copy_(tensors[f"statistics.{name}"])
    moments: dict[int, dict[str, Tensor]] = {}
    for name, x in tensors.items():
        if name.startswith("optimiser."):
            _, i, key = name.split(".")
            moments.setdefault(int(i), {})[key] = x
    optimiser.load_state_dict({**optimiser.state_dict(), "state": moments})
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])
    return {name.removeprefix("more."): x for name, x in tensors.items() if name.startswith("more.")}
