"""The weights that two models have under the same names."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from repsim_cli.models.precision import UNIT

ROUNDINGS = 16  # within which rows of weights are the same
CAST = 0.9  # of the values that changed
CASTS = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True)
class Tensors:
    """common: how many tensors have the same name and width in both. differ: the others of the same name, and those
    with other values, by (name, values that differ, values, the largest difference of a row over the row). norms: of
    all tensors of the reference, where any differs. lost: what of the reference is not finite while the candidate has
    it otherwise. rounded: of those that differ, by name, the precision that the reference rounded to gives them in.
    slight: those with other bits of which no row is off by more than ROUNDINGS, by (name, values that differ, values).
    shaped: those of the same name and another shape, in words.
    """

    common: int
    differ: Sequence[tuple[str, int, int, float]]
    only_reference: Sequence[str]
    only_candidate: Sequence[str]
    norms: Mapping[str, float] = field(default_factory=dict)
    lost: Sequence[str] = ()
    rounded: Mapping[str, torch.dtype] = field(default_factory=dict)
    slight: Sequence[tuple[str, int, int]] = ()
    shaped: Sequence[str] = ()


def name_weights(model: nn.Module) -> dict[str, Tensor]:
    """Names the weights as a checkpoint does, without the prefix of the backbone. Weights that a package keeps as
    integers of its own are the numbers that they stand for."""
    prefix = getattr(model, "base_model_prefix", "")
    return {
        name.removeprefix(f"{prefix}.") if prefix else name: _unpack_weights(x)
        for name, x in model.state_dict().items()
    }


def round_some_weights(model: nn.Module, names: Collection[str], dtype: torch.dtype) -> nn.Module:
    """Rounds the tensors of these names, as `name_weights` has them, in place; those that are not there are left."""
    for name, x in zip(name_weights(model), model.state_dict().values(), strict=True):
        if name in names:
            x.copy_(x.to(dtype))
    return model


def _unpack_weights(x: Tensor) -> Tensor:
    packed = type(x).dequantize is not Tensor.dequantize and x.is_floating_point()
    return x.dequantize() if packed else x


def compare(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensors:
    """Compares the tensors of the reference (a) and of the candidate (b). A row of weights that is off by less than a
    few roundings does not differ: sums in another order do that."""
    shared = [name for name in a if name in b and _are_comparable(a[name], b[name])]
    differ, lost, rounded, slight = [], [], {}, []
    for name in shared:
        rows = min(len(a[name]), len(b[name])) if a[name].ndim else None  # of a vocabulary, those that both have
        x, y = (side[name][:rows] if rows else side[name] for side in (a, b))
        if not torch.equal(x, y):
            unit = max((UNIT[t.dtype] for t in (x, y) if t.dtype in UNIT), default=0.0)
            x, y = x.float(), y.to(x.device).float()
            lost += [f"{said} in {name}"] if (said := say_not_finite(x)) else []
            off, size = ((z.flatten(1) if z.ndim > 1 else z[None]).norm(dim=1) for z in (x - y, x))
            if not torch.isfinite(off).all() or (off > ROUNDINGS * unit * size).any():
                worst = float(torch.nan_to_num(off / size.clamp_min(1e-30), 1e30).max())
                differ.append((name, int((x != y).sum()), x.numel(), min(worst, 1e30)))
                if (dtype := _find_cast(x, y)) is not None:
                    rounded[name] = dtype
            else:
                slight.append((name, int((x != y).sum()), x.numel()))
    alone = [n for n in a if n not in b], [n for n in b if n not in a]
    norms = compute_weight_norms(a) if differ else {}
    shaped = [
        f"{name} is {tuple(b[name].shape)}, not {tuple(x.shape)}"
        for name, x in a.items()
        if name in b and x.shape != b[name].shape
    ]
    return Tensors(len(shared), differ, *alone, norms, lost, rounded, slight, shaped)


def _find_cast(x: Tensor, y: Tensor) -> torch.dtype | None:
    """Finds the precision to which x was rounded, where that made nearly all changes; None where it was not."""
    changed = x != y
    x, y = x[changed], y[changed]
    return next((dtype for dtype in CASTS if (x.to(dtype).float() == y).double().mean() > CAST), None)


def say_not_finite(x: Tensor) -> str:
    """Says how many values of a tensor are NaN or inf; empty where none is."""
    counts = {"NaN": int(x.isnan().sum()), "inf": int(x.isinf().sum())}
    return " and ".join(f"{count:,} {what}" for what, count in counts.items() if count)


def compute_weight_norms(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    return {name: float(x.detach().double().norm()) for name, x in tensors.items()}


def _are_comparable(x: Tensor, y: Tensor) -> bool:
    """Says whether two tensors may hold the same numbers: of one width, and both of real numbers or neither."""
    return x.shape[1:] == y.shape[1:] and x.is_floating_point() == y.is_floating_point()
