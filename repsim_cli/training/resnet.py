"""ResNet9 classifiers, trained on labelled images when they are first needed (Gao et al. 2024, section 5.4).

The recipe is that of the public ResNet9 (FFCV's example for CIFAR-10) without its cut-outs and its half precision, and
with Nesterov momentum. A killed training resumes from its saved state, and ends with the same bits.
"""

import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from repsim_cli.base.errors import BadInput
from repsim_cli.base.planning import check_device, is_dry
from repsim_cli.base.registry import models
from repsim_cli.base.settings import EVERYTHING, Above0, Extract, Fraction, From0, Medium, Positive, Seed
from repsim_cli.data.base import Data
from repsim_cli.data.images import Images
from repsim_cli.models.loading import WHOLE, place_model
from repsim_cli.models.source import Source
from repsim_cli.runs.reader import STATE
from repsim_cli.runs.results import Progress, dumps, quiet, write
from repsim_cli.training.loop import Along, Pace, train
from repsim_cli.training.resnet_model import (
    ResNet9,
    ResNetShape,
    WithLogits,
    freeze_model,
    identify_weights,
    load,
    make_fresh_resnet,
    make_resnet_source,
    save,
)
from repsim_cli.training.trained import Metrics, Trained

CODE = 2  # raise when a change of the code changes what is trained (tests/test_codes.py)
CURVES = "curves.json"  # beside the weights
SCORES = ("epoch", "training_loss", "loss", "accuracy")
EVALUATED = 256  # images at a time


@dataclass(frozen=True, kw_only=True)
class ImageRecipe:
    """SGD with Nesterov momentum; the learning rate rises linearly from 0, and then falls linearly to 0 at the end.

    epochs: passes over the images. Each is in an order of its own.
    batch_size: images per step. Those that do not fill a batch are left out of that epoch.
    learning_rate: the largest one.
    warm_up: the share of the steps in which it rises.
    momentum: of SGD.
    weight_decay: of all weights.
    label_smoothing: the share of the target that is spread over all labels.
    flip: half of the images, drawn anew in each epoch, are mirrored.
    shift: the largest number of pixels that images are moved by, in both directions, drawn anew in each epoch; what is
        uncovered has the mean colour of CIFAR-10.
    device: the torch device that the model is trained on.
    """

    epochs: Positive = 24
    batch_size: Medium = 512
    learning_rate: Above0 = 0.5
    warm_up: Fraction = 0.2
    momentum: Fraction = 0.9
    weight_decay: From0 = 5e-4
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    flip: bool = True
    shift: Annotated[int, Field(ge=0, le=64)] = 2
    device: str = "cpu"


class LabelledImages(NamedTuple):
    """Normalised images and the codes of their labels."""

    pixels: Float[Tensor, "n c h w"]
    codes: Int[Tensor, " n"]

    def digest(self) -> str:
        parts = (values.numpy().tobytes() for values in self)
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()

    def to(self, device: str) -> "LabelledImages":
        return LabelledImages(self.pixels.to(device), self.codes.to(device))


