"""Run folders of the first schema: shown, compared, reported, drawn and analysed as those of the second."""

import json

import numpy as np
import pytest
from recorded import recorded

from repsim_cli import results, schema1
from repsim_cli.content import from_json

LAYERS = [f"resid_post@{i}" for i in range(4)]
CARD = {"label": "CKA (biased)", "larger_is_closer": True, "bounds": [0.0, 1.0], "symmetric": True, "is_metric": False}
CLAIM = {
    "name": "same_family_is_closer", "source": "Wu et al. 2020, section 5.1: models of one family are closer.",
    "measure": "cka", "statistic": "a mean", "value": 0.1, "se": None, "threshold": 0.0, "p": 0.01, "opposite_p": 1.0,
    "verdict": "holds", "why": "6 ways",
}  # fmt: skip
CURVES = {
    "mean cka": {"label": "mean cka over all other layers", "by_layer": {
        m: {"layers": LAYERS, "row": [0.1, 0.2, 0.3, 0.4], "column": [0.1, 0.2, 0.3, 0.4]} for m in ("a", "b")}},
    "cka with a": {"label": "CKA with a", "base": "a", "by_layer": {"b": {"layers": LAYERS, "same layer": [1.0] * 4}}},
    "cka, resid_post, x-y": {
        "quantity": "cka", "label": "CKA", "point": "resid_post", "pairs_of": ["x", "y"], "layers": LAYERS,
        "shares": [0.25, 0.5, 0.75, 1.0], "models": [["a", "b"]], "values": [[0.1, 0.2, 0.3, 0.4]],
        "mean": [0.1, 0.2, 0.3, 0.4], "low": [0.0] * 4, "high": [1.0] * 4, "pairs_low": None, "pairs_high": None,
        "level": 0.95, "replicates": 2000},
    "cka to last, attn_out, m": {
        "quantity": "cka to last", "label": "CKA", "point": "attn_out", "model": "m", "parameters": 10,
        "bounds": [0.0, 1.0], "steps": [0, 5, 10], "layers": ["attn_out@0", "attn_out@1"],
        "values": [[0.1, None, 1.0], [0.2, None, 1.0]], "se": None, "mean": [0.15, None, 1.0],
        "percentiles": {p: [0.1, None, 1.0] for p in ("10", "25", "50", "75", "90")}},
    "a -> b, resid_post@0": {
        "quantity": "training loss of stitch layers", "head": "a", "tail": "b", "head layer": "resid_post@0",
        "tail layer": "resid_post@0", "steps": [1, 2], "values": [3.0, 2.0], "own": 1.0, "diverged": None},
    "training loss of c1, m": {"quantity": "loss", "label": "nats", "model": "m", "stage": "c1", "rows": "training",
                               "steps": [1, 2], "mean": [3.0, 2.0]},
    "validation loss of c1, m": {"quantity": "loss", "label": "nats", "model": "m", "stage": "c1", "rows": "validation",
                                 "steps": [1, 2], "mean": [4.0, 3.0]},
    "training loss of m, nats": {"steps": [10, 20], "loss": [1.0, 0.5]},
    "training loss, nats per token": [6.0, 5.5, 5.0],
    "held-out loss, nats per token": {"quantity": "held-out loss", "label": "nats per token", "steps": [0, 2], "mean": [6.0, 5.0]},
}  # fmt: skip


