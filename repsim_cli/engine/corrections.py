"""p values corrected for the cells of a map, or of all maps of a run: family-wise, and as the false discovery rate."""

import itertools
import math
from collections.abc import Sequence

import scipy
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Significance
from repsim_cli.measures import Card
from repsim_cli.measures.inner import (
    Matrix,
)

Family = Bool[Tensor, "r r"]  # which cells are corrected for each other


def group_into_families(tested: Matrix, card: Card, places: Sequence[slice], of: str) -> list[Family]:
    """The cells that are corrected for each other: of every two models, or those of the whole run (`of` is `run`).

    Each pair of layers counts once. A layer with itself is not a test. places: where the layers of each model stand.
    """
    maps: list[Family] = []
    finite = tested.isfinite().cpu()
    for (i, row), (j, column) in itertools.product(enumerate(places), repeat=2):
        cells = torch.zeros_like(finite)
        cells[row, column] = finite[row, column]
        cells.fill_diagonal_(False)
        if card.symmetric:
            cells = cells.triu() if j >= i else torch.zeros_like(cells)
        if cells.any():
            maps.append(cells)
    return [torch.stack(maps).any(0)] if of == "run" and maps else maps


def correct(
    p: Matrix, tested: Matrix, null: Float[Tensor, "k r r"] | None, card: Card, among: Sequence[Family]
) -> tuple[Matrix, Matrix]:
    """p corrected for the cells of each family: family-wise, and as the false discovery rate at which a cell is counted
    as a discovery (Benjamini and Hochberg 1995).

    null: for the step-down max-T; without it, Holm's correction. A layer with itself keeps its p.
    """
    family, rate = p.clone(), p.clone()
    sign = 1 if card.larger_is_closer else -1
    for cells in among:
        raw = p[cells]
        rate[cells] = torch.from_numpy(scipy.stats.false_discovery_control(raw.numpy()))
        family[cells] = (
            correct_by_holm(raw) if null is None else correct_by_max_t(sign * tested[cells], sign * null[:, cells])
        )
    return (mirror_upper_triangle(family), mirror_upper_triangle(rate)) if card.symmetric else (family, rate)


def mirror_upper_triangle(upper: Matrix) -> Matrix:
    return torch.where(torch.ones_like(upper, dtype=torch.bool).triu(), upper, upper.mT)


def count_needed_permutations(cells: int, alpha: float) -> int:
    """The fewest permutations with which the smallest of `cells` p values can be alpha after Holm's correction or
    Benjamini's and Hochberg's, whatever the others are.

    >>> count_needed_permutations(144, 0.05)
    2879
    """
    return math.ceil(cells / alpha - 1e-9) - 1


def check_family(settings: Significance, layers: Sequence[int], symmetric: bool) -> None:
    """Raises BadInput where Holm's correction of the largest family cannot reach alpha with the permutations of the
    settings.

    layers: of each model. symmetric: whether all measures are: then a pair of layers is one cell.
    """
    if settings.method != "permutation" or settings.family != "holm":
        return
    first, second = [*sorted(layers, reverse=True), 0][:2]
    each = 2 if symmetric else 1
    cells = max(first * second, first * (first - 1) // each)
    if settings.family_of == "run":
        cells = sum(layers) * (sum(layers) - 1) // each
    needed = count_needed_permutations(cells, settings.alpha)
    if settings.permutations < needed:
        raise BadInput(
            f"significance.permutations: Holm's correction of {cells} cells cannot reach "
            f"{settings.alpha:g} with p values of at least 1/{settings.permutations + 1}, got "
            f"{settings.permutations}; give at least {needed:d}, or use significance.family=max_t"
        )


def drop_families(values: Matrix, left_out: Sequence[Family], places: Sequence[slice], card: Card) -> Matrix | None:
    """The same without the maps that have a cell in these families; None where nothing is left."""
    kept = values.clone()
    for cells in left_out:
        for row, column in itertools.product(places, repeat=2):
            if cells[row, column].any():
                kept[row, column] = torch.nan
    kept = mirror_upper_triangle(kept) if card.symmetric else kept
    return kept if left_out == [] or kept.isfinite().any() else None


def correct_by_holm(p: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """Holm's (1979) step-down correction, valid under any dependence.

    >>> correct_by_holm(torch.tensor([0.03, 0.01, 0.02]))
    tensor([0.0400, 0.0300, 0.0400])
    """
    order = p.argsort(stable=True)
    left = torch.arange(len(p), 0, -1)
    adjusted = torch.empty_like(p)
    adjusted[order] = (left * p[order]).cummax(0).values.clamp_max(1)
    return adjusted


def correct_by_max_t(observed: Float[Tensor, " m"], null: Float[Tensor, "k m"]) -> Float[Tensor, " m"]:
    """p values of m cells corrected for each other: step-down max-T from the joint null (Westfall and Young 1993,
    algorithm 4.1). Larger is closer.

    Each cell is standardised by the mean and the deviation of its values, observed and drawn together, so that cells
    with a wide null do not decide alone. A cell is compared with the largest of the cells that are no closer than it.
    """
    both = torch.cat([observed[None], null])
    both = both - both.mean(0)
    both /= both.square().mean(0).sqrt().clamp_min(torch.finfo(both.dtype).tiny)
    order = both[0].argsort(descending=True, stable=True)
    ordered = both[:, order]
    largest = ordered[1:].flip(1).cummax(1).values.flip(1)
    counts = (largest >= ordered[0] - 1e-9).sum(0)  # equal values may differ by rounding
    adjusted = torch.empty_like(observed)
    adjusted[order] = ((1 + counts).to(observed.dtype) / (1 + len(null))).cummax(0).values
    return adjusted
