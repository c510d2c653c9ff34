"""Transformers that learn modular sums: c1 = (a + b) mod p1, c2 = (c1 + b) mod p2, ... (Gao et al. 2024, section 5.1).

End to end, or block by block: block k is trained to tell c_k (read from token a) and, but for the last, b (read from
token b), with all before it frozen.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from pydantic import Field
from torch import Tensor, nn

from repsim_cli.data.modular import pairs
from repsim_cli.errors import BadInput
from repsim_cli.models.modular import Modular, Shape, chain, modular_source, saved
from repsim_cli.models.source import Source
from repsim_cli.registry import models
from repsim_cli.results import Progress
from repsim_cli.settings import Positive
from repsim_cli.training.trained import Metrics, Trained

CODE = 2  # raise when a change of the code changes what is trained
CURVES = "curves.json"
Training = Literal["end_to_end", "by_block"]
Columns = list[list[float]]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """moduli: p1, p2, ... ; numbers a and b are below p1. epochs: at most, of each stage, with AdamW (betas 0.9, 0.98).

    batch_size: rows (null: all at once). penalty: times the mean squared norm of the last trained block's output, added
    to the loss: a stream of large norm saturates the attention of the next block. train_share: of all pairs. check:
    epochs between two looks at the validation rows. patience: a stage ends after so many looks in a row at an accuracy
    of 100 % (null: never early).
    """

    moduli: Sequence[int]
    blocks: int
    training: Training
    epochs: int
    batch_size: int | None
    learning_rate: float
    weight_decay: float
    penalty: float
    train_share: float
    check: int
    patience: int | None
    seed: int

    @property
    def shape(self) -> Shape:
        outputs = {f"c{k}": modulus for k, modulus in enumerate(self.moduli, 1)}
        if self.training == "end_to_end":
            outputs = {name: outputs[name] for name in list(outputs)[-1:]}
        else:
            outputs |= {f"b{k}": self.moduli[0] for k in range(1, len(self.moduli))}
        return Shape(numbers=self.moduli[0], blocks=self.blocks, outputs=outputs)

    @property
    def stages(self) -> list[tuple[int, list[str]]]:
        """Of each stage, how many blocks it runs, of which it trains the last (end to end all), and its outputs."""
        last = len(self.moduli)
        if self.training == "end_to_end":
            return [(self.blocks, [f"c{last}"])]
        return [(k, [f"c{k}"] + ([f"b{k}"] if k < last else [])) for k in range(1, last + 1)]


@models.register("modular")
def modular(
    *,
    moduli: Annotated[list[int], Field(min_length=1)],
    blocks: Positive = 1,
    training: Training = "end_to_end",
    epochs: Positive = 600,
    batch_size: Positive | None = 348,
    learning_rate: Annotated[float, Field(gt=0)] = 2e-3,
    weight_decay: Annotated[float, Field(ge=0)] = 0.5,
    penalty: Annotated[float, Field(ge=0)] = 0.01,
    train_share: Annotated[float, Field(gt=0, lt=1)] = 0.8,
    check: Positive = 10,
    patience: Positive | None = 3,
    seed: int = 0,
) -> Source:
    """A small transformer that is trained on the sums of all pairs (a, b) when it is first needed.

    See `Recipe`. seed: of the weights, of the split and of the order of the rows. Its metrics: of each stage, named by
    its output, the accuracy on the validation rows and the epochs; the learning curves lie in curves.json beside them.
    """
    total = moduli[0] ** 2
    if round(train_share * total) == total:
        raise BadInput(f"train_share: no pair is held out, got {train_share} of {total}; lower it")
    recipe = Recipe(
        moduli=moduli,
        blocks=blocks,
        training=training,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        penalty=penalty,
        train_share=train_share,
        check=check,
        patience=patience,
        seed=seed,
    )

    def fit(folder: Path, scratch: Path, progress: Progress) -> Metrics:
        model, metrics, curves = train(recipe, progress)
        saved(model, recipe.shape, folder)
        (folder / CURVES).write_text(json.dumps(curves) + "\n")
        return metrics

    trained = Trained({"code": CODE, **asdict(recipe)}, fit)
    source = modular_source(recipe.shape, trained.folder, metrics=trained.metrics)

    def identity() -> dict[str, Any]:
        return {**source.identity(), "source": f"trained here, models/{trained.key}", "metrics": trained.metrics()}

    def make(progress: Progress) -> None:
        trained.folder(progress)

    return replace(source, identity=identity, make=make)


def train(recipe: Recipe, progress: Progress) -> tuple[Modular, Metrics, dict[str, Columns]]:
    """The model, what it reached, and of each stage [epoch, loss, accuracy on training, on validation rows]."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = Modular(recipe.shape)
    ab = torch.from_numpy(pairs(recipe.moduli[0]))
    a, b = ab.unbind(1)
    targets = {f"c{k}": c for k, c in enumerate(chain(a, b, recipe.moduli), 1)}
    targets |= {f"b{k}": b for k in range(1, len(recipe.moduli))}
    order = torch.from_numpy(np.random.default_rng(recipe.seed).permutation(len(ab)))
    seen, held_out = order.split([split := round(recipe.train_share * len(ab)), len(ab) - split])
    metrics: Metrics = {}
    curves = {}
    for stage, (blocks, names) in enumerate(recipe.stages):
        first = 0 if stage == 0 else blocks - 1
        parts = [*model.blocks[first:blocks], *(model.heads[name] for name in names)]
        parameters = [weights for part in parts for weights in part.parameters()]
        if stage == 0:
            parameters += [model.embed.weight, model.position]
        own = {name: targets[name] for name in names}
        curve = _stage(model, blocks, parameters, ab, own, seen, held_out, recipe, progress)
        for weights in parameters:
            weights.requires_grad_(False)
        curves[names[0]] = curve
        metrics |= {f"{names[0]}_accuracy": curve[-1][3], f"{names[0]}_epochs": curve[-1][0]}
    return model.eval(), metrics, curves


