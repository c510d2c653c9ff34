"""Training of ResNet9: what a recipe does to images and rates, that it learns and resumes, and what bad input is told."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.timers import set_timers

from repsim_cli.activations.outputs import batch_in_order, compute_logits
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.runs.results import quiet
from repsim_cli.training import resnet as training
from repsim_cli.training.resnet import (
    ImageRecipe,
    LabelledImages,
    augment_images,
    score_resnet,
    train_classifier,
    trained_resnet9,
)
from repsim_cli.training.resnet_model import ResNetShape, make_fresh_resnet, resnet9

SHAPE = ResNetShape(widths=[4, 6, 8, 6], image_size=16)
RECIPE = ImageRecipe(epochs=3, batch_size=20, learning_rate=0.1, shift=1)


def some(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return LabelledImages(torch.randn(count, 3, 16, 16, generator=generator), torch.arange(count) % 10)


def digits(split, side=16):
    return registry.data.get("digits").function(side=side, channels=3, split=split)


def entry(**changes):
    given = {"shape": SHAPE, "train": digits("train"), "evaluate": digits("test"), "recipe": RECIPE}
    return trained_resnet9(**{**given, **changes})


def test_images_are_mirrored_and_shifted():
    pixels, draw = some(40).pixels, np.random.default_rng(0)
    assert torch.equal(augment_images(pixels, replace(RECIPE, flip=False, shift=0), draw), pixels)
    mirrored = augment_images(pixels, replace(RECIPE, shift=0), draw)
    same = [torch.equal(a, b) for a, b in zip(mirrored, pixels, strict=True)]
    assert 5 < sum(same) < 35
    assert all(torch.equal(a, b if kept else b.flip(-1)) for a, b, kept in zip(mirrored, pixels, same, strict=True))
    shifted = augment_images(pixels, replace(RECIPE, flip=False, shift=1), draw)
    moves = set()
    for image, before in zip(shifted, pixels, strict=True):
        padded = torch.nn.functional.pad(before, [1] * 4)
        (move,) = [(i, j) for i in range(3) for j in range(3) if torch.equal(image, padded[:, i : i + 16, j : j + 16])]
        moves.add(move)
    assert len(moves) >= 7


def test_the_rate_rises_and_falls():
    recipe = replace(RECIPE, epochs=4, learning_rate=0.8, warm_up=0.25)
    assert training._count_epoch_steps(45, recipe) == 2  # whole batches of 20
    rates = [training._compute_learning_rate(step, 2, recipe) for step in range(8)]
    np.testing.assert_allclose(rates, 0.8 * np.array([1, 3, 11 / 3, 3, 7 / 3, 5 / 3, 1, 1 / 3]) / 4)
    batches = list(
        training._draw_augmented_batches(some(45), replace(recipe, shift=0, flip=False), np.random.default_rng(0))
    )
    assert [len(batch.codes) for batch in batches] == [20, 20]
    rows = torch.cat([batch.pixels for batch in batches]).flatten(1)
    assert len(rows.unique(dim=0)) == 40
    (whole,) = training._draw_augmented_batches(some(15), recipe, np.random.default_rng(0))
    assert len(whole.codes) == 15


def test_a_step_is_that_of_the_optimiser():
    """One epoch of one batch, against SGD with Nesterov momentum by hand: weights move by rate * (1 + momentum) *
    (gradient + decay)."""
    given = some(20)
    recipe = replace(RECIPE, epochs=1, flip=False, shift=0, weight_decay=0.01)
    model, curves = train_classifier(SHAPE, given, given, recipe, 0)
    before = make_fresh_resnet(SHAPE, 0).train()
    order = torch.from_numpy(np.random.default_rng(0).permutation(20))
    loss = torch.nn.functional.cross_entropy(before(given.pixels[order]), given.codes[order], label_smoothing=0.1)
    loss.backward()
    assert curves["training_loss"] == [pytest.approx(loss.item())]
    rate = 0.1 * 0.5 / 0.8
    for (name, weight), after in zip(before.named_parameters(), model.parameters(), strict=True):
        assert weight.grad is not None
        torch.testing.assert_close(after, weight - rate * 1.9 * (weight.grad + 0.01 * weight), msg=name)
    logits = model(given.pixels)
    assert curves["accuracy"] == [pytest.approx(float((logits.argmax(1) == given.codes).float().mean()))]
    assert curves["loss"] == [pytest.approx(float(torch.nn.functional.cross_entropy(logits, given.codes)), rel=1e-5)]


def test_the_steps_of_two_epochs_are_those_of_a_plain_loop():
    """The bits are those of the loop: batches, shifts and mirrorings from one generator, whose order of an epoch is
    drawn before them."""
    seen, recipe = some(50), replace(RECIPE, epochs=2, label_smoothing=0.0)
    model, curves = train_classifier(SHAPE, seen, some(20, 1), recipe, 0)
    plain, draw = make_fresh_resnet(SHAPE, 0).train(), np.random.default_rng(0)
    optimiser = torch.optim.SGD(plain.parameters(), lr=1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    losses = []
    for epoch in range(2):
        order = draw.permutation(50)
        for step in range(2):
            optimiser.param_groups[0]["lr"] = training._compute_learning_rate(2 * epoch + step, 2, recipe)
            rows = torch.from_numpy(order[20 * step : 20 * step + 20])
            pixels = augment_images(seen.pixels[rows], recipe, draw)
            loss = torch.nn.functional.cross_entropy(plain(pixels), seen.codes[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    for (name, wanted), values in zip(plain.state_dict().items(), model.state_dict().values(), strict=True):
        assert torch.equal(values, wanted), name
    assert curves["training_loss"] == [np.mean(losses[:2]), np.mean(losses[2:])]


def test_a_killed_training_ends_with_the_same_bits(tmp_path, monkeypatch):
    seen, held_out = some(50), some(20, 1)
    model, curves = train_classifier(SHAPE, seen, held_out, RECIPE, 0)
    again, same = train_classifier(SHAPE, seen, held_out, RECIPE, 0)
    set_timers(monkeypatch, due=True)
    batches, done = training._draw_augmented_batches, []

    def counted(*given):
        for batch in batches(*given):
            done.append(1)
            yield batch

    monkeypatch.setattr(training, "_draw_augmented_batches", counted)

    def killed(steps, **_):
        for step in steps:
            if step == 5:  # in the middle of the last epoch
                raise KeyboardInterrupt
            yield step

    with pytest.raises(KeyboardInterrupt):
        train_classifier(SHAPE, seen, held_out, RECIPE, 0, killed, tmp_path)
    assert len(done) == 5
    resumed, continued = train_classifier(SHAPE, seen, held_out, RECIPE, 0, quiet, tmp_path)
    assert len(done) == 5 + 2  # the last epoch alone
    assert curves == same == continued
    assert list(curves) == ["epoch", "training_loss", "loss", "accuracy"]
    assert curves["epoch"] == [1, 2, 3]
    assert not model.training
    for name, values in model.state_dict().items():
        assert torch.equal(values, again.state_dict()[name]), name
        assert torch.equal(values, resumed.state_dict()[name]), name
    other, _ = train_classifier(SHAPE, seen, held_out, RECIPE, 1)
    assert not torch.equal(other.blocks[0].conv.weight, model.blocks[0].conv.weight)


@pytest.mark.slow
def test_it_learns_and_is_found_again(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path))
    recipe = ImageRecipe(epochs=2, batch_size=64, learning_rate=0.2, flip=False, shift=1)
    shape = ResNetShape(widths=[8, 16, 16, 16], image_size=16)
    source = entry(shape=shape, recipe=recipe)
    assert source.labels == tuple("0123456789")
    assert source.make is not None
    source.make(quiet)
    metrics = source.metrics()
    assert metrics["accuracy"] > 0.5
    identity = source.identity()
    assert identity["metrics"] == metrics
    (folder,) = (file.parent for file in tmp_path.rglob("model.safetensors"))
    assert {file.name for file in folder.iterdir()} == {
        "config.json",
        "curves.json",
        "metrics.json",
        "model.safetensors",
    }
    curves = json.loads((folder / "curves.json").read_text())
    assert {name: curves[name][-1] for name in metrics if name in curves} | {
        "training_accuracy": metrics["training_accuracy"]
    } == metrics
    train = digits("train").sequences(source.tokenizer(), training.Extract(hook_points=["conv@0"], sequences=9999), 0)
    seen = LabelledImages(torch.from_numpy(train.inputs), torch.from_numpy(train.labels.codes))
    assert score_resnet(source.load(False), seen)[1] == metrics["training_accuracy"]
    test = digits("test").sequences(source.tokenizer(), training.Extract(hook_points=["conv@0"], sequences=999), 0)
    again = resnet9(path=str(folder)).load(False)
    given = LabelledImages(torch.from_numpy(test.inputs), torch.from_numpy(test.labels.codes))
    assert score_resnet(again, given) == (metrics["loss"], metrics["accuracy"])
    assert torch.equal(again.blocks[4].conv.weight, source.load(False).blocks[4].conv.weight)
    answers = compute_logits(source.with_head("any"), test, batch_in_order(test, 100), segments=False)
    assert torch.equal(torch.cat(list(answers)), again(given.pixels))
    monkeypatch.setattr(training, "train_classifier", None)
    assert entry(shape=shape, recipe=recipe).identity() == identity
    with pytest.raises(TypeError, match="not callable"):  # other images make another model
        entry(shape=shape, recipe=recipe, evaluate=digits("train")).metrics()


@pytest.mark.slow
def test_a_model_may_know_more_labels_than_it_is_evaluated_on(tmp_path, monkeypatch):
    """Every label of training is new, so that none is right; codes follow the names, whatever their order."""
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path))
    alter = registry.data.get("altered").function
    recipe = ImageRecipe(epochs=1, batch_size=64, learning_rate=0.2, flip=False, shift=0)
    settings = {"shape": replace(SHAPE, classes=13), "recipe": recipe}
    train = alter(data=digits("train"), random_labels=1.0, new_labels=3)
    metrics = entry(train=train, **settings).metrics()
    assert metrics["accuracy"] == 0
    assert metrics["training_accuracy"] > 0.2
    reversed_names = replace(
        digits("test"),
        names=tuple("9876543210"),
        read=lambda: (pixels := digits("test").read())._replace(codes=9 - pixels.codes),
    )
    assert entry(evaluate=reversed_names, recipe=recipe).metrics() == entry(recipe=recipe).metrics()


def test_a_loss_that_is_not_finite():
    with pytest.raises(RunFailed, match="training: the loss is not finite, got nan at step [0-5]; lower learning_rate"):
        train_classifier(SHAPE, some(40), some(10), replace(RECIPE, learning_rate=1e9), 0)


def test_bad_entries():
    text = registry.data.get("embedded_text").function()
    with pytest.raises(BadInput, match=r"train: a classifier of images needs images, got .*; e.g. \{kind: cifar10\}"):
        entry(train=text)
    with pytest.raises(
        BadInput, match="evaluate: other labels than those of train, got airplane, .*; use data of the labels 0"
    ):
        entry(evaluate=registry.data.get("cifar10").function())
    with pytest.raises(BadInput, match="shape.classes: train has 10 labels, got 7; give 10"):
        entry(shape=replace(SHAPE, classes=7))
    with pytest.raises(
        BadInput, match="train: data: images differ in shape from the model's input, got 8 x 8 x 3 for 16"
    ):
        entry(train=digits("train", side=8)).metrics()
