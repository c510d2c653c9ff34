"""Checkpoints of a small language model, trained when a study first needs them and kept in the cache."""

from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from repsim_cli.base.registry import models
from repsim_cli.base.settings import Seed
from repsim_cli.data.packing import Text
from repsim_cli.data.text import embedded_text
from repsim_cli.models.checkpoints import find_weight_files, hash_files
from repsim_cli.models.configs import build_source_from_config
from repsim_cli.models.loading import WHOLE
from repsim_cli.models.pretrained import load, load_with_head
from repsim_cli.models.series import read_metrics
from repsim_cli.models.source import Checkpoint, Series, Source
from repsim_cli.runs.reader import STATE
from repsim_cli.runs.results import Progress
from repsim_cli.training.pretrain import PretrainRecipe, make_corpus, pretrain, train_byte_pair_tokenizer
from repsim_cli.training.trained import Metrics, Trained

CODE = 1  # raise when a change of the code changes what is trained (tests/test_codes.py)


@models.register("pretrained_series")
def pretrained_series(*, recipe: PretrainRecipe, seed: Seed = 0) -> Series:
    """Checkpoints of a language model that is trained on the embedded text when it is first needed, as by the study
    pretrain.

    The last bits of the weights depend on the number of threads of the training.

    recipe: the model and its training.
    seed: of the weights and of the order of the text.
    """

    def fit(folder: Path, scratch: Path, progress: Progress) -> Metrics:
        steps = scratch / "steps"
        text = make_corpus(_load_training_text(), recipe, seed)
        pretrained = pretrain(recipe, text, steps, seed=seed, state=scratch / STATE, progress=progress)
        for place in steps.iterdir():
            place.rename(folder / place.name)
        return pretrained.metrics[recipe.kept[-1]]

    trained = Trained(
        {"code": CODE, "text": _load_training_text().source, **asdict(recipe), "save": recipe.kept, "seed": seed}, fit
    )

    return Series(
        checkpoints=[_make_checkpoint(recipe, trained, step) for step in recipe.kept],
        local=False,  # nothing can be opened before the training
        make=trained.folder,
    )


def _make_checkpoint(recipe: PretrainRecipe, trained: Trained, step: int) -> Checkpoint:
    def place() -> Path:
        return trained.folder() / f"step{step}"

    def identity() -> dict[str, Any]:
        return {
            "source": f"trained here, models/{trained.key}/model/step{step}",
            "weights_hash": hash_files(find_weight_files(place())),
            "metrics": read_metrics(place()),
        }

    def make_source() -> Source:
        """The source from the config alone, before the model is trained."""
        fresh = build_source_from_config(
            recipe.settings(),
            lambda: _train_tokenizer(recipe.vocabulary, recipe.length),
            lambda eager, how=WHOLE: load(str(place()), None, eager, how=how),
            identity,
            None,
            with_head=lambda auto, how=WHOLE: load_with_head(str(place()), None, auto, how),
        )
        return replace(fresh, metrics=lambda: read_metrics(place()))

    return Checkpoint(step=step, open=make_source)


@cache
def _load_training_text() -> Text:
    return embedded_text(split="train")


@cache
def _train_tokenizer(vocabulary: int, context: int) -> Any:
    return train_byte_pair_tokenizer(_load_training_text().documents(), vocabulary, context)
