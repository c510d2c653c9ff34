"""The models of one base: all read its tokens, and have their next-token heads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from repsim_cli.activations.hook_points import LOGITS
from repsim_cli.activations.inputs import name_errors
from repsim_cli.activations.readings import Layer, Reading, choose_loading
from repsim_cli.base.errors import BadInput
from repsim_cli.engine.comparison import Comparison
from repsim_cli.models.loading import WHOLE, Loading
from repsim_cli.models.shapes import Vocabulary
from repsim_cli.models.source import AnySource, Source
from repsim_cli.models.transformers import predicts_next

HEAD = "AutoModelForCausalLM"


def use_base_tokenizer(base: str, models: Mapping[str, AnySource]) -> dict[str, AnySource]:
    """The models, all of which read the base's tokens. Raises BadInput for one that does not know them."""
    live: dict[str, Source] = {}
    for label, source in models.items():
        if not isinstance(source, Source) or source.modality != "text":
            what = f"a model of {source.modality}" if isinstance(source, Source) else "stored activations"
            raise BadInput(f"model.{label}: it reads no text, got {what}; compare language models")
        live[label] = source
    tokenizer = live[base].tokenizer
    wanted = name_errors(base, tokenizer)
    for label, source in live.items():
        if not _has_all_tokens(name_errors(label, source.tokenizer), wanted):
            raise BadInput(
                f"model.{label}: its tokenizer lacks tokens of the base '{base}', or numbers them differently, got "
                "another vocabulary; compare models of one base"
            )
    return {label: replace(source, tokenizer=tokenizer) for label, source in live.items()}


def _has_all_tokens(tokenizer: Any, wanted: Any) -> bool:
    """Says whether a tokenizer has all tokens of another, by the same ids. In a dry run a name and a file may agree."""
    if isinstance(tokenizer, Vocabulary) or isinstance(wanted, Vocabulary):
        return type(tokenizer) is not type(wanted) or tokenizer == wanted
    return wanted.get_vocab().items() <= tokenizer.get_vocab().items()


def load_next_token_model(source: Source, how: Loading = WHOLE) -> nn.Module:
    """The model with its next-token head. Raises BadInput where it has none."""
    if not predicts_next(source):
        raise BadInput(f"it has no output head for the next token, got model_type '{source.model_type}'")
    return source.with_head(HEAD, how)


def open_models(
    comparison: Comparison, readings: Sequence[Reading], warn: Callable[[str], None]
) -> tuple[list[Reading], dict[str, nn.Module]]:
    """The models, the base first, with their output heads where they and the base predict the next token; their logits
    are read as one layer more."""
    modules: dict[str, nn.Module] = {}
    opened: list[Reading] = []
    for reading in readings:
        assert isinstance(reading.source, Source)
        module, how = None, choose_loading(comparison.hardware, comparison.devices[reading.label])
        if not opened or opened[0].points[-1] == LOGITS:
            try:
                module = load_next_token_model(reading.source, how)
            except BadInput as error:
                warn(f"model.{reading.label}: changes of the outputs are left out ({error})")
        if module is None:
            module = name_errors(reading.label, partial(reading.source.load, how=how), reading.eager)
            opened.append(reading)
        else:
            logits = Layer(reading.label, "logits", reading.source.vocabulary)
            opened.append(replace(reading, points=[*reading.points, LOGITS], layers=[*reading.layers, logits]))
        modules[reading.label] = module
    return opened, modules
