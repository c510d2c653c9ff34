"""Modular sums: the pairs, the transformer that reads them, its hook points, the targets, runs."""

import json
import math

import numpy as np
import pytest
import torch

from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import expand
from repsim_cli.activations.readings import plan_readings
from repsim_cli.activations.rows import Forward
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.data.modular import Numbers, modular_pairs
from repsim_cli.models.source import describe_model
from repsim_cli.runs import reader
from repsim_cli.runs.results import quiet
from repsim_cli.studies.modular_sums import train as training
from repsim_cli.studies.modular_sums.model import (
    Modular,
    ModularShape,
    chain,
    load,
    make_modular_source,
    modular_targets,
    save,
)
from repsim_cli.studies.modular_sums.recipe import ModularRecipe
from repsim_cli.studies.modular_sums.train import modular
from repsim_cli.training import trained

SHAPE = ModularShape(numbers=5, blocks=2, outputs={"c1": 5, "b1": 5}, width=16, heads=2, mlp=24)


POINTS = ["q.h*", "attn_scores.h*", "pattern.h*", "v.h*", "z.h*", "resid_pre", "attn_out", "resid_mid", "mlp_pre", "mlp_post", "mlp_out", "resid_post"]  # fmt: skip


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """The source of a fresh model, and everything that is read in it on all pairs."""
    folder = tmp_path_factory.mktemp("modular")
    torch.manual_seed(0)
    save(Modular(SHAPE), SHAPE, folder)
    source = make_modular_source(SHAPE, lambda: folder)
    model = source.load(True)
    sequences = modular_pairs(numbers=5).sequences(Numbers(5), Extract(hook_points=["embed"], sequences=25), 0)
    points = expand(POINTS, "all", source)
    with capture(model, source, points) as reader:
        found = reader(torch.from_numpy(sequences.inputs), torch.from_numpy(sequences.mask))
    return source, model, {str(point): x for point, x in found.items()}


def test_a_backbone_alone_has_no_head(tmp_path):
    source = make_modular_source(SHAPE, lambda: tmp_path)
    assert not source.has_head
    with pytest.raises(
        BadInput, match="kind: a backbone without a head, got AutoModelForCausalLM; use a model that was"
    ):
        source.with_head("AutoModelForCausalLM")


def test_pairs_in_order():
    found = modular_pairs(numbers=5).sequences(Numbers(5), Extract(hook_points=["embed"], sequences=99), 0)
    np.testing.assert_array_equal(found.inputs @ [5, 1], np.arange(25))
    with pytest.raises(BadInput, match=r"data.numbers: more than the model knows, got 5 for 4; lower it"):
        modular_pairs(numbers=5).sequences(Numbers(4), Extract(hook_points=["embed"]), 0)


def test_identities_of_the_hook_points(read):
    _, model, x = read
    assert len(x) == 2 * (5 * 2 + 7)
    for layer, block in enumerate(model.blocks):
        torch.testing.assert_close(x[f"resid_pre@{layer}"] + x[f"attn_out@{layer}"], x[f"resid_mid@{layer}"])
        torch.testing.assert_close(x[f"resid_mid@{layer}"] + x[f"mlp_out@{layer}"], x[f"resid_post@{layer}"])
        torch.testing.assert_close(x[f"mlp_pre@{layer}"].relu(), x[f"mlp_post@{layer}"])
        torch.testing.assert_close(block.mlp_in(x[f"resid_mid@{layer}"]), x[f"mlp_pre@{layer}"])
        for head in range(2):
            pattern = x[f"pattern@{layer}.h{head}"]
            assert pattern.shape == (25, 2, 2)
            torch.testing.assert_close(x[f"attn_scores@{layer}.h{head}"].softmax(-1), pattern)
            torch.testing.assert_close(pattern @ x[f"v@{layer}.h{head}"], x[f"z@{layer}.h{head}"])
    torch.testing.assert_close(x["resid_post@0"], x["resid_pre@1"])


@pytest.mark.parametrize(("unit", "place"), [("first", 0), ("last", 1), ("sequence", slice(None))])
def test_rows_of_one_position_or_both(read, unit, place):
    """A head's maps have the keys of that query; of both positions one stands after the other, no cell is masked."""
    source, model, x = read
    extract = Extract(hook_points=POINTS, unit=unit, length=2, sequences=25)
    sequences = modular_pairs(numbers=5).sequences(Numbers(5), extract, 0)
    (reading,) = plan_readings({"m": source}, extract)
    with capture(model, source, reading.points) as reader:
        found = Forward(reading, reader, model, sequences, extract, Hardware(batch_size=25)).rows(slice(0, 25))
    for layer, rows in zip(reading.layers, found, strict=True):
        assert torch.equal(rows, x[layer.name][:, place].reshape(25, -1)), layer.name
        assert "mlp_p" in layer.name or rows.shape[1] == layer.width
    assert (x["pattern@0.h0"] > 0).all()


