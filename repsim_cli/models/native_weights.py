"""The files that hold the weights of native models of TransformerLens."""

from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import check_readable


def find_native_weights(where: Path) -> Path:
    files = [*sorted(where.glob("*final.pth")), *where.glob("model.safetensors")]
    if not files:
        raise BadInput(f"path: no model.safetensors and no *final.pth in it, got '{where}'; give a folder with weights")
    return check_readable(files[0])


def check_weights_file(file: Path) -> Path:
    if not file.is_file():
        raise BadInput(f"weights: no such file, got '{file}'; check the path")
    if file.suffix not in (".safetensors", ".pth", ".pt"):
        raise BadInput(f"weights: unknown kind of file, got '{file}'; use .safetensors, or a .pth state dict")
    return check_readable(file)


def fill(bridge: Any, file: Path) -> None:
    """Loads the weights of a file into a native model; older names of TransformerLens are converted."""
    from transformer_lens.utilities.tl_checkpoint_conversion import convert_tl_checkpoint

    try:
        if file.suffix == ".safetensors":
            state = safetensors.torch.load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken archive raises anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(
            f"weights: not a complete file of weights, got '{file}' ({reason[:160]}); copy it again"
        ) from error
    if not isinstance(state, dict):
        raise BadInput(f"weights: not a state dict, got {type(state).__name__} in '{file}'; save model.state_dict()")
    try:
        if "embed.W_E" in state:
            state = convert_tl_checkpoint(state, bridge.cfg)
        # the old models have no bias there, and it takes no part in the activations
        state.setdefault("unembed.bias", torch.zeros(bridge.cfg.d_vocab))
        bridge.load_state_dict({k: v.float() for k, v in state.items()}, strict=True)
    except (ValueError, RuntimeError, KeyError, AttributeError, AssertionError) as error:
        reason = " ".join(str(error).split())
        raise BadInput(f"weights: not those of this config, got '{file}' ({reason[:200]}); check both") from error
