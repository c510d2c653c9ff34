"""Transformers that learn modular sums: c1 = (a + b) mod p1, c2 = (c1 + b) mod p2, ... (Gao et al. 2024, section 5.1).

End to end, or block by block: block k is trained to predict c_k (read at token a) and, except for the last, b (read
at token b), with all earlier blocks frozen. A killed training resumes from its saved state, and ends with the same
bits.
"""

import contextlib
import math
import operator
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from repsim_cli.base.errors import RunFailed
from repsim_cli.base.planning import check_device
from repsim_cli.base.registry import models
from repsim_cli.base.settings import Seed
from repsim_cli.base.timer import Timer
from repsim_cli.data.modular import list_number_pairs
from repsim_cli.models.series import METRICS, read_metrics
from repsim_cli.models.source import Checkpoint, Series, Short, Source, TrainingWork
from repsim_cli.runs.results import SAVE_EVERY, Progress, dumps, quiet
from repsim_cli.studies.modular_sums.model import Modular, chain, make_modular_source, save
from repsim_cli.studies.modular_sums.recipe import ModularRecipe
from repsim_cli.training.state import is_resumable, restore_state, save_state
from repsim_cli.training.trained import Metrics, Trained

CODE = 4  # raise when a change of the code changes what is trained (tests/test_codes.py)
CURVES, MISTAKES = "curves.json", "mistakes.json"
SCORES = ("training_loss", "validation_loss", "training_accuracy", "validation_accuracy")
Columns = dict[str, list[float]]
Keep = Callable[[Modular, int, Metrics], None]


@models.register("modular")
def modular(*, recipe: ModularRecipe, seed: Seed = 0) -> Source | Series:
    """A small transformer for modular sums of all pairs (a, b), trained when it is first needed.

    With recipe.save it is the series of those checkpoints. Its metrics are the epochs of each stage, and the accuracy
    and the loss (nats) on the validation rows, by the stage's output; the learning curves lie in curves.json beside
    them.

    recipe: the model and its training.
    seed: of the weights, of the split and of the order of the rows.
    Example: repsim run model=[] +model.mine='{kind: modular, recipe: {moduli: [11, 7], blocks: 2}}' data=modular_pairs
        data.numbers=11 extract=modsum extract.estimate=full
    """
    check_device("recipe.device", recipe.device)

    def fit(folder: Path, scratch: Path, progress: Progress) -> Metrics:
        steps = scratch / "steps"

        def keep(model: Modular, epoch: int, scores: Metrics) -> None:
            place = steps / f"epoch{epoch}"
            place.mkdir(parents=True, exist_ok=True)
            save(model, recipe.shape, place)
            (place / METRICS).write_text(dumps(scores))

        model, curves = train(recipe, seed, progress, scratch, keep)
        save(model, recipe.shape, folder)
        (folder / CURVES).write_text(dumps(curves))
        (folder / MISTAKES).write_text(dumps(count_mistakes(model, recipe, seed)))
        if recipe.kept:
            shutil.copytree(steps, folder, dirs_exist_ok=True)
        return collect_stage_metrics(curves, recipe.patience)

    trained = Trained(
        {"code": CODE, **asdict(recipe), "save": recipe.kept, "seed": seed}, fit, lambda: count_training_work(recipe)
    )

    def make_checkpoint_source(name: str, metrics: Callable[[], Metrics], **more: Any) -> Source:
        """The source of the model, or of a checkpoint of it."""
        source = make_modular_source(recipe.shape, lambda: trained.folder() / name, metrics=metrics, **more)
        more_identity = {"source": str(Path(f"trained here, models/{trained.key}") / name), "trained": trained.key}
        return replace(
            source, training=recipe.name, identity=lambda: {**source.identity(), **more_identity, "metrics": metrics()}
        )

    def checkpoint(epoch: int) -> Source:
        name = f"epoch{epoch}"
        return make_checkpoint_source(name, lambda: read_metrics(trained.folder() / name))

    if recipe.kept:
        checkpoints = [Checkpoint(step=epoch, open=partial(checkpoint, epoch)) for epoch in recipe.kept]
        return Series(checkpoints=checkpoints, local=False, make=trained.folder)
    return make_checkpoint_source(
        "",
        trained.metrics,
        make=trained.folder,
        work=trained.find_missing,
        short=lambda: describe_shortfall(trained.metrics()),
    )


