"""Pre-training of one small language model, with its tokenizer, kept at chosen steps in transformers format."""

from typing import Any

import torch

from repsim_cli.data.base import Data
from repsim_cli.data.packing import Text, pack
from repsim_cli.errors import BadInput
from repsim_cli.models.transformers import inline_config, library
from repsim_cli.registry import studies
from repsim_cli.results import Run
from repsim_cli.settings import Hardware, Positive
from repsim_cli.training.pretrain import byte_pair_tokenizer, held_out_loss, train


@studies.register("pretrain")
class Pretrain:
    """config: a transformers config with `model_type`. steps, batch_size, learning_rate, warm_up: of the training.

    save: the steps whose weights are kept, as float16, in models/stepN of the run folder.
    """

    def __init__(
        self,
        *,
        data: Data,
        hardware: Hardware,
        seed: int,
        config: dict[str, Any],
        save: list[int],
        vocabulary: Positive = 512,
        length: Positive = 128,
        steps: Positive = 1000,
        batch_size: Positive = 16,
        learning_rate: float = 3e-3,
        warm_up: Positive = 50,
    ):
        if not isinstance(data, Text):
            raise BadInput(
                f"data: pre-training needs running text, got {data.source}; use embedded_train or local_text"
            )
        outside = [step for step in save if not 0 <= step <= steps]
        if outside:
            raise BadInput(f"options.save: no such step, got {outside[0]}; steps go from 0 to {steps}")
        self.data, self.hardware, self.seed = data, hardware, seed
        self.settings = {"batch_size": batch_size, "learning_rate": learning_rate, "warm_up": warm_up}
        self.save, self.vocabulary, self.length, self.steps = save, vocabulary, length, steps
        self.config = inline_config({**config, "vocab_size": vocabulary})

    def plan(self) -> dict[str, Any]:
        tokens = self.steps * self.settings["batch_size"] * self.length
        return {
            "model": self.config.model_type,
            "steps": self.steps,
            "tokens": tokens,
            "kept steps": self.save,
        }

    def run(self, run: Run) -> dict[str, Any]:
        if self.hardware.threads:
            torch.set_num_threads(self.hardware.threads)
        run.manifest.update(device="cpu", threads=torch.get_num_threads())
        with run.stage("data"):
            tokenizer = byte_pair_tokenizer(self.data.documents(), self.vocabulary, self.length)
            everything = 1 << 30
            sequences = pack(
                self.data,
                tokenizer,
                length=self.length,
                sequences=everything,
                pool=everything,
                separator="eos",
                seed=self.seed,
            )
            whole = sequences.ids[sequences.mask.all(1)]
            held_out, seen = whole[::20], whole[[i for i in range(len(whole)) if i % 20]]
            run.manifest["data"] = {
                "source": self.data.source,
                "hash": sequences.hash(),
                "sequences": len(whole),
            }
        torch.manual_seed(self.seed)
        model = library().AutoModelForCausalLM.from_config(self.config, dtype=torch.float32)

        def keep(step: int) -> None:
            if step in self.save:
                folder = run.folder / "models" / f"step{step}"
                kept = type(model)(self.config).half()
                kept.load_state_dict(model.state_dict())
                kept.save_pretrained(folder)
                tokenizer.save_pretrained(folder)

        with run.stage("training"):
            steps = run.progress(range(self.steps), label="training", unit="steps")
            losses = list(train(model, seen, steps=steps, total=self.steps, seed=self.seed, save=keep, **self.settings))
        final = held_out_loss(model, held_out, self.settings["batch_size"])
        return {
            "measures": [],
            "tables": {
                "loss": {
                    "columns": ["held-out loss, nats per token", "tokens trained on"],
                    "rows": [[final, self.plan()["tokens"]]],
                }
            },
            "curves": {"training loss, nats per token": losses},
            "claims": [],
        }