@models.register("trained_resnet9")
def trained_resnet9(*, shape: ResNetShape, train: Data, evaluate: Data, recipe: ImageRecipe, seed: Seed = 0) -> Source:
    """A ResNet9 that is trained on labelled images when it is first needed.

    Its metrics are accuracy and loss (nats per image) on `evaluate`, training_loss, the mean over the last epoch, and
    training_accuracy on `train` at the end; curves.json beside the weights has the first three by epoch. Batch norm
    uses batch statistics in training, and running ones wherever the model is read.

    shape: the size of the network.
    train: the images to train on.
    evaluate: the images of the metrics, of some or all labels of `train`. The model is trained again if they change.
    recipe: how it is trained.
    seed: of the weights, the order of the images, and their flips and shifts.
    Example: repsim run model=[] +model.mine='{kind: trained_resnet9, shape: {widths: [8, 16, 16, 8], image_size: 16},
        train: {kind: digits, side: 16, channels: 3, split: train}, evaluate: {kind: digits, side: 16, channels: 3,
        split: test}, recipe: {epochs: 2, batch_size: 64}}' data=digits data.side=16 data.channels=3 extract=resnet9
    """
    sets = {"train": _require_images("train", train), "evaluate": _require_images("evaluate", evaluate)}
    labels = sets["train"].names
    if len(labels) != shape.classes:
        raise BadInput(f"shape.classes: train has {len(labels)} labels, got {shape.classes}; give {len(labels)}")
    if not set(sets["evaluate"].names) <= set(labels):
        raise BadInput(
            f"evaluate: other labels than those of train, got {', '.join(sets['evaluate'].names)}; use data of the "
            f"labels {', '.join(labels)}"
        )
    if is_dry():  # a model from the cache needs no such device, wherever it was trained
        check_device("recipe.device", recipe.device)
    tokenizer = make_resnet_source(shape, lambda: make_fresh_resnet(shape, seed), dict).tokenizer

    def read_labelled(name: str) -> LabelledImages:
        everything = Extract(hook_points=["conv@0"], sequences=EVERYTHING)
        try:
            given = sets[name].sequences(tokenizer(), everything, seed)
        except BadInput as error:
            raise BadInput(f"{name}: {error}") from None
        assert given.labels is not None
        codes = np.array([labels.index(label) for label in sets[name].names])[given.labels.codes]
        return LabelledImages(torch.from_numpy(given.inputs), torch.from_numpy(codes))

    @functools.cache
    def define() -> Trained:
        given = {name: read_labelled(name) for name in sets}

        def fit(folder: Path, scratch: Path, progress: Progress) -> Metrics:
            check_device("recipe.device", recipe.device)
            model, curves = train_classifier(shape, given["train"], given["evaluate"], recipe, seed, progress, scratch)
            save(model, folder)
            (folder / CURVES).write_text(dumps(curves))
            last = {name: values[-1] for name, values in curves.items() if name != "epoch"}
            return {**last, "training_accuracy": score_resnet(model, given["train"])[1]}

        settings = {"shape": asdict(shape), "recipe": asdict(recipe), "seed": seed}
        return Trained({"code": CODE, "data": {name: x.digest() for name, x in given.items()}, **settings}, fit)

    def identity() -> dict[str, Any]:
        made = {"source": f"trained here, models/{define().key}", "trained": define().key}
        return {**identify_weights(define().folder()), **made, "metrics": define().metrics()}

    def make(progress: Progress) -> None:
        define().folder(progress)

    return make_resnet_source(
        shape,
        lambda: load(define().folder()),
        identity,
        with_head=lambda auto, how=WHOLE: place_model(WithLogits(load(define().folder())), how),
        make=make,
        metrics=lambda: define().metrics(),
        labels=labels,
    )


def _require_images(name: str, data: Data) -> Images:
    if not isinstance(data, Images):
        raise BadInput(f"{name}: a classifier of images needs images, got {data.source}; e.g. {{kind: cifar10}}")
    return data


