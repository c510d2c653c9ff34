"""The loop of gradient steps that trainings share; a killed training resumes and ends with the same bits."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.base.timer import Timer
from repsim_cli.runs.results import SAVE_EVERY, Progress, quiet
from repsim_cli.training.sparse import SparseTraining
from repsim_cli.training.state import is_resumable, restore_state, save_state


def keep_nothing(step: int) -> None:
    """A `save` that keeps nothing."""


def check_warm_up(rising: int, steps: int) -> None:
    """Raises BadInput for a rate that rises in all `steps`, and never is the largest."""
    if 0 < rising >= steps:
        raise BadInput(f"warm_up: as long as the training, which has {steps} steps; lower it, or train for more")


@dataclass(frozen=True)
class Pace:
    """The steps of a training.

    steps: the numbers of all steps, from 0. rate(step): the learning rate. Gradients of a norm above `clip` are scaled
    down to it.
    """

    steps: Iterable[int]
    rate: Callable[[int], float]
    clip: float = math.inf


@dataclass(frozen=True)
class Along:
    """What goes along with a training.

    save(step) is called before the first step and after each, with the number of steps done; it may leave the model in
    eval mode. state: a file that is written from time to time, from which a training that was killed resumes; its steps
    are yielded again, not done. at_once: the number of steps after every multiple of which it is written, e.g. those of
    an epoch, where `loss` remembers what it drew. progress: shows the steps, where a function makes them itself.
    """

    save: Callable[[int], None] = keep_nothing
    state: Path | None = None
    at_once: int = 1
    progress: Progress = quiet


def train(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    loss: Callable[[int, np.random.Generator], Tensor],
    *,
    pace: Pace,
    seed: int,
    along: Along = Along(),
    sparsity: SparseTraining | None = None,
) -> Iterator[float]:
    """Yields the loss of every step.

    loss(step, draw): of the examples of a step, which may be drawn with `draw`, a generator under the seed.
    sparsity: removes heads and neurons after each step.
    Raises RunFailed where the loss is not finite.
    """
    draw, state = np.random.default_rng(seed), along.state
    losses: list[float] = []
    if state is not None and is_resumable(state):
        restored = restore_state(state, model, optimiser, draw)
        losses = restored.pop("losses").tolist()
        if sparsity is not None:
            sparsity.load_state_dict(restored)
    done, timer = len(losses), Timer(SAVE_EVERY)
    parameters = [weights for weights in model.parameters() if weights.requires_grad]

    def leave() -> None:
        if state is not None:
            more = {} if sparsity is None else sparsity.state_dict()
            save_state(state, model, optimiser, draw, {**more, "losses": torch.tensor(losses, dtype=torch.float64)})

    along.save(done)
    for step in pace.steps:
        if step < done:
            yield losses[step]
            continue
        model.train()
        for group in optimiser.param_groups:
            group["lr"] = pace.rate(step)
        of_step = loss(step, draw)
        optimiser.zero_grad()
        of_step.backward()
        nn.utils.clip_grad_norm_(parameters, pace.clip)
        optimiser.step()
        if sparsity is not None:
            sparsity.update(step + 1)
        losses.append(float(of_step.detach()))
        if not math.isfinite(losses[-1]):
            raise RunFailed(f"training: the loss is not finite, got {losses[-1]} at step {step}; lower learning_rate")
        along.save(step + 1)
        if (step + 1) % along.at_once == 0 and timer.is_due():
            with timer.restart():
                leave()
        yield losses[-1]
    leave()
