"""Properties of one representation, and of weight matrices."""

import json
from pathlib import Path

import numpy as np
import pytest
import reference
import torch

from repsim_cli import measures
from repsim_cli.base.errors import Degenerate
from repsim_cli.measures import statistics

GOLDEN = Path(__file__).parents[1] / "golden"
OF_ONE = {
    "participation_ratio": statistics.participation_ratio,
    "effective_rank": statistics.compute_centred_rank,
    "proportional_effective_rank": statistics.proportional_effective_rank,
}
ENTRIES = [e for e in json.loads((GOLDEN / "values.json").read_text()) if e["measure"] in OF_ONE]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry['measure']}-{entry['case']}")
def test_golden_properties(entry):
    case = np.load(GOLDEN / "inputs" / f"{entry['case']}.npz")
    whole_matrix = entry["case"] == "c10" and entry["measure"] == "effective_rank"
    property_of = statistics.effective_rank if whole_matrix else OF_ONE[entry["measure"]]
    for name, value in entry["value"].items():
        assert property_of(torch.from_numpy(case[name])) == pytest.approx(value, abs=entry["atol"])


def test_share_of_the_smaller_side():
    wide = torch.from_numpy(np.load(GOLDEN / "inputs" / "c10.npz")["w_2"])
    by_columns, by_smaller = (statistics.proportional_effective_rank(wide, of=side) for side in ("columns", "smaller"))
    assert by_smaller == pytest.approx(by_columns * 40 / 24)


def test_participation_ratio_is_that_of_the_slow_version():
    x = np.random.default_rng(0).normal(size=(30, 50)) * np.geomspace(1, 30, 50) + 5
    assert statistics.participation_ratio(torch.from_numpy(x)) == pytest.approx(reference.participation_ratio(x))


def test_undefined_statistics():
    x = np.random.default_rng(0).normal(size=(6, 3))
    for name in ("concentricity_difference", "uniformity_difference"):
        with pytest.raises(Degenerate, match="y: rows of zeros have no direction, got 2; drop them"):
            measures.get(name)(x, x * [[0], [1], [0], [1], [1], [1]])
    with pytest.raises(
        Degenerate, match="y: the mean row is 0 and has no direction, got centred rows; give them as th"
    ):
        measures.get("concentricity_difference")(x, x - x.mean(0))
    with pytest.raises(Degenerate, match="x: no two rows have the same label, got 6 labels; give classes of several"):
        measures.get("tolerance_difference")(x, x, labels=np.arange(6))
    with pytest.raises(Degenerate, match="a matrix of zeros has no effective rank, got all zeros; drop it"):
        statistics.effective_rank(torch.zeros(3, 2))
