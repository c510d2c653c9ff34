"""Models in the transformers format: from the hub, a local folder or .gguf file, this package, or with fresh weights.

Raw weights: nothing is folded or centred.
"""

import copy
import functools
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import expand_path
from repsim_cli.base.planning import is_dry
from repsim_cli.base.registry import models
from repsim_cli.base.settings import Seed
from repsim_cli.data.files import read_json_file
from repsim_cli.data.network import add_owner
from repsim_cli.models.adapters import FILES, apply_adapter, count_adapter_tokens, find_base_model, read_adapter
from repsim_cli.models.checkpoints import (
    check_scales,
    check_stray,
    fetch_hub_files,
    find_shipped,
    find_weight_files,
    hash_files,
    is_local,
    locate,
    read_weight_names,
)
from repsim_cli.models.complete import check_blocks
from repsim_cli.models.configs import (
    describe_config,
    find_config,
    hash_config,
    inline_config,
    make_source,
    read_preprocessor,
    take_text_config,
)
from repsim_cli.models.described import Described, describe_once
from repsim_cli.models.gguf import is_gguf
from repsim_cli.models.library import hold_loading_lock, import_transformers
from repsim_cli.models.loading import WHOLE, Loading, disable_cache, place_model
from repsim_cli.models.pretrained import HEADLESS, choose_attention, load, load_with_head
from repsim_cli.models.quantized import check_quantize
from repsim_cli.models.rounding import Quantize, add_rounding, mark_rounding
from repsim_cli.models.source import Source, refuse_head
from repsim_cli.models.tokenizers import load_tokenizer, share_tokenizer


@models.register("transformers")
def transformers(
    *,
    path: str | None = None,
    hub: str | None = None,
    revision: str | None = None,
    adapter: str | None = None,
    quantize: Quantize | None = None,
) -> Source:
    """A model in the transformers format, from a local folder or the Hugging Face hub, or in a .gguf file.

    path: a folder in the transformers format, a .gguf file, which is dequantized to float32 (extra `gguf`), or the
        folder of a LoRA adapter, whose base is the one that it names; give this or `hub`.
    hub: the id of a model on the Hugging Face hub.
    revision: a branch, tag or commit of the hub id; null: its main branch.
    adapter: a folder or hub id of a LoRA adapter, merged into the weights (extra `peft`); null: none.
    quantize: how the weights are made coarser after loading; null: not at all.
    Example: repsim run model=[] +model.mine='{kind: transformers, path: DIR}'
    """
    if path is not None and hub is revision is adapter is None and (base := find_base_model(expand_path(path))):
        return transformers(**base, adapter=path, quantize=quantize)  # type: ignore[arg-type]
    at = place(path, hub if hub is None or path is not None else add_owner(hub), revision)
    if quantize is not None and quantize.method != "round":
        given = "a .gguf file" if is_gguf(at.where) else getattr(at.config, "quantization_config", None)
        check_quantize(quantize, given, adapter)
        return replace(mark_rounding(make_source_from_place(at, quantize), quantize), bits=quantize.bits)
    source = make_source_from_place(at)
    if path is not None and not is_gguf(at.where):
        check_blocks(at.says.lists, source.layers, read_weight_names(find_weight_files(Path(at.where))), at.where)
    if adapter is not None:
        near = expand_path(adapter)
        on_hub = not near.exists() and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", adapter) is not None
        folder = partial(fetch_hub_files, adapter, None, FILES, "adapter") if on_hub else lambda: near
        known = not (on_hub and is_dry())  # nothing is downloaded for a plan
        if known and (tokens := count_adapter_tokens(read_adapter(folder()), source.skeleton)) is not None:
            source = replace(
                make_source_from_place(_resize_vocabulary(at, tokens)), tokenizer=partial(load_tokenizer, str(folder()))
            )
        source = apply_adapter(source, adapter, folder, str(path or hub), check=known)
    return source if quantize is None else add_rounding(source, quantize)


def _resize_vocabulary(at: "Place", tokens: int) -> "Place":
    """The place of a model whose vocabulary an adapter changes."""
    config = copy.deepcopy(at.config)
    take_text_config(config).vocab_size = tokens
    return at._replace(read=lambda: config, says=describe_config(config, at.where))


class Place(NamedTuple):
    """Where a model is: how its config is read and what that says, a folder or hub id with a revision, and identity()
    once the files exist."""

    read: Callable[[], Any]
    says: Described
    where: str
    revision: str | None
    identity: Callable[[], dict[str, Any]]

    @property
    def config(self) -> Any:
        return self.read()


