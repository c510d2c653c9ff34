"""ResNet9 classifiers, trained on labelled images when they are first needed (Gao et al. 2024, section 5.4).

The recipe is that of the public ResNet9 (FFCV's example for CIFAR-10) without its cut-outs and its half precision, and
with Nesterov momentum. A killed training resumes from its saved state, and ends with the same bits.
"""

import functools
import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from repsim_cli.data.base import Data
from repsim_cli.data.images import Images
from repsim_cli.errors import BadInput, RunFailed
from repsim_cli.models.resnet import ResNet9, ResNetShape, fresh, identity_of, loaded, ready, resnet_source, saved
from repsim_cli.models.source import Source
from repsim_cli.planning import check_device, is_dry
from repsim_cli.registry import models
from repsim_cli.results import STATE, Progress, dumps, quiet
from repsim_cli.settings import EVERYTHING, Above0, Extract, Fraction, From0, Medium, Positive, Seed
from repsim_cli.training.state import SAVE_EVERY, restore_state, save_state
from repsim_cli.training.trained import Metrics, Trained

CODE = 1  # raise when a change of the code changes what is trained
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
    shift: images are moved by up to so many pixels in both directions, drawn anew in each epoch; what is uncovered has
        the mean colour of CIFAR-10.
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


class Labelled(NamedTuple):
    """Normalised images and the codes of their labels."""

    pixels: Float[Tensor, "n c h w"]
    codes: Int[Tensor, " n"]

    def digest(self) -> str:
        parts = (values.numpy().tobytes() for values in self)
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()

    def to(self, device: str) -> "Labelled":
        return Labelled(self.pixels.to(device), self.codes.to(device))


@models.register("trained_resnet9")
def trained_resnet9(*, shape: ResNetShape, train: Data, evaluate: Data, recipe: ImageRecipe, seed: Seed = 0) -> Source:
    """A ResNet9 that is trained on labelled images when it is first needed.

    Its metrics are accuracy and loss (nats per image) on `evaluate`, and training_loss, the mean over the last epoch;
    curves.json beside the weights has them for every epoch. Batch norm uses batch statistics in training, and running
    ones wherever the model is read.

    shape: the size of the network.
    train: the images to train on.
    evaluate: the images of the metrics. The model is trained again if they change.
    recipe: how it is trained.
    seed: of the weights, the order of the images, and their flips and shifts.
    Example: repsim run model=[] +model.mine='{kind: trained_resnet9, shape: {widths: [8, 16, 16, 8], image_size: 16},
        train: {kind: digits, side: 16, channels: 3, split: train}, evaluate: {kind: digits, side: 16, channels: 3,
        split: test}, recipe: {epochs: 2, batch_size: 64}}' data=digits data.side=16 data.channels=3 extract=resnet9
    """
    sets = {"train": _images("train", train, shape), "evaluate": _images("evaluate", evaluate, shape)}
    if sets["train"].names != sets["evaluate"].names:
        raise BadInput(
            f"evaluate: other labels than those of train, got {', '.join(sets['evaluate'].names)}; use data of the "
            f"labels {', '.join(sets['train'].names)}"
        )
    if is_dry():  # a model from the cache needs no such device, wherever it was trained
        check_device("recipe.device", recipe.device)
    tokenizer = resnet_source(shape, lambda: fresh(shape, seed), dict).tokenizer

    def labelled(name: str) -> Labelled:
        everything = Extract(hook_points=["conv@0"], sequences=EVERYTHING)
        try:
            given = sets[name].sequences(tokenizer(), everything, seed)
        except BadInput as error:
            raise BadInput(f"{name}: {error}") from None
        assert given.labels is not None
        return Labelled(torch.from_numpy(given.inputs), torch.from_numpy(given.labels.codes.astype(np.int64)))

    @functools.cache
    def trained() -> Trained:
        given = {name: labelled(name) for name in sets}

        def fit(folder: Path, scratch: Path, progress: Progress) -> Metrics:
            check_device("recipe.device", recipe.device)
            model, curves = train_classifier(shape, given["train"], given["evaluate"], recipe, seed, progress, scratch)
            saved(model, folder)
            (folder / CURVES).write_text(dumps(curves))
            return {name: values[-1] for name, values in curves.items() if name != "epoch"}

        settings = {"shape": asdict(shape), "recipe": asdict(recipe), "seed": seed}
        return Trained({"code": CODE, "data": {name: x.digest() for name, x in given.items()}, **settings}, fit)

    def identity() -> dict[str, Any]:
        made = {"source": f"trained here, models/{trained().key}", "trained": trained().key}
        return {**identity_of(trained().folder()), **made, "metrics": trained().metrics()}

    def make(progress: Progress) -> None:
        trained().folder(progress)

    return resnet_source(
        shape,
        lambda: loaded(trained().folder()),
        identity,
        make=make,
        metrics=lambda: trained().metrics(),
        labels=sets["train"].names,
    )