def train_classifier(
    shape: ResNetShape,
    seen: LabelledImages,
    held_out: LabelledImages,
    recipe: ImageRecipe,
    seed: int,
    progress: Progress = quiet,
    scratch: Path | None = None,
) -> tuple[ResNet9, dict[str, list[float]]]:
    """The model, on the CPU, and by epoch the columns `SCORES`.

    scratch: a folder for the state, from which a killed training resumes.
    """
    model = make_fresh_resnet(shape, seed).to(recipe.device)
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=True,
    )
    seen, held_out = seen.to(recipe.device), held_out.to(recipe.device)
    steps = _count_epoch_steps(len(seen.codes), recipe)
    kept = scratch and scratch / CURVES
    looks: dict[str, Sequence[float]] = json.loads(kept.read_text()) if kept is not None and kept.is_file() else {}
    batches: Iterator[LabelledImages] = iter(())

    def loss(step: int, draw: np.random.Generator) -> Float[Tensor, ""]:
        nonlocal batches
        if step % steps == 0:
            batches = _draw_augmented_batches(seen, recipe, draw)
        batch = next(batches)
        return nn.functional.cross_entropy(model(batch.pixels), batch.codes, label_smoothing=recipe.label_smoothing)

    def look(done: int) -> None:
        if done and done % steps == 0:
            looks[str(done // steps)] = score_resnet(model, held_out)
            if kept is not None:
                write(kept, dumps(looks).encode())

    losses = train(
        model,
        optimiser,
        loss,
        pace=Pace(
            progress(range(steps * recipe.epochs), label="training", unit="steps"),
            lambda step: _compute_learning_rate(step, steps, recipe),
        ),
        seed=seed,
        along=Along(save=look, state=scratch and scratch / STATE, at_once=steps),
    )
    means = torch.tensor(list(losses), dtype=torch.float64).view(recipe.epochs, steps).mean(1).tolist()
    curves = [[float(epoch), mean, *looks[str(epoch)]] for epoch, mean in enumerate(means, 1)]
    return freeze_model(model.cpu()), dict(zip(SCORES, map(list, zip(*curves, strict=True)), strict=True))


def _count_epoch_steps(images: int, recipe: ImageRecipe) -> int:
    """Steps of an epoch."""
    return max(1, images // recipe.batch_size)


def _compute_learning_rate(step: int, steps: int, recipe: ImageRecipe) -> float:
    """The learning rate of a step, counted over all epochs of `steps`."""
    total = steps * recipe.epochs
    return recipe.learning_rate * float(np.interp(step + 0.5, [0, recipe.warm_up * total, total], [0, 1, 0]))


def _draw_augmented_batches(
    seen: LabelledImages, recipe: ImageRecipe, draw: np.random.Generator
) -> Iterator[LabelledImages]:
    order = draw.permutation(len(seen.codes))
    size = min(recipe.batch_size, len(order))
    for start in range(0, size * _count_epoch_steps(len(order), recipe), size):
        rows = torch.from_numpy(order[start : start + size]).to(seen.pixels.device)
        yield LabelledImages(augment_images(seen.pixels[rows], recipe, draw), seen.codes[rows])


def augment_images(
    pixels: Float[Tensor, "n c h w"], recipe: ImageRecipe, draw: np.random.Generator
) -> Float[Tensor, "n c h w"]:
    """Mirrors images or not, and shifts them, each as drawn."""
    count, _, height, width = pixels.shape
    place = pixels.device
    if recipe.flip:
        mirrored = torch.from_numpy(draw.random(count) < 0.5).to(place)
        pixels = torch.where(mirrored[:, None, None, None], pixels.flip(-1), pixels)
    if recipe.shift:
        down, right = torch.from_numpy(draw.integers(0, 2 * recipe.shift + 1, (2, count))).to(place)
        rows = down[:, None] + torch.arange(height, device=place)
        columns = right[:, None] + torch.arange(width, device=place)
        padded = nn.functional.pad(pixels, [recipe.shift] * 4)  # 0 is the mean colour
        image = torch.arange(count, device=place)[:, None, None]
        pixels = padded.movedim(1, -1)[image, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)
    return pixels.contiguous()


@torch.inference_mode()
def score_resnet(model: ResNet9, given: LabelledImages) -> Sequence[float]:
    """Mean cross-entropy in nats and accuracy, in evaluation mode."""
    model.eval()
    logits = torch.cat([model(pixels) for pixels in given.pixels.split(EVALUATED)])
    loss = nn.functional.cross_entropy(logits.double(), given.codes)
    return float(loss), float((logits.argmax(-1) == given.codes).double().mean())
