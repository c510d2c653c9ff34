"""Small language models of any architecture, trained by the package when they are first needed."""

import functools
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from repsim_cli.base.planning import check_device
from repsim_cli.base.registry import models
from repsim_cli.base.settings import Fraction, Seed
from repsim_cli.data.base import Data
from repsim_cli.data.packing import Text
from repsim_cli.models.configs import hash_config
from repsim_cli.models.source import Source
from repsim_cli.runs.reader import STATE
from repsim_cli.runs.results import Progress, dumps
from repsim_cli.training.encoder import (
    RECORD,
    hash_documents,
    hash_json,
    make_trained_source,
    open_untrained,
    take_text,
)
from repsim_cli.training.finetune import EncoderRecipe, train_on
from repsim_cli.training.loop import Along
from repsim_cli.training.masked import (
    HIDDEN,
    MASKED_TOKENS,
    NEXT_TOKEN,
    Masked,
    make_fresh_model,
    mark_tokenizer,
    pack_masked_text,
    train_masked,
)
from repsim_cli.training.pretrain import compute_held_out, compute_next_token_loss
from repsim_cli.training.trained import Metrics, Trained

CODE = 2  # raise when a change of the code changes what is trained (tests/test_codes.py)


@models.register("language_model")
def language_model(
    *,
    config: dict[str, Any],
    tokenizer: str,
    data: Data,
    objective: Literal["next", "masked"] = "next",
    hidden: Fraction = HIDDEN,
    recipe: EncoderRecipe,
    seed: Seed = 0,
) -> Source:
    """A language model of any architecture of transformers that is trained on running text when it is first needed.

    Sequences are [CLS] ... [SEP]; every twentieth is held out. Its metrics on these are loss and accuracy of the next
    token, or those of kind pretrained_encoder.

    config: a transformers config with its `model_type`; room for a [MASK] in its vocabulary.
    tokenizer: a folder, a hub id, or the shipped word_pieces; [CLS], [SEP] and [MASK] are put where it does not.
    data: running text.
    objective: `next` predicts each token from those before it, `masked` hidden tokens from all others.
    hidden: the share of tokens that `masked` predicts.
    recipe: how it is trained.
    seed: of the weights, of the order of the sequences and of what is hidden.
    Example: repsim run model=[] +model.mine='{kind: language_model, config: {model_type: gpt2, vocab_size: 520, n_embd:
        32, n_layer: 2, n_head: 2}, tokenizer: word_pieces, data: {kind: embedded_text, split: train}, recipe: {length:
        32, steps: 100, learning_rate: 0.003}}'
    """
    running = take_text(data)
    settings, words, bare = open_untrained(config, tokenizer, recipe)

    def train(folder: Path, scratch: Path, progress: Progress) -> Metrics:
        check_device("recipe.device", recipe.device)
        start = time.process_time()
        given: dict[str, Any] = {"seed": seed, "along": Along(state=scratch / STATE, progress=progress)}
        text = _pack_training_text(running, tokenizer, recipe.length)
        head = MASKED_TOKENS if objective == "masked" else NEXT_TOKEN
        model = make_fresh_model(settings, head, seed).to(recipe.device)
        if objective == "masked":
            losses, metrics = train_masked(model, text, words, recipe, share=hidden, **given)
        else:
            losses, metrics = train_next(model, text, recipe, **given)
        model.save_pretrained(folder)
        words.save_pretrained(folder)
        (folder / RECORD).write_text(dumps({"loss": losses, "cpu_seconds": time.process_time() - start}))
        return metrics

    @functools.cache
    def define() -> Trained:
        parts = {
            "kind": "language_model",
            "code": CODE,
            "config": hash_config(settings.to_dict()),
            "tokenizer": hash_json(words.backend_tokenizer.to_str()),
            "text": hash_documents(running),
            "objective": [objective, hidden] if objective == "masked" else [objective],
            "recipe": asdict(recipe),
            "seed": seed,
        }
        return Trained(parts, train)

    return make_trained_source(bare, settings, define)


@functools.lru_cache(maxsize=1)
def _pack_training_text(data: Text, tokenizer: str, length: int) -> Masked:
    """Packs a text for training and keeps the last, since models of one text are trained one after the other."""
    return pack_masked_text(data, mark_tokenizer(tokenizer), length)


def train_next(model: Any, text: Masked, recipe: EncoderRecipe, **settings: Any) -> tuple[dict[int, float], Metrics]:
    """Trains in place; `settings` and the loss by step as of `train_on`; loss and accuracy of held-out text."""

    def loss(numbers: Int[np.ndarray, " b"], _: np.random.Generator) -> Tensor:
        return compute_next_token_loss(model, torch.from_numpy(text.seen[numbers]).long().to(recipe.device))

    losses = train_on(model, len(text.seen), recipe, loss, **settings)
    return losses, compute_held_out(model.cpu(), text.held_out)