def _images(name: str, data: Data, shape: ResNetShape) -> Images:
    if not isinstance(data, Images):
        raise BadInput(f"{name}: a classifier of images needs images, got {data.source}; e.g. {{kind: cifar10}}")
    if len(data.names) != shape.classes:
        raise BadInput(
            f"shape.classes: {name} has {len(data.names)} labels, got {shape.classes}; give {len(data.names)}"
        )
    return data


def train_classifier(
    shape: ResNetShape,
    seen: Labelled,
    held_out: Labelled,
    recipe: ImageRecipe,
    seed: int,
    progress: Progress = quiet,
    scratch: Path | None = None,
) -> tuple[ResNet9, dict[str, list[float]]]:
    """The model, on the CPU, and by epoch the columns `SCORES`.

    scratch: a folder for the state, from which a killed training resumes.
    """
    model = fresh(shape, seed).to(recipe.device)
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=True,
    )
    seen, held_out = seen.to(recipe.device), held_out.to(recipe.device)
    draw = np.random.default_rng(seed)
    looks: list[list[float]] = []
    state = scratch and scratch / STATE
    if state is not None and state.is_file():
        restored = restore_state(state, model, optimiser, draw)
        looks = restored.pop("looks").tolist()
        model.load_state_dict(restored, strict=False)
    saved_at = time.monotonic()
    for epoch in progress(range(len(looks), recipe.epochs), label="training", unit="epochs"):
        losses = [
            _step(model, optimiser, batch, recipe, rate)
            for batch, rate in zip(_batches(seen, recipe, draw), _rates(len(seen.codes), recipe, epoch), strict=True)
        ]
        mean = float(torch.stack(losses).double().mean())
        if not math.isfinite(mean):
            raise RunFailed(f"training: the loss is not finite, got {mean} in epoch {epoch}; lower learning_rate")
        looks.append([float(epoch + 1), mean, *scores(model, held_out)])
        if state is not None and time.monotonic() - saved_at > SAVE_EVERY:
            buffers = dict(model.named_buffers())
            more = {"looks": torch.tensor(looks, dtype=torch.float64), **buffers}
            save_state(state, model, optimiser, draw, more)
            saved_at = time.monotonic()
    return ready(model.cpu()), dict(zip(SCORES, map(list, zip(*looks, strict=True)), strict=True))


def _steps(images: int, recipe: ImageRecipe) -> int:
    """Steps of an epoch."""
    return max(1, images // recipe.batch_size)


def _rates(images: int, recipe: ImageRecipe, epoch: int) -> Float[np.ndarray, " steps"]:
    """The learning rates of the steps of an epoch."""
    steps = _steps(images, recipe)
    total = steps * recipe.epochs
    at = epoch * steps + 0.5 + np.arange(steps)
    return recipe.learning_rate * np.interp(at, [0, recipe.warm_up * total, total], [0, 1, 0])


def _batches(seen: Labelled, recipe: ImageRecipe, draw: np.random.Generator) -> Iterator[Labelled]:
    order = draw.permutation(len(seen.codes))
    size = min(recipe.batch_size, len(order))
    for start in range(0, size * _steps(len(order), recipe), size):
        rows = torch.from_numpy(order[start : start + size]).to(seen.pixels.device)
        yield Labelled(augmented(seen.pixels[rows], recipe, draw), seen.codes[rows])


def augmented(
    pixels: Float[Tensor, "n c h w"], recipe: ImageRecipe, draw: np.random.Generator
) -> Float[Tensor, "n c h w"]:
    """Each image mirrored or not, and shifted."""
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


def _step(
    model: ResNet9, optimiser: torch.optim.Optimizer, batch: Labelled, recipe: ImageRecipe, rate: float
) -> Float[Tensor, ""]:
    """One step at this learning rate; returns the loss before it."""
    model.train()
    for group in optimiser.param_groups:
        group["lr"] = float(rate)
    loss = nn.functional.cross_entropy(model(batch.pixels), batch.codes, label_smoothing=recipe.label_smoothing)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return loss.detach()


@torch.inference_mode()
def scores(model: ResNet9, given: Labelled) -> Sequence[float]:
    """Mean cross-entropy in nats and accuracy, in evaluation mode."""
    model.eval()
    logits = torch.cat([model(pixels) for pixels in given.pixels.split(EVALUATED)])
    loss = nn.functional.cross_entropy(logits.double(), given.codes)
    return float(loss), float((logits.argmax(-1) == given.codes).double().mean())
