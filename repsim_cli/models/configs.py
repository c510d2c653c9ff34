"""Configs of transformers models: read, checked, and what they say of a model before a weight is loaded."""

import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import refuse
from repsim_cli.base.registry import did_you_mean
from repsim_cli.data.base import Modality
from repsim_cli.data.files import read_json_file
from repsim_cli.data.images import Patches
from repsim_cli.data.network import must_use_downloads
from repsim_cli.models.architectures import find_architecture
from repsim_cli.models.checkpoints import describe_error, is_local, load_pretrained, make_unreachable_error
from repsim_cli.models.complete import find_block_lists
from repsim_cli.models.described import Described
from repsim_cli.models.gguf import is_gguf, read_once
from repsim_cli.models.library import hold_loading_lock, import_transformers, silence_transformers
from repsim_cli.models.loading import WHOLE, Loading, disable_cache
from repsim_cli.models.points import Heads
from repsim_cli.models.quantized import read_weight_bits
from repsim_cli.models.shapes import compare_with_shipped, find_planned_shape, find_shipped_shape
from repsim_cli.models.source import Loader, Source, WithHead, refuse_head

# the most that is built, and the names that a config may give it; of a list, that of stages or of the last one
DEPTH, WIDTH = (1000, "num_hidden_layers", "depths"), (10**6, "hidden_size", "hidden_sizes")
MOST_HEADS = 10**5
LIBRARY = {"torch", "transformers"}
INPUTS: dict[str, Modality] = {"input_ids": "text", "pixel_values": "images", "input_features": "sound"}
# places before the patches of an image: the class token, and that of distillation; beside registers
BEFORE_PATCHES = {"vit": 1, "beit": 1, "deit": 2, "dinov2": 1, "dinov2_with_registers": 1, "clip_vision_model": 1}


def find_config(where: str, revision: str | None = None) -> Any:
    if is_local(where):
        if not is_gguf(where):
            _check_config_file(Path(where) / "config.json")
        return read_config(where, None)
    if shape := find_planned_shape(where):
        return inline_config(shape.config)
    config = read_config(where, revision)
    if shape := find_shipped_shape(where):
        compare_with_shipped(where, *((key, getattr(config, key, None)) for key in shape.config))
    return config


def read_config(where: str, revision: str | None = None) -> Any:
    return copy.deepcopy(read_once(_read_config, where)) if is_gguf(where) else _read_config(where, revision)


def _read_config(where: str, revision: str | None = None) -> Any:
    try:
        with silence_transformers():
            config = load_pretrained(import_transformers().AutoConfig, where, revision)
            config._attn_implementation = None  # that of the machine it was saved on
            return config
    except Exception as error:  # the library checks little and raises anything
        if is_gguf(where):
            advice = "use the model in the transformers format"
            raise BadInput(
                f"path: transformers cannot read this .gguf file, got '{where}' ({describe_error(error)}); {advice}"
            ) from error
        if is_local(where):
            raise BadInput(
                f"path: config.json cannot be used, got '{where}' ({describe_error(error)}); fix it"
            ) from error
        raise make_unreachable_error(where, revision, error) from error


def _check_config_file(file: Path) -> None:
    """Raises BadInput for broken JSON, an unknown architecture, or a model that needs its own code: in one line, where
    the message of transformers is long."""
    given = read_json_file(file)
    kind = given.get("model_type")
    if not isinstance(kind, str):
        raise BadInput(f"path: config.json cannot be used, got model_type {kind!r:.60} in '{file}'; fix it")
    if "auto_map" in given:
        raise BadInput(
            f"path: the model needs code that comes with it, which is never run, got auto_map in '{file}'; "
            "use a model that transformers knows"
        )
    known = import_transformers().CONFIG_MAPPING
    if kind not in known:  # listing the keys takes a tenth of a second
        hint = did_you_mean(kind, known.keys())
        raise BadInput(f"path: unknown architecture, got model_type '{kind}' in '{file}'; {hint}")
    _check_numbers(given)


