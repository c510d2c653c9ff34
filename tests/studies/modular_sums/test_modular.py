"""Modular sums: the pairs, the transformer that learns them, its hook points, and the targets."""

import copy
import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from helpers.timers import set_timers

from repsim_cli.activations.capture import capture
from repsim_cli.activations.hook_points import expand
from repsim_cli.activations.readings import plan_readings
from repsim_cli.activations.rows import Forward
from repsim_cli.base.errors import BadInput, RunFailed
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
from repsim_cli.studies.modular_sums.train import choose_look, collect_stage_metrics, count_mistakes, modular
from repsim_cli.training import trained

SHAPE = ModularShape(numbers=5, blocks=2, outputs={"c1": 5, "b1": 5}, width=16, heads=2, mlp=24)
POINTS = ["q.h*", "attn_scores.h*", "pattern.h*", "v.h*", "z.h*", "resid_pre", "attn_out", "resid_mid", "mlp_pre", "mlp_post", "mlp_out", "resid_post"]  # fmt: skip


def recipe(**more):
    given = {
        "moduli": [5, 3], "blocks": 2, "training": "by_block", "epochs": 4, "batch_size": 8, "learning_rate": 1e-2,
        "weight_decay": 0.1, "penalty": 0.01, "average": 0.5, "train_share": 0.8, "check": 2, "patience": 3, "save": None,
        "device": "cpu",
    }  # fmt: skip
    return ModularRecipe(**{**given, **more})


def train(recipe, *arguments, seed=0, **more):
    return training.train(recipe, seed, *arguments, **more)


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


