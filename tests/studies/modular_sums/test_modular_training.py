"""The training of modular sums: blocks in turn, kills, early ends, averages of weights."""

import copy
from collections import Counter

import numpy as np
import pytest
import torch
from helpers.timers import set_timers

from repsim_cli.base.errors import RunFailed
from repsim_cli.studies.modular_sums import train as training
from repsim_cli.studies.modular_sums.model import (
    Modular,
)
from repsim_cli.studies.modular_sums.recipe import ModularRecipe
from repsim_cli.studies.modular_sums.train import choose_look, collect_stage_metrics, count_mistakes


def recipe(**more):
    given = {
        "moduli": [5, 3], "blocks": 2, "training": "by_block", "epochs": 4, "batch_size": 8, "learning_rate": 1e-2,
        "weight_decay": 0.1, "penalty": 0.01, "average": 0.5, "train_share": 0.8, "check": 2, "patience": 3, "save": None,
        "device": "cpu",
    }  # fmt: skip
    return ModularRecipe(**{**given, **more})


def train(recipe, *arguments, seed=0, **more):
    return training.train(recipe, seed, *arguments, **more)


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