def test_every_form_of_curve_keeps_its_numbers():
    whole = from_json(schema1.results({"study": "similarity", "measures": [], "curves": CURVES}))
    kept = whole.curves
    assert kept["mean cka, b"].lines["row"] == [0.1, 0.2, 0.3, 0.4]
    assert (kept["mean cka, b"].at, kept["mean cka, b"].analysis) == (LAYERS, "localization")
    assert kept["cka with a, b"].analysis == "base_model"
    groups = kept["cka, resid_post, x-y"]
    assert (groups.lines, groups.bands.keys(), groups.about["pairs_of"]) == (
        {"a and b": [0.1, 0.2, 0.3, 0.4]}, {"models"}, ["x", "y"],
    )  # fmt: skip
    training = kept["cka to last, attn_out, m"]
    assert training.lines == {"attn_out@0": [0.1, None, 1.0], "attn_out@1": [0.2, None, 1.0]}
    assert (training.mean, training.bands["deciles"].low) == ([0.15, None, 1.0], [0.1, None, 1.0])
    assert training.about["measure"] == "cka"
    assert kept["a -> b, resid_post@0"].about["head"] == "a"
    assert kept["loss of c1, m"].x.name == "epoch"
    assert kept["loss of c1, m"].lines == {"training": [3.0, 2.0], "validation": [4.0, 3.0]}
    assert kept["training loss of m, nats"].lines == {"loss": [1.0, 0.5]}
    assert (kept["training loss"].at, kept["training loss"].lines) == ([0, 1, 2], {"loss": [6.0, 5.5, 5.0]})
    assert kept["held-out loss"].lines == {"loss": [6.0, 5.0]}
    assert set(whole.analyses) == {"maps", "localization", "base_model", "groups"}


def test_distances_and_sub_networks_are_drawn_as_they_were():
    kept = from_json(schema1.results({
        "study": "similarity", "measures": [], "curves": {},
        "distances": {"cka, mlp_out": {"label": "arccos CKA", "models": ["a", "b"], "values": "arrays/d.npy"}},
    }))  # fmt: skip
    matrix = kept.matrices["cka, mlp_out, between models"]
    assert (matrix.values, matrix.rows.layers) == ("arrays/d.npy", ["a", "b"])
    assert (matrix.about, matrix.analysis) == ({"distance": "cka, mlp_out", "layers": "arccos CKA"}, "distances")
    model = {"layers": LAYERS, "consecutive": [0.1, 0.2, 0.3], "groups": {"spectral": {"labels": [0, 0, 1, 1]}}}
    measure = {"label": "cka", "name": "cka", "settings": {}, "estimate": {}, "card": CARD, "matrices": []}
    lines = from_json(schema1.results({"study": "similarity", "measures": [measure], "sub_networks": {"cka": {"a": model}}})).curves  # fmt: skip
    assert lines["sub-networks, cka, a"].lines == {"spectral": [0, 0, 1, 1]}
    assert lines["to the next layer, cka, a"].lines == {"to the next layer": [0.1, 0.2, 0.3]}
    assert {curve.analysis for curve in lines.values()} == {"sub_networks"}


def test_models_of_groups_are_as_deep_as_their_curves_say():
    curve = CURVES["cka, resid_post, x-y"]
    assert schema1.facts({"curves": {"cka, resid_post, x-y": curve}}, ["a"])["a"]["blocks"] == 4
    stored = {**curve, "point": "layers", "layers": ["in@5", "h", "i", "j"]}
    assert schema1.facts({"curves": {"cka, layers, x-y": stored}}, ["a"])["a"]["blocks"] is None


def test_views_of_rows():
    batch = {"rows": [5, 9], "classes": None}
    histogram = {"model": "m", "layers": LAYERS, "rows": 40, "scale": "none", "edges": "arrays/e.npy", "counts": "arrays/h.npy", "kl": [0.1] * 3}  # fmt: skip
    coupling = {"model": "m", "rows": LAYERS[0], "columns": LAYERS[1], "starts": "POT's start", "coupling": "arrays/c.npy", "objective": 0.5, "diagonal": 1.0}  # fmt: skip
    views = {"batch": batch, "histograms": [histogram], "couplings": [coupling]}
    whole = from_json(schema1.results({"study": "views", "measures": [], "views": views}))
    assert whole.about["batch"] == batch
    assert set(whole.analyses) == {"histograms", "couplings"}
    counts, plan = whole.matrices.values()
    assert (counts.rows.layers, counts.values, counts.n) == (LAYERS, "arrays/h.npy", 40)
    assert (counts.details, counts.about) == ({"edges": "arrays/e.npy"}, {"kind": "histograms", "scale": "none"})
    assert (plan.rows.model, plan.columns.model, plan.rows.layers) == (*LAYERS[:2], ["row 5", "row 9"])
    assert plan.about == {"kind": "couplings", "model": "m", "starts": "POT's start", "objective": 0.5}


