"""How far beyond its rounding a candidate is."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from repsim_cli.models.precision import UNIT, choose_rounding_limits

LOST = 1e30  # times its rounding: of values that are not finite, or not there
MASKED = -1e30  # scores below it are those of places that are not attended to
HALF = 0.9 * torch.finfo(torch.float16).min  # the same of a precision that ends before


@dataclass(frozen=True)
class Places:
    """The rows of a batch: which places of (batch, position) are not padding."""

    mask: Bool[Tensor, "b s"]

    def tokens(self, x: Tensor) -> tuple[Float[Tensor, "n parts d"], bool]:
        """Takes what belongs to tokens that are not padding, in order; says whether x is ordered by token at all."""
        mask = self.mask.to(x.device)
        batch, length = mask.shape
        if x.ndim > 2 and x.shape[0] != batch and x.shape[0] % batch == 0 and x.shape[1] == length:
            x = x.unflatten(0, (batch, -1))  # (batch x heads, position, d)
        if x.ndim >= 3 and x.shape[:2] == (batch, length):
            return _arrange_in_parts(x[mask]), True
        if x.ndim == 4 and x.shape[0] == batch and x.shape[2] == length:
            return x.transpose(1, 2)[mask], True
        if x.ndim == 4 and x.shape[1:3] == (batch, length):
            return _arrange_in_parts(x.movedim(0, 2)[mask]), True
        if x.ndim == 2 and len(x) == batch * length:
            return _arrange_in_parts(x[mask.flatten()]), True
        if x.ndim == 3 and x.shape[:2] == (length, batch):
            return _arrange_in_parts(x.transpose(0, 1)[mask]), True
        return _arrange_in_parts(x.reshape(-1, x.shape[-1] if x.ndim else 1)), False

    @property
    def count(self) -> int:
        return int(self.mask.sum())


def _arrange_in_parts(x: Tensor) -> Tensor:
    return x if x.ndim == 3 else x.flatten(2) if x.ndim > 3 else x[:, None]


def reshape_like(r: Tensor, x: Tensor) -> Tensor | None:
    """The reference's tensor in the shape of the candidate's, which may repeat heads for groups of queries, lack rows
    of the vocabulary, keep tokens in one list, or have for each row what is the same for all; None where they do not
    fit."""
    if r.shape == x.shape:
        return r
    if r.ndim == x.ndim > 2 and len(r) == 1 and r.shape[1:] == x.shape[1:]:
        return r.expand_as(x)
    if r.ndim == 4 == x.ndim and r.shape[0] == x.shape[0] and r.shape[2:] == x.shape[2:]:
        heads, wanted = r.shape[1], x.shape[1]
        if heads % wanted == 0:
            return r[:, :: heads // wanted]
        if wanted % heads == 0:
            return r.repeat_interleave(wanted // heads, 1)
    return r.reshape(x.shape) if r.numel() == x.numel() and r.shape[-1:] == x.shape[-1:] else None


@dataclass(frozen=True)
class Judged:
    """A tensor of the candidate beside the reference's.

    whole, row: how many times the rounding it is off, over all rows and in the worst one. relative: the norm of the
    error, of the norm of the tensor. wrong: of the tokens, those that are beyond the limit; empty where it belongs to
    none. equal: every bit is the same.
    """

    whole: float
    row: float
    relative: float
    faulty: bool
    wrong: Bool[Tensor, " n"]
    equal: bool


def raise_precision(x: Tensor) -> Tensor:
    """The values in float32 at least, those of places that are not attended to as minus infinity."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide if x.dtype != torch.float16 else torch.where(x < HALF, -torch.inf, wide)


def zero_masked_values(x: Tensor) -> Tensor:
    """The values, with those of places that are not attended to as 0."""
    return torch.where(x < MASKED, torch.zeros_like(x), x)


def have_same_values(x: Tensor, y: Tensor) -> bool:
    """Tells whether two tensors have the same values, of which those that are not numbers are alike."""
    if torch.equal(x, y):
        return True
    lost = torch.isnan(x)
    return x.shape == y.shape and torch.equal(lost, torch.isnan(y)) and torch.equal(x[~lost], y[~lost])


def measure_rounding_norms(floor: Tensor, reference: Tensor, places: Places) -> Float[Tensor, "n parts"]:
    """Measures the reference's rounding by row: how far `floor`, the same in another precision, is from it."""
    x, r = (raise_precision(places.tokens(side)[0]).double() for side in (floor, reference))
    x = torch.where(r < MASKED, r, x)  # the other precision may mask with another number
    return torch.nan_to_num((zero_masked_values(x) - zero_masked_values(r)).norm(dim=-1), 0.0, 0.0).float()


def judge(
    candidate: Tensor, reference: Tensor, floor: Float[Tensor, "n parts"] | None, dtype: torch.dtype, places: Places
) -> Judged:
    """Judges a tensor of the candidate. floor: the reference's rounding; None: as much as each row's own. dtype: the
    coarser of both."""
    if candidate.dtype == reference.dtype and have_same_values(candidate, reference):
        return Judged(0.0, 0.0, 0.0, False, torch.zeros(0, dtype=torch.bool), True)
    (c, of_tokens), (r, _) = places.tokens(candidate), places.tokens(reference)
    c, r = (zero_masked_values(raise_precision(x)) for x in (c, r))
    return judge_rows((c - r).norm(dim=-1), r.norm(dim=-1), floor, dtype, of_tokens=of_tokens)


def judge_rows(
    off: Float[Tensor, "n parts"],
    size: Float[Tensor, "n parts"],
    floor: Float[Tensor, "n parts"] | None,
    dtype: torch.dtype,
    *,
    of_tokens: bool,
) -> Judged:
    """Judges rows by the norms of their errors and their own."""
    unit, limits = UNIT[dtype], choose_rounding_limits(dtype)
    rounding = unit * size if floor is None else adapt_heads(floor, size.shape[1]).to(size.dtype)
    ok = torch.isfinite(size) & torch.isfinite(off)
    whole_floor = max(_measure_norm(rounding[ok]), unit / 2 * _measure_norm(size[ok]), 1e-30)
    rms = rounding[ok].square().mean().sqrt() if ok.any() else rounding.new_zeros(())
    by_row = off / torch.maximum(torch.maximum(rounding, rms), unit / 2 * size).clamp_min(1e-30)
    # a row that is not finite in the reference says nothing
    by_row = torch.where(torch.isfinite(size), torch.nan_to_num(by_row, LOST, LOST, LOST), torch.zeros_like(by_row))
    whole = _measure_norm(off[ok]) / whole_floor
    worst = float(by_row.max()) if by_row.numel() else 0.0
    wrong = (by_row > limits.row).any(1)
    return Judged(
        whole,
        worst,
        _measure_norm(off[ok]) / max(_measure_norm(size[ok]), 1e-30),
        whole > limits.whole or worst > limits.row,
        wrong if of_tokens else wrong[:0],
        False,
    )


def judge_lost() -> Judged:
    """Judges what is not there."""
    return Judged(LOST, LOST, 1.0, True, torch.zeros(0, dtype=torch.bool), False)


def adapt_heads(x: Tensor, heads: int) -> Tensor:
    """Gives what is of heads, (n, heads, ...), for as many as the candidate has, which may be those of keys or
    repeated."""
    have = x.shape[1]
    if have == heads:
        return x
    return x[:, :: have // heads] if have > heads else x.repeat_interleave(heads // have, 1)


def _measure_norm(x: Tensor) -> float:
    return float(x.double().norm())