def count_training_work(recipe: ModularRecipe) -> TrainingWork:
    """Counts steps and tokens of all epochs; each pair of numbers is two tokens."""
    rows, epochs = round(recipe.train_share * recipe.moduli[0] ** 2), recipe.epochs * len(recipe.stages)
    return TrainingWork(steps=epochs * math.ceil(rows / (recipe.batch_size or rows)), tokens=2 * rows * epochs)


def collect_stage_metrics(curves: dict[str, Columns], patience: int | None) -> Metrics:
    """Collects for each stage the metrics of the weights that were kept, and the epoch that they are from."""
    return {
        f"{stage}_{name}": looks[column][choose_look(looks, patience)]
        for stage, looks in curves.items()
        for name, column in (("accuracy", "validation_accuracy"), ("loss", "validation_loss"), ("epochs", "epoch"))
    }


def choose_look(looks: Columns, patience: int | None) -> int:
    """The index of the look with the largest validation accuracy, of equal ones with the smallest validation loss; of a
    training that never ends early, the last.

    >>> looks = {"validation_accuracy": [0.9, 1.0, 1.0, 0.8], "validation_loss": [0.1, 0.3, 0.2, 0.9]}
    >>> choose_look(looks, 3), choose_look(looks, None)
    (2, 3)
    """
    if patience is None:
        return len(looks["validation_loss"]) - 1
    seen = list(zip(looks["validation_accuracy"], map(operator.neg, looks["validation_loss"]), strict=True))
    return seen.index(max(seen))


def describe_shortfall(metrics: Metrics) -> Short | None:
    """Describes how the worst stage falls short of a validation accuracy of 100 %, rounded down; None if none does.

    >>> describe_shortfall({"c1_accuracy": 1.0, "c2_accuracy": 0.9319})
    Short(mark='93.1 %', why='validation accuracy of c2 is 93.1 %, below 100 %')
    """
    worst, stage = min((value, name) for name, value in metrics.items() if name.endswith("_accuracy"))
    if worst == 1:
        return None
    mark = f"{math.floor(1000 * worst) / 10:.1f} %"
    return Short(mark, f"validation accuracy of {stage.removesuffix('_accuracy')} is {mark}, below 100 %")


class ModularTask(NamedTuple):
    """All pairs, the targets of each head, and which pairs are trained on and which held out."""

    ab: Int[Tensor, "n 2"]
    targets: dict[str, Int[Tensor, " n"]]
    seen: Int[Tensor, " m"]
    held_out: Int[Tensor, " k"]


def make_modular_task(recipe: ModularRecipe, seed: int) -> ModularTask:
    ab = torch.from_numpy(list_number_pairs(recipe.moduli[0]))
    a, b = ab.unbind(1)
    targets = {f"c{k}": c for k, c in enumerate(chain(a, b, recipe.moduli), 1)}
    targets |= {f"b{k}": b for k in range(1, len(recipe.moduli))}
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(ab)))
    seen, held_out = order.split([split := round(recipe.train_share * len(ab)), len(ab) - split])
    place = recipe.device
    return ModularTask(
        ab.to(place), {name: y.to(place) for name, y in targets.items()}, seen.to(place), held_out.to(place)
    )


