"""Weights that a package stores as integers of few bits, while they are loaded."""

from importlib.util import find_spec
from typing import Any

import torch

from repsim_cli.base.errors import BadInput
from repsim_cli.models.library import import_transformers
from repsim_cli.models.rounding import Quantize


def check_quantize(quantize: Quantize, given: Any, adapter: str | None) -> None:
    """Raises BadInput where weights cannot be quantized in this way here. given: how the checkpoint is quantized, or
    None."""
    if quantize.method == "gptq":
        raise BadInput(
            "quantize.method: weights are fitted to texts, which a run does not do, got gptq; give a checkpoint that "
            "was quantized by it"
        )
    if given is not None:
        raise BadInput(f"quantize: the checkpoint is quantized already, got {given!s:.80}; drop it")
    if adapter is not None:
        raise BadInput(
            f"adapter, quantize: an adapter cannot be merged into weights of {quantize.method}, got '{adapter}'; merge "
            "it first, and give the result as path"
        )
    if quantize.bits not in (4, 8):
        raise BadInput(f"quantize.bits: {quantize.method} stores 4 or 8 bits, got {quantize.bits}; use one of them")
    for package in (quantize.method, "accelerate"):
        if find_spec(package) is None:
            raise BadInput(
                f"quantize.method: {quantize.method} needs the package {package}, which is not installed; "
                f"pip install -e '.[{quantize.method}]'"
            )
    if quantize.method == "torchao" and quantize.bits == 4 and not torch.cuda.is_available():
        raise BadInput(
            "quantize.bits: 4 bits of torchao need a GPU, and there is none; use bits: 8 or method: bitsandbytes"
        )


def make_quantization_config(quantize: Quantize, dtype: torch.dtype) -> Any:
    """The settings by which transformers quantizes weights while it loads them."""
    transformers, four = import_transformers(), quantize.bits == 4
    if quantize.method == "bitsandbytes":
        return transformers.BitsAndBytesConfig(
            load_in_8bit=not four, load_in_4bit=four, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
        )
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig

    return transformers.TorchAoConfig(Int4WeightOnlyConfig() if four else Int8WeightOnlyConfig())


def read_weight_bits(given: Any) -> int | None:
    """Bits per weight of a quantized checkpoint, from the quantization_config of its config; None where unknown."""
    if not isinstance(given, dict):
        given = given.to_dict() if hasattr(given, "to_dict") else {}
    if given.get("load_in_4bit") or "int4" in str(given.get("quant_type", "")).lower():
        return 4
    if given.get("load_in_8bit") or "int8" in str(given.get("quant_type", "")).lower():
        return 8
    return given.get("bits")
