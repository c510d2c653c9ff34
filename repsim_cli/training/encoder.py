"""Encoders that the package pre-trains as masked language models when they are first needed."""

import functools
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from repsim_cli.base.errors import BadInput
from repsim_cli.base.planning import check_device, is_dry
from repsim_cli.base.registry import models
from repsim_cli.data.base import Data
from repsim_cli.data.packing import Text
from repsim_cli.models.checkpoints import find_weight_files, hash_files
from repsim_cli.models.configs import build_source_from_config, hash_config, inline_config
from repsim_cli.models.loading import WHOLE, disable_cache
from repsim_cli.models.pretrained import load, load_with_head
from repsim_cli.models.source import Source, TrainingWork
from repsim_cli.runs.reader import STATE
from repsim_cli.runs.results import Progress, dumps
from repsim_cli.training.finetune import EncoderRecipe
from repsim_cli.training.loop import Along
from repsim_cli.training.masked import MASKED_TOKENS, make_fresh_model, mark_tokenizer, pack_masked_text, train_masked
from repsim_cli.training.trained import Metrics, Trained

# beside the weights: seed, recipe, loss by step, CPU seconds, how many examples evaluate it, of sparse ones each block
RECORD = "training.json"
CODE = 3  # raise when a change of the code changes what is trained
SHARED_SEED = 2**32 - 1  # the highest seed; no classifier may use it, so that none shares its random weights


@dataclass(frozen=True, kw_only=True)
class SharedEncoder:
    """How an encoder is trained from random weights, under a seed of its own, before classifiers are trained from it.

    data: running text, of which it learns to predict hidden tokens, or labelled examples, as a classifier of them.
    recipe: how it is trained.
    """

    data: Data
    recipe: EncoderRecipe


def take_text(data: Data) -> Text:
    """Takes data that is running text; raises BadInput for other data."""
    if not isinstance(data, Text):
        raise BadInput(f"data: not running text, got {data.source}; e.g. {{kind: embedded_text, split: train}}")
    return data


def open_untrained(config: dict[str, Any], tokenizer: str, recipe: EncoderRecipe) -> tuple[Any, Any, Source]:
    """Opens the config, the tokenizer and a source without weights of a model that is to be trained.

    Raises BadInput where the recipe names a length or a device that there is not.
    """
    settings = inline_config(config)
    words = load_mask_tokenizer(settings, tokenizer)
    if is_dry():  # a model from the cache needs no such device, wherever it was trained
        check_device("recipe.device", recipe.device)
    bare = build_source_from_config(settings, lambda: words, lambda eager, how=WHOLE: nn.Module(), dict, None)
    check_length("recipe.length", recipe, bare)
    return settings, words, bare


@models.register("pretrained_encoder")
def pretrained_encoder(*, config: dict[str, Any], tokenizer: str, data: Data, recipe: EncoderRecipe) -> Source:
    """An encoder that is trained as a masked language model (Devlin et al. 2019) when it is first needed.

    15 % of the tokens are predicted; of these 80 % are masked, 10 % replaced by random ones, 10 % left. Every twentieth
    sequence is held out; the metrics on it are masked_loss (nats) and masked_accuracy of hidden tokens, and
    unigram_loss and unigram_accuracy of the frequencies of tokens. It is the encoder that classifiers of kind finetuned
    start from, where their `config` and `tokenizer` are the same and `shared` has the same `data` and `recipe`.

    config: a transformers config of an encoder, with its `model_type`; room for a [MASK] in its vocabulary.
    tokenizer: a folder, a hub id, or the shipped word_pieces; [CLS], [SEP] and [MASK] are put where it does not.
    data: running text.
    recipe: how it is trained.
    Example: repsim run model=[] +model.mine='{kind: pretrained_encoder, config: {model_type: bert, vocab_size: 520,
        hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 64}, tokenizer: word_pieces,
        data: {kind: embedded_text, split: train}, recipe: {length: 32, steps: 100, learning_rate: 0.003}}'
    """
    text = take_text(data)
    settings, words, bare = open_untrained(config, tokenizer, recipe)

    @functools.cache
    def define() -> Trained:
        return define_language_model(settings, words, text, recipe)

    return make_trained_source(bare, settings, define)


