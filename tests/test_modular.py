"""Modular sums: the pairs, the transformer that learns them, its hook points, and the targets."""

import json

import numpy as np
import pytest
import torch

from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import expand
from repsim_cli.data.modular import Numbers, modular_pairs
from repsim_cli.errors import BadInput
from repsim_cli.models.modular import Modular, Shape, chain, loaded, modular_source, modular_targets, saved
from repsim_cli.results import quiet
from repsim_cli.settings import Extract
from repsim_cli.training import modular as training
from repsim_cli.training.modular import Recipe, modular, train

SHAPE = Shape(numbers=5, blocks=2, outputs={"c1": 5, "b1": 5}, width=16, heads=2, mlp=24)
POINTS = ["q.h*", "attn_scores.h*", "pattern.h*", "v.h*", "z.h*", "resid_pre", "attn_out", "resid_mid", "mlp_pre", "mlp_post", "mlp_out", "resid_post"]  # fmt: skip


def recipe(**more):
    given = {
        "moduli": [5, 3], "blocks": 2, "training": "by_block", "epochs": 4, "batch_size": 8, "learning_rate": 1e-2,
        "weight_decay": 0.1, "penalty": 0.01, "train_share": 0.8, "check": 2, "patience": 3, "seed": 0,
    }  # fmt: skip
    return Recipe(**{**given, **more})


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """The source of a fresh model, and everything that is read in it on all pairs."""
    folder = tmp_path_factory.mktemp("modular")
    torch.manual_seed(0)
    saved(Modular(SHAPE), SHAPE, folder)
    source = modular_source(SHAPE, lambda: folder)
    model = source.load(True)
    sequences = modular_pairs(numbers=5).sequences(Numbers(5), Extract(hook_points=["embed"], sequences=25), 0)
    points = expand(POINTS, "all", source)
    with capture(model, source, points) as reader:
        found = reader(torch.from_numpy(sequences.inputs), torch.from_numpy(sequences.mask))
    return source, model, {str(point): x for point, x in found.items()}


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


def test_saved_and_loaded_are_one(read, tmp_path):
    _, model, _ = read
    saved(model, SHAPE, tmp_path)
    again = loaded(tmp_path)
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


def test_blocks_are_trained_one_after_the_other():
    """What the first stage made, the second leaves as it is; only the heads of the stages differ."""
    both, metrics, curves = train(recipe(), quiet)
    first, *_ = train(recipe(moduli=[5]), quiet)
    assert list(curves) == ["c1", "c2"]
    assert [row[0] for row in curves["c1"]] == [2, 4]
    assert set(metrics) == {"c1_accuracy", "c1_epochs", "c2_accuracy", "c2_epochs"}
    fresh = Modular(recipe().shape)
    for name, weights in both.state_dict().items():
        if name.startswith(("embed", "position")):
            assert not torch.equal(weights, fresh.state_dict()[name])
    assert not torch.equal(both.blocks[0].mlp_in.weight, first.blocks[0].mlp_in.weight)  # it also learns b
    one, *_ = train(recipe(epochs=1), quiet)
    two, *_ = train(recipe(epochs=1), quiet)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


def test_training_ends_early_once_it_is_right(monkeypatch):
    right = iter([0.9, 1.0, 0.9, 1.0, 1.0, 1.0])
    monkeypatch.setattr(training, "accuracy", lambda model, blocks, ab, targets, rows: next(right))
    _, metrics, curves = train(recipe(moduli=[5], blocks=1, epochs=9, patience=2, check=1), quiet)
    assert [row[2:] for row in curves["c1"]] == [[0.9, 1.0], [0.9, 1.0]]
    assert metrics == {"c1_accuracy": 1.0, "c1_epochs": 2.0}


def test_a_run_from_training_to_the_matrix(repsim, tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    words = [
        "model=[modsum_l,modsum_targets]", "model.modsum_l.moduli=[7,5]", "model.modsum_l.blocks=2",
        "model.modsum_l.epochs=3", "model.modsum_targets.moduli=[7,5]", "data=modular_pairs", "data.numbers=7",
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
    assert repsim("run", *words)[2].startswith("error: extract.unit: sequences of one length are needed, got ")


def test_the_recipe_is_checked(repsim):
    words = ["model=[modsum_0]", "data=modular_pairs", "extract=modsum", "model.modsum_0.train_share=2"]
    assert repsim("run", *words)[2].startswith("error: model.modsum_0.train_share: wrong value, got 2; give")


def test_some_pairs_are_held_out():
    with pytest.raises(BadInput, match=r"train_share: no pair is held out, got 0.99 of 9; lower it"):
        modular(moduli=[3], train_share=0.99)


def test_trained_models_are_found_again(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path))
    source = modular(moduli=[3], epochs=1)
    assert source.make is not None
    source.make(quiet)
    one = source.identity()["weights_hash"]
    assert modular(moduli=[3], epochs=1).identity()["weights_hash"] == one
    assert modular(moduli=[3], epochs=1, seed=1).identity()["weights_hash"] != one


def test_chain():
    a, b = torch.tensor([58, 2]), torch.tensor([3, 2])
    assert [c.tolist() for c in chain(a, b, [59, 31, 17])] == [[2, 4], [5, 6], [8, 8]]