def _check_numbers(given: dict[Any, Any], path: str = "config") -> None:
    """Raises BadInput for whole numbers that no model has; some would make the library fill the memory."""
    for key, value in given.items():
        if isinstance(value, dict):
            _check_numbers(value, f"{path}.{key}")
        most = 10**6 if key == "num_labels" else 10**9
        if isinstance(value, int) and not -most <= value <= most:
            raise BadInput(f"{path}.{key}: out of range, got {value:.3g}; at most {most}")


def take_text_config(config: Any) -> Any:
    """The config; of a model that also reads images or sound, that of its text backbone."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES

    if config.model_type not in MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES or config.get_text_config() is config:
        return config
    text = copy.deepcopy(config.get_text_config())
    for name in ("tie_word_embeddings", "quantization_config"):  # of the whole model
        if hasattr(config, name):
            setattr(text, name, getattr(config, name))
    return text


def inline_config(given: dict[str, Any]) -> Any:
    """Makes the config of a model that is described in the run's own configuration. Raises BadInput for settings that
    its type does not have.

    given: `model_type` and its settings.
    """
    kind = given.get("model_type")
    _check_numbers(given)
    known = list(import_transformers().CONFIG_MAPPING.keys())
    if kind not in known:
        hint = did_you_mean(str(kind), known) if kind else "e.g. model_type: gpt2"
        raise BadInput(f"config.model_type: unknown, got '{kind}'; {hint if len(hint) < 200 else 'see transformers'}")
    rest = {k: v for k, v in given.items() if k != "model_type"}
    default = import_transformers().AutoConfig.for_model(kind)
    settings = default.to_dict()  # an attribute that a config has for each layer cannot be asked for
    unknown = [k for k in rest if k not in settings and not hasattr(default, k)]
    if unknown:
        hint = did_you_mean(unknown[0], settings)
        raise BadInput(f"config.{unknown[0]}: {kind} has no such setting, got {rest[unknown[0]]!r}; {hint[:200]}")
    with refuse(f"config: not usable for {kind}", rest, "fix it"):
        return import_transformers().AutoConfig.for_model(kind, **rest)


def build_source_from_config(
    config: Any,
    tokenizer: Callable[[], Any],
    load: Loader,
    identity: Callable[[], dict[str, Any]],
    where: str | None,
    revision: str | None = None,
    with_head: WithHead = refuse_head,
) -> Source:
    """A model from its transformers config.

    where, revision: the folder or hub id with the preprocessor of an image model; None: there is none.
    """
    says, preprocessor = describe_config(config, where), partial(read_preprocessor, where, revision)
    return make_source(says, lambda: config, tokenizer, load, identity, preprocessor, with_head)


def describe_config(config: Any, where: str | None) -> Described:
    """Describes the model of a transformers config, which is built without weights. where: its folder or hub id."""
    whole, config = config, config.get_text_config()
    if not hasattr(config, "model_type"):
        raise BadInput(f"config.text_config: not a config, got {config!r:.60} in a {whole.model_type}; fix it")
    layers, width = _read_size(config, *DEPTH), _read_size(config, *WIDTH)
    heads = _read_head_count(config)
    for name in ("output_hidden_states", "output_attentions"):
        if not isinstance(getattr(config, name, False), bool):
            raise BadInput(f"config.{name}: not true or false, got {getattr(config, name)!r:.60}; fix it")
    _check_quantization(config)
    config_hash = hash_config(config.to_dict())  # some models change their config when they are built
    with refuse(f"config: no {config.model_type} can be built from it", where or config.model_type, "fix it"):
        skeleton = _build_skeleton(config)
    kind = find_modality(skeleton)

    # RoBERTa counts positions from the padding id, so that the first ones are lost
    embeddings = getattr(skeleton, "embeddings", None)
    padding = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
    context = patch_grid(config).places if kind == "images" else getattr(config, "max_position_embeddings", None)
    if context is not None and context <= 0:  # no limit, in XLNet
        context = None
    if context is not None and padding is not None:
        context -= padding + 1

    table = find_architecture(config, skeleton)
    # what attention modules say of themselves; configs call it by other names, or say it for each layer
    attention = next(iter(table.heads.values()), None) if table else None
    if attention is None:
        keys = getattr(config, "num_key_value_heads", None) or heads
        attention = Heads(heads, keys, *(2 * [getattr(config, "head_dim", None) or (width // heads if heads else 0)]))
    depth = (table and table.depth) or layers
    return Described(
        layers=depth,
        heads=attention.queries,
        kv_heads=attention.keys,
        width=width,
        context=context,
        padding=padding,
        parameters=sum(p.numel() for p in skeleton.parameters()),
        vocabulary=config.vocab_size if kind == "text" else 0,
        architecture=table,
        model_type=config.model_type,
        head_width=attention.width,
        rotary=count_rotary_features(config, attention.width),
        modality=kind,
        # others take token types for word ids (GPT-2) or have a single type (RoBERTa); XLNet's config has no number
        segments=getattr(config, "type_vocab_size", 1) > 1 or config.model_type == "xlnet",
        labels=read_class_labels(config),
        bits=read_weight_bits(getattr(config, "quantization_config", None)),
        config_hash=config_hash,
        quantized=any(getattr(each, "quantization_config", None) is not None for each in (whole, config)),
        lists=find_block_lists(skeleton, depth),
        of_library={type(x).__module__.partition(".")[0] for x in (config, *skeleton.modules())} <= LIBRARY,
    )


def make_source(
    says: Described,
    config: Callable[[], Any],
    tokenizer: Callable[[], Any],
    load: Loader,
    identity: Callable[[], dict[str, Any]],
    preprocessor: Callable[[], Mapping[str, Any]],
    with_head: WithHead = refuse_head,
) -> Source:
    """A model from what its config says.

    config: reads it, where the model is built. preprocessor: that of an image model, empty if there is none.
    """

    def load_without_cache(eager: bool, how: Loading = WHOLE) -> nn.Module:
        return disable_cache(load(eager, how))

    def read_patches() -> Patches:
        return patch_grid(config().get_text_config(), preprocessor())

    def check() -> Any:
        loaded, padding = tokenizer(), says.padding
        if padding is not None and loaded.pad_token_id != padding:
            raise BadInput(
                f"tokenizer: it pads with id {loaded.pad_token_id}, by which {says.model_type} counts positions, "
                f"got pad_token_id {padding} in the config; use the model's own tokenizer"
            )
        return loaded

    return Source(
        layers=says.layers,
        heads=says.heads,
        kv_heads=says.kv_heads,
        width=says.width,
        context=says.context,
        parameters=says.parameters,
        vocabulary=says.vocabulary,
        architecture=says.architecture,
        model_type=says.model_type,
        build=lambda: _build_skeleton(config().get_text_config()),
        tokenizer=read_patches if says.modality == "images" else check,
        load=load_without_cache,
        identity=lambda: {**identity(), "config_hash": says.config_hash},
        head_width=says.head_width,
        rotary=says.rotary,
        modality=says.modality,
        segments=says.segments,
        with_head=with_head,
        labels=says.labels,
        bits=says.bits,
    )


def find_modality(model: nn.Module) -> Modality:
    """Finds what a backbone reads. Raises BadInput where that is neither text, images nor sound."""
    given = str(getattr(model, "main_input_name", None))
    if given not in INPUTS:
        raise BadInput(f"config: it reads neither text, images nor sound, got a model of {given}; use another model")
    return INPUTS[given]


def _read_size(config: Any, most: int, *names: str) -> int:
    """The setting of the first name that the config has, 0 without any. Raises BadInput for a number out of range."""
    name = next((name for name in names if hasattr(config, name)), names[0])
    size = getattr(config, name, None)
    if isinstance(size, list | tuple) and size:
        size = len(size) if name == "depths" else size[-1]
    if size is None:
        return 0
    if not isinstance(size, int):
        raise BadInput(f"config.{name}: not a number, got {size!r:.60}; fix it")
    least = 0 if name in DEPTH else 1
    if not least <= size <= most:
        raise BadInput(f"config.{name}: out of range, got {size}; from {least} to {most}")
    return size


def _read_head_count(config: Any) -> int:
    """The heads of each block; 0 without attention, or where blocks differ."""
    heads = getattr(config, "num_attention_heads", None)
    if heads is None or isinstance(heads, list | tuple):
        return 0
    return _read_size(config, MOST_HEADS, "num_attention_heads")


def _check_quantization(config: Any) -> None:
    """Raises BadInput for quantized weights that need a missing package or device."""
    given = getattr(config, "quantization_config", None)
    if given is None:
        return
    from transformers.quantizers.auto import AutoHfQuantizer

    got = given.get("quant_method", given) if isinstance(given, dict) else given
    advice = "install the package that it needs, or use the model without quantization"
    with refuse("config.quantization_config: cannot be used here", got, advice), silence_transformers():
        AutoHfQuantizer.from_config(given, pre_quantized=True).validate_environment(device_map=None)


def read_class_labels(config: Any) -> tuple[str, ...]:
    """The labels in a classifier's config, in the order of its logits; () for other models."""
    named = config.architectures if isinstance(config.architectures, list) else []
    if not any(str(name).endswith("ForSequenceClassification") for name in named):
        return ()
    return tuple(config.id2label[code] for code in sorted(config.id2label))