def test_settings_of_views():
    old = {"views": ["histograms", "neighbours"], "distance_scale": "mean", "batch": 8, "k": 3, "restarts": 5}
    kept = schema1.config({"study": "views", "options": {**old, "claims": ["neighbours_change"]}})
    assert kept["options"] == {"batch": 8, "histograms": {"scale": "mean"}, "neighbours": {"k": 3}, "couplings": None}
    assert kept["claims"] == ["neighbours_change"]
    every = schema1.config({"study": "views", "options": {"restarts": 5}})["options"]
    assert every == {"histograms": {}, "neighbours": {}, "couplings": {"restarts": 5}}


def test_probes_are_matrices():
    errors = {
        "model": "m", "probe": "linear_regression", "label": "linear regression", "error": "1 - R²", "layers": LAYERS,
        "targets": ["c1"], "values": "arrays/errors.npy", "control": "arrays/control.npy",
    }  # fmt: skip
    whole = from_json(schema1.results({"study": "probes", "probes": {"errors": [errors]}}))
    matrix = whole.matrices["linear_regression, m"]
    assert (matrix.values, matrix.details) == ("arrays/errors.npy", {"control": "arrays/control.npy"})
    assert (matrix.rows.layers, matrix.columns.layers, matrix.about["kind"]) == (LAYERS, ["c1"], "probes")
    assert list(whole.analyses) == ["probes"]


OLD_MODELS = {
    "a": {"kind": "shipped", "name": "tiny_a"},
    "m": {"kind": "modular", "moduli": [5, 3], "blocks": 2, "training": "by_block", "seed": 1},
    "p": {"kind": "pretrained", "config": {}, "tokenizer": "tiny_a", "steps": 3, "seed": 0},
    "f": {"kind": "finetuned", "config": {}, "shared": {"kind": "x"}, "shared_steps": 5, "seeds": [0], "clip": 1.0},
    "g": {"kind": "finetuned", "hub": "x", "shared": None, "shared_steps": 5, "seeds": [0], "steps": None},
}
NEW_MODELS = {
    "a": {"kind": "shipped", "name": "tiny_a"},
    "m": {"kind": "modular", "seed": 1, "recipe": {"moduli": [5, 3], "blocks": 2, "training": "by_block"}},
    "p": {"kind": "pretrained", "config": {}, "tokenizer": "tiny_a", "seed": 0, "recipe": {"steps": 3}},
    "f": {
        "kind": "finetuned",
        "config": {},
        "shared": {"data": {"kind": "x"}, "recipe": {"clip": 1.0, "steps": 5}},
        "seeds": [0],
        "recipe": {"clip": 1.0},
    },
    "g": {"kind": "finetuned", "hub": "x", "shared": None, "seeds": [0], "recipe": {"steps": None}},
}


def test_recipes_of_an_old_configuration_are_groups_of_settings():
    old = {
        "study": "stitching",
        "model": OLD_MODELS,
        "options": {"grid": True, "metric": "kl", "steps": 5, "claims": None},
    }
    new = schema1.config(old)
    assert new["model"] == NEW_MODELS
    assert (new["options"], new["analyses"]) == (
        {"grid": True, "recipe": {"steps": 5}},
        {"stitching": {"metric": "kl"}},
    )
    old = {
        "study": "identity_stitching",
        "extract": {"hook_points": ["mlp_out"], "length": 9},
        "options": {"claims": ["x"]},
    }
    new = schema1.config(old)
    assert (new["study"], new["options"], new["claims"]) == (
        "stitching", {"evaluation": None, "recipe": {"layer": "identity"}}, ["x"],
    )  # fmt: skip
    assert new["extract"] == {"hook_points": ["resid_post"], "length": 9}


