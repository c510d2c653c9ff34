"""What plans say that comparing a batch holds, against what is held."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from repsim_cli import measures
from repsim_cli.activations.exchange import Exchange
from repsim_cli.engine.batch_memory import (
    PlannedBatch,
    count_states,
    count_states_of_products,
    estimate_batch_memory,
)
from repsim_cli.engine.expected import index_row_places, make_empty_sums
from repsim_cli.measures import InnerProduct, Pairwise
from repsim_cli.measures.inner import count_largest_tile
from repsim_cli.measures.kernels import prepare_states

ROWS, WIDTH = 400, 40
FEWER = {"geometry_score": {"repeats": 20}}  # whose mean is held


def count_held(state: Any, seen: set[int]) -> int:
    """Bytes of tensors and arrays in a state, each once; those whose places are in `seen` are not counted."""
    if isinstance(state, np.ndarray):
        state = torch.from_numpy(state)
    if isinstance(state, torch.Tensor):
        storage = state.untyped_storage()
        known, _ = storage.data_ptr() in seen, seen.add(storage.data_ptr())
        return 0 if known else storage.nbytes()
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, tuple | list):
        return sum(count_held(part, seen) for part in state)
    if dataclasses.is_dataclass(state):
        return sum(count_held(getattr(state, field.name), seen) for field in dataclasses.fields(state))
    return 0


def plan_one(measure: Any, rows: int = ROWS, width: int = WIDTH, **more: Any) -> PlannedBatch:
    given: dict[str, Any] = {"layers": 1, "features": width, "widest": width, "tile": 512, "workers": 1, **more}
    return PlannedBatch(measures=[measure], rows=rows, **given)


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("name", [name for name in measures.names("activations") if measures.get(name).slow is None])
@pytest.mark.filterwarnings("ignore")
def test_states_are_as_large_as_planned(name: str, width: int):
    """Every measure that prepares states in memory, not in files: the plan is at most a fifth more than is held, and
    hardly less."""
    measure, x = (
        measures.get(name, **FEWER.get(name, {})),
        torch.randn(ROWS, width, generator=torch.Generator().manual_seed(0)),
    )
    seen = {x.untyped_storage().data_ptr()}
    if isinstance(measure, InnerProduct):
        held = count_held(list(prepare_states([measure.row, measure.column], x, {}).values()), seen)
        planned = count_states_of_products(plan_one(measure, width=width), [measure])
    else:
        assert isinstance(measure, Pairwise)
        labels = torch.arange(ROWS) % 4 if measure.card.labelled else None
        held = count_held(measure.prepare_named(x, "x", labels), seen)
        planned = count_states(plan_one(measure, width=width), measure)
    little = 0.15 * x.nbytes  # numbers of every row or feature
    assert held - little <= planned <= 1.2 * held + little


def test_tiles_have_room_as_planned():
    assert count_largest_tile(2000, 512) == 512**2
    assert count_largest_tile(100, 512) == 100**2
    assert count_largest_tile(600, 512) == 256**2  # of the tiles on the diagonal, where few rows are left beside
    measure = measures.get("cka_unbiased")
    many, few = (estimate_batch_memory(plan_one(measure, rows, 64, layers=50, features=50 * 64)) for rows in (1024, 64))
    assert many["tiles"] >= 4 * 50 * 512**2
    assert "tiles" not in few or few["tiles"] < 4 * 50 * 512**2 / 10  # a tile is no larger than the rows


def test_sums_for_chance_are_as_large_as_planned():
    rows, layers, places = 600, 24, 150
    units = Exchange(np.arange(rows) // places, np.arange(rows) % places, "documents")
    found = index_row_places(units, layers)
    assert found is not None
    sums = make_empty_sums(layers, found, torch.device("cpu"))
    batch = plan_one(measures.get("cka_unbiased"), rows, 8, layers=layers, places=places + 1.0, pairings=8)
    planned = estimate_batch_memory(batch)["chance"]
    held = sum(part.nbytes for part in sums)
    assert 0.99 * held <= planned <= 3 * held


def test_statistics_hold_no_rows():
    """A number per side: neither copies of the rows nor matrices of features."""
    held = estimate_batch_memory(plan_one(measures.get("effective_rank_difference"), 4096, 768, layers=12, pairings=8))
    assert set(part for part, size in held.items() if size) == {"preparing"}


def test_groups_of_measures_do_not_add_up():
    both = {name: measures.get(name) for name in ("procrustes", "pwcca")}
    alone = [sum(estimate_batch_memory(plan_one(measure, 2048, 768, layers=6)).values()) for measure in both.values()]
    together = dataclasses.replace(plan_one(both["procrustes"], 2048, 768, layers=6), measures=list(both.values()))
    assert sum(estimate_batch_memory(together).values()) == max(alone)
