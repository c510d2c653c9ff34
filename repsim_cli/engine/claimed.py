"""What a measure of a program or of another package says of itself, held to on the rows of a run: what is computed once
for both ways, or without preparing anew, would be wrong."""

from contextlib import suppress
from functools import partial
from typing import Any
from warnings import catch_warnings

import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.base import registry
from repsim_cli.base.errors import Degenerate, RunFailed
from repsim_cli.measures import Measure, Pairwise
from repsim_cli.measures.base import FALSE, ROUNDING, has_rows, is_added, permute_rows


def check_symmetry(measure: Measure, there: Float[Tensor, "..."], back: Float[Tensor, "..."]) -> None:
    """Refuses a claim `symmetric` where the values of the same pairs, both ways, differ by more than rounding. Raises
    RunFailed."""
    if measure.card.symmetric and is_added(measure) and (off := _differ(there, back)).any():
        both = f"{float(there[off][0]):.6g} and {float(back[off][0]):.6g}"
        whose = registry.measures.say_whose(measure.name)
        raise RunFailed(f"{whose} claims symmetric=True, got {both}; drop the claim")


def check_pair_symmetry(measure: Pairwise, value: float, x: Any, y: Any) -> None:
    """Compares a pair, which has this value, the other way as well, where the measure is from outside. Raises RunFailed
    where its claim is false."""
    if not is_added(measure):
        return
    with suppress(Degenerate), catch_warnings(record=True):
        back = registry.measures.call(measure.name, partial(measure.compare, y, x), RunFailed)
        check_symmetry(measure, *torch.tensor([value, float(back)], dtype=torch.float64))


def check_states(measure: Pairwise, x: Tensor, state: Any, labels: Tensor | None) -> None:
    """Holds what a measure from outside gives for the same rows against what it gives a second time, and, where it has
    no `permute`, the rows of a prepared state in another order, by which chance is drawn, against the state of the rows
    in that order. Raises RunFailed where its values differ."""
    if not is_added(measure) or measure.slow is not None:
        return
    whose = registry.measures.say_whose(measure.name)
    moved_by_rows = measure.card.paired and measure.permute is permute_rows and has_rows(state, len(x))
    order = torch.arange(len(x) - 1, -1, -1, device=x.device)

    def compare(side: Any) -> float:
        return float(registry.measures.call(measure.name, partial(measure.compare, side, state), RunFailed))

    with suppress(Degenerate), catch_warnings(record=True):
        anew = measure.prepare_named(x[order], "x", None if labels is None else labels[order])
        known, again = compare(anew), compare(anew)
        if _differ(*torch.tensor([known, again], dtype=torch.float64)):
            raise RunFailed(
                f"{whose} gives other values for the same rows, got {known:.6g} and {again:.6g}; let it draw by a "
                "generator of its own with a fixed seed, as torch.Generator().manual_seed(0)"
            )
        moved = compare(permute_rows(state, order)) if moved_by_rows else known
        if _differ(*torch.tensor([moved, known], dtype=torch.float64)):
            raise RunFailed(
                f"{whose} prepares states that are not rows of x, got {moved:.6g} and {known:.6g} for the same rows in "
                "another order; give its Pairwise permute=function(state, order), or claim paired=False"
            )


def _differ(there: Float[Tensor, "..."], back: Float[Tensor, "..."]) -> Tensor:
    """Marks values that differ by more than rounding."""
    return (there - back).abs() > (FALSE * torch.maximum(there.abs(), back.abs())).clamp(min=ROUNDING)
