"""The values of a measure when the rows of one side are taken in other orders, without preparing anything anew."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.base import registry
from repsim_cli.base.errors import RunFailed
from repsim_cli.engine.one_by_one import compute_pair_values
from repsim_cli.engine.prepared import Prepared, PreparedProducts, PreparedStates
from repsim_cli.engine.undefined import compute_defined_values
from repsim_cli.measures import Pairwise
from repsim_cli.measures.base import has_rows, is_added, permute_rows
from repsim_cli.measures.features import PreparedFeatures
from repsim_cli.measures.inner import Products, compute_inner_products, pack_cells, unpack
from repsim_cli.measures.kernels import AnyKernel, Packed, State

TOGETHER = 8  # orders in a tiled pass

Progress = Callable[[Sequence[Any], str], Iterable[Any]]


def iterate_silently(steps: Sequence[Any], measure: str) -> Iterable[Any]:
    return steps


def _permute_state(measure: Pairwise, state: Any, order: Tensor) -> Any:
    """Takes the rows of a state in another order. Raises RunFailed where a measure from outside cannot."""
    if measure.permute is permute_rows and is_added(measure) and not has_rows(state, len(order)):
        whose = registry.measures.say_whose(measure.name)
        raise RunFailed(
            f"{whose} prepares states that are not tensors of rows, got {type(state).__name__} to permute; give its "
            "Pairwise permute=function(state, order), or leave significance out"
        )
    return registry.measures.call(measure.name, partial(measure.permute, state, order), RunFailed)


def permute_pairs(
    prepared: Prepared,
    orders: Int[Tensor, "k n"],
    progress: Progress = iterate_silently,
    noted: Float[np.ndarray, "k r r"] | None = None,
) -> Float[Tensor, "k r r"]:
    """The measure for all pairs with the column's rows in each of the orders, without refitting.

    noted: stores values as they are computed, initially NaN, and infinity where there is none; finished values are not
    computed again.
    """
    count = len(prepared.names)
    values = np.full((len(orders), count, count), np.nan) if noted is None else noted
    left = [k for k in range(len(orders)) if np.isnan(values[k]).any()]
    if isinstance(prepared, PreparedStates):
        measure = prepared.measure
        for k in progress(left, measure.name):
            columns = [_permute_state(measure, state, orders[k]) for state in prepared.states]
            values[k] = convert_to_notes(
                compute_pair_values(measure, prepared.states, columns, prepared.names, prepared.left)
            )
        return torch.from_numpy(np.where(np.isinf(values), np.nan, values))
    measure, n = prepared.measure, prepared.rows
    rows, columns = prepared.states[measure.row], prepared.states[measure.column]
    steps = [left[start : start + TOGETHER] for start in range(0, len(left), TOGETHER)]
    for some in progress(steps, measure.name):
        # as separate kernels, the permuted matrices share the pass with the unpermuted ones
        moved = {}
        for k in some:
            whole = _compute_cell_ratio(measure.column, orders[k], n)
            moved[_copy_kernel(measure.column)] = [_reorder(measure.column, x, orders[k], n, whole) for x in columns]
        crosses = compute_inner_products(
            [(measure.row, alias) for alias in moved], {measure.row: rows, **moved}, n, prepared.tile
        )
        for k, cross, states in zip(some, crosses, moved.values(), strict=True):
            values[k] = convert_to_notes(
                compute_defined_values(measure, cross, prepared.norms, rows, states, prepared.names, {})
            )
    return torch.from_numpy(np.where(np.isinf(values), np.nan, values))


def permute_sampled(
    prepared: PreparedProducts, some: Sequence[int], orders: Int[Tensor, "k n"]
) -> Float[Tensor, "k s s"]:
    """The same for these representations, where each order permutes one of them, in turn from the last, and gives its
    column; all other columns are NaN. What all sides share is computed once."""
    measure, n = prepared.measure, prepared.rows
    turns = [len(some) - 1 - k % len(some) for k in range(len(orders))]
    rows, moved = [prepared.states[measure.row][a] for a in some], []
    for turn, order in zip(turns, orders, strict=True):
        state = prepared.states[measure.column][some[turn]]
        moved.append(_reorder(measure.column, state, order, n, _compute_cell_ratio(measure.column, order, n)))
    alias = _copy_kernel(measure.column)
    (cross,) = compute_inner_products([(measure.row, alias)], {measure.row: rows, alias: moved}, n, prepared.tile)
    norms = prepared.norms[list(some)] if len(prepared.norms) else prepared.norms
    columns = norms[turns] if len(norms) else norms
    values = torch.full((len(orders), len(some), len(some)), torch.nan, dtype=torch.float64)
    each = torch.arange(len(orders))
    values[each, :, turns] = measure.value(Products(cross, norms, columns, rows, moved)).T.cpu()
    return values


def convert_to_notes(values: Tensor) -> np.ndarray:
    """Values as `noted` has them: those that do not exist are infinite, so that they are not computed again."""
    return values.masked_fill(values.isnan(), math.inf).cpu().numpy()


def _copy_kernel(kernel: AnyKernel) -> AnyKernel:
    if isinstance(kernel, Packed):
        return Packed(cells=lambda x: kernel.cells(x))
    return replace(kernel, features=lambda x: kernel.features(x))


def _compute_cell_ratio(kernel: AnyKernel, order: Tensor, n: int) -> float:
    """Computes by how much more cells would count, if none of those that are kept came from one that is left out. It is
    not 1 where an order tears documents."""
    if not isinstance(kernel, Packed) or kernel.left_out is None:
        return 1.0
    torn = pack_cells(unpack(kernel.left_out, n)[order][:, order])
    kept, known = int((~kernel.left_out).sum()), int((~(kernel.left_out | torn)).sum())
    return kept / max(known, 1)


def _reorder(kernel: AnyKernel, state: State, order: Tensor, n: int, whole: float) -> State:
    """The state of the reordered rows; the tensors of a fit have an entry per row. Where pairs of rows of one document
    are left out, the documents do not move with the rows, so that such a fit is made anew; a rank that leaves its
    document is kept, and known ranks stand for unknown ones (whole)."""
    values, scale, gram = state.features.values, state.features.scale, state.features.gram
    if isinstance(kernel, Packed):
        cells = pack_cells(unpack(values, n)[order][:, order])
        if kernel.left_out is not None:
            cells.masked_fill_(kernel.left_out, 0).mul_(whole)
        return State(PreparedFeatures(cells, scale))
    fit = state.fit
    if kernel.documents is not None:
        features = PreparedFeatures(values[order], scale)
        return State(features, kernel.fit_to(features))
    if isinstance(fit, Tensor):
        fit = fit[order]
    elif fit is not None:
        fit = type(fit)(*(part[order] if isinstance(part, Tensor) else part for part in fit))
    return State(PreparedFeatures(values[order], scale, None if gram is None else gram[order][:, order]), fit)
