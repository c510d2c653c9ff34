"""Names what was done to a tensor of weights from its values in both models; None where no rule fits."""

import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from repsim_cli.models.precision import UNIT
from repsim_cli.studies.verify.weights import ROUNDINGS

EXACT = 1e-6  # of the norm: the same but for rounding
SHOWN = 3  # runs of rows
PAIRS = 2**24  # of rows that are compared, to find where a row came from
FEW = 0.01  # of all values
WIDEST = 256  # rows and columns of which a rank is found
BLOCK = re.compile(r"\.(\d+)\.")
Named = tuple[str, str]


def name_weight_change(
    name: str, reference: Mapping[str, Tensor], candidate: Mapping[str, Tensor], norms: Mapping[str, float]
) -> Named | None:
    """Names what was done to a tensor, as a kind and a sentence; None where no rule fits. norms: of the reference's
    tensors, so that only those are looked at that may be this one."""
    x, y = (side[name].detach().double().cpu() for side in (reference, candidate))
    if x.shape != y.shape or not torch.isfinite(y).all():
        return None
    if x.ndim == 1 and name.endswith("bias") and not y.any():
        return "offset", "its bias is zero"
    moved, norm = not _have_same_numbers(x, y), float(y.norm())
    alike = (key for key, z in norms.items() if moved and key != name and abs(z - norm) <= 2 * EXACT * z)
    other = next((key for key in alike if _have_same_numbers(reference[key].double().cpu(), y)), None)
    if other is not None and x.numel() > 1:
        there, here = BLOCK.search(other), BLOCK.search(name)
        if there and here and there[1] != here[1]:
            return "order", f"its weights are those of block {there[1]}: blocks are out of order, or one is there twice"
        return "swapped", f"its weights are those of {other}"
    if x.ndim == 2 and x.shape[0] == x.shape[1] and moved and _have_same_numbers(x.T, y):
        return "transposed", "its weights are transposed"
    if x.ndim == 1 and name.endswith("bias"):
        changed = int((x != y).sum())
        few = f"{changed} of the {len(x)} values of its bias {'differs' if changed == 1 else 'differ'}"
        return "offset", few if changed <= len(x) / 2 else "its bias differs"
    if x.ndim == 1 and "norm" in name and (abs(y - x).sub(1).abs() < EXACT).all():
        return "gain", "its weights are off by 1: it multiplies by w, not by 1 + w, or the other way round"
    if x.ndim == 2:
        return _name_matrix_change(x, y, UNIT.get(reference[name].dtype, 0.0))
    return None


