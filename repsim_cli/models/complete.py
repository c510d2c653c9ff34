"""Whether a checkpoint has all weights of its model and no others."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from repsim_cli.base.errors import BadInput


def check_complete(model: Any, info: Mapping[str, Any], where: str) -> None:
    """Raises BadInput where the backbone's weights are not all there, in their shape. info: of transformers."""
    backbone = "" if model.base_model is model else f"{model.base_model_prefix}."
    missing = sorted(key for key in info["missing_keys"] if key.startswith(backbone) and "pooler" not in key)
    wrong = sorted(f"{key}: {tuple(saved)} for {tuple(wanted)}" for key, saved, wanted in info["mismatched_keys"])
    if missing or wrong:
        faults = (
            _say_how_many(missing, "is missing", "are missing"),
            _say_how_many(wrong, "has the wrong shape", "have the wrong shape"),
        )
        raise BadInput(
            f"path: {' and '.join(filter(None, faults))}, got '{where}' (first: {(missing + wrong)[0]}); save the "
            "model again"
        )
    if surplus := _find_surplus_block(model, info["unexpected_keys"]):
        raise BadInput(
            f"path: the weights have more blocks than config.json, got {surplus[0]} in '{where}' with blocks 0 to "
            f"{surplus[1]}; correct config.json, and choose blocks by extract.layers"
        )


def _say_how_many(weights: Sequence[str], one: str, several: str) -> str:
    """Says of how many weights something is true; empty for none."""
    if not weights:
        return ""
    return f"1 weight {one}" if len(weights) == 1 else f"{len(weights)} weights {several}"


def find_block_lists(skeleton: nn.Module, layers: int) -> tuple[str, ...]:
    """Finds the lists of as many modules as a model has layers, by the last part of their names."""
    named = skeleton.named_modules()
    return tuple(
        sorted({name.split(".")[-1] for name, part in named if isinstance(part, nn.ModuleList) and len(part) == layers})
    )


def check_blocks(lists: Iterable[str], layers: int, names: Collection[str], where: str) -> None:
    """Raises BadInput for a checkpoint that lacks a block of the model, by the names of its weights. lists: the names
    of the model's lists of blocks.

    Files of a kind that names blocks otherwise are left to `check_complete`.
    """
    held = {(part, int(number)) for name in names for part, number in re.findall(r"(\w+)\.(\d+)(?=\.)", name)}
    for part in lists:
        lacking = [block for block in range(layers) if (part, block) not in held]
        if 0 < len(lacking) < layers:
            raise BadInput(
                f"path: weights of block {lacking[0]} are missing, got {layers - len(lacking)} of {layers} blocks in "
                f"'{where}'; save the model again"
            )


def _find_surplus_block(model: Any, unexpected: Iterable[str]) -> tuple[str, int] | None:
    """Finds a weight of a block beyond the model's last, and the number of that last block; None without any.

    unexpected: the names of the weights that the model has no place for.
    """
    lengths = {name: len(part) for name, part in model.named_modules() if isinstance(part, nn.ModuleList)}
    for key in sorted(unexpected):
        for place in re.finditer(r"\.(\d+)\.", key):
            blocks = key[: place.start()]
            length = lengths.get(blocks, lengths.get(blocks.removeprefix(f"{model.base_model_prefix}."), 0))
            if 0 < length <= int(place[1]):
                return key, length - 1
    return None