def make_trained_source(bare: Source, config: Any, trained: Callable[[], Trained]) -> Source:
    """A source whose weights are trained by `define()`, which is called when they or their key are first needed."""

    def folder() -> str:
        return str(trained().folder())

    def identity() -> dict[str, Any]:
        return {
            "source": f"trained here, models/{trained().key}",
            "trained": trained().key,
            "weights_hash": hash_files(find_weight_files(Path(folder()))),
            "config_hash": hash_config(config.to_dict()),
            "metrics": trained().metrics(),
        }

    def make(progress: Progress) -> None:
        trained().folder(progress)

    return replace(
        bare,
        load=lambda eager, how=WHOLE: disable_cache(load(folder(), None, eager, how=how)),
        with_head=lambda auto, how=WHOLE: load_with_head(folder(), None, auto, how),
        identity=identity,
        make=make,
        metrics=lambda: trained().metrics(),
    )


def check_length(key: str, recipe: EncoderRecipe, bare: Source) -> None:
    if bare.context is not None and recipe.length > bare.context:
        raise BadInput(f"{key}: longer than the encoder's context, got {recipe.length}; at most {bare.context}")


def load_mask_tokenizer(config: Any, tokenizer: str | None) -> Any:
    """The tokenizer of a masked language model. Raises BadInput for one that is missing, cannot mark texts, or has more
    tokens than the config."""
    if tokenizer is None:
        raise BadInput("tokenizer: running text needs one; e.g. word_pieces")
    words = mark_tokenizer(tokenizer)
    if words.mask_token_id is None:
        raise BadInput(f"tokenizer: it marks no start and end of texts, got '{tokenizer}'; e.g. word_pieces")
    size = config.vocab_size
    if len(words) > size:
        raise BadInput(f"config.vocab_size: fewer tokens than the tokenizer has, got {size}; at least {len(words)}")
    return words


def define_language_model(config: Any, words: Any, text: Text, recipe: EncoderRecipe) -> Trained:
    """The encoder that learns from running text."""

    def train(folder: Path, scratch: Path, progress: Progress) -> Metrics:
        check_device("recipe.device", recipe.device)
        start = time.process_time()
        model = make_fresh_model(config, MASKED_TOKENS, SHARED_SEED).to(recipe.device)
        sequences = pack_masked_text(text, words, recipe.length)
        losses, metrics = train_masked(
            model, sequences, words, recipe, seed=SHARED_SEED, along=Along(state=scratch / STATE, progress=progress)
        )
        record = {
            "seed": SHARED_SEED,
            "recipe": asdict(recipe),
            "loss": losses,
            "cpu_seconds": time.process_time() - start,
        }
        model.save_pretrained(folder)
        words.save_pretrained(folder)
        (folder / RECORD).write_text(dumps(record))
        return metrics

    def work() -> TrainingWork:
        steps = recipe.total(len(pack_masked_text(text, words, recipe.length).seen))
        return TrainingWork(steps=steps, tokens=steps * recipe.batch_size * recipe.length)

    return Trained(
        {
            "code": CODE,
            "config": hash_config(config.to_dict()),
            "tokenizer": hash_json(words.backend_tokenizer.to_str()),
            "text": hash_documents(text),
            "recipe": asdict(recipe),
            "seed": SHARED_SEED,
        },
        train,
        work,
    )


def hash_json(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


@functools.cache
def hash_documents(text: Text) -> str:
    """sha256 of the documents."""
    whole = hashlib.sha256()
    for document in text.documents():
        whole.update(hashlib.sha256(document.encode()).digest())
    return whole.hexdigest()
