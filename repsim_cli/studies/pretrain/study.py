"""Pre-training of a small language model with its tokenizer; checkpoints at chosen steps, in transformers format."""

from typing import Any

import torch

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import studies
from repsim_cli.base.settings import Hardware
from repsim_cli.data.base import Data
from repsim_cli.data.packing import Text
from repsim_cli.engine.bounds import check_memory, suggest_memory_limit
from repsim_cli.engine.cost import Cost, describe_needs, estimate_training
from repsim_cli.engine.study import Study
from repsim_cli.runs.content import Axis, Curve, Results, Table
from repsim_cli.runs.reader import STATE
from repsim_cli.runs.results import Run
from repsim_cli.training.pretrain import PretrainRecipe, make_corpus, pretrain

LABELS = {"loss": "nats per token", "accuracy": "share of next tokens ranked first"}


@studies.register("pretrain")
class Pretrain(Study):
    """Trains one language model on running text, with its tokenizer, and keeps checkpoints.

    Every twentieth sequence is held out. The weights of each kept step lie in models/stepN of the run folder as
    float16; beside them lies metrics.json, with the loss of the float32 weights on the held-out sequences.

    recipe: of the model, its tokenizer and its training.
    Example: repsim run study=pretrain data=local_text data.path=FILE +options.recipe='{config: {model_type: gpt_neox,
        hidden_size: 64, num_hidden_layers: 6, num_attention_heads: 4, intermediate_size: 256}}'
    """

    def __init__(self, *, data: Data, hardware: Hardware, seed: int, recipe: PretrainRecipe):
        if not isinstance(data, Text):
            raise BadInput(
                f"data: pre-training needs running text, got {data.source}; use embedded_train or local_text"
            )
        if data.chat:
            raise BadInput("data.chat: pre-training reads running text, got true; set data.chat=false")
        self.data, self.hardware, self.seed, self.recipe = data, hardware, seed, recipe
        self.settings = recipe.settings()
        need = sum(self.memory().values())
        check_memory(need, hardware, f"{suggest_memory_limit(need)}, or lower options.recipe.batch_size")

    def plan(self) -> dict[str, Any]:
        return {
            "model": self.settings.model_type,
            "steps": self.recipe.steps,
            "tokens": self.recipe.tokens,
            "kept steps": self.recipe.kept,
            **describe_needs(
                {"training": self._costs()}, Hardware(), memory=self.memory(), disk=self.disk(), figures=2
            ),
        }

    @property
    def _parameters(self) -> int:
        """The number of weights: 12 width^2 in each block, and the embeddings."""
        shape = self.settings
        return shape.hidden_size * (12 * shape.num_hidden_layers * shape.hidden_size + shape.vocab_size)

    def memory(self) -> dict[str, float]:
        """Bytes, estimated: weights, gradients and two moments of each; activations and outputs of a batch."""
        shape, tokens = self.settings, self.recipe.batch_size * self.recipe.length
        return {
            "Python and its libraries": 0.5e9,
            "weights": 4.0 * 4 * self._parameters,
            "forward": 4.0 * tokens * 24 * shape.num_hidden_layers * shape.hidden_size,
            "outputs": 4.0 * 3 * tokens * shape.vocab_size,
        }

    def disk(self) -> dict[str, float]:
        """Bytes of the kept steps, in float16, and of the state from which a training resumes."""
        return {"kept steps": 2.0 * self._parameters * len(self.recipe.kept), "state": 4.0 * 3 * self._parameters}

    def _costs(self) -> Cost:
        shape, recipe = self.settings, self.recipe
        layers, width = shape.num_hidden_layers, shape.hidden_size
        return estimate_training(layers, width, recipe.tokens, recipe.steps, Hardware())  # always on the CPU

    def run(self, run: Run) -> Results:
        if self.hardware.threads:
            torch.set_num_threads(self.hardware.threads)
        run.manifest.update(device="cpu", threads=torch.get_num_threads())
        with run.stage("data"):
            text = make_corpus(self.data, self.recipe, self.seed)
            about = {"source": self.data.source, "hash": text.hash}
            run.input("data", {**about, "sequences": len(text.seen) + len(text.held_out)})
        with run.stage("training"):
            place, state = run.folder / "models", run.folder / STATE
            trained = pretrain(self.recipe, text, place, seed=self.seed, state=state, progress=run.progress)
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
