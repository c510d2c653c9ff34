"""Weights rounded as other packages round them: what `repsim verify` says of each format, in a tiny Llama.

Command: python benchmarks/formats.py [FOLDER]
FOLDER: of a model in the transformers format, which torchao and bitsandbytes also round, where they are installed.
"""

import copy
import sys
from collections.abc import Callable, Sequence

import plants
import torch
from torch import Tensor, nn

import repsim_cli
from repsim_cli.studies.verify.study import verify_models

WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
Rounding = Callable[[Tensor], Tensor]


def around_zero(bits: int, group: int) -> Rounding:
    """Steps of a group of weights, or of a row (0), that lie around zero."""

    def rounded(w: Tensor) -> Tensor:
        x = w.unflatten(1, (-1, group or w.shape[1]))
        step = x.abs().amax(2, keepdim=True) / (2 ** (bits - 1) - 1)
        return ((x / step).round() * step).flatten(1)

    return rounded


def from_lowest(bits: int, group: int) -> Rounding:
    """Steps of a group of weights from its lowest value on."""

    def rounded(w: Tensor) -> Tensor:
        x = w.unflatten(1, (-1, group))
        low = x.amin(2, keepdim=True)
        step = (x.amax(2, keepdim=True) - low) / (2**bits - 1)
        return (((x - low) / step).round() * step + low).flatten(1)

    return rounded


def of_super_blocks(bits: int) -> Rounding:
    """Steps and lowest values of groups of 32, in 6 bits of the largest of 8 groups: Q4_K and Q5_K of GGUF."""

    def rounded(w: Tensor) -> Tensor:
        x = w.unflatten(1, (-1, 8, 32))
        low = (-x.amin(3)).clamp_min(0)
        step = (x.amax(3) + low) / (2**bits - 1)
        units = [part.amax(2, keepdim=True) / 63 for part in (step, low)]
        step, low = ((part / unit).round() * unit for part, unit in zip((step, low), units, strict=True))
        step, low = step[..., None], low[..., None]
        return (((x + low) / step).round().clamp(0, 2**bits - 1) * step - low).flatten(1)

    return rounded


def q6_k(w: Tensor) -> Tensor:
    """Steps of groups of 16, in 8 bits of the largest of 16 groups."""
    x = w.unflatten(1, (-1, 16, 16))
    step = x.abs().amax(3) / 31
    unit = step.amax(2, keepdim=True) / 127
    step = ((step / unit).round() * unit)[..., None]
    return ((x / step).round().clamp(-32, 31) * step).flatten(1)


def floating(group: int) -> Rounding:
    """Floating 8 bits (e4m3) of the largest of a row (0) or of all weights (1)."""

    def rounded(w: Tensor) -> Tensor:
        scale = (w.abs().amax() if group else w.abs().amax(1, keepdim=True)) / 448
        return (w / scale).to(torch.float8_e4m3fn).float() * scale

    return rounded


def by_levels(levels: Sequence[float], group: int, power_of_two: bool = False) -> Rounding:
    """The nearest of a few values, in the size of the largest of a group."""
    known = torch.tensor(levels)

    def rounded(w: Tensor) -> Tensor:
        x = w.unflatten(1, (-1, group))
        size = x.abs().amax(2, keepdim=True)
        size = 2 ** (size.log2().floor() - 2) if power_of_two else size / known.abs().max()
        return (known[((x / size)[..., None] - known).abs().argmin(-1)] * size).flatten(1)

    return rounded


NORMAL = torch.special.ndtri(torch.linspace(0.02, 0.98, 16)).tolist()
FP4 = [sign * x for sign in (-1, 1) for x in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]
FORMATS: dict[str, Rounding] = {
    "8 bits by row": around_zero(8, 0),
    "4 bits by 128": from_lowest(4, 128),
    "4 bits by 32": from_lowest(4, 32),
    "4 bits by 64, around zero": around_zero(4, 64),
    "3 bits by 64": from_lowest(3, 64),
    "2 bits by 32": from_lowest(2, 32),
    "Q8_0": around_zero(8, 32),
    "Q4_0": around_zero(4, 32),
    "Q4_1": from_lowest(4, 32),
    "Q4_K": of_super_blocks(4),
    "Q5_K": of_super_blocks(5),
    "Q6_K": q6_k,
    "levels of a normal distribution by 64, as NF4": by_levels(NORMAL, 64),
    "fp8": floating(1),
    "fp8 by row": floating(0),
    "MXFP4": by_levels(FP4, 32, power_of_two=True),
}
PACKAGES = ({"method": "torchao"}, {"method": "bitsandbytes"}, {"method": "bitsandbytes", "bits": 4})


def main(folder: str | None = None) -> None:
    torch.set_num_threads(1)
    config = plants.tiny_config
    plants.tiny_config = lambda name: {**config(name), **WIDE}
    exact = plants.built("llama")
    for name, rounding in FORMATS.items():
        other = copy.deepcopy(exact)
        for block in plants.Parts(other).blocks:
            for module in block.modules():
                if isinstance(module, nn.Linear):
                    module.weight.data = rounding(module.weight.data)
        answer = verify_models(exact, other, plants.batches(exact))
        print(f"{name}: {answer.lines()[0]}", flush=True)
    for quantize in PACKAGES if folder else ():
        entry = {"kind": "transformers", "path": folder}
        try:
            answer = repsim_cli.verify(entry, {**entry, "quantize": quantize})
        except repsim_cli.BadInput as error:
            print(f"{quantize}: {error}", flush=True)
        else:
            print(f"{quantize}:", *answer.lines()[:2], sep="\n    ", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:2])
