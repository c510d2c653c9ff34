"""What a program gives as an array -> a tensor of real numbers; the hash of tensors."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from repsim_cli.base.errors import Degenerate

# of numpy's kinds of numbers that are not real ones
ADVICE = {"c": "give real ones, such as np.abs(x)", "O": "give x.astype(float), of a table x.to_numpy(float)"}


def convert_to_tensor(name: str, given: Any) -> Tensor:
    """Converts real numbers in any byte order and precision to a tensor without gradients, which shares their memory
    where it can: of a tensor, of an array or a table, or of lists of rows.

    Raises Degenerate, which names it by `name`, for what are not real numbers, and where values are masked or missing.
    """
    if isinstance(given, Tensor):
        if (found := _find_unreadable(given)) is not None:
            raise Degenerate(f"{name}: {found[0]}; {found[1]}")
        return given.detach()
    if hasattr(given, "toarray"):
        raise Degenerate(f"{name}: not dense, got {type(given).__name__}; give x.toarray()")
    if np.ma.is_masked(given):
        raise Degenerate(
            f"{name}: a masked array, got {np.ma.count_masked(given)} masked values; drop these rows on both sides"
        )
    try:
        array = np.asarray(given)
    except (ValueError, TypeError, RuntimeError):  # of different lengths, or tensors with gradients
        raise Degenerate(
            f"{name}: rows that make no array, got a {type(given).__name__}; give rows of one length as an array (n, d)"
        ) from None
    if array.dtype == object and not array.ndim:
        raise Degenerate(f"{name}: not an array, got {type(given).__name__}; give an array (n, d) of floats")
    if array.dtype.kind not in "fiub":
        advice = ADVICE.get(array.dtype.kind, "give an array of floats")
        raise Degenerate(f"{name}: not real numbers, got {array.dtype}; {advice}")
    kind = np.dtype(np.float64) if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
    shared = array.flags.writeable and min(array.strides, default=0) >= 0  # torch has no negative strides
    return torch.from_numpy(np.array(array, kind, order="C", copy=None if shared else True))


def _find_unreadable(x: Tensor) -> tuple[str, str] | None:
    """Finds why a tensor holds no dense real numbers, and what to give in its place."""
    refused = (
        (x.is_meta, "without values, got a tensor on the device meta", "load it first"),
        (x.is_nested, "rows of different lengths, got a nested tensor", "give a tensor (n, d)"),
        (x.layout is not torch.strided, f"not dense, got {x.layout}", "give x.to_dense()"),
        (x.is_quantized, f"quantised, got {x.dtype}", "give x.dequantize()"),
        (x.is_complex(), f"not real numbers, got {x.dtype}", "give real ones, such as x.abs()"),
    )
    return next(((problem, advice) for found, problem, advice in refused if found), None)


def hash_tensors(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Hashes the names, types, shapes and values of tensors, in this order."""
    whole = xxhash.xxh3_128()
    for name, tensor in tensors:
        x = tensor.detach().cpu().contiguous()
        whole.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
        whole.update(x.flatten().view(torch.uint8).numpy().data if x.numel() else b"")
    return whole.hexdigest()
