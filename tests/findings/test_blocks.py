"""Block structure: the drop between two planted blocks, in any order of the file, of similarities and of distances."""

import numpy as np
import pytest

from repsim_cli.findings.analysis import Finished, LayerMap
from repsim_cli.findings.blocks import Blocks, blocks
from repsim_cli.findings.chance import list_chance_levels
from repsim_cli.findings.localization import Localization, localization
from repsim_cli.runs.content import Measured, Results

BLOCK = np.array([0, 0, 0, 1, 1, 1])


@pytest.mark.parametrize("larger_is_closer", [True, False])
def test_the_drop_stands_between_the_blocks(tmp_path, larger_is_closer):
    rng = np.random.default_rng(0)
    similar = 0.9 - 0.5 * (BLOCK[:, None] != BLOCK) + 0.01 * rng.normal(size=(6, 6))
    order = rng.permutation(6)
    values = (similar if larger_is_closer else 1 - similar)[np.ix_(order, order)]
    names = [f"resid_post@{i}" for i in order]
    card = {"label": "CKA", "larger_is_closer": larger_is_closer}
    measured = Measured(name="cka", label="cka", settings={}, estimate={}, card=card, matrices=[])
    run = Finished(folder=tmp_path, manifest={"facts": {}}, results=Results(study="similarity"))
    run.__dict__["maps"] = {"cka": LayerMap(measured, values, names, [8] * 6, {"m": slice(0, 6)})}
    part = blocks(run, Blocks(), [])
    (row,) = part.tables["block structure"].rows
    assert row[:3] == ["cka", "m", "resid_post@2 and resid_post@3"]
    assert row[3] == pytest.approx(0.4 if larger_is_closer else 0.6, abs=0.05)
    assert row[4] == pytest.approx(0.9 if larger_is_closer else 0.1, abs=0.05)
    (curve,) = part.curves.values()
    assert curve.at == [f"resid_post@{i}" for i in range(1, 6)]
    assert blocks(run, Blocks(least=7), []).curves == {}


@pytest.mark.parametrize(("analyse", "options"), [(blocks, Blocks()), (localization, Localization())])
def test_values_between_models_are_no_level_for_layers_of_one(tmp_path, analyse, options):
    """Layers of an untrained model are alike, so that what it shares with another model is no chance for them."""
    card = {"label": "CKA", "larger_is_closer": True}
    estimate = {"rows": 9, "batches": 1}
    measured = Measured(name="cka", label="cka", settings={}, estimate=estimate, card=card, matrices=[])
    known = {"kind": "live", "family": "gpt2", "layers": [], "widths": []}
    facts = {"trained": {**known, "trained": True}, "fresh": {**known, "trained": False}}
    run = Finished(folder=tmp_path, manifest={"facts": facts}, results=Results(study="similarity"))
    names = [f"resid_post@{i}" for i in range(4)]
    values = np.where(np.arange(8)[:, None] // 4 == np.arange(8) // 4, 0.95, 0.2)
    layers = LayerMap(measured, values, names * 2, [8] * 8, {"trained": slice(0, 4), "fresh": slice(4, 8)})
    assert list_chance_levels(run, layers)
    run.__dict__["maps"] = {"cka": layers}
    curves = analyse(run, options, []).curves.values()
    assert [curve.about["levels"] for curve in curves] == [{}, {}]