def check_place(path: str | None, hub: str | None, revision: str | None) -> None:
    if (path is None) == (hub is None):
        got = "" if path is None else f", got path={path}, hub={hub}"
        raise BadInput(f"path, hub: give exactly one of them{got}; path is a folder, hub an id")
    if path is not None and revision is not None:
        raise BadInput(f"revision: a local folder has none, got '{revision}'; name the folder of that checkpoint")


def place(path: str | None, hub: str | None, revision: str | None) -> Place:
    """A folder, .gguf file or hub id."""
    check_place(path, hub, revision)
    return _make_local_place(locate(path)) if path is not None else _make_hub_place(str(hub), revision)


@models.register("shipped")
def shipped(*, name: str) -> Source:
    """A small model that ships with the package, trained by `repsim run experiment=pretrain_tiny`.

    name: tiny_a, tiny_a_step100, tiny_a_step400 or tiny_b.
    """
    return make_source_from_place(_make_local_place(find_shipped(name)))


@models.register("random")
def random(
    *,
    config: dict[str, Any] | None = None,
    shipped: str | None = None,
    path: str | None = None,
    hub: str | None = None,
    revision: str | None = None,
    tokenizer: str | None = None,
    seed: Seed = 0,
) -> Source:
    """A model with random weights, in the shape of another model or of a config.

    One of config, shipped, path and hub is given.

    config: a transformers config with its `model_type`, e.g. {model_type: gpt2, n_layer: 2}.
    shipped: the name of a shipped model.
    path: a folder in the transformers format, or a .gguf file.
    hub: the id of a model on the Hugging Face hub.
    revision: a branch, tag or commit of the hub id; null: its main branch.
    tokenizer: a folder, a hub id, a shipped model, or one of the shipped tokenizers word_pieces, unigrams and
        characters; null: that of the model whose shape is taken.
    seed: of the weights.
    Example: repsim run model=[tiny_a] +model.mine='{kind: random, shipped: tiny_a}'
    """
    given = [name for name in (shipped, path, hub) if name is not None]
    if len(given) + (config is not None) != 1:
        several = ["config"] * (config is not None) + given
        got = f", got {several}" if several else ""
        raise BadInput(
            f"config, shipped, path, hub: give exactly one of them{got}; "
            "config is e.g. {model_type: gpt2, n_layer: 2}"
        )
    like = None
    if config is None:
        like = add_owner(hub) if hub else str(find_shipped(shipped) if shipped else locate(str(path)))

    @functools.cache
    def settings() -> Any:
        return take_text_config(inline_config(config) if config is not None else find_config(str(like), revision))

    def describe() -> Described:
        return describe_config(settings(), like)

    def read() -> bytes:
        return b"a random model\n" + (repr(config).encode() if like is None else read_config_text(like))

    says = describe_once(read, describe) if like is None or has_config_file(like) else describe()
    identity = {
        "source": f"random weights, seed {seed}, {given[0] if given else says.model_type}",
        "weights_hash": f"seed {seed}, config {says.config_hash}",
    }
    made = make_source(
        says,
        settings,
        partial(_load_borrowed_tokenizer, tokenizer or like, None if tokenizer else revision),
        lambda eager, how=WHOLE: _make_fresh(settings(), seed, eager, how),
        lambda: identity,
        partial(read_preprocessor, like, revision),
        lambda auto, how=WHOLE: _make_fresh_with_head(settings(), seed, auto, how),
    )
    return replace(made, trained=False)


def _load_borrowed_tokenizer(where: str | None, revision: str | None) -> Any:
    """The tokenizer of a random model, which is that of another one."""
    if where is None:
        raise BadInput(
            "tokenizer: a random model from a config has none; set tokenizer to a folder, a hub id or tiny_a"
        )
    return share_tokenizer(where, revision)


