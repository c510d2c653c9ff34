"""The level of chance of shared neighbours where the index decides among equally near rows."""

import numpy as np
import pytest
import torch

from repsim_cli import measures
from repsim_cli.activations.exchange import Exchange
from repsim_cli.engine.chance import compute_exact_mean, observe_chance
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.measures.base import MeasureWarning

UNITS = Exchange(np.arange(120), np.zeros(120, int), "rows")


def compare(layers):
    found = {}

    def watch(label, measure, prepared, values):
        found.update(observe_chance(UNITS, lambda batch: np.arange(120), 1, 0)(0, measure, prepared, values))
        found["alone"] = compute_exact_mean(prepared, UNITS)

    with pytest.warns(MeasureWarning, match="go by index"):
        values = compute_all_pairs({"m": measures.get("mutual_knn")}, layers, observe=watch)["m"]
    return values, found


def test_unrelated_layers_of_rows_that_tie_are_at_chance():
    """Most rows are 0, and their neighbours those of the lowest index in any layer; of a last layer without ties no
    more is shared by chance than ten of 119."""
    rng = np.random.default_rng(0)
    tied = [torch.from_numpy(np.maximum(rng.normal(size=(120, 6)) - 2, 0)) for _ in range(6)]
    values, found = compare([*tied, torch.from_numpy(rng.normal(size=(120, 6)))])
    apart = ~torch.eye(6, dtype=torch.bool)
    assert values[:6, :6][apart].min() > 0.3
    gaps = (values - found["chance"])[:6, :6][apart]
    assert gaps.abs().max() < 0.25
    assert gaps.mean().abs() < 0.05
    assert found["chance"][6, :6].max() < 0.12
    assert found["chance"].equal(found["alone"])
    assert found["apart"].nanmean().sqrt() < 0.08
