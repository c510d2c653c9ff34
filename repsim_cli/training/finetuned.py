"""Classifiers that are made of an encoder and labelled text when they are first needed: a family, one model a seed."""

import functools
import hashlib
import json
import time
from dataclasses import asdict, astuple, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from torch import nn

from repsim_cli.data.base import Data, Sequences
from repsim_cli.data.labelled import Examples
from repsim_cli.data.labels import scoring
from repsim_cli.errors import BadInput
from repsim_cli.models.source import Family, Source
from repsim_cli.models.transformers import (
    check_place,
    config_hash,
    config_of,
    hash_files,
    headed,
    inline_config,
    load,
    place,
    source,
    tokenizer_of,
    uncached,
    weight_files,
)
from repsim_cli.registry import models
from repsim_cli.results import Progress, dumps
from repsim_cli.settings import Positive
from repsim_cli.training.finetune import (
    CODE,
    Recipe,
    all_sequences,
    by_heuristic,
    classifier,
    fine_tune,
    in_distribution,
    labelled_config,
    logits_of,
    word_tokenizer,
)
from repsim_cli.training.trained import Metrics, Trained

Above0 = Annotated[float, Field(gt=0)]


@models.register("finetuned")
def finetuned(
    *,
    config: dict[str, Any] | None = None,
    path: str | None = None,
    hub: str | None = None,
    revision: str | None = None,
    tokenizer: str | None = None,
    train: Data,
    evaluate: Data,
    hans: Data | None = None,
    seeds: Annotated[list[int], Field(min_length=1)],
    length: Positive = 128,
    epochs: Above0 = 3.0,
    steps: Positive | None = None,
    batch_size: Positive = 32,
    learning_rate: Above0 = 2e-5,
    warm_up: Annotated[int, Field(ge=0)] = 0,
    weight_decay: Annotated[float, Field(ge=0)] = 0.0,
    clip: Above0 = 1.0,
    device: str = "cpu",
) -> Family:
    """Classifiers of the labels of `train`, one for each of `seeds`: LABEL_0, LABEL_1, ...

    The encoder: pretrained, from a folder (`path`) or the hub (`hub`, `revision`), with its tokenizer; or of `config`
    with random weights under the seed, with the tokenizer of a folder or hub id (`tokenizer`), or (null) one of the
    most frequent words of `train`, as many as config.vocab_size. The head is fresh; all weights are trained.
    evaluate: gives the metrics accuracy and loss (nats). hans: examples with heuristics and subcases; gives
    hans_accuracy and an accuracy for each heuristic and label and for each subcase. Both are part of what the models
    are made of: with other data to evaluate on they are trained again.
    seed: of the fresh weights, the order of the examples and dropout. length: tokens per example at most. steps: of
    batch_size examples (null: `epochs`), AdamW with linear warm-up over warm_up steps and linear decay to 0; clip: of
    the norm of the gradients. device: that they are trained on.
    """
    if config is not None and (path, hub, revision) != (None, None, None):
        raise BadInput(
            f"config, path, hub: give exactly one of them, got config and {path or hub or revision}; drop one"
        )
    if config is None:
        check_place(path, hub, revision)
        if tokenizer is not None:
            raise BadInput(f"tokenizer: a pretrained encoder has its own, got '{tokenizer}'; drop it, or give config")
    if len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise BadInput(f"seeds: not distinct numbers from 0 on, got {seeds}; name each seed once")
    data = {"train": train, "evaluate": evaluate, **({} if hans is None else {"hans": hans})}
    sets = {name: _labelled(name, one) for name, one in data.items()}
    labels = sets["train"].names
    scored = {name: scoring(labels, one.names, name) for name, one in sets.items() if name != "train"}
    recipe = Recipe(
        length=length,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        warm_up=warm_up,
        weight_decay=weight_decay,
        clip=clip,
        device=device,
    )
    found = None if config is not None else place(path, hub, revision)
    settings = labelled_config(inline_config(config) if found is None else found.config, labels)
    examples = {name: functools.cache(one.examples) for name, one in sets.items()}

    @functools.cache
    def own_tokenizer() -> Any:
        if found is not None:
            return tokenizer_of(found.where, revision)
        if tokenizer is not None:
            return tokenizer_of(tokenizer)
        texts = (text for example in examples["train"]()[0] for text in example.texts)
        return word_tokenizer(texts, settings.vocab_size, length)

    bare = source(settings, own_tokenizer, lambda eager: nn.Module(), dict, None)
    if bare.context is not None and length > bare.context:
        raise BadInput(f"length: longer than the encoder's context, got {length}; at most {bare.context}")

    @functools.cache
    def sequences(name: str) -> Sequences:
        found = all_sequences(sets[name], own_tokenizer(), length)
        if found.labels is None:
            raise BadInput(f"{name}: a classifier needs a label per example, got none in {sets[name].source}; add them")
        return found

    @functools.cache
    def shared() -> dict[str, Any]:
        """What the models of all seeds are made of."""
        words = own_tokenizer()
        return {
            "code": CODE,
            "config": config_hash(settings.to_dict()),
            "encoder": None if found is None else found.identity()["weights_hash"],
            "tokenizer": digest(words.backend_tokenizer.to_str() if words.is_fast else str(words)),
            "data": {name: digest([astuple(one) for one in read()[0]]) for name, read in examples.items()},
            "recipe": asdict(recipe),
        }

    def fit(seed: int, folder: Path, scratch: Path, progress: Progress) -> Metrics:
        start = time.process_time()
        model = classifier(settings, None if found is None else found.where, revision, seed).to(device)
        losses = fine_tune(
            model, sequences("train"), recipe, segments=bare.segments, seed=seed, scratch=scratch, progress=progress
        )
        seconds = time.process_time() - start
        model.save_pretrained(folder)
        own_tokenizer().save_pretrained(folder)
        record = {"seed": seed, "recipe": asdict(recipe), "loss": losses, "cpu_seconds": seconds}
        (folder / "training.json").write_text(dumps(record))
        answers = partial(logits_of, model, segments=bare.segments, batch_size=batch_size)
        metrics = in_distribution(answers(sequences("evaluate")), sequences("evaluate"), scored["evaluate"])
        if "hans" in scored:
            metrics |= by_heuristic(
                answers(sequences("hans")), sequences("hans"), scored["hans"], examples["hans"]()[0]
            )
        return metrics

    def one(seed: int) -> Source:
        @functools.cache
        def trained() -> Trained:
            return Trained({**shared(), "seed": seed}, partial(fit, seed))

        def identity() -> dict[str, Any]:
            folder = trained().folder()
            return {
                "source": f"trained here, models/{trained().key}",
                "weights_hash": hash_files(weight_files(folder)),
                "config_hash": config_hash(config_of(str(folder)).to_dict()),
                "metrics": trained().metrics(),
            }

        def make(progress: Progress) -> None:
            trained().folder(progress)

        return replace(
            bare,
            load=lambda eager: uncached(load(str(trained().folder()), None, eager)),
            with_head=lambda auto: headed(str(trained().folder()), None, auto),
            identity=identity,
            make=make,
            metrics=lambda: trained().metrics(),
            labels=labels,
        )

    return Family(sources={str(seed): one(seed) for seed in seeds})


def _labelled(name: str, data: Data) -> Examples:
    if not isinstance(data, Examples):
        raise BadInput(f"{name}: a classifier needs labelled examples, got {data.source}; e.g. {{kind: mnli, ...}}")
    return data


def digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