def _have_same_numbers(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and float((x - y).norm()) <= EXACT * float(x.norm())


def _name_matrix_change(x: Tensor, y: Tensor, unit: float) -> Named | None:
    """Names what was done to a matrix. unit: the rounding of the weights, which is all that a factor may leave."""
    off = (y - x).abs()
    if int((off > 1e-3 * off.max()).sum()) == 1:
        return "weight", "one of its weights differs"
    if not y.any():
        return "factor", "its weights are zero"
    factor = float((x * y).sum() / x.square().sum())
    changed, left = float(off.square().sum()), float((y - factor * x).square().sum())
    if left <= min(1e-4 * changed + unit**2 * float(x.square().sum()), changed / 4):
        return (
            ("sign", "its weights have the other sign")
            if abs(factor + 1) < EXACT
            else ("factor", f"its weights are multiplied by {factor:.7g}")
        )
    if _have_same_numbers(x, y):
        return None
    for what, rows, others in (("row", x, y), ("column", x.T, y.T)):
        if (said := _name_row_changes(what, rows, others, unit)) is not None:
            return said
    return next((said for rule in RULES if (said := rule(x, y)) is not None), None) or _name_rank(x, y, unit)


def _name_row_changes(what: str, x: Tensor, y: Tensor, unit: float) -> Named | None:
    """Names what was done to some rows, where the others are as they were, or to the order of all. what: row or
    column."""
    hit = (y - x).norm(dim=1) > ROUNDINGS * unit * x.norm(dim=1)
    rows, others = x[hit], y[hit]
    count, said = len(rows), _say_places(what, hit)
    if count > 1 and _are_permuted(rows, others):
        return "permuted", f"{said} are in another order: heads, neurons, halves or tokens"
    if count == len(x) or not count:
        return None
    be = "is" if count == 1 else "are"
    if not others.any():
        return "rows", f"{said} {be} zero"
    if count > len(x) / 2 or int((rows != others).sum()) < rows.numel() / 2:
        return None
    factor = float((rows * others).sum() / rows.square().sum().clamp_min(1e-300))
    if (factor * rows - others).norm() <= max(EXACT, unit) * others.norm():
        return "part", f"{said} {be} multiplied by {factor:.4g}"
    if count * len(x) <= PAIRS:
        nearest = torch.cdist(others, x).argmin(1)
        if _have_same_numbers(x[nearest], others):
            return "rows", f"{said} {be} those of {what}s {_say_numbers(nearest.unique().tolist())}"
    return "rows", f"{said} {'differs' if count == 1 else 'differ'}"


def _say_places(what: str, hit: Tensor) -> str:
    """Says which rows or columns of the weights, as the subject of a sentence."""
    numbers = hit.nonzero()[:, 0].tolist()
    if len(numbers) == len(hit):
        return f"its {what}s"
    return f"{what if len(numbers) == 1 else f'{what}s'} {_say_numbers(numbers)} of its weights"


def _say_numbers(numbers: list[int]) -> str:
    """Says runs of ascending numbers, the first few.

    >>> _say_numbers([3, 4, 5, 9]), _say_numbers([1, 3, 5, 7, 8])
    ('3 to 5, 9', '1, 3, 5 and 2 more')
    """
    known = {*numbers}
    starts = [number for number in numbers if number - 1 not in known]
    ends = [number for number in numbers if number + 1 not in known]
    runs = [f"{low} to {high}" if low < high else f"{low}" for low, high in zip(starts, ends, strict=True)]
    left = sum(high - low + 1 for low, high in zip(starts[SHOWN:], ends[SHOWN:], strict=True))
    return ", ".join(runs[:SHOWN]) + (f" and {left} more" if left else "")


def _are_permuted(x: Tensor, y: Tensor) -> bool:
    """Says whether the rows of y are those of x in another order."""
    key = torch.linspace(1, 2, x.shape[1], dtype=x.dtype)
    a, b = (rows @ key for rows in (x, y))
    return _have_same_numbers(x[a.argsort()], y[b.argsort()])


def _name_pruning(x: Tensor, y: Tensor) -> Named | None:
    """Recognises weights that are zero, and no other change."""
    changed = x != y
    if y[changed].any():
        return None
    return "pruned", f"{int(changed.sum()):,} of its {x.numel():,} weights are zero: it is pruned"


def _name_clipping(x: Tensor, y: Tensor) -> Named | None:
    """Recognises weights beyond some size, which have that size."""
    changed = x != y
    if not torch.equal(x.clamp(y.min(), y.max()), y):
        return None
    ends = f"{float(y.min()):.4g} and {float(y.max()):.4g}"
    return "clipped", f"{int(changed.sum()):,} of its {x.numel():,} weights are cut at {ends}"


def _name_few_changes(x: Tensor, y: Tensor) -> Named | None:
    """Recognises few changed weights, with all others as they were."""
    changed = int((x != y).sum())
    return ("weight", f"{changed:,} of its {x.numel():,} weights differ") if changed <= FEW * x.numel() else None


def _name_steps(x: Tensor, y: Tensor) -> Named | None:
    """Recognises rows that take few values."""
    step = _count_distinct_values(y)
    if step is None or _count_distinct_values(x) is not None:
        return None
    return "noise", f"its weights take at most {step} values in each row: rounded to {math.ceil(math.log2(step))} bits"


def _count_distinct_values(x: Tensor) -> int | None:
    """The most values that a row takes, where they are few for its length."""
    rows = x[:16]
    counts = [len(torch.unique(row)) for row in rows]
    return max(counts) if max(counts) < 0.7 * x.shape[1] or max(counts) <= 16 < x.shape[1] else None


def _name_rank(x: Tensor, y: Tensor, unit: float) -> Named | None:
    """Recognises weights of a lower rank than they had, and a change of low rank."""
    most = min(x.shape)
    before, now, change = (_find_rank(z, unit * float(y.square().mean().sqrt())) for z in (x, y, y - x))
    if now <= 0.75 * before:
        return "rank", f"its weights have rank {now} of {most}, where they had a higher one"
    # what takes one direction out is told from the error
    if 1 < change <= most / 4 and change < WIDEST:
        what = "an adapter is missing, merged twice or scaled"
        return "adapter", f"its weights differ by a matrix of rank {change} of {most}: {what}"
    return None


def _find_rank(x: Tensor, rounding: float) -> int:
    """Finds the rank of a matrix, at most WIDEST, beside errors of this size in each value: from some of the rows and
    columns, which have the rank of all unless that is higher."""
    rows, columns = (torch.linspace(0, n - 1, min(n, WIDEST)).long() for n in x.shape)
    x = x[rows][:, columns]
    values = torch.linalg.svdvals(x)
    of_errors = 2 * rounding * (x.shape[0] ** 0.5 + x.shape[1] ** 0.5)
    return int((values > max(EXACT * float(values[0]), of_errors)).sum())


RULES = (_name_pruning, _name_clipping, _name_few_changes, _name_steps)