def test_saved_and_loaded_are_one(read, tmp_path):
    _, model, _ = read
    save(model, SHAPE, tmp_path)
    again = load(tmp_path)
    ids = torch.tensor([[0, 4], [3, 1]])
    torch.testing.assert_close(again(ids), model(ids), rtol=0, atol=0)
    torch.testing.assert_close(again.read("b1", again(ids)), again.heads["b1"](again(ids)[:, 1]))
    torch.testing.assert_close(again.read("c1", again(ids)), again.heads["c1"](again(ids)[:, 0]))


def test_targets_are_the_sums():
    one_hot, scalar = (modular_targets(moduli=[5, 3], coding=coding) for coding in ("one_hot", "scalar"))
    assert (one_hot.names, one_hot.rows, one_hot.widths) == (["c1", "c2"], 25, [5, 3])
    row = slice(19, 20)  # a = 3, b = 4
    assert scalar.read("c1", row).tolist() == [[2.0]]
    assert scalar.read("c2", row).tolist() == [[0.0]]
    assert one_hot.read("c1", row).tolist() == [[0, 0, 1, 0, 0]]


@pytest.mark.nightly
def test_a_run_from_training_to_the_matrix(repsim, tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    words = [
        "model=[modsum_l,modsum_targets]", "model.modsum_l.recipe.moduli=[7,5]", "model.modsum_l.recipe.blocks=2",
        "model.modsum_l.recipe.epochs=3", "model.modsum_targets.moduli=[7,5]", "data=modular_pairs", "data.numbers=7",
        "extract=modsum", "extract.rows=30", "measure=[gromov_wasserstein,cka]", "hardware.threads=1",
    ]  # fmt: skip
    code, _, err, folder = run(repsim, *words)
    assert code == 0, err
    results = json.loads((folder / "results.json").read_text())
    own = results["measures"][0]["matrices"]
    assert [len(one["rows"]["layers"]) for one in own] == [62, 62, 2]
    values = np.load(folder / own[1]["values"])
    assert values.shape == (62, 2)
    assert (values > 0).all()
    metrics = json.loads((folder / "manifest.json").read_text())["models"]["modsum_l"]["metrics"]
    assert metrics["c1_epochs"] == 3
    assert run(repsim, *words[:-1], "extract.unit=token")[2].startswith(
        "error: extract.hook_points: an attention map has no row per token, got 'attn_scores'; use q, k, v, z or attn_out"
    )


def run(repsim, *words):
    code, out, err = repsim("run", *words)
    folder = next((line.split(": ", 1)[1] for line in out.splitlines() if line.strip().startswith("folder: ")), None)
    from pathlib import Path

    return code, out, err, folder and Path(folder)


def test_whole_sequences_need_one_length(repsim):
    """Tokens of documents alone: how many a sequence has depends on where documents end."""
    words = ["model=[tiny_a]", "extract.unit=sequence", "extract.length=128", "extract.batch_rows=16"]
    assert repsim("run", *words)[2].startswith("error: extract.unit: sequences of equal length are needed, got ")


def test_the_recipe_is_checked(repsim):
    words = ["model=[modsum_0]", "data=modular_pairs", "extract=modsum", "model.modsum_0.recipe.train_share=2"]
    assert repsim("run", *words)[2].startswith("error: model.modsum_0.recipe.train_share: wrong value, got 2; give")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train_share": 0.99}, r"train_share: both sides need a pair, got 0.99 of 9; change it"),
        ({"blocks": 2, "training": "by_block"}, r"blocks: by_block trains one for each sum, got 2 for 1 moduli"),
        ({"save": [3]}, r"save: not two or more distinct epochs from 0 to 600, got \[3\]; change them"),
        ({"save": [3, 601], "patience": None}, r"save: not two or more distinct epochs from 0 to 600, got \[3, 601\]"),
        ({"save": [0, 3]}, r"save: a training that ends early may not come there, got patience 3; give null"),
        ({"device": "tpu9"}, "recipe.device: unknown device, got 'tpu9'; known: cpu, "),
    ],
)
def test_recipes_that_make_no_sense(given, message):
    with pytest.raises(BadInput, match=message):
        modular(recipe=ModularRecipe(moduli=[3], **given))


def test_moduli_that_make_no_sense(repsim):
    words = ["experiment=tiny/modsum_training", "model=[modsum_tiny_0]"]
    for moduli, said in (
        ("[]", "moduli: too few, got []; give at least 1"),
        ("[1]", "moduli.0: wrong value, got 1; give greater"),
    ):
        err = repsim("run", *words, f"model.modsum_tiny_0.recipe.moduli={moduli}")[2]
        assert err.startswith(f"error: model.modsum_tiny_0.recipe.{said}"), err


def test_trained_models_are_found_again(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path))
    recipe = ModularRecipe(moduli=[3], epochs=1)
    source = modular(recipe=recipe)
    assert source.make is not None
    source.make(quiet)
    one = source.identity()["weights_hash"]
    assert modular(recipe=recipe, seed=1).identity()["weights_hash"] != one
    monkeypatch.setattr(training, "train", None)
    assert modular(recipe=recipe).identity()["weights_hash"] == one