_skeletons: dict[str, nn.Module] = {}


def _build_skeleton(config: Any) -> nn.Module:
    """The backbone without weights, shared by all checkpoints of a training run."""
    known = hash_config(config.to_dict())
    if known not in _skeletons:
        with hold_loading_lock(), torch.device("meta"):
            _skeletons[known] = import_transformers().AutoModel.from_config(config).eval()
    return _skeletons[known]


def hash_config(config: dict[str, Any]) -> str:
    """sha256 of the settings that, with the weights, determine the activations: equal weights can be two models."""
    settings = {k: v for k, v in config.items() if k not in ("_name_or_path", "transformers_version", "dtype")}
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def count_rotary_features(config: Any, head_width: int) -> int:
    """The number of features per head that are rotated by position; 0 for other position encodings."""
    settings = getattr(config, "rope_parameters", None)
    if not settings:
        return 0
    if part := getattr(config, "qk_rope_head_dim", None):  # of latent attention
        return part
    return int(head_width * settings.get("partial_rotary_factor", 1.0))


def patch_grid(config: Any, preprocessor: Mapping[str, Any] | None = None) -> Patches:
    """The patches in which a model with this config reads images; pixels range from -1 to 1 unless its preprocessor
    differs.

    A model in stages has the places of its first stage, one that reads images of any size a single place.
    """
    size = _make_pair(config.image_size) if hasattr(config, "image_size") else None
    patch = _make_pair(getattr(config, "patch_size", 1))
    if size is not None and (min(*size, *patch, config.num_channels) < 1 or min(patch) > min(size)):
        raise BadInput(f"config: no patches, got image_size {size}, patch_size {patch}; patches must fit the image")
    settings = preprocessor or {}
    plain = not settings.get("do_normalize", True)
    half = [0.5] * config.num_channels
    mean = [0.0] * config.num_channels if plain else settings.get("image_mean", half)
    std = [1.0] * config.num_channels if plain else settings.get("image_std", half)
    before = BEFORE_PATCHES.get(config.model_type, 0) + getattr(config, "num_register_tokens", 0)
    return Patches(size, patch, config.num_channels, tuple(mean), tuple(std), before)


def _make_pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def read_preprocessor(where: str | None, revision: str | None) -> dict[str, Any]:
    """preprocessor_config.json of a folder or hub model; empty if there is none."""
    if where is None:
        return {}
    file = Path(where) / "preprocessor_config.json"
    if not Path(where).is_dir():
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            file = Path(hf_hub_download(where, file.name, revision=revision, local_files_only=must_use_downloads()))
        except LocalEntryNotFoundError as error:  # there may be a file
            raise make_unreachable_error(where, revision, error) from error
        except EntryNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise make_unreachable_error(where, revision, error) from error
    return read_json_file(file) if file.is_file() else {}
