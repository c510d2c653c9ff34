"""Sketches of tensors: of each row some random projections and its norm, from which the size of a difference is told
without bias (Johnson and Lindenstrauss 1984), and a checksum of all bytes."""

import hashlib
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.studies.verify.rounding import (
    Judged,
    Places,
    judge_lost,
    judge_rows,
    raise_precision,
    zero_masked_values,
)

COLUMNS = 32  # projections of a row: the norm of its error is known to 12 %


@lru_cache(maxsize=64)
def _make_fixed_signs(width: int) -> Float[Tensor, "d k"]:
    """Makes signs that are the same on every machine and in every version, so no generator of random numbers makes
    them."""
    drawn = hashlib.shake_256(str(width).encode()).digest(width * COLUMNS // 8)
    signs = 2.0 * np.unpackbits(np.frombuffer(drawn, np.uint8)).reshape(width, COLUMNS) - 1
    return torch.from_numpy(signs / COLUMNS**0.5)


def sketch_rows(x: Tensor, places: Places) -> Float[Tensor, "n parts kept"]:
    """Sketches the rows that are not padding: their projections and, last, their norms, in float32, which adds less
    than half of a rounding."""
    rows = zero_masked_values(raise_precision(places.tokens(x)[0])).double()
    return torch.cat([rows @ _make_fixed_signs(rows.shape[-1]), rows.norm(dim=-1, keepdim=True)], -1).float()


def compute_checksum(x: Tensor) -> str:
    about = hashlib.sha256(f"{x.dtype} {tuple(x.shape)}".encode())
    about.update(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return about.hexdigest()


def judge_sketches(
    c: Float[Tensor, "..."],
    r: Float[Tensor, "..."],
    floor: Float[Tensor, "n parts"] | None,
    dtype: torch.dtype,
) -> Judged:
    """Judges the tensors of candidate and reference from their sketches, as `rounding.judge` judges tensors."""
    if r.shape != c.shape:
        return judge_lost()
    off = (c.double() - r.double())[..., :-1].norm(dim=-1)
    return judge_rows(off, r[..., -1].double(), floor, dtype, of_tokens=True)
