"""Small language models of TransformerLens' own architecture, trained by the package when they are first needed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from repsim_cli.data.packing import pack
from repsim_cli.data.text import embedded_text, local_text
from repsim_cli.models.source import Source
from repsim_cli.models.transformer_lens import transformer_lens
from repsim_cli.models.transformers import hash_files
from repsim_cli.registry import models
from repsim_cli.results import STATE, Progress
from repsim_cli.settings import Above0, Medium, Positive, Seed
from repsim_cli.training.pretrain import held_out_metrics, train
from repsim_cli.training.trained import Metrics, Trained

CODE = 1  # raise when a change of the code changes what is trained
EVERYTHING = 1 << 30


@models.register("pretrained")
def pretrained(
    *,
    config: dict[str, Any],
    tokenizer: str,
    path: str | None = None,
    length: Medium = 128,
    steps: Positive = 1000,
    batch_size: Medium = 16,
    learning_rate: Above0 = 3e-3,
    warm_up: Positive = 50,
    seed: Seed = 0,
) -> Source:
    """A native model of `config` (as of kind: transformer_lens), trained on the text of `path` (null: the training
    split of the embedded text), packed into sequences of `length` tokens of `tokenizer` (a folder, hub id or shipped
    model).

    steps, batch_size, learning_rate, warm_up: of AdamW with a cosine decay. seed: of the weights and of the order of
    the text. Its metrics: held_out_loss in nats per token, on every twentieth sequence, which is not trained on.
    """
    fresh = transformer_lens(config=config, tokenizer=tokenizer, seed=seed)
    text = embedded_text(split="train") if path is None else local_text(path=path)
    recipe: Any = {"batch_size": batch_size, "learning_rate": learning_rate, "warm_up": warm_up}

    def fit(folder: Path, scratch: Path, progress: Progress) -> Metrics:
        sequences = pack(
            text,
            fresh.tokenizer(),
            length=length,
            sequences=EVERYTHING,
            pool=EVERYTHING,
            separator="eos",
            seed=seed,
        )
        whole = sequences.ids[sequences.mask.all(1)]
        held_out, seen = whole[::20], whole[[i for i in range(len(whole)) if i % 20]]
        model: Any = fresh.with_head("AutoModelForCausalLM")
        losses = train(
            model,
            seen,
            steps=progress(range(steps), label="training", unit="steps"),
            total=steps,
            seed=seed,
            save=lambda step: None,
            state=scratch / STATE,
            **recipe,
        )
        last = list(losses)[-1]
        state = {name: weight.contiguous().clone() for name, weight in model.bridge.state_dict().items()}
        safetensors.torch.save_file(state, folder / "model.safetensors")
        own = {"act_fn": "gelu", **config}
        (folder / "config.json").write_text(json.dumps(own, indent=1) + "\n")
        return {"training_loss": last, "held_out_loss": held_out_metrics(model, held_out)["loss"]}

    parts = {
        "code": CODE,
        "config": config,
        "tokenizer": tokenizer,
        "text": text.source if path is None else hash_files([Path(path).expanduser()]),
        "length": length,
        "seed": seed,
        "steps": steps,
        **recipe,
    }
    trained = Trained(parts, fit)

    def ready() -> Source:
        return transformer_lens(path=str(trained.folder()), tokenizer=tokenizer)

    def whole(auto: str) -> nn.Module:
        return ready().with_head(auto)

    def identity() -> dict[str, Any]:
        own = {"source": f"trained here, models/{trained.key}", "trained": trained.key, "metrics": trained.metrics()}
        return {**ready().identity(), **own}

    def make(progress: Progress) -> None:
        trained.folder(progress)

    return replace(
        fresh,
        load=lambda eager: ready().load(eager),
        with_head=whole,
        identity=identity,
        make=make,
        metrics=trained.metrics,
    )