def _make_fresh_with_head(config: Any, seed: int, auto: str, how: Loading = WHOLE) -> nn.Module:
    """The random model of an auto class, whose backbone is that of `_make_fresh`."""
    try:
        with hold_loading_lock(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = getattr(import_transformers(), auto).from_config(config, dtype=torch.float32)
    except ValueError as error:
        raise BadInput(f"config: no head for {auto}, got model_type {config.model_type}; {HEADLESS}") from error
    # either may lack a pooler
    model.base_model.load_state_dict(_make_fresh(config, seed, False).state_dict(), strict=False)
    return disable_cache(place_model(model, how))


def _make_fresh(config: Any, seed: int, eager: bool, how: Loading = WHOLE) -> nn.Module:
    with hold_loading_lock(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        auto = import_transformers().AutoModel
        # drawn in float32: the same weights in any dtype
        fresh = auto.from_config(config, dtype=torch.float32, attn_implementation=choose_attention(eager))
    return place_model(fresh, how)


def make_shape_key(trained: Source) -> str:
    """A key that models share whose untrained twins are the same. Raises BadInput for a model that is not of
    transformers."""
    if not trained.plain or not isinstance(trained.skeleton, import_transformers().PreTrainedModel):
        raise BadInput(f"kind: no untrained twin can be made of {trained.model_type}; use a model of transformers")
    config: Any = trained.skeleton.config
    return hash_config(config.to_dict())


def draw_untrained(trained: Source, seed: int) -> Source:
    """A model in the same shape with random weights, without a head."""
    shape = make_shape_key(trained)
    config: Any = trained.skeleton.config
    return replace(
        trained,
        load=lambda eager, how=WHOLE: disable_cache(_make_fresh(config, seed, eager, how)),
        identity=lambda: {"source": f"random weights, seed {seed}, {config.model_type}",
                          "weights_hash": f"seed {seed}, config {shape}", "config_hash": shape},
        with_head=refuse_head,
        make=None,
        metrics=None,
        short=None,
        trained=False,
        entry="",
        parts=False,
    )  # fmt: skip


def has_config_file(where: str) -> bool:
    """Tells whether it is a folder in the transformers format, and not a .gguf file or on the hub."""
    return is_local(where) and not is_gguf(where)


def read_config_text(where: str) -> bytes:
    return (Path(where) / "config.json").read_bytes()


def _make_local_place(path: Path) -> Place:
    read = partial(find_config, str(path))

    def describe() -> Described:
        return describe_config(read(), str(path))

    if has_config_file(str(path)):
        says, files = describe_once(partial(read_config_text, str(path)), describe), find_weight_files(path)
        check_stray(path)
        check_scales(says.quantized, files)
    else:
        says, files = describe(), [path]
    return Place(read, says, str(path), None, lambda: {"source": str(path), "weights_hash": hash_files(files)})


def _make_hub_place(hub: str, revision: str | None) -> Place:
    config = find_config(hub, revision)
    says = describe_config(config, hub)

    def identity() -> dict[str, Any]:
        folder = fetch_hub_files(hub, revision, ["*.safetensors", "*.safetensors.index.json"])
        files = find_weight_files(folder)
        check_scales(says.quantized, files)
        return {"source": hub, "revision": revision, "commit": folder.name, "weights_hash": hash_files(files)}

    return Place(lambda: config, says, hub, revision, identity)


def make_source_from_place(model_place: Place, quantize: Quantize | None = None) -> Source:
    """Makes the source of a model that stands in a folder or on the hub: its tokenizer and weights load when they are
    needed.

    quantize: how its weights are quantised when they load; None: as they are stored.
    """
    metrics = Path(model_place.where) / "metrics.json"  # of models that the package trained
    made = make_source(
        model_place.says,
        model_place.read,
        lambda: share_tokenizer(model_place.where, model_place.revision),
        lambda eager, how=WHOLE: load(model_place.where, model_place.revision, eager, how=how, quantize=quantize),
        model_place.identity,
        partial(read_preprocessor, model_place.where, model_place.revision),
        lambda auto, how=WHOLE: load_with_head(model_place.where, model_place.revision, auto, how, quantize),
    )
    parts = not model_place.says.quantized and quantize is None and not is_gguf(model_place.where)
    return replace(made, parts=parts, metrics=(lambda: read_json_file(metrics)) if metrics.is_file() else None)


def list_types_with_head(auto: str) -> set[str]:
    """The types of model that an auto class has a head for. AutoModelForCausalLM: without masked language models, which
    predict the token itself."""
    from transformers.models.auto import modeling_auto as names

    if auto == "AutoModelForCausalLM":
        return {*names.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} - {*names.MODEL_FOR_MASKED_LM_MAPPING_NAMES}
    return {*names.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES}


def predicts_next(source: Source) -> bool:
    """Tells whether the model can have an output head for the next token, and hook points in the model that has it."""
    two = source.architecture is not None and bool(source.architecture.stacks)  # an encoder and a decoder
    return (
        source.plain
        and source.has_head
        and not two
        and source.model_type in list_types_with_head("AutoModelForCausalLM")
    )
