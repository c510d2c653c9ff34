"""What `verify` is given -> models that run: in memory, or by block from the disk."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from repsim_cli.activations.inputs import name_errors
from repsim_cli.api.entries import label_entries, make_model_entry
from repsim_cli.base.arrays import hash_tensors
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Hardware
from repsim_cli.config.binding import bind_model
from repsim_cli.models.library import import_transformers
from repsim_cli.models.loading import Loading
from repsim_cli.models.parts import Kept, explain_block_refusal, is_inside
from repsim_cli.models.sizes import are_resident_together, count_weight_bytes
from repsim_cli.models.source import Family, Precomputed, Series, Source
from repsim_cli.models.tokenizers import load_tokenizer
from repsim_cli.models.transformers import predicts_next
from repsim_cli.studies.verify.dump import SUFFIXES, Dump
from repsim_cli.studies.verify.saved import Saved
from repsim_cli.studies.verify.sides import InMemory, OnDisk


@dataclass(frozen=True)
class OpenedModel:
    """A model that runs. tokenizer: None where it has none."""

    label: str
    side: InMemory
    tokenizer: Any
    identity: Mapping[str, Any]

    @property
    def model(self) -> nn.Module:
        return self.side.model


@dataclass(frozen=True)
class NamedModel:
    """A model that is not loaded yet."""

    label: str
    source: Source


def find_model(key: str, given: Any) -> OpenedModel | NamedModel:
    """Finds the model that is given: an open one, or one by name. Raises BadInput where it is not a model that runs."""
    module, tokenizer = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if isinstance(module, nn.Module):
        where = str(getattr(module, "name_or_path", "") or "")
        if tokenizer is None and where and Path(where).is_dir():
            tokenizer = _try_or_none(lambda: load_tokenizer(where))
        facts = {
            "source": f"in memory, a {type(module).__name__}",
            "weights_hash": hash_tensors(module.state_dict().items()),
        }
        return OpenedModel(key, InMemory(module), tokenizer, facts)
    label = next(iter(label_entries([given]))) if isinstance(given, str | os.PathLike) else key
    bound = bind_model(label, make_model_entry(label, given))
    if isinstance(bound, Family | Series):
        raise BadInput(f"{key}: several models, got a {type(bound).__name__.lower()}; name one of them")
    if isinstance(bound, Precomputed):
        got = f"'{given}'" if isinstance(given, str | os.PathLike) else type(given).__name__
        raise BadInput(
            f"{key}: of stored activations, {', '.join(SUFFIXES)} files with token ids are compared, got {got}; "
            "give one, or a model"
        )
    return NamedModel(label, bound)


def make_hardware(by_block: str, memory_gb: float | None) -> Hardware:
    if by_block not in ("auto", "always", "never"):
        raise BadInput(f"by_block: not one of auto, always, never, got {by_block!r}; name one")
    if memory_gb is not None and not (isinstance(memory_gb, int | float) and memory_gb > 0):
        raise BadInput(f"memory_gb: not above 0, got {memory_gb!r:.60}; give gigabytes")
    return Hardware(by_block=by_block, memory_gb=memory_gb)  # type: ignore[arg-type]


def load_sides(first: Any, second: Any, hardware: Hardware) -> tuple[Any, Any]:
    """Loads the sides that are models by name: whole, or by block where `hardware` or memory ask for it."""
    named = [each for each in (first, second) if isinstance(each, NamedModel)]
    others = [each for each in (first, second) if isinstance(each, Saved | Dump)]
    if hardware.by_block == "always" and (others or not named):
        raise BadInput(
            "by_block: only models on the disk are read block by block, got always with "
            f"{'stored activations' if others else 'models in memory'}; drop it"
        )
    apart = hardware.by_block == "always" or (
        hardware.by_block == "auto"
        and not others
        and not are_resident_together([each.source for each in named], hardware)
    )
    for each in named if hardware.by_block == "always" else ():
        if (why := explain_block_refusal(each.source)) is not None:
            raise BadInput(f"by_block: {each.label} cannot be run by block ({why}), got always; drop it")

    by_part = {
        key: _open_on_disk(each.label, each.source)
        for key, each in enumerate((first, second))
        if isinstance(each, NamedModel) and apart and explain_block_refusal(each.source) is None
    }

    def open_side(key: int, each: Any) -> Any:
        if not isinstance(each, NamedModel):
            return each
        source = each.source
        side = by_part.get(key) or InMemory(name_errors(each.label, _load_whole, source))
        return OpenedModel(each.label, side, _try_or_none(source.tokenizer), source.identity())

    _check_memory((first, second), by_part, hardware)
    return open_side(0, first), open_side(1, second)


def _check_memory(sides: Sequence[Any], by_part: Mapping[int, OnDisk], hardware: Hardware) -> None:
    """Raises BadInput where the weights that are in memory at a time, of whole models or of the largest part of each,
    take more than the limit."""
    sizes = [
        (f"the largest part of {each.label}", 4.0 * by_part[key].largest)
        if key in by_part
        else (each.label, count_weight_bytes(each.source, hardware.dtype))
        for key, each in enumerate(sides)
        if isinstance(each, NamedModel)
    ]
    if sum(size for _, size in sizes) > hardware.memory_limit:
        what = " and ".join(f"{size / 1e9:.2g} GB of {label}" for label, size in sizes)
        raise BadInput(f"memory_gb: too little, got {hardware.memory_limit / 1e9:.2g} for {what}; give more")


def _list_head_classes(source: Source) -> dict[str, bool]:
    """The auto classes of the heads that its checkpoint may have, and whether its config says that it has this one."""
    from transformers.models.auto import modeling_auto as classes

    named = getattr(getattr(source.skeleton, "config", None), "architectures", None) or []
    kinds = {
        "AutoModelForCausalLM": (predicts_next(source), classes.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        "AutoModelForMaskedLM": (True, classes.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
        "AutoModelForSequenceClassification": (
            bool(source.labels),
            classes.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        ),
    }
    return {
        auto: of_type.get(source.model_type) in named
        for auto, (may, of_type) in kinds.items()
        if source.has_head and may and (source.model_type in of_type or auto != "AutoModelForMaskedLM")
    }


def _open_head(step: Callable[[], Any], said: bool) -> Any:
    """The model with a head; None where the checkpoint has no such head. Raises BadInput where the config says that it
    has, since transformers would make up its weights."""
    return step() if said else _try_or_none(step)


def _use_eager_attention(model: Any) -> nn.Module:
    if isinstance(model, import_transformers().PreTrainedModel):
        model.set_attn_implementation("eager")  # it has scores and a pattern to look at
    return model


def _load_whole(source: Source) -> nn.Module:
    """Loads the model with the output head that its checkpoint has, else its backbone."""
    for auto, said in _list_head_classes(source).items():
        model = _open_head(partial(source.with_head, auto), said)
        if model is not None:
            return _use_eager_attention(model)
    return source.load(True)


def _open_on_disk(label: str, source: Source, *, bare: bool = False) -> OnDisk:
    """Opens the same model, of which parts are loaded when they run. bare: the backbone alone."""
    backbone: Any = source.skeleton
    for auto, said in () if bare else _list_head_classes(source).items():

        def part(kept: Kept, auto: str = auto) -> nn.Module:
            return _use_eager_attention(name_errors(label, source.with_head, auto, Loading(kept=kept)))

        head_alone = partial(part, lambda name: not is_inside(name, backbone.base_model_prefix))
        if _open_head(head_alone, said) is not None:
            return OnDisk(part, lambda: _open_on_disk(label, source, bare=True))
    return OnDisk(lambda kept: name_errors(label, source.load, True, Loading(kept=kept)))


def _try_or_none(step: Any) -> Any:
    try:
        return step()
    except BadInput:
        return None