def test_blocks_are_trained_one_after_the_other():
    both, curves = train(recipe())
    first, _ = train(recipe(moduli=[5], blocks=1))
    assert list(curves) == ["c1", "c2"]
    assert curves["c1"]["epoch"] == [2, 4]
    assert set(collect_stage_metrics(curves, 3)) == {
        f"{c}_{of}" for c in ("c1", "c2") for of in ("accuracy", "loss", "epochs")
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fresh = Modular(recipe().shape)
    for name, weights in both.state_dict().items():
        if name.startswith(("embed", "position")):
            assert not torch.equal(weights, fresh.state_dict()[name])
    assert not torch.equal(both.blocks[0].mlp_in.weight, first.blocks[0].mlp_in.weight)  # it also learns b
    alone, _ = train(recipe(epochs=1))
    again, _ = train(recipe(epochs=1))
    assert same(alone, again)
    assert not same(alone, train(recipe(epochs=1), seed=1)[0])


def same(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_the_frozen_block_stays_as_it_was():
    kept = {}
    both, _ = train(recipe(patience=None, save=[4, 8]), keep=lambda model, epoch, _: kept.update({epoch: copy.deepcopy(model)}))  # fmt: skip
    for name, weights in both.state_dict().items():
        first = kept[4].state_dict()[name]
        trained_later = name.startswith(("blocks.1", "heads.c2"))
        assert torch.equal(weights, first) != trained_later, name
    assert same(both, kept[8])


def test_scores_are_those_of_the_whole_model():
    """Loss and accuracy of a look, by a plain computation on the trained model."""
    model, curves = train(recipe())
    ab = torch.cartesian_prod(torch.arange(5), torch.arange(5))
    held_out = torch.from_numpy(np.random.default_rng(0).permutation(25)[20:])
    logits = model.heads["c2"](model(ab)[held_out, 0])
    wanted = (((ab[:, 0] + ab[:, 1]) % 5 + ab[:, 1]) % 3)[held_out]
    best = choose_look(curves["c2"], 3)
    assert curves["c2"]["validation_loss"][best] == pytest.approx(
        float(torch.nn.functional.cross_entropy(logits, wanted))
    )
    assert curves["c2"]["validation_accuracy"][best] == pytest.approx(
        float((logits.argmax(-1) == wanted).double().mean())
    )


def test_mistakes_are_how_far_the_wrong_rows_are_off():
    one = recipe(moduli=[7, 5], epochs=6)
    model, _ = train(one)
    ab = torch.cartesian_prod(torch.arange(7), torch.arange(7))
    held_out = torch.from_numpy(np.random.default_rng(0).permutation(49)[39:])
    found = count_mistakes(model, one, seed=0)
    assert list(found) == ["c1", "c2"]
    for name, blocks, p in (("c1", 1, 7), ("c2", 2, 5)):
        told = model.heads[name](model.stream(ab, blocks)[:, 0]).argmax(-1)[held_out]
        true = (ab.sum(1) % 7 if name == "c1" else (ab.sum(1) % 7 + ab[:, 1]) % 5)[held_out]
        off = [
            min(range(-(p // 2), p // 2 + 1), key=lambda d: (int(t) + d - int(g)) % p)
            for g, t in zip(told, true, strict=True)
        ]
        wanted = Counter(off)
        wanted.pop(0, None)
        assert wanted
        assert dict(found[name]) == wanted


def stopping(after):
    """Progress that a user ends after so many epochs."""
    seen = []

    def progress(items, **_):
        for item in items:
            if len(seen) == after:
                raise KeyboardInterrupt
            seen.append(item)
            yield item

    return progress


@pytest.mark.parametrize("after", [1, 5, 8])
def test_a_training_that_was_killed_ends_with_the_same_bits(tmp_path, monkeypatch, after):
    """Kills come before the first epoch, between the stages, and in the second."""
    set_timers(monkeypatch, due=True)
    whole, curves = train(recipe())
    with pytest.raises(KeyboardInterrupt):
        train(recipe(), stopping(after - 1), tmp_path)
    done = []
    again, same_curves = train(recipe(), lambda items, **_: (done.append(i) or i for i in items), tmp_path)
    assert same(whole, again)
    assert curves == same_curves
    assert len(done) == 8 - (after - 1)


def test_training_ends_early_once_it_is_right(monkeypatch):
    right = iter([0.9, 1.0, 0.9, 1.0, 1.0, 1.0])
    monkeypatch.setattr(training, "_compute_loss_and_accuracy", lambda model, stream, task, rows: (0.5, next(right)))
    _, curves = train(recipe(moduli=[5], blocks=1, epochs=9, patience=2, check=1))
    assert curves["c1"]["training_accuracy"] == [0.9, 0.9]
    assert collect_stage_metrics(curves, 2) == {"c1_accuracy": 1.0, "c1_loss": 0.5, "c1_epochs": 1.0}


@pytest.mark.parametrize(("patience", "kept"), [(9, 3), (None, 5)])
def test_which_look_a_stage_leaves(monkeypatch, patience, kept):
    """The one of the largest validation accuracy, the first of two that are equal; without an early end the last."""
    scores = [(0.1, 0.5), (0.3, 0.8), (0.2, 0.8), (0.2, 0.8), (0.1, 0.7)]
    looks = iter([pair for pair in scores for _ in range(2)])
    monkeypatch.setattr(training, "_compute_loss_and_accuracy", lambda model, stream, task, rows: next(looks))
    one = {"moduli": [5], "blocks": 1, "patience": patience}
    model, curves = train(recipe(**one, epochs=5, check=1))
    loss, accuracy = scores[kept - 1]
    assert collect_stage_metrics(curves, patience) == {"c1_accuracy": accuracy, "c1_loss": loss, "c1_epochs": kept}
    monkeypatch.undo()
    assert same(model, train(recipe(**one, epochs=kept, check=kept))[0])


def test_the_average_of_the_weights():
    """The average after each epoch of one batch, from the weights of trainings without one."""
    one = {"moduli": [5], "blocks": 1, "batch_size": None, "patience": None}
    steps = [train(recipe(**one, epochs=n, check=n, average=0.0))[0].state_dict() for n in (1, 2, 3)]
    first: list[dict] = []
    train(
        recipe(**one, epochs=3, check=3, average=0.0, save=[0, 3]),
        keep=lambda model, epoch, _: first.append(copy.deepcopy(model.state_dict())),
    )
    mean, _ = train(recipe(**one, epochs=3, check=3, average=0.9))
    for name, weights in mean.state_dict().items():
        expected = first[0][name]
        for step in steps:
            expected = 0.9 * expected + 0.1 * step[name]
        torch.testing.assert_close(weights, expected)


def test_a_loss_that_is_not_finite(monkeypatch):
    monkeypatch.setattr(training, "_compute_loss_and_accuracy", lambda model, stream, task, rows: (float("nan"), 0.0))
    with pytest.raises(
        RunFailed, match="training: the loss is not finite, got nan at epoch 2 of c1; lower learning_rate"
    ):
        train(recipe())


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