def test_checkpoints_survive_a_kill_at_the_very_end(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path))
    series = modular(recipe=ModularRecipe(moduli=[3], epochs=2, save=[0, 2], patience=None))
    with monkeypatch.context() as patch:
        patch.setattr(training, "collect_stage_metrics", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            series.make(quiet)
    series.make(quiet)
    hashes = [checkpoint.open().identity()["weights_hash"] for checkpoint in series.checkpoints]
    assert len(set(hashes)) == 2


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"moduli": [5]}, "on one sum"),
        ({"moduli": [5, 3], "blocks": 2}, "end to end"),
        ({"moduli": [5, 3], "blocks": 2, "training": "by_block"}, "block by block"),
        ({"moduli": [5, 3], "blocks": 2, "training": "by_block", "patience": None, "save": [0, 3]}, "block by block"),
    ],
)
def test_the_manifest_says_how_a_model_was_trained(given, name):
    assert describe_model("m", modular(recipe=ModularRecipe(**given)), []).training == name


def test_chain():
    a, b = torch.tensor([58, 2]), torch.tensor([3, 2])
    assert [c.tolist() for c in chain(a, b, [59, 31, 17])] == [[2, 4], [5, 6], [8, 8]]


TINY = (
    "-q", "experiment=tiny/modsum_training", "claims=[all_models_reach_full_accuracy]", "model=[modsum_tiny_0,modsum_tiny_l]", "model.modsum_tiny_0.recipe.epochs=2",
    "model.modsum_tiny_l.recipe.epochs=2", "hardware.threads=1", "figures.format=[svg]",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.drawn
def test_the_study_of_the_training(repsim, newest, monkeypatch):
    """Killed, gone on with, and what it says of models that stay below 100 %."""
    train_missing = trained.train_missing
    with monkeypatch.context() as patch:
        patch.setattr(
            trained, "train_missing", lambda *a: train_missing(*a) or (_ for _ in ()).throw(KeyboardInterrupt)
        )
        assert repsim("run", *TINY)[0] == 130
    code, _, err = repsim("run", *TINY, "model.modsum_tiny_0.seed=1", f"resume={newest()}")
    assert code == 2
    assert "has another configuration, got model.modsum_tiny_0.seed: 0 then, 1 now; start a new run" in err
    assert repsim("run", *TINY, "resume=latest")[0] == 0
    found = reader.read_results(newest())
    rows = {(row[0], row[1]): row[2:] for row in found.tables["training"].rows}
    assert all(row[0] == row[1] for row in rows.values())  # of one look
    assert {name: row[0] for name, row in rows.items()} == dict.fromkeys(
        [("modsum_tiny_0", "c1"), ("modsum_tiny_l", "c1"), ("modsum_tiny_l", "c2")], 2
    )
    curve = found.curves["accuracy of c2, modsum_tiny_l"]
    assert (curve.at, curve.lines["validation"]) == ([2], [rows["modsum_tiny_l", "c2"][3]])
    mark = found.marks["modsum_tiny_0"]
    assert mark == f"{math.floor(1000 * rows['modsum_tiny_0', 'c1'][3]) / 10} %"
    said = f"modsum_tiny_0: validation accuracy of c1 is {mark}, below 100 %"
    assert f"{said}; figures and claims say so" in found.warnings
    (claim,) = found.claims
    assert (claim.verdict, claim.value) == ("fails", min(row[3] for row in rows.values()))
    assert said in claim.why
    assert f"modsum_tiny_0 ({mark})" in (newest() / "figures" / "learning-curves.svg").read_text()
    assert f"modsum_tiny_0 ({mark})" in (newest() / "report.html").read_text()


def test_models_of_another_kind_are_refused(repsim):
    assert repsim("run", "experiment=tiny/modsum_training", "model=[]")[2].startswith(
        "error: model: no model is selected; e.g. model=[modsum_0]"
    )
    assert repsim("run", "experiment=tiny/modsum_training", "model=[tiny_a]")[2].startswith(
        "error: model.tiny_a: not trained on modular sums, got another kind; give kind: modular"
    )


@pytest.mark.slow
def test_checkpoints_are_a_series(repsim, newest):
    words = [
        "-q", "experiment=tiny/training_view", "model=[modsum_tiny_0]", "model.modsum_tiny_0.recipe.epochs=4",
        "model.modsum_tiny_0.recipe.save=[0,2,4]", "model.modsum_tiny_0.recipe.patience=null", "data=modular_pairs", "data.numbers=23",
        "extract=modsum", "extract.hook_points=[resid_pre,resid_post,pattern.h*]", "extract.rows=100", "measure=[cka]",
    ]  # fmt: skip
    code, _, err = repsim("run", *words, "hardware.threads=1")
    assert code == 0, err
    view = reader.read_results(newest()).tables["distance and metrics"]
    assert view.columns[4:] == list(training.SCORES)
    assert view.column("step") == [0, 2, 4]
    assert view.rows[2][4] < view.rows[0][4]  # it learns