def train(
    recipe: ModularRecipe,
    seed: int,
    progress: Progress = quiet,
    scratch: Path | None = None,
    keep: Keep = lambda model, epoch, scores: None,
) -> tuple[Modular, dict[str, Columns]]:
    """The model, on the CPU, and of each stage its looks: columns of the epoch and of `SCORES`.

    scratch: a folder for the state of every stage, from which a killed training resumes.
    keep: called with the model at the epochs that the recipe saves, and its scores on the outputs of the stage.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Modular(recipe.shape).to(recipe.device)
    whole = make_modular_task(recipe, seed)
    curves: dict[str, Columns] = {}
    before = 0
    for blocks, names in recipe.stages:
        part = whole._replace(targets={name: whole.targets[name] for name in names})
        state = scratch and scratch / f"{names[0]}.safetensors"
        looks = Stage(model, blocks, part, recipe, seed, before).train(progress, state, keep)
        curves[names[0]] = transpose_looks(looks)
        before += recipe.epochs
    return model.cpu().eval().requires_grad_(False), curves


def transpose_looks(looks: Sequence[Sequence[float]]) -> Columns:
    return dict(zip(("epoch", *SCORES), map(list, zip(*looks, strict=True)), strict=True))


class Stage:
    """One stage of a training, in place, after `before` epochs of others.

    looks: the epoch and `SCORES` of every look. mean, best: averaged weights, now and as they are to be kept.
    """

    def __init__(self, model: Modular, blocks: int, task: ModularTask, recipe: ModularRecipe, seed: int, before: int):
        self.model, self.blocks, self.task, self.recipe, self.before = model, blocks, task, recipe, before
        self.first = 0 if recipe.training == "end_to_end" else blocks - 1
        parts = [*model.blocks[self.first : blocks], *(model.heads[name] for name in task.targets)]
        self.parameters: list[Tensor] = [weights for part in parts for weights in part.parameters()]
        if self.first == 0:
            self.parameters += [model.embed.weight, model.position]
        self.optimiser = torch.optim.AdamW(
            self.parameters, lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=recipe.weight_decay, fused=True
        )
        self.draw = np.random.default_rng(seed)
        self.advance = get_ema_multi_avg_fn(recipe.average)
        self.mean = [weights.detach().clone() for weights in self.parameters]
        self.best = [weights.clone() for weights in self.mean]
        self.looks: list[list[float]] = []
        self.done = 0

    def train(self, progress: Progress, state: Path | None, keep: Keep) -> list[list[float]]:
        """Trains the stage and lists its looks. state: the file that keeps what is done, from which it resumes."""
        recipe, name = self.recipe, next(iter(self.task.targets))
        if state is not None and is_resumable(state):
            self._restore(state)
        with torch.no_grad():  # frozen blocks run once
            self.start = self.model.stream(self.task.ab, self.first)
        if self.before + self.done == 0:
            self._keep(keep)
        settled = _has_settled(self.looks, recipe.patience)
        timer = Timer(SAVE_EVERY)
        for epoch in progress(
            range(self.done + 1, 1 + (self.done if settled else recipe.epochs)), label=f"training {name}", unit="epochs"
        ):
            self._epoch()
            self.done = epoch
            if epoch % recipe.check == 0 or epoch == recipe.epochs:
                self._look(name)
            self._keep(keep)
            if _has_settled(self.looks, recipe.patience):
                break
            if timer.is_due():
                with timer.restart():
                    self._leave(state)
        _replace(self.parameters, self.best)
        for weights in self.parameters:
            weights.requires_grad_(False)
        self._leave(state)
        return self.looks

    def _epoch(self) -> None:
        task, recipe = self.task, self.recipe
        order = task.seen[torch.from_numpy(self.draw.permutation(len(task.seen))).to(recipe.device)]
        for rows in order.split(recipe.batch_size or len(task.seen)):
            x = self._stream(rows)
            losses = [
                nn.functional.cross_entropy(self.model.read(name, x), y[rows]) for name, y in task.targets.items()
            ]
            loss = torch.stack(losses).sum() + recipe.penalty * x.square().sum(-1).mean()
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            with torch.no_grad():
                self.advance(self.mean, self.parameters, None)

    def _look(self, name: str) -> None:
        """Notes the scores of the averaged weights, and keeps these where they are the best."""
        with self._average():
            self.looks.append([float(self.done), *self._scores()])
        if not math.isfinite(self.looks[-1][1]):
            got = f"{self.looks[-1][1]} at epoch {self.done} of {name}"
            raise RunFailed(f"training: the loss is not finite, got {got}; lower learning_rate")
        if choose_look(transpose_looks(self.looks), self.recipe.patience) == len(self.looks) - 1:
            _replace(self.best, self.mean)

    def _stream(self, rows: Int[Tensor, " m"]) -> Float[Tensor, "m 2 d"]:
        if self.first:
            return self.model.blocks[self.first](self.start[rows])
        return self.model.stream(self.task.ab[rows], self.blocks)

    @contextlib.contextmanager
    def _average(self) -> Iterator[None]:
        """The model with averaged weights."""
        last = [weights.detach().clone() for weights in self.parameters]
        _replace(self.parameters, self.mean)
        try:
            yield
        finally:
            _replace(self.parameters, last)

    @torch.inference_mode()
    def _scores(self) -> list[float]:
        task = self.task
        both = [
            _compute_loss_and_accuracy(self.model, self._stream(rows), task, rows)
            for rows in (task.seen, task.held_out)
        ]
        return [value for pair in zip(*both, strict=True) for value in pair]

    def _keep(self, keep: Keep) -> None:
        epoch = self.before + self.done
        if epoch in self.recipe.kept:
            with self._average():
                keep(self.model, epoch, dict(zip(SCORES, self._scores(), strict=True)))

    def _leave(self, state: Path | None) -> None:
        if state is not None:
            more = {"looks": torch.tensor(self.looks, dtype=torch.float64), "done": torch.tensor(self.done)}
            for name, held in (("mean", self.mean), ("best", self.best)):
                more |= {f"{name}.{i}": x for i, x in enumerate(held)}
            save_state(state, self.model, self.optimiser, self.draw, more)

    def _restore(self, state: Path) -> None:
        restored = restore_state(state, self.model, self.optimiser, self.draw)
        self.looks, self.done = restored["looks"].tolist(), int(restored["done"])
        for name, held in (("mean", self.mean), ("best", self.best)):
            _replace(held, [restored[f"{name}.{i}"] for i in range(len(held))])


@torch.no_grad()
def _replace(weights: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    for weight, other in zip(weights, others, strict=True):
        weight.copy_(other)


@torch.inference_mode()
def count_mistakes(model: Modular, recipe: ModularRecipe, seed: int) -> dict[str, list[tuple[int, int]]]:
    """Counts the errors of c_k on validation rows at the end of each stage: pairs of predicted - true (mod p) and rows.

    The difference is the representative nearest to 0. A model that misses a wrap modulo an earlier p' is off by p'.
    """
    ab, targets, _, held_out = make_modular_task(replace(recipe, device="cpu"), seed)
    errors = {}
    for blocks, (name, *_) in recipe.stages:
        off = model.read(name, model.stream(ab[held_out], blocks)).argmax(-1) - targets[name][held_out]
        modulus = recipe.shape.outputs[name]
        off = (off + modulus // 2) % modulus - modulus // 2
        differences, rows = off[off != 0].unique(return_counts=True)
        errors[name] = list(zip(differences.tolist(), rows.tolist(), strict=True))
    return errors


def _has_settled(looks: Sequence[Sequence[float]], patience: int | None) -> bool:
    """Says whether all of the last `patience` looks had every validation row right."""
    return patience is not None and len(looks) >= patience and all(look[-1] == 1 for look in looks[-patience:])


def _compute_loss_and_accuracy(
    model: Modular, stream: Float[Tensor, "m 2 d"], task: ModularTask, rows: Int[Tensor, " m"]
) -> tuple[float, float]:
    """The cross-entropy in nats, summed over the outputs, and the share of rows on which all of them are right."""
    logits = {name: model.read(name, stream) for name in task.targets}
    loss = sum(float(nn.functional.cross_entropy(logits[name], y[rows])) for name, y in task.targets.items())
    right = [logits[name].argmax(-1) == y[rows] for name, y in task.targets.items()]
    return loss, float(torch.stack(right).all(0).double().mean())
