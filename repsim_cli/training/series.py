"""Checkpoints of a small language model of our own, trained when a study first needs them and kept in the cache."""

from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from repsim_cli.data.packing import Text
from repsim_cli.data.text import embedded_text
from repsim_cli.models.series import read_metrics
from repsim_cli.models.source import Checkpoint, Series, Source
from repsim_cli.models.transformers import hash_files, headed, load, source, weight_files
from repsim_cli.registry import models
from repsim_cli.results import STATE, Progress
from repsim_cli.settings import Above0, Medium, Positive, Seed
from repsim_cli.training.pretrain import Recipe, Steps, byte_pair_tokenizer, corpus, pretrain
from repsim_cli.training.trained import Metrics, Trained

CODE = 1  # raise when a change of the code changes what is trained


@models.register("pretrained_series")
def pretrained_series(
    *,
    config: dict[str, Any],
    save: Steps = "log",
    vocabulary: Medium = 512,
    length: Medium = 128,
    steps: Positive = 1000,
    batch_size: Medium = 8,
    learning_rate: Above0 = 3e-3,
    warm_up: Positive = 50,
    seed: Seed = 0,
) -> Series:
    """Checkpoints of a model that is trained on the embedded text when it is first needed, as the study pretrain does.

    config: of the transformers library, with `model_type`. save: the steps that are kept (log: 0, 1, 2, 4, ... and
    the last). The rest as of the study. The last bits of the weights depend on the number of threads of the training.
    """
    recipe = Recipe(
        config=config,
        save=save,
        vocabulary=vocabulary,
        length=length,
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        warm_up=warm_up,
        seed=seed,
    )
    recipe.settings()

    def fit(folder: Path, scratch: Path, progress: Progress) -> Metrics:
        steps = scratch / "steps"
        found = pretrain(recipe, corpus(_text(), recipe), steps, state=scratch / STATE, progress=progress)
        for place in steps.iterdir():
            place.rename(folder / place.name)
        return found.metrics[recipe.kept[-1]]

    trained = Trained({"code": CODE, "text": _text().source, **asdict(recipe), "save": recipe.kept}, fit)

    def make(progress: Progress) -> None:
        trained.folder(progress)

    return Series(
        checkpoints=[_checkpoint(recipe, trained, step) for step in recipe.kept],
        local=False,  # there is nothing to open before it is trained
        make=make,
    )


def _checkpoint(recipe: Recipe, trained: Trained, step: int) -> Checkpoint:
    def place() -> Path:
        return trained.folder() / f"step{step}"

    def identity() -> dict[str, Any]:
        return {
            "source": f"trained here, models/{trained.key}/model/step{step}",
            "weights_hash": hash_files(weight_files(place())),
            "metrics": read_metrics(place()),
        }

    def known() -> Source:
        """From the config alone, before it is trained."""
        found = source(
            recipe.settings(),
            lambda: _tokenizer(recipe.vocabulary, recipe.length),
            lambda eager: load(str(place()), None, eager),
            identity,
            None,
            with_head=lambda auto: headed(str(place()), None, auto),
        )
        return replace(found, metrics=lambda: read_metrics(place()))

    return Checkpoint(step=step, open=known)


@cache
def _text() -> Text:
    return embedded_text(split="train")


@cache
def _tokenizer(vocabulary: int, context: int) -> Any:
    return byte_pair_tokenizer(_text().documents(), vocabulary, context)
