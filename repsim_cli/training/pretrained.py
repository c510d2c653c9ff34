"""Small language models of TransformerLens' own architecture, trained by the package when they are first needed."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch

from repsim_cli.base.files import expand_path
from repsim_cli.base.registry import models
from repsim_cli.base.settings import EVERYTHING, Seed
from repsim_cli.data.packing import Text, pack
from repsim_cli.data.text import embedded_text, local_text
from repsim_cli.models.checkpoints import hash_files
from repsim_cli.models.loading import WHOLE
from repsim_cli.models.source import Source
from repsim_cli.models.transformer_lens import transformer_lens
from repsim_cli.runs.reader import STATE
from repsim_cli.runs.results import Progress
from repsim_cli.training.pretrain import TextRecipe, compute_held_out, train_causal_model
from repsim_cli.training.trained import Metrics, Trained

CODE = 1  # raise when a change of the code changes what is trained (tests/test_codes.py)


@models.register("pretrained")
def pretrained(
    *,
    config: dict[str, Any],
    tokenizer: str,
    path: str | None = None,
    recipe: TextRecipe,
    seed: Seed = 0,
) -> Source:
    """A native model of TransformerLens that is trained on packed text when it is first needed.

    Its metric is held_out_loss (nats per token), on every twentieth sequence, which is not trained on.

    config: the model, as of kind: transformer_lens.
    tokenizer: a folder, a hub id or a shipped model.
    path: the text, a file or folder; null: the training split of the embedded text.
    recipe: how it is trained.
    seed: of the weights and of the order of the text.
    Example: repsim run model=[] +model.mine='{kind: pretrained, config: {d_model: 64, n_layers: 2, n_heads: 4, n_ctx:
        128, d_vocab: 512, act_fn: gelu}, tokenizer: tiny_a}'
    """
    fresh = transformer_lens(config=config, tokenizer=tokenizer, seed=seed)
    text = embedded_text(split="train") if path is None else local_text(path=path)

    def fit(folder: Path, scratch: Path, progress: Progress) -> Metrics:
        held_out, seen = _split_sequences(text, fresh.tokenizer(), recipe.length, seed)
        model: Any = fresh.with_head("AutoModelForCausalLM")
        steps = progress(range(recipe.steps), label="training", unit="steps")
        *_, last = train_causal_model(model, seen, recipe, steps=steps, seed=seed, state=scratch / STATE)
        _save(model, config, folder)
        return {"training_loss": last, "held_out_loss": compute_held_out(model, held_out)["loss"]}

    parts = {
        "code": CODE,
        "config": config,
        "tokenizer": tokenizer,
        "text": text.source if path is None else hash_files([expand_path(path)]),
        "seed": seed,
        **asdict(recipe),
    }
    trained = Trained(parts, fit)

    def open_trained() -> Source:
        return transformer_lens(path=str(trained.folder()), tokenizer=tokenizer)

    def identity() -> dict[str, Any]:
        made = {"source": f"trained here, models/{trained.key}", "trained": trained.key, "metrics": trained.metrics()}
        return {**open_trained().identity(), **made}

    return replace(
        fresh,
        load=lambda eager, how=WHOLE: open_trained().load(eager, how),
        with_head=lambda auto, how=WHOLE: open_trained().with_head(auto, how),
        identity=identity,
        make=trained.folder,
        metrics=trained.metrics,
        trained=True,
    )


def _split_sequences(text: Text, tokenizer: Any, length: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The sequences that are held out, every twentieth, and those that are trained on; without the padded one."""
    packing = {"sequences": EVERYTHING, "pool": EVERYTHING, "separator": "eos", "seed": seed}
    sequences = pack(text, tokenizer, length=length, **packing)
    whole = sequences.ids[sequences.mask.all(1)]
    return whole[::20], whole[[i for i in range(len(whole)) if i % 20]]


def _save(model: Any, config: Mapping[str, Any], folder: Path) -> None:
    """Writes a model to the folder in the native format."""
    state = {name: weight.contiguous().clone() for name, weight in model.bridge.state_dict().items()}
    safetensors.torch.save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"act_fn": "gelu", **config}, indent=1) + "\n")
