"""Which cells of a map change under remedies: those that rest on a massive feature do, the others do not."""

import json

import numpy as np
import pytest

from repsim_cli.runs import reader
from repsim_cli.studies.similarity.finding_robustness import CELLS

UNTESTED = ("significance.chance=false", "significance.floor=false")


@pytest.fixture
def stored(tmp_path):
    """h0 and h1 are alike and h3 has nothing of them; the massive feature of h2 and h3 is the same."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 400, 12))
    massive = 300 * rng.normal(size=(400, 1))
    layers = {
        "h0": x,
        "h1": x + 0.05 * rng.normal(size=x.shape),
        "h2": np.hstack([x, massive]),
        "h3": np.hstack([y, massive]),
    }
    np.savez(tmp_path / "rows.npz", **{name: layer.astype(np.float32) for name, layer in layers.items()})
    return [
        "model=[]", f"+model.mine={{kind: precomputed, path: {tmp_path / 'rows.npz'}}}", "extract.estimate=full",
        "measure=[cka_unbiased,mean_cca]", "hardware.threads=1",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.drawn
def test_cells_that_rest_on_a_massive_feature_change_under_features(repsim, newest, stored):
    code, _, err = repsim("run", "-q", *stored, "analyses.robustness={}")
    assert code == 0, err
    folder = newest()
    whole, manifest = (json.loads((folder / name).read_text()) for name in ("results.json", "manifest.json"))
    assert not [warning for warning in manifest["warnings"] if warning.startswith("robustness: ")]
    table = whole["tables"]["robustness"]
    rows = {(row[0], row[1]): dict(zip(table["columns"], row, strict=True)) for row in table["rows"]}
    assert set(rows) == {
        (label, remedy) for label in ("cka_unbiased", "mean_cca") for remedy in ("features", "directions", "rows")
    }
    massive = rows["cka_unbiased", "features"]
    assert (massive["cells"], massive["cells that change"]) == (6, 3)
    assert (massive["row"], massive["column"]) in (
        ("mine h2", "mine h3"),
        ("mine h0", "mine h2"),
        ("mine h1", "mine h2"),
    )
    assert rows["mean_cca", "features"]["cells that change"] == 0  # it does not see the scale of features
    cells = whole["tables"][CELLS]
    assert cells["columns"] == ["measure", "row", "column", "none", "features", "directions", "rows"]
    by_pair = {(row[1], row[2]): row[3:] for row in cells["rows"] if row[0] == "cka_unbiased"}
    none, features, *_ = by_pair["mine h2", "mine h3"]
    assert none > 0.99
    assert features < 0.2
    assert ("mine h0", "mine h1") not in by_pair
    count = reader.read_array(folder, whole["matrices"]["remedies that change a cell, cka_unbiased"]["values"])
    assert (count[2, 3], count[0, 1]) == (1, 0)  # rows of unit length keep the sign of the massive feature
    values = reader.read_array(folder, whole["matrices"]["cka_unbiased, none, mine, mine"]["values"])
    assert (values == reader.read_array(folder, whole["measures"][0]["matrices"][0]["values"])).all()
    assert (folder / "figures" / "robustness-cka_unbiased.png").is_file()
    assert '"cka_unbiased, features"' in (folder / "report.html").read_text()
    assert [measure["label"] for measure in whole["measures"]] == ["cka_unbiased", "mean_cca"]
    assert repsim("run", "-q", *stored, "extract.normalise=features", *UNTESTED)[0] == 0
    other = json.loads((newest() / "results.json").read_text())
    expected = reader.read_array(newest(), other["measures"][0]["matrices"][0]["values"])
    found = reader.read_array(folder, whole["matrices"]["cka_unbiased, features, mine, mine"]["values"])
    assert (found == expected).all()
    assert json.loads((newest() / "manifest.json").read_text())["matrices_cached"] == ["cka_unbiased", "mean_cca"]


def test_it_is_measured_by_the_study(repsim, newest, stored):
    assert repsim("run", "-q", *stored)[0] == 0
    code, _, err = repsim("analyse", newest(), "+analyses.robustness={}")
    assert code == 2
    assert "analyses.robustness: the run has no maps under remedies; run it again with" in err


@pytest.mark.slow
def test_models_are_treated_alike_and_rows_are_skipped(repsim, newest):
    words = (
        "model=[tiny_a,tiny_b]", "measure=[cka,euclidean]", "extract.sequences=8", "extract.batch_rows=256", "extract.layers=[0,3,-1]",
    )  # fmt: skip
    code, _, err = repsim("run", "-q", *words, "hardware.threads=1", "analyses.robustness={change: 0.0}", "cache=false")
    assert code == 0, err
    whole, manifest = (json.loads((newest() / name).read_text()) for name in ("results.json", "manifest.json"))
    assert manifest["models_run"] == ["tiny_a", "tiny_b"]
    assert any("under the remedy 'drop 0.05, skip 4' a measure is left out (extract.drop_features: euclidean" in warning
               for warning in manifest["warnings"])  # fmt: skip
    parts = {key: matrix for key, matrix in whole["matrices"].items() if matrix["about"].get("kind") == "remedy"}
    assert len(parts) == 3 * (8 + 7)  # pairs of models, remedies
    assert {matrix["n"] for key, matrix in parts.items() if "skip 4" in key} == {768}
    assert {matrix["n"] for key, matrix in parts.items() if "skip 4" not in key} == {1024}
    table = whole["tables"]["robustness"]
    assert [row[2] for row in table["rows"]] == [15] * 13
    code, out, _ = repsim("run", *words, "analyses.robustness={}", "dry_run=true")
    assert code == 0
    assert (
        "remedies: none, skip 4, features, directions, rows, skip 4, features, skip 4, directions, drop 0.05, skip 4"
        in out
    )
