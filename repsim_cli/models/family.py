"""Numbered models of the hub as one entry: the seeds of one training that somebody published."""

from dataclasses import replace
from functools import partial
from typing import Annotated

from pydantic import Field

from repsim_cli.errors import BadInput
from repsim_cli.models.source import Family, Source
from repsim_cli.models.transformers import check_place, from_place, place, tokenizer_of
from repsim_cli.registry import models
from repsim_cli.settings import Finite, NotNegative

NUMBER = "{number}"


@models.register("transformers_family")
def transformers_family(
    *,
    hub: str | None = None,
    path: str | None = None,
    numbers: Annotated[list[NotNegative], Field(min_length=1)],
    revision: str | None = None,
    tokenizer: str | None = None,
    labels: list[str] | None = None,
    metrics: dict[str, list[Finite]] | None = None,
) -> Family:
    """hub: an id with {number} in it, which stands for each of `numbers`: LABEL_0, LABEL_1, ... path: a folder with
    {number} in it, in place of the id.

    tokenizer: a folder or hub id, where the models come without one. labels: of the classifier, in the order of its
    logits, where its config does not name them. metrics: {name: what was published of each, in the order of numbers}.
    """
    check_place(path, hub, revision)
    key, pattern = ("path", str(path)) if path is not None else ("hub", str(hub))
    if pattern.count(NUMBER) != 1:
        raise BadInput(f"{key}: no one {NUMBER} in it, got '{pattern}'; e.g. 'somebody/bert_{{number}}'")
    if len(set(numbers)) < len(numbers):
        raise BadInput(f"numbers: one stands there twice, got {numbers}; name each model once")
    for name, values in (metrics or {}).items():
        if len(values) != len(numbers):
            raise BadInput(f"metrics.{name}: not one for each of {len(numbers)} models, got {len(values)}; give all")

    def one(place_of: int, number: int) -> Source:
        numbered = pattern.replace(NUMBER, str(number))
        found = from_place(place(*((numbered, None) if key == "path" else (None, numbered)), revision))
        own = {name: values[place_of] for name, values in (metrics or {}).items()}
        return replace(
            found,
            tokenizer=partial(tokenizer_of, tokenizer) if tokenizer else found.tokenizer,
            labels=tuple(labels or found.labels),
            metrics=(lambda: own) if own else None,
        )

    return Family(sources={str(number): one(i, number) for i, number in enumerate(numbers)})
