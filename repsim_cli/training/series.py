"""Checkpoints of a small language model of our own, trained when a study first needs them and kept in the cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from repsim_cli import registry
from repsim_cli.cache import Entry, key, root, using
from repsim_cli.data.packing import Text
from repsim_cli.models.series import headed
from repsim_cli.models.source import Checkpoint, Series, Source
from repsim_cli.models.transformers import hash_files, load, source, weight_files
from repsim_cli.results import STATE, Progress
from repsim_cli.settings import Positive
from repsim_cli.training.pretrain import Recipe, Steps, byte_pair_tokenizer, corpus, pretrain, read_metrics

KIND = "models"  # of cache entries
CODE = 1  # raise when a change of the code changes what is trained


@registry.models.register("pretrained_series")
def pretrained_series(
    *,
    config: dict[str, Any],
    save: Steps = "log",
    vocabulary: Positive = 512,
    length: Positive = 128,
    steps: Positive = 1000,
    batch_size: Positive = 8,
    learning_rate: Annotated[float, Field(gt=0)] = 3e-3,
    warm_up: Positive = 50,
    seed: Annotated[int, Field(ge=0)] = 0,
) -> Series:
    """A model that is trained on the text that ships with the package, as the study `pretrain` does.

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
    folder = root() / KIND / key({"code": CODE, **asdict(recipe), "save": recipe.kept})
    places = {step: folder / f"step{step}" for step in recipe.kept}
    return Series(
        checkpoints=[_checkpoint(recipe, step, place) for step, place in places.items()],
        local=False,
        held=lambda progress: _held(recipe, folder, progress),
    )


def _checkpoint(recipe: Recipe, step: int, place: Path) -> Checkpoint:
    return Checkpoint(
        step=step,
        open=lambda: _source(recipe, place),
        with_head=headed(str(place), None),
        metrics=lambda: read_metrics(place),
    )


def _source(recipe: Recipe, place: Path) -> Source:
    """Known before it is trained."""

    def identity() -> dict[str, Any]:
        return {"source": str(place), "weights_hash": hash_files(weight_files(place))}

    like = source(
        recipe.settings(),
        lambda: _tokenizer(recipe.vocabulary, recipe.length),
        lambda eager: load(str(place), None, eager),
        identity,
        None,
    )
    return like


@cache
def _text() -> Text:
    return registry.data.get("embedded_text").function(split="train")


@cache
def _tokenizer(vocabulary: int, context: int) -> Any:
    return byte_pair_tokenizer(_text().documents(), vocabulary, context)


@contextmanager
def _held(recipe: Recipe, folder: Path, progress: Progress) -> Iterator[None]:
    """Trains the series, if it is not in the cache whole; it stays there meanwhile."""
    with using(KIND, [folder.name]) as entries:
        entry: Entry = entries[folder.name]
        if not entry.complete:
            folder.mkdir(exist_ok=True)
            pretrain(recipe, corpus(_text(), recipe), folder, state=folder / STATE, progress=progress)
            entry.finish(recipe=asdict(recipe))
        yield