@pytest.fixture
def folder(tmp_path, repsim):
    """A run folder as version 0.1 wrote it."""
    place = tmp_path / "outputs" / "old"
    (place / "arrays").mkdir(parents=True)
    values = np.eye(8) * 0.5 + 0.5 - 0.05 * np.abs(np.arange(8)[:, None] % 4 - np.arange(8) % 4)
    matrices = []
    for i, row in enumerate("ab"):
        for j, column in enumerate("ab"[i:], i):
            file = f"arrays/{i}-{j}.npy"
            np.save(place / file, values[4 * i : 4 * i + 4, 4 * j : 4 * j + 4])
            sides = {"rows": {"model": row, "layers": LAYERS}, "columns": {"model": column, "layers": LAYERS}}
            matrices.append({**sides, "values": file, "se": None, "p": None, "n": 100})
    measure = {
        "name": "cka", "label": "cka", "settings": {}, "null": None, "card": CARD, "matrices": matrices,
        "estimate": {"kind": "full", "rows": 100, "rows_available": 100, "batches": 1},
    }  # fmt: skip
    document = {
        "schema": 1, "study": "similarity", "measures": [measure], "tables": {}, "claims": [CLAIM], "warnings": [],
        "curves": {"mean cka": CURVES["mean cka"]},
    }  # fmt: skip
    (place / "results.json").write_text(json.dumps(document))
    (place / "config.yaml").write_text(
        "name: old\nstudy: similarity\nseed: 0\nbase: null\nsignificance: {level: 0.95}\n"
        "options: {by_layer: true, claims: [same_family_is_closer]}\n"
    )
    manifest = {
        "schema": 1, "name": "old", "study": "similarity", "status": "complete", "error": None, "resumed": [],
        "started": "2026-01-01T00:00:00+00:00", "command": ["repsim", "run"], "overrides": [], "seed": 0, "git": None,
        "packages": {}, "timings": {}, "peak_memory_mb_after": {}, "warnings": [], "rows": 100,
        "models": {"a": {"source": "a"}, "b": {"source": "b"}},
        "files": {str(file.relative_to(place)): results.sha256(file) for file in place.rglob("*") if file.is_file()},
    }  # fmt: skip
    (place / "manifest.json").write_text(json.dumps(manifest))
    return place


def test_an_old_run_is_shown_reported_and_compared(repsim, folder, tmp_path):
    code, out, err = repsim("show", folder)
    assert code == 0, err
    assert "claim same_family_is_closer (cka): holds (0.100, threshold 0.0, p = 0.01)" in out
    assert repsim("report", folder)[0] == 0
    other = tmp_path / "outputs" / "other"
    import shutil

    shutil.copytree(folder, other)
    assert "largest         0" in repsim("compare", folder, other)[1]


@pytest.mark.drawn
def test_an_old_run_is_drawn_and_analysed(repsim, folder):
    code, out, err = repsim("plot", folder)
    assert code == 0, err
    assert {"cka-all.png", "by-layer-mean_cka.png"} <= {line.rpartition("/")[2] for line in out.splitlines()}
    assert repsim("analyse", folder)[0] == 0
    again = recorded(folder)
    assert json.loads((folder / "results.json").read_text())["schema"] == 2
    assert [claim["verdict"] for claim in again["claims"]] == ["holds"]  # nothing is known of the families
    values = np.load(folder / "arrays" / "0-1.npy")
    own = np.load(folder / "arrays" / "0-0.npy")
    wanted = (own.sum(1) - own.diagonal() + values.sum(1)) / 7
    np.testing.assert_allclose(again["curves"]["mean cka, a"]["lines"]["row"], wanted)
    assert repsim("analyse", folder, "+analyses.blocks={}")[0] == 0
    assert recorded(folder)["tables"]["block structure"]["rows"][0][:2] == ["cka", "a"]


def test_what_an_old_run_does_not_say(repsim, folder):
    _, _, err = repsim("analyse", folder, "claims=[same_family_is_closer]")
    assert err.startswith("error: claims: a run by an earlier version lacks facts about its models, got same_family")
    for name in ("results.json", "manifest.json"):
        document = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**document, "study": "views"}))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["results.json"] = results.sha256(folder / "results.json")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    _, _, err = repsim("analyse", folder)
    assert err.startswith(
        "error: RUN: a run of the study views by an earlier version lacks what analyses need, got schema 1"
    )


def test_a_damaged_old_run_is_one_line(folder):
    document = json.loads((folder / "results.json").read_text())
    document["curves"]["mean cka"] = {"by_layer": {"a": {"row": [1.0]}}}
    (folder / "results.json").write_text(json.dumps(document))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["results.json"] = results.sha256(folder / "results.json")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        results.BadInput, match=r"results.json: not as schema 1 has it, got KeyError\('la.*run it again"
    ):
        results.read_results(folder)
