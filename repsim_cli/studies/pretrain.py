"""Pre-training of one small language model, with its tokenizer, kept at chosen steps in transformers format."""

from typing import Any

import torch

from repsim_cli.content import Axis, Curve, Results, Table
from repsim_cli.data.base import Data
from repsim_cli.data.packing import Text
from repsim_cli.errors import BadInput
from repsim_cli.registry import studies
from repsim_cli.results import STATE, Run
from repsim_cli.settings import Above0, Hardware, Medium, Positive
from repsim_cli.studies.cost import times, training_time
from repsim_cli.training.pretrain import Recipe, Steps, corpus, pretrain

LABELS = {"loss": "nats per token", "accuracy": "share of next tokens ranked first"}


@studies.register("pretrain")
class Pretrain:
    """config: a transformers config with `model_type`. steps, batch_size, learning_rate, warm_up: of the training.

    save: the steps whose weights are kept, as float16, in models/stepN of the run folder; `log`: 0, 1, 2, 4, ... and
    the last. Every twentieth sequence is held out; beside the weights lies what they, in float32, score on these.
    """

    def __init__(
        self,
        *,
        data: Data,
        hardware: Hardware,
        seed: int,
        config: dict[str, Any],
        save: Steps,
        vocabulary: Medium = 512,
        length: Medium = 128,
        steps: Positive = 1000,
        batch_size: Medium = 16,
        learning_rate: Above0 = 3e-3,
        warm_up: Positive = 50,
    ):
        if not isinstance(data, Text):
            raise BadInput(
                f"data: pre-training needs running text, got {data.source}; use embedded_train or local_text"
            )
        self.data, self.hardware = data, hardware
        try:
            self.recipe = Recipe(
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
            self.settings = self.recipe.settings()
        except BadInput as error:
            raise BadInput(f"options.{error}") from None

    def plan(self) -> dict[str, Any]:
        return {
            "model": self.settings.model_type,
            "steps": self.recipe.steps,
            "tokens": self.recipe.tokens,
            "kept steps": self.recipe.kept,
            "time, roughly": times({"training": self._time()}, Hardware(), figures=2),
        }

    def _time(self) -> float:
        shape, recipe = self.settings, self.recipe
        layers, width = shape.num_hidden_layers, shape.hidden_size
        return training_time(layers, width, recipe.tokens, recipe.steps, Hardware())  # always on the CPU

    def run(self, run: Run) -> Results:
        if self.hardware.threads:
            torch.set_num_threads(self.hardware.threads)
        run.manifest.update(device="cpu", threads=torch.get_num_threads())
        with run.stage("data"):
            text = corpus(self.data, self.recipe)
            run.manifest["data"] = {
                "source": self.data.source,
                "hash": text.hash,
                "sequences": len(text.seen) + len(text.held_out),
            }
        with run.stage("training"):
            trained = pretrain(
                self.recipe, text, run.folder / "models", state=run.folder / STATE, progress=run.progress
            )
        steps, metrics = list(trained.metrics), list(trained.metrics.values())
        per_step = self.recipe.batch_size * self.recipe.length
        return Results(
            study="pretrain",
            tables={
                "held-out text": Table(
                    columns=["step", "tokens trained on", *(f"{name}, {LABELS[name]}" for name in LABELS)],
                    rows=[
                        [step, step * per_step, *(scores[name] for name in LABELS)]
                        for step, scores in trained.metrics.items()
                    ],
                )
            },
            curves={
                "training loss": Curve(
                    x=Axis(name="step"),
                    y=Axis(name="loss", unit=LABELS["loss"]),
                    at=list(range(len(trained.losses))),
                    lines={"loss": list(trained.losses)},
                    about={"quantity": "training loss"},
                ),
                **{
                    f"held-out {name}": Curve(
                        x=Axis(name="step"),
                        y=Axis(name=name, unit=unit),
                        at=steps,
                        lines={name: [scores[name] for scores in metrics]},
                        about={"quantity": f"held-out {name}"},
                    )
                    for name, unit in LABELS.items()
                },
            },
        )
