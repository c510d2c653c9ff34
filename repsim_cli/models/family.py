"""Numbered models as a single entry: the published seeds of one training."""

from dataclasses import replace
from functools import partial
from typing import Annotated

from pydantic import Field

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import models
from repsim_cli.base.settings import Finite, NotNegative
from repsim_cli.models.source import Family, Source
from repsim_cli.models.tokenizers import load_tokenizer
from repsim_cli.models.transformers import check_place, make_source_from_place, place

NUMBER = "{number}"


@models.register("transformers_family")
def transformers_family(
    *,
    hub: str | None = None,
    path: str | None = None,
    numbers: Annotated[list[NotNegative], Field(min_length=1)],
    revision: str | None = None,
    tokenizer: str | None = None,
    metrics: dict[str, list[Finite]] | None = None,
) -> Family:
    """Several models in the transformers format whose names differ by a number: LABEL_0, LABEL_1, ...

    hub: a hub id with {number} in it, e.g. somebody/bert_{number}; give this or `path`.
    path: a folder with {number} in its name.
    numbers: the numbers of the models.
    revision: a branch, tag or commit of the hub ids; null: their main branch.
    tokenizer: a folder or hub id; null: each model's own.
    metrics: published metrics of the models, {NAME: [VALUE, ...]}, in the order of `numbers`.
    """
    check_place(path, hub, revision)
    key, pattern = ("path", str(path)) if path is not None else ("hub", str(hub))
    if pattern.count(NUMBER) != 1:
        raise BadInput(f"{key}: not exactly one {NUMBER} in it, got '{pattern}'; e.g. 'somebody/bert_{{number}}'")
    if len(set(numbers)) < len(numbers):
        raise BadInput(f"numbers: a number occurs twice, got {numbers}; name each model once")
    for name, values in (metrics or {}).items():
        if len(values) != len(numbers):
            raise BadInput(
                f"metrics.{name}: not a value for each of {len(numbers)} models, got {len(values)}; give all"
            )

    def model(index: int, number: int) -> Source:
        numbered = pattern.replace(NUMBER, str(number))
        source = make_source_from_place(place(*((numbered, None) if key == "path" else (None, numbered)), revision))
        published = {name: values[index] for name, values in (metrics or {}).items()}
        return replace(
            source,
            tokenizer=partial(load_tokenizer, tokenizer) if tokenizer else source.tokenizer,
            metrics=(lambda: published) if published else None,
        )

    return Family(sources={str(number): model(i, number) for i, number in enumerate(numbers)})