def _stage(
    model: Modular,
    blocks: int,
    parameters: Sequence[Tensor],
    ab: Int[Tensor, "n 2"],
    targets: dict[str, Int[Tensor, " n"]],
    seen: Int[Tensor, " m"],
    held_out: Int[Tensor, " k"],
    recipe: Recipe,
    progress: Progress,
) -> Columns:
    optimiser = torch.optim.AdamW(
        parameters, lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=recipe.weight_decay, fused=True
    )
    draw = np.random.default_rng(recipe.seed)
    size = recipe.batch_size or len(seen)
    curve: Columns = []
    right = 0
    for epoch in progress(range(1, recipe.epochs + 1), label=f"{next(iter(targets))}", unit="epochs"):
        order = seen[torch.from_numpy(draw.permutation(len(seen)))]
        total = 0.0
        for rows in order.split(size):
            stream = model.stream(ab[rows], blocks)
            losses = [nn.functional.cross_entropy(model.read(name, stream), y[rows]) for name, y in targets.items()]
            loss = torch.stack(losses).sum() + recipe.penalty * stream.square().sum(-1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += float(loss.detach()) * len(rows)
        if epoch % recipe.check and epoch < recipe.epochs:
            continue
        curve.append(
            [
                float(epoch),
                total / len(seen),
                *(accuracy(model, blocks, ab, targets, rows) for rows in (seen, held_out)),
            ]
        )
        right = right + 1 if curve[-1][3] == 1 else 0
        if right == recipe.patience:
            break
    return curve


@torch.inference_mode()
def accuracy(
    model: Modular,
    blocks: int,
    ab: Int[Tensor, "n 2"],
    targets: dict[str, Int[Tensor, " n"]],
    rows: Int[Tensor, " m"],
) -> float:
    """The share of rows on which every target is the most likely class."""
    stream = model.stream(ab[rows], blocks)
    right = [model.read(name, stream).argmax(-1) == y[rows] for name, y in targets.items()]
    return float(torch.stack(right).all(0).double().mean())
