"""Training of stitch layers: both models are frozen, and the head runs once per batch for all layers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import safetensors.torch
import torch
from jaxtyping import Float
from torch import nn

from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.base.settings import Above0, Fraction, Medium, NotNegative, Positive
from repsim_cli.data.base import Sequences
from repsim_cli.runs.cache import Entry, make_cache_key
from repsim_cli.runs.results import Progress, quiet
from repsim_cli.studies.stitching.evaluate import PredictionTask, Stitch, take_labels
from repsim_cli.studies.stitching.layers import (
    KINDS,
    Init,
    Layers,
    PairedSums,
    start_at_identity,
    start_at_least_squares,
)
from repsim_cli.studies.stitching.models import Layer, Whole, make_input_batch
from repsim_cli.studies.stitching.noise import alter

CODE = 1  # raise when a change of the code changes what a trained layer is (tests/test_codes.py)


@dataclass(frozen=True, kw_only=True)
class StitchRecipe:
    """How stitch layers are made: initialised, then trained by SGD with Nesterov momentum.

    As published, scale_rate and decay are false and clip is null; in the library that the authors adapted they are
    true, true and 1.0.

    layer: `affine` (a LayerNorm and a linear map), `linear`, `orthogonal`, `identity`, or `least_squares`; the last two
        are not trained.
    init: what training starts from: the `identity`, or the map fitted by `least_squares`.
    init_sequences: sequences that least squares are fitted on, drawn under the seed, with all their tokens.
    steps: how many steps of training.
    warm_up: the steps over which the rate rises linearly; `auto`: 200, at most a tenth of the training.
    batch: sequences per step.
    learning_rate: the largest rate, after the warm-up.
    momentum: of SGD.
    scale_rate: multiply the rate by 1 - momentum.
    clip: gradients of a larger norm are scaled down to this one; null: none are.
    decay: let the rate fall linearly to 0 at the end.
    """

    layer: Layers = "affine"
    init: Init = "least_squares"
    init_sequences: Medium = 16
    steps: Positive = 2000
    warm_up: NotNegative | Literal["auto"] = "auto"
    batch: Medium = 8
    learning_rate: Above0 = 1.0
    momentum: Fraction = 0.9
    scale_rate: bool = False
    clip: Above0 | None = None
    decay: bool = False

    def __post_init__(self) -> None:
        if self.rising >= self.steps and self.trained:
            raise BadInput(f"warm_up: as long as the training, got {self.warm_up}; lower it, or raise steps")

    @property
    def rising(self) -> int:
        """The steps of the warm-up."""
        return min(200, self.steps // 10) if self.warm_up == "auto" else self.warm_up

    @property
    def trained(self) -> bool:
        return KINDS[self.layer].trained

    @property
    def fitted(self) -> bool:
        """True if layers are fitted to data."""
        return self.layer != "identity"

    def rate(self, step: int) -> float:
        """The learning rate of a step.

        >>> recipe = StitchRecipe(steps=10, warm_up=2, learning_rate=1.0, scale_rate=True, decay=True)
        >>> [round(recipe.rate(step), 4) for step in (0, 1, 2, 6, 9)]
        [0.05, 0.1, 0.1, 0.05, 0.0125]
        """
        rate = self.learning_rate * (1 - self.momentum if self.scale_rate else 1)
        if step < self.rising:
            return rate * (step + 1) / self.rising
        return rate * (self.steps - step) / (self.steps - self.rising) if self.decay else rate


@dataclass(frozen=True)
class StitchFit:
    """A stitch layer; the training loss of every step, in nats; the step at which it diverged, if it did."""

    layer: nn.Sequential
    losses: Float[np.ndarray, " steps"]
    diverged: int | None = None


@dataclass(frozen=True)
class Fitting:
    """How stitch layers are fitted.

    batch_size: sequences per forward pass; the gradients of a step's passes are summed.
    """

    recipe: StitchRecipe
    batch_size: int
    seed: int
    progress: Progress = quiet


def fit_stitches(
    head: Whole,
    tail: Whole,
    stitches: Sequence[Stitch],
    sequences: Sequences,
    task: PredictionTask,
    fitting: Fitting,
    entries: Mapping[Stitch, Entry] = {},
) -> dict[Stitch, StitchFit]:
    """The stitch layers between a head and a tail, each initialised and trained on these sequences.

    They are trained side by side; none depends on the others. entries: of the cache; finished layers are read from
    there.
    """
    fits = {
        stitch: _read(entries[stitch], fitting.recipe, head, tail) for stitch in stitches if _is_done(entries, stitch)
    }
    todo = [stitch for stitch in stitches if stitch not in fits]
    if todo:
        made = _train(head, tail, todo, sequences, task, fitting)
        for stitch, fit in made.items():
            if stitch in entries:
                _write(entries[stitch], fit)
        fits |= made
    return {stitch: fits[stitch] for stitch in stitches}


def fit_key(
    stitch: Stitch,
    identities: Mapping[str, Mapping[str, Any]],
    sequences: Sequences,
    task: PredictionTask,
    recipe: StitchRecipe,
    settings: Mapping[str, Any],
) -> str:
    """The cache key of a stitch layer. settings: what else its bits depend on (dtype, batch size, seed)."""
    parts = {
        label: {name: identities[label].get(name) for name in ("weights_hash", "config_hash")}
        for label in (stitch.head.model, stitch.tail)
    }
    codes = None if sequences.labels is None else sequences.labels.codes.tolist()
    return make_cache_key(
        {
            "code": CODE,
            "head": parts[stitch.head.model],
            "kind": stitch.head.kind,
            "tail": parts[stitch.tail],
            "layers": [stitch.at, stitch.into],
            "data": sequences.hash(),
            "labels": codes,
            "task": [task.auto, task.outputs, task.labels],
            "recipe": asdict(recipe) | {"warm_up": recipe.rising},
            "settings": dict(settings),
        }
    )


def _train(
    head: Whole,
    tail: Whole,
    stitches: Sequence[Stitch],
    sequences: Sequences,
    task: PredictionTask,
    fitting: Fitting,
) -> dict[Stitch, StitchFit]:
    recipe, batch_size, seed, device = fitting.recipe, fitting.batch_size, fitting.seed, tail.device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = {stitch: KINDS[recipe.layer].build(head.width, tail.width).to(device) for stitch in stitches}
    _initialise(head, tail, layers, sequences, recipe, batch_size, seed)
    if not recipe.trained:
        return {stitch: StitchFit(layer, np.empty(0)) for stitch, layer in layers.items()}
    passes = _Passes(
        head=head,
        tail=tail,
        cut={into: tail.tail(into) for into in {stitch.into for stitch in stitches}},
        sequences=sequences,
        task=task,
        batch_size=batch_size,
    )
    trained = {stitch: _Trained.begin(layer, recipe) for stitch, layer in layers.items()}
    chance = math.inf
    rows = _draw_batches(len(sequences.ids), recipe, seed)
    for step in fitting.progress(range(recipe.steps), label=f"{stitches[0].head} -> {tail.label}", unit="steps"):
        running = {stitch: one for stitch, one in trained.items() if one.diverged is None}
        if not running:
            break
        now = {stitch: one.layer for stitch, one in running.items()}
        total, predicted, chance = passes.add_gradients(now, rows[step], seed + 1 + step * len(sequences.ids))
        for stitch, one in running.items():
            if not math.isfinite(total[stitch]):
                one.diverged = step
                continue
            one.losses.append(total[stitch] / predicted)
            _apply_gradient_step(one.layer, one.optimiser, recipe, step, predicted)
    return {stitch: one.finish(chance, recipe.steps) for stitch, one in trained.items()}


@dataclass
class _Trained:
    """A stitch layer while it is trained. losses: of every step. diverged: the step at which it did."""

    layer: nn.Sequential
    optimiser: torch.optim.Optimizer
    losses: list[float] = field(default_factory=list)
    diverged: int | None = None

    @classmethod
    def begin(cls, layer: nn.Sequential, recipe: StitchRecipe) -> "_Trained":
        return cls(layer, torch.optim.SGD(layer.parameters(), lr=1.0, momentum=recipe.momentum, nesterov=True))

    def finish(self, chance: float, steps: int) -> StitchFit:
        """The layer with its losses; a training that ended above chance, or without finite weights, diverged too."""
        if self.diverged is None:
            self.diverged = _find_divergence(self.losses, chance)
        if self.diverged is None and not all(torch.isfinite(weights).all() for weights in self.layer.parameters()):
            self.diverged = steps
        return StitchFit(self.layer.requires_grad_(False), np.array(self.losses), self.diverged)


@dataclass(frozen=True, kw_only=True)
class _Passes:
    """Forward passes of a head and of what follows a stitch in the tail.

    cut: the tail after each layer that is stitched into. batch_size: sequences per pass.
    """

    head: Whole
    tail: Whole
    cut: Mapping[Layer, Any]
    sequences: Sequences
    task: PredictionTask
    batch_size: int

    def add_gradients(
        self, layers: Mapping[Stitch, nn.Module], rows: np.ndarray, seed: int
    ) -> tuple[dict[Stitch, float], int, float]:
        """Adds the gradients of the loss on these sequences to every stitch layer.

        Returns the loss of each, summed over predictions, the number of predictions, and the loss of a guess.
        """
        total, predicted, chance = dict.fromkeys(layers, 0.0), 0, math.inf
        for start in range(0, len(rows), self.batch_size):
            part = rows[start : start + self.batch_size]
            inputs = make_input_batch(self.sequences, part)
            labels = take_labels(self.sequences, part)
            streams = _compute_head_streams(self.head, inputs, labels, list(layers), seed + start)
            count = 0
            for stitch, layer in layers.items():
                with self.tail.autocast():
                    stream = layer(streams[stitch.at].to(self.tail.device))
                answers = self.task.predict(self.cut[stitch.into](stream, inputs), inputs, labels)
                loss = nn.functional.nll_loss(answers.log_p, answers.right, reduction="sum")
                loss.backward()
                total[stitch] += float(loss.detach())
                chance, count = math.log(answers.log_p.shape[1]), len(answers.right)
            predicted += count
        return total, predicted, chance


def _apply_gradient_step(layer: nn.Module, optimiser: Any, recipe: StitchRecipe, step: int, predicted: int) -> None:
    """A step on the gradient of the mean over predictions."""
    for weights in layer.parameters():
        if weights.grad is not None:
            weights.grad /= predicted
    if recipe.clip is not None:
        nn.utils.clip_grad_norm_(layer.parameters(), recipe.clip)
    for group in optimiser.param_groups:
        group["lr"] = recipe.rate(step)
    optimiser.step()
    optimiser.zero_grad()


def _find_divergence(losses: Sequence[float], chance: float) -> int | None:
    """The step after which the loss stayed above both its start and chance; None where the training ended below."""
    limit = max(losses[0], chance)
    last = max(1, len(losses) // 10)
    if float(np.mean(losses[-last:])) <= limit:
        return None
    return int(max((i + 1 for i, loss in enumerate(losses) if loss <= limit), default=0))


def _draw_batches(count: int, recipe: StitchRecipe, seed: int) -> np.ndarray:
    """The sequences of every step, (steps, batch): full passes, each in a new order."""
    draw, wanted = np.random.default_rng(seed), recipe.steps * recipe.batch
    passes = [draw.permutation(count) for _ in range(-(-wanted // count))]
    return np.concatenate(passes)[:wanted].reshape(recipe.steps, recipe.batch)


def _compute_head_streams(
    head: Whole, inputs: Any, labels: torch.Tensor | None, stitches: Sequence[Stitch], seed: int
) -> Mapping[Layer, torch.Tensor]:
    streams = head.streams(inputs, sorted({stitch.at for stitch in stitches}))
    return alter(stitches[0].head.kind, streams, inputs, labels, seed)


def _initialise(
    head: Whole,
    tail: Whole,
    layers: Mapping[Stitch, nn.Sequential],
    sequences: Sequences,
    recipe: StitchRecipe,
    batch_size: int,
    seed: int,
) -> None:
    if recipe.init == "identity" and recipe.trained:
        for layer in layers.values():
            start_at_identity(layer)
        return
    moments = {s: PairedSums(layer, head.width, tail.width, tail.device) for s, layer in layers.items()}
    chosen = np.sort(np.random.default_rng(seed).permutation(len(sequences.ids))[: recipe.init_sequences])
    for start in range(0, len(chosen), batch_size):
        some = chosen[start : start + batch_size]
        inputs = make_input_batch(sequences, some)
        streams = _compute_head_streams(head, inputs, take_labels(sequences, some), list(layers), seed + start)
        targets = tail.streams(inputs, sorted({stitch.into for stitch in layers}))
        inside = inputs.mask.to(tail.device)
        for stitch, sums in moments.items():
            sums.add(streams[stitch.at].to(tail.device)[inside], targets[stitch.into][inside])
    for stitch, sums in moments.items():
        start_at_least_squares(layers[stitch], recipe.layer, sums)


def _is_done(entries: Mapping[Stitch, Entry], stitch: Stitch) -> bool:
    return stitch in entries and entries[stitch].complete


def _read(entry: Entry, recipe: StitchRecipe, head: Whole, tail: Whole) -> StitchFit:
    layer = KINDS[recipe.layer].build(head.width, tail.width)
    tensors = safetensors.torch.load_file(entry.files["layer"])
    losses = tensors.pop("losses").numpy()
    layer.load_state_dict(tensors)
    return StitchFit(layer.to(tail.device).requires_grad_(False), losses, entry.meta["diverged"])


def _write(entry: Entry, fit: StitchFit) -> None:
    tensors = {name: weights.detach().cpu().contiguous() for name, weights in fit.layer.state_dict().items()}
    tensors["losses"] = torch.from_numpy(fit.losses)
    try:
        entry.write("layer", lambda path: safetensors.torch.save_file(tensors, path))
        entry.finish(diverged=fit.diverged)
    except OSError as error:
        raise RunFailed(
            f"cache: {entry.folder} cannot be written, got '{error.strerror}'; set REPSIM_CACHE, or cache=false"
        ) from None
