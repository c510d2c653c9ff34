"""The level of chance: the mean of a measure over random pairings of units that can be exchanged, none in place.

Exact for inner products and shared neighbours (`expected.py`), from a few pairings of a few layers for other measures,
whose spread is known likewise.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from repsim_cli.activations.exchange import Exchange, draw_derangement
from repsim_cli.base.errors import Degenerate
from repsim_cli.engine.expected import index_row_places
from repsim_cli.engine.overlaps import compute_mean_overlap, count_overlaps
from repsim_cli.engine.permuted import permute_pairs, permute_sampled
from repsim_cli.engine.prepared import Prepared, PreparedProducts, PreparedStates, SimilarityMatrix, Statistics
from repsim_cli.measures import Measure
from repsim_cli.measures.base import MeasureWarning, clamp_to_bounds, has_rows, permute_rows
from repsim_cli.measures.documents import have_same_groups
from repsim_cli.measures.inner import Matrix, Products
from repsim_cli.measures.nearest import NearestRows

ORDERS = 8  # random pairings of a run, from which the spread is taken
FEWEST = 4  # of these, of measures that are not slow: the spread of fewer is hardly known
ROUNDING = 1e-6  # of the values: random pairings that differ by less are one pairing, whose spread is not known
SAMPLED = 4  # layers, spread over the map, whose pairs are drawn
TIED = 2  # orders in which the nearest of equally near rows are found anew
# statistics of a batch; KNOWN: 1 where it has a level of chance
EXACT, DRAWN, SQUARE, APART, PAIRINGS, KNOWN = "chance", "drawn", "square", "apart", "pairings", "chance known"


def observe_chance(units: Exchange, rows: Callable[[int], np.ndarray], batches: int, seed: int) -> Statistics:
    """Observes, beside the values of a batch, their mean over random pairings: exactly (EXACT) where that is known,
    and, for a few layers, from drawn pairings (DRAWN), with the mean of the squares (SQUARE) or of the squared
    distances to the exact mean (APART). rows: the numbers of a batch's rows.
    """

    def observe(batch: int, measure: Measure, prepared: Prepared, values: Matrix) -> dict[str, Tensor]:
        if not measure.card.paired or not _can_reorder(prepared):
            return {}
        here = units.keep(rows(batch))
        exact, lacking = compute_exact_mean(prepared, here), values.cpu().isnan()
        known = exact is None or not (exact.isnan() & ~lacking).any()  # else too few rows have a partner
        found = {KNOWN: torch.tensor(float(known))}
        if not known:
            return found
        found |= {} if exact is None else {EXACT: exact.masked_fill(lacking, math.nan)}
        count, some = _choose_sample(prepared, batches, lacking)
        if batch >= ORDERS or not count:
            return found
        orders = torch.from_numpy(np.stack([draw_derangement(here, [seed, batch, k]) for k in range(count)]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MeasureWarning)  # of the same rows as those of the values
            drawn = _draw(prepared, some, orders, known_mean=exact is not None)
        cells = torch.tensor(some)[:, None], torch.tensor(some)
        found[PAIRINGS] = torch.tensor(float(count))
        parts = {DRAWN: drawn.mean(0), SQUARE: drawn.square().mean(0)}
        if exact is not None:
            parts = {APART: (drawn - exact[cells]).square().nanmean(0)}
        return found | {key: _spread_out(values, cells, part) for key, part in parts.items()}

    return observe


def _draw(prepared: Prepared, some: list[int], orders: Tensor, known_mean: bool) -> Tensor:
    """Computes the values of these layers under each order. Beside an exact mean, as that is of: lists of neighbours
    are kept, unless the index decides among many, and each order moves one layer."""
    if known_mean and isinstance(prepared, PreparedProducts):
        return permute_sampled(prepared, some, orders)
    if known_mean and isinstance(prepared, PreparedStates) and prepared.measure.overlap is not None:
        if any(_is_crowded(prepared.states[a]) for a in some):
            return permute_pairs(_select_prepared(prepared, some), orders)
        lists = [prepared.measure.overlap(prepared.states[a]) for a in some]
        return count_overlaps(lists, orders) / lists[0].numel()
    return permute_pairs(_select_prepared(prepared, some), orders)


def _can_reorder(prepared: Prepared) -> bool:
    """Tells whether its states can be taken in another order."""
    if isinstance(prepared, PreparedProducts) or prepared.measure.permute is not permute_rows:
        return True
    return all(has_rows(state, prepared.rows) for state in prepared.states)


def compute_chance_mean(prepared: Prepared, here: Exchange, seed: Sequence[int]) -> Matrix:
    """Computes the mean over random pairings of these units, none in place, of all pairs: exact, or of a few."""
    if (exact := compute_exact_mean(prepared, here)) is not None:
        return exact
    return permute_pairs(
        prepared, torch.from_numpy(np.stack([draw_derangement(here, [*seed, k]) for k in range(ORDERS)]))
    ).mean(0)


def compute_exact_mean(prepared: Prepared, here: Exchange) -> Matrix | None:
    """Computes the mean over all pairings, where the measure is a sum over cells; None elsewhere, and where other pairs
    of rows are left out in each pairing, as units are not the documents of whose rows pairs are left out."""
    if prepared.documents is not None and not have_same_groups(prepared.documents.cpu(), torch.from_numpy(here.units)):
        return None
    if isinstance(prepared, PreparedProducts):
        if prepared.expected is None:
            return None
        measure, cross = prepared.measure, prepared.expected.to(prepared.cross)
        given = Products(
            cross, prepared.norms, prepared.norms, prepared.states[measure.row], prepared.states[measure.column]
        )
        try:
            return clamp_to_bounds(measure, measure.value(given)).cpu()
        except Degenerate:
            return None
    if prepared.measure.overlap is None:
        return None
    lists = [prepared.measure.overlap(state) for state in prepared.states]
    places = index_row_places(here, len(lists), lists[0].device)
    if places is None:
        return None
    return _add_shared_ties(compute_mean_overlap(lists, places) / lists[0].numel(), prepared, here)


def _add_shared_ties(mean: Matrix, prepared: PreparedStates, here: Exchange) -> Matrix:
    """Adds to the mean of lists that are kept what layers share since equally near rows go by index in both: of a few
    layers whose neighbours are found anew in another order."""
    measure, states = prepared.measure, prepared.states
    crowded = [a for a, state in enumerate(states) if _is_crowded(state)]
    if len(crowded) < 2 or measure.compare_all is None:
        return mean
    moved = sorted({crowded[place] for place in np.linspace(0, len(crowded) - 1, SAMPLED).round().astype(int)})
    more = torch.zeros(len(crowded), len(moved), dtype=torch.float64)
    for order in (torch.from_numpy(draw_derangement(here, [number])) for number in range(TIED)):
        kept = [order.argsort().int()[states[a].lists[:, order].long().cpu()] for a in moved]
        same = [states[a]._replace(lists=each.to(states[a].lists)) for a, each in zip(moved, kept, strict=True)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MeasureWarning)
            again = [measure.permute(states[a], order) for a in moved]
        rows = [states[a] for a in crowded]
        more += (measure.compare_all(rows, again) - measure.compare_all(rows, same)).cpu() / TIED
    # of layers that were not moved, what all have on average
    each = torch.full((len(states), len(states)), float(more.mean()), dtype=torch.float64)
    at_rows, at_columns = torch.tensor(crowded)[:, None], torch.tensor(moved)
    each[at_rows, at_columns] = more
    each[at_columns[:, None], at_rows[:, 0]] = more.T
    both = torch.zeros(len(states), dtype=torch.bool)
    both[crowded] = True
    return mean + each.where(both[:, None] & both, 0.0)


def _is_crowded(state: Any) -> bool:
    """Tells whether the index decides among the nearest rows of many rows."""
    return isinstance(state, NearestRows) and state.crowded


def _choose_sample(prepared: Prepared, batches: int, lacking: Tensor) -> tuple[int, list[int]]:
    """Chooses how many pairings of a batch are drawn, and for which layers, so that at most half of the pairs are
    solved again; of two layers, both directions. lacking: cells without a value."""
    layers = (~lacking).any(1).nonzero()[:, 0].tolist()
    if not layers:
        return 0, []
    wanted = prepared.left if isinstance(prepared, PreparedStates) else None
    pairs = len(layers) * (len(layers) + 1) // 2 if wanted is None else int(wanted.sum() + len(layers)) // 2
    fewest = 2 if isinstance(prepared, PreparedProducts) or prepared.measure.slow else FEWEST
    if isinstance(prepared, PreparedProducts):
        side = min(SAMPLED, max(2, len(layers) // 12))
    else:
        side = min(SAMPLED, max(2, math.isqrt(pairs // (2 * fewest))))
    places = np.linspace(0, len(layers) - 1, min(side, len(layers))).round().astype(int)
    orders = -(-ORDERS // batches)
    if isinstance(prepared, PreparedStates):
        orders = min(orders, max(1 if prepared.measure.slow else FEWEST, pairs // (2 * len(places) ** 2)))
    return orders, [layers[place] for place in places]


def _select_prepared(prepared: Prepared, some: list[int]) -> Prepared:
    """Keeps what is prepared of these representations, and of states the pairs of different ones, if there are any."""
    names = [prepared.names[a] for a in some]
    if isinstance(prepared, PreparedStates):
        left = ~torch.eye(len(some), dtype=torch.bool) if len(some) > 1 else torch.ones(1, 1, dtype=torch.bool)
        left &= True if prepared.left is None else prepared.left[some][:, some]
        return replace(prepared, names=names, states=[prepared.states[a] for a in some], left=left, details={})
    states = {kernel: [of[a] for a in some] for kernel, of in prepared.states.items()}
    norms = prepared.norms[some] if len(prepared.norms) else prepared.norms
    cross = prepared.cross[some][:, some]
    return replace(prepared, names=names, states=states, norms=norms, cross=cross, undefined={}, expected=None)


def _spread_out(values: Matrix, cells: tuple[Tensor, Tensor], found: Tensor) -> Matrix:
    """Puts these cells into a map that is NaN elsewhere. Cells of a layer with itself are used only where there are no
    others."""
    if len(found) > 1:
        found = found.clone().fill_diagonal_(math.nan)
    spread = torch.full_like(values, math.nan, device="cpu")
    spread[cells] = found.to(spread)
    return spread.masked_fill(values.cpu().isnan(), math.nan)


class ChanceLevel(NamedTuple):
    """The level of chance. cells: of every cell, or the same of all. about: what is recorded of it."""

    cells: Matrix | None
    about: dict[str, Any]


def compute_chance_level(matrix: SimilarityMatrix, units: Exchange | None, why: str) -> ChanceLevel:
    """Takes the level of chance from what was observed. why: it is not known, if it is not."""
    seen, batches = matrix.statistics, matrix.batches
    found = next((key for key in (EXACT, DRAWN) if key in seen and not seen[key].isnan().all()), "")
    if units is None or not found:
        return ChanceLevel(None, {"unknown": why})
    known = round(batches * float(seen[KNOWN]))
    orders = min(ORDERS, batches) * int(seen.get(PAIRINGS, torch.zeros(())))
    if found == EXACT:
        cells, mean = seen[EXACT], "exact"
        once = seen[APART].nanmean() if APART in seen else torch.tensor(math.nan)
    else:
        drawn = seen[DRAWN]
        cells = torch.full_like(drawn, float(drawn.nanmean())).masked_fill(matrix.values.cpu().isnan(), math.nan)
        mean = f"one level, of {int(drawn.isfinite().sum())} cells"
        among = (seen[SQUARE] - drawn.square()).nanmean().clamp_min(0)
        once = among * orders / (orders - 1)  # of one pairing 0 / 0, not known
    alike = once.sqrt() <= ROUNDING * matrix.values.abs().nan_to_num().max().cpu()  # of two units, or of equal ones
    spread = float((once / batches).sqrt()) if once.isfinite() and not alike else None
    about = {"units": units.what, "partnered": units.partnered, "batches": known}
    return ChanceLevel(cells, {**about, "mean": mean, "spread": spread, "orders": orders})
