"""Models in the transformers format: from the hub, a local folder or .gguf file, this package, or with fresh weights.

Raw weights: nothing is folded or centred. Safetensors only; code that comes with a model is never run.
"""

import copy
import functools
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import torch
from torch import nn

from repsim_cli.data.base import Modality
from repsim_cli.data.files import json_file, local
from repsim_cli.data.images import Patches
from repsim_cli.data.network import local_only, offline, unreachable
from repsim_cli.errors import BadInput, Unreachable
from repsim_cli.files import readable, refusing
from repsim_cli.models.adapters import CONFIG as ADAPTER_CONFIG
from repsim_cli.models.adapters import with_adapter
from repsim_cli.models.architectures import architecture
from repsim_cli.models.gguf import by_itself, checked, is_gguf
from repsim_cli.models.library import alone, library, silent
from repsim_cli.models.loading import WHOLE, Loading, in_one_place, placed
from repsim_cli.models.parts import part_of
from repsim_cli.models.points import Heads
from repsim_cli.models.quantized import bits_of, check_quantize, settings_of
from repsim_cli.models.rounding import Quantize, marked, with_rounding
from repsim_cli.models.shapes import compare_with_shipped, planned_shape, shape_of
from repsim_cli.models.source import Loader, Source, WithHead, headless
from repsim_cli.planning import is_dry
from repsim_cli.registry import did_you_mean, models
from repsim_cli.settings import Seed

log = logging.getLogger("repsim")
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")
BESIDE_TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")
SCALE = re.compile(r"weight_scale(_inv)?$|\.(qweight|scales)$")  # beside quantized weights
# the most that is built, and the names that a config may give it; of a list, that of stages or of the last one
DEPTH, WIDTH = (1000, "num_hidden_layers", "depths"), (10**6, "hidden_size", "hidden_sizes")
MOST_HEADS = 10**5
INPUTS: dict[str, Modality] = {"input_ids": "text", "pixel_values": "images", "input_features": "sound"}
# places before the patches of an image: the class token, and that of distillation; beside registers
BEFORE_PATCHES = {"vit": 1, "beit": 1, "deit": 2, "dinov2": 1, "dinov2_with_registers": 1, "clip_vision_model": 1}
TOKENIZERS = Path(str(resources.files("repsim_cli"))) / "assets" / "tokenizers"
SHIPPED = Path(str(resources.files("repsim_cli"))) / "assets" / "models"


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

    path: a folder in the transformers format, or a .gguf file, which is dequantized to float32 (extra `gguf`); give
        this or `hub`.
    hub: the id of a model on the Hugging Face hub.
    revision: a branch, tag or commit of the hub id; null: its main branch.
    adapter: a folder or hub id of a LoRA adapter, merged into the weights (extra `peft`); null: none.
    quantize: how the weights are made coarser after loading; null: not at all.
    Example: repsim run model=[] +model.mine='{kind: transformers, path: DIR}'
    """
    at = place(path, hub, revision)
    if quantize is not None and quantize.method != "round":
        given = "a .gguf file" if is_gguf(at.where) else getattr(at.config, "quantization_config", None)
        check_quantize(quantize, given, adapter)
        return replace(marked(from_place(at, quantize), quantize), bits=quantize.bits)
    source = from_place(at)
    if adapter is not None:
        near = local(adapter)
        on_hub = not near.exists() and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", adapter) is not None
        folder = partial(hub_files, adapter, None, ["adapter_*"], "adapter") if on_hub else lambda: near
        source = with_adapter(source, adapter, folder, str(path or hub), check=not (on_hub and is_dry()))
    return source if quantize is None else with_rounding(source, quantize)


class Place(NamedTuple):
    """Where a model is: its config, a folder or hub id with a revision, and identity() once the files exist."""

    config: Any
    where: str
    revision: str | None
    identity: Callable[[], dict[str, Any]]


def check_place(path: str | None, hub: str | None, revision: str | None) -> None:
    if (path is None) == (hub is None):
        raise BadInput(f"path, hub: give exactly one of them, got path={path}, hub={hub}; path is a folder, hub an id")
    if path is not None and revision is not None:
        raise BadInput(f"revision: a local folder has none, got '{revision}'; name the folder of that checkpoint")


def place(path: str | None, hub: str | None, revision: str | None) -> Place:
    """A folder, .gguf file or hub id."""
    check_place(path, hub, revision)
    return _local_place(located(path)) if path is not None else _hub_place(str(hub), revision)


@models.register("shipped")
def shipped(*, name: str) -> Source:
    """A small model that ships with the package, trained by `repsim run experiment=pretrain_tiny`.

    name: tiny_a, tiny_a_step100, tiny_a_step400 or tiny_b.
    """
    return from_place(_local_place(shipped_folder(name)))


def shipped_names() -> list[str]:
    return sorted(p.name for p in SHIPPED.iterdir())


def shipped_folder(name: str) -> Path:
    known = shipped_names()
    if name not in known:
        raise BadInput(f"name: no such shipped model, got '{name}'; {did_you_mean(name, known)}")
    return SHIPPED / name


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
        raise BadInput(
            f"config, shipped, path, hub: give exactly one of them, got {given or config}; "
            "config is e.g. {model_type: gpt2, n_layer: 2}"
        )
    if config is not None:
        settings, where, like = inline_config(config), tokenizer, None
    else:
        like = hub or str(shipped_folder(shipped) if shipped else located(str(path)))
        settings, where = config_of(like, revision), tokenizer or like
    settings = text_part(settings)

    def own_tokenizer() -> Any:
        if where is None:
            raise BadInput(
                "tokenizer: a random model from a config has none; set tokenizer to a folder, a hub id or tiny_a"
            )
        return tokenizer_of(where, None if tokenizer else revision)

    def whole(auto: str, how: Loading = WHOLE) -> nn.Module:
        try:
            with alone(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = getattr(library(), auto).from_config(settings, dtype=torch.float32)
        except ValueError as error:
            raise BadInput(f"config: no head for {auto}, got model_type {settings.model_type}; {HEADLESS}") from error
        # the same backbone as without a head; either may lack a pooler
        model.base_model.load_state_dict(_fresh(settings, seed, False).state_dict(), strict=False)
        return uncached(placed(model, how))

    identity = {
        "source": f"random weights, seed {seed}, {given[0] if given else settings.model_type}",
        "weights_hash": f"seed {seed}, config {config_hash(settings.to_dict())}",
    }
    fresh = partial(_fresh, settings, seed)
    return replace(source(settings, own_tokenizer, fresh, lambda: identity, like, revision, whole), trained=False)


def _fresh(config: Any, seed: int, eager: bool, how: Loading = WHOLE) -> nn.Module:
    with alone(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        auto = library().AutoModel
        # drawn in float32: the same weights in any dtype
        fresh = auto.from_config(config, dtype=torch.float32, attn_implementation=_attention(eager))
    return placed(fresh, how)


def shape_key(trained: Source) -> str:
    """What models have in common whose untrained twins are the same. Raises BadInput for a model that is not of
    transformers."""
    if not trained.plain or not isinstance(trained.skeleton, library().PreTrainedModel):
        raise BadInput(f"kind: no untrained twin can be made of {trained.model_type}; use a model of transformers")
    config: Any = trained.skeleton.config
    return config_hash(config.to_dict())


def untrained(trained: Source, seed: int) -> Source:
    """A model in the same shape with random weights, without a head."""
    shape = shape_key(trained)
    config: Any = trained.skeleton.config
    return replace(
        trained,
        load=lambda eager, how=WHOLE: uncached(_fresh(config, seed, eager, how)),
        identity=lambda: {"source": f"random weights, seed {seed}, {config.model_type}",
                          "weights_hash": f"seed {seed}, config {shape}", "config_hash": shape},
        with_head=headless,
        make=None,
        metrics=None,
        short=None,
        trained=False,
        entry="",
        parts=False,
    )  # fmt: skip


def _attention(eager: bool) -> str | None:
    return "eager" if eager else None


def located(path: str) -> Path:
    """A folder in the transformers format, or a .gguf file: the path, or the only such file of a folder without
    config.json."""
    place = local(path)
    if place.is_dir() and not (place / "config.json").exists():
        files = sorted(file for file in place.iterdir() if is_gguf(file))
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise BadInput(f"path: several .gguf files in it, got {names:.200} in '{path}'; name one of them")
        place = files[0] if files else place
    return checked(place) if place.is_file() and is_gguf(place) else folder(place)


def folder(path: Path) -> Path:
    if path.is_file():
        raise BadInput(f"path: not a folder, got '{path}'; name the folder that holds it")
    if not path.is_dir():
        near = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = f"; {did_you_mean(path.name, near)}" if 0 < len(near) <= 20 else "; check the path"
        raise BadInput(f"path: no such folder, got '{path}'{hint}")
    os.listdir(path)  # a folder that cannot be listed would seem empty
    if (path / ADAPTER_CONFIG).is_file():
        base = json_file(path / ADAPTER_CONFIG).get("base_model_name_or_path")
        raise BadInput(
            f"path: an adapter is in it, got '{path}'; give the base model ({base}) as path or hub, and the adapter in "
            "a folder of its own as adapter"
        )
    if not (path / "config.json").is_file():
        raise BadInput(f"path: no config.json in it, got '{path}'; give a folder in the transformers format")
    for file in path.iterdir():
        if file.exists() and not (file.is_file() or file.is_dir()):  # reading a pipe would block
            raise BadInput(f"path: neither a file nor a folder, got '{file}'; remove it")
    return path


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of the folder, each with a whole header. Raises BadInput with what is missing."""
    whole, index = path / "model.safetensors", path / "model.safetensors.index.json"
    files = [whole]
    if index.is_file() and not whole.is_file():  # transformers prefers the single file
        names = json_file(index).get("weight_map")
        if not isinstance(names, dict) or any(name != Path(str(name)).name for name in names.values()):
            raise BadInput(f"path: {index.name} does not name files of its folder, got '{names}'; copy it again")
        files = [path / name for name in sorted(set(names.values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        if pickles := [p.name for p in sorted(path.iterdir()) if p.suffix in PICKLES]:
            raise BadInput(
                f"path: only pickled weights ({pickles[0]}), which can run code, got '{path}'; "
                "rewrite them as safetensors with `repsim convert FOLDER NEW_FOLDER`"
            )
        if len(missing) < len(files):
            raise BadInput(
                f"path: {len(missing)} of {len(files)} files of weights are missing, got no {missing[0]} in '{path}'; "
                "copy the missing ones"
            )
        if any(path.glob("model-*-of-*.safetensors")):
            raise BadInput(f"path: no {index.name} beside the files of weights, got '{path}'; copy it too")
        raise BadInput(f"path: no {missing[0]} in it, got '{path}'; give a folder with weights, or kind: random")
    for file in files:
        try:
            with safetensors.safe_open(readable(file), framework="pt"):
                pass
        except safetensors.SafetensorError as error:
            raise BadInput(
                f"path: {file.name} is not a complete safetensors file, got '{error}'; copy it again"
            ) from None
    return files


def _local_place(path: Path) -> Place:
    config = config_of(str(path))
    files = [path] if is_gguf(path) else weight_files(path)
    if not is_gguf(path):
        _check_scales(config, files)
    return Place(config, str(path), None, lambda: {"source": str(path), "weights_hash": hash_files(files)})


def _hub_place(hub: str, revision: str | None) -> Place:
    config = config_of(hub, revision)

    def identity() -> dict[str, Any]:
        folder = hub_files(hub, revision, ["*.safetensors", "*.safetensors.index.json"])
        files = weight_files(folder)
        _check_scales(config, files)
        return {"source": hub, "revision": revision, "commit": folder.name, "weights_hash": hash_files(files)}

    return Place(config, hub, revision, identity)


def _check_scales(config: Any, files: list[Path]) -> None:
    """Raises BadInput for quantized weights whose scales would be ignored, since the config does not mention them."""
    if getattr(config, "quantization_config", None) is not None:
        return
    for file in files:
        with safetensors.safe_open(file, framework="pt") as weights:
            scale = next((name for name in weights.keys() if SCALE.search(name)), None)  # noqa: SIM118
        if scale is not None:
            raise BadInput(
                f"path: weights with scales, but no quantization_config in config.json, got {scale} in "
                f"'{file.parent}'; copy the config of the quantized model, or use the model without quantization"
            )


def hub_files(hub: str, revision: str | None, patterns: list[str], key: str = "hub") -> Path:
    """The snapshot folder of a hub repository, with the files that match. key: what names the repository."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub, revision=revision, allow_patterns=patterns, local_files_only=local_only()))
    except (OSError, ValueError) as error:
        raise _unreachable(hub, revision, error, key) from error


def from_place(model_place: Place, quantize: Quantize | None = None) -> Source:
    metrics = Path(model_place.where) / "metrics.json"  # of models that the package trained
    made = source(
        model_place.config,
        lambda: tokenizer_of(model_place.where, model_place.revision),
        lambda eager, how=WHOLE: load(model_place.where, model_place.revision, eager, how=how, quantize=quantize),
        model_place.identity,
        model_place.where,
        model_place.revision,
        lambda auto, how=WHOLE: headed(model_place.where, model_place.revision, auto, how, quantize),
        (lambda: json_file(metrics)) if metrics.is_file() else None,
    )
    quantized = getattr(model_place.config, "quantization_config", None) is not None
    return replace(made, parts=not quantized and quantize is None and not is_gguf(model_place.where))


def hash_files(files: list[Path]) -> str:
    """sha256 over the files' contents, in order."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _unreachable(where: str, revision: str | None, error: Exception, key: str = "hub") -> BadInput:
    at = f"{where}@{revision}" if revision else where
    if local_only():
        reason = "HF_HUB_OFFLINE is set" if offline() else str(unreachable())
    else:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)[:160]
    message = (
        f"{key}: the model could not be read, got '{at}' ({reason}); check the id and revision, the network, "
        f"or download it and use {'path' if key == 'hub' else key}: FOLDER"
    )
    return Unreachable(message, at, reason) if local_only() and key == "hub" else BadInput(message)


def _check_config_file(file: Path) -> None:
    """Raises BadInput for broken JSON, an unknown architecture, or a model with code, where the library is verbose."""
    given = json_file(file)
    kind = given.get("model_type")
    if not isinstance(kind, str):
        raise BadInput(f"path: config.json cannot be used, got model_type {kind!r:.60} in '{file}'; fix it")
    if "auto_map" in given:
        raise BadInput(
            f"path: the model needs code that comes with it, which is never run, got auto_map in '{file}'; "
            "use a model that transformers knows"
        )
    known = library().CONFIG_MAPPING
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


def config_of(where: str, revision: str | None = None) -> Any:
    if _is_local(where):
        if not is_gguf(where):
            _check_config_file(Path(where) / "config.json")
        return _config(where, None)
    if shape := planned_shape(where):
        return inline_config(shape.config)
    config = _config(where, revision)
    if shape := shape_of(where):
        compare_with_shipped(where, *((key, getattr(config, key, None)) for key in shape.config))
    return config


def _is_local(where: str) -> bool:
    return Path(where).is_dir() or is_gguf(where)


def _pretrained(auto: Any, where: str, revision: str | None, **settings: Any) -> Any:
    """What an auto class of transformers loads from a folder, .gguf file or hub id; code that comes with it is never
    run."""
    given = {
        "pretrained_model_name_or_path": where,
        "revision": revision,
        "local_files_only": _is_local(where) or local_only(),
    }
    with by_itself(where) if is_gguf(where) else nullcontext(given) as named:
        return auto.from_pretrained(**named, trust_remote_code=False, **settings)


def _config(where: str, revision: str | None) -> Any:
    try:
        with silent():
            config = _pretrained(library().AutoConfig, where, revision)
            config._attn_implementation = None  # that of the machine it was saved on
            return config
    except Exception as error:  # the library checks little and raises anything
        if is_gguf(where):
            advice = "use the model in the transformers format"
            raise BadInput(
                f"path: transformers cannot read this .gguf file, got '{where}' ({_reason(error)}); {advice}"
            ) from error
        if _is_local(where):
            raise BadInput(f"path: config.json cannot be used, got '{where}' ({_reason(error)}); fix it") from error
        raise _unreachable(where, revision, error) from error


def text_part(config: Any) -> Any:
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
    kind = given.get("model_type")
    _check_numbers(given)
    known = list(library().CONFIG_MAPPING.keys())
    if kind not in known:
        hint = did_you_mean(str(kind), known) if kind else "e.g. model_type: gpt2"
        raise BadInput(f"config.model_type: unknown, got '{kind}'; {hint if len(hint) < 200 else 'see transformers'}")
    rest = {k: v for k, v in given.items() if k != "model_type"}
    default = library().AutoConfig.for_model(kind)
    settings = default.to_dict()  # an attribute that a config has for each layer cannot be asked for
    unknown = [k for k in rest if k not in settings and not hasattr(default, k)]
    if unknown:
        hint = did_you_mean(unknown[0], settings)
        raise BadInput(f"config.{unknown[0]}: {kind} has no such setting, got {rest[unknown[0]]!r}; {hint[:200]}")
    with refusing(f"config: not usable for {kind}", rest, "fix it"):
        return library().AutoConfig.for_model(kind, **rest)


SENTENCE = "Some words of a sentence"
PROBE = "a \uffff"  # a word, and a character outside every vocabulary, so that errors occur before a run


def tokenizer_of(where: str, revision: str | None = None) -> Any:
    if where in shipped_names():
        where = str(SHIPPED / where)
    elif (TOKENIZERS / where).is_dir():
        where = str(TOKENIZERS / where)
    local = _is_local(where)
    if not local and (shape := planned_shape(where)):
        return shape.tokenizer
    if Path(where).is_dir() and not any((Path(where) / name).is_file() for name in TOKENIZER_FILES):
        raise BadInput(f"path: no tokenizer in it, got '{where}'; save the tokenizer there (tokenizer.json)")
    for name in (*TOKENIZER_FILES, *BESIDE_TOKENIZER) if local else ():
        if (file := Path(where) / name).is_file():
            readable(file)
    try:
        with silent():
            tokenizer = _pretrained(library().AutoTokenizer, where, revision)
            tokenizer(PROBE, verbose=False)
            tokenizer.name_or_path = where
            _compare_with_pieces(tokenizer, Path(where))
            return tokenizer
    except Exception as error:
        if local:
            raise BadInput(
                f"path: its tokenizer cannot be used, got '{where}' ({_reason(error)}); save it again"
            ) from error
        if isinstance(error, OSError):
            # a repository with only a tokenizer has no config.json, which is required for ids but not for folders
            return tokenizer_of(str(hub_files(where, revision, [*TOKENIZER_FILES, *BESIDE_TOKENIZER])))
        raise _unreachable(where, revision, error) from error


def _compare_with_pieces(tokenizer: Any, folder: Path) -> None:
    """Warns where a tokenizer converted from a sentencepiece file, the only one in its folder, splits text in another
    way: the file does not say all that transformers needs to know."""
    file = folder / "tokenizer.model"
    if not file.is_file() or (folder / "tokenizer.json").is_file():
        return
    from sentencepiece import SentencePieceProcessor

    expected = SentencePieceProcessor(model_file=str(file)).encode(SENTENCE, out_type=str)
    if (found := tokenizer.tokenize(SENTENCE)) != expected:
        _warn_of_pieces(str(file), " ".join(found), " ".join(expected))


@functools.cache
def _warn_of_pieces(file: str, found: str, expected: str) -> None:
    log.warning(
        "%s: transformers splits text in another way than the file, got %s for %s; save the tokenizer as "
        "tokenizer.json with the library that the model comes from",
        file,
        found,
        expected,
    )


def load(
    where: str,
    revision: str | None,
    eager: bool,
    auto: str = "AutoModel",
    how: Loading = WHOLE,
    quantize: Quantize | None = None,
) -> Any:
    """The model of a transformers auto class. Raises BadInput where a weight of the backbone is missing.

    A head or pooler that the checkpoint lacks is NaN, so that its outputs are refused instead of random.
    """
    model, lacking = _loaded(where, revision, eager, auto, how, quantize)
    weights = model.state_dict()
    for key in lacking:
        weights[key].fill_(torch.nan)
    return model


def headed(where: str, revision: str | None, auto: str, how: Loading = WHOLE, quantize: Quantize | None = None) -> Any:
    """The whole model of an auto class, in eval mode. Raises BadInput where the checkpoint lacks the head.

    Some text backbones have no class with a head; then it is the model with all its parts, which reads text alone too.
    """
    model, lacking = _loaded(where, revision, False, auto, how, quantize)
    if lacking:
        raise BadInput(f"path: its checkpoint has no head for {auto}, got '{where}' without {lacking[0]}; {HEADLESS}")
    return uncached(model)


def types_with(auto: str) -> set[str]:
    """The types of model that an auto class has a head for. AutoModelForCausalLM: without masked language models, which
    predict the token itself."""
    from transformers.models.auto import modeling_auto as names

    if auto == "AutoModelForCausalLM":
        return {*names.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} - {*names.MODEL_FOR_MASKED_LM_MAPPING_NAMES}
    return {*names.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES}


def predicts_next(source: Source) -> bool:
    """Whether the model can have an output head for the next token, and hook points in the model that has it."""
    two = source.architecture is not None and bool(source.architecture.stacks)  # an encoder and a decoder
    return source.plain and source.has_head and not two and source.model_type in types_with("AutoModelForCausalLM")


CAUSAL = "AutoModelForCausalLM"
# names of the text backbone's weights within a larger model -> its own
TEXT_KEYS = {
    r"^(model\.)?(language_model|text_model)\.lm_head": "lm_head",
    r"^(model\.)?(language_model|text_model)\.(model\.)?": "model.",
}
HEADLESS = "use a model that was trained with that head"


def uncached(model: Any) -> Any:
    """The model in eval mode, with nothing kept between forward passes."""
    model.config.use_cache = False
    model.config.use_mems_eval = False  # XLNet's name for it
    return model.eval()


def _loaded(
    where: str, revision: str | None, eager: bool, auto: str, how: Loading, quantize: Quantize | None = None
) -> tuple[Any, list[str]]:
    """The model, and the names of weights outside the backbone that the checkpoint lacks.

    Of a model that also reads images or sound, the text backbone is loaded. transformers maps safetensors into memory:
    weights of the file's type are its pages, others are converted one at a time.
    """
    settings: dict[str, Any]
    on_devices: dict[str, Any] = {}
    if is_gguf(where):
        how = in_one_place(how)
        settings = {"quantization_config": library().GgufConfig(dequantize=True)}
    else:
        config = _config(where, revision)
        text = text_part(config)
        settings = {"config": text}
        if text is not config:
            log.info("%s: the text backbone of a %s is read", where, config.model_type)
            if auto == CAUSAL and type(text) not in library().MODEL_FOR_CAUSAL_LM_MAPPING:
                settings, auto = {"config": config}, "AutoModelForMultimodalLM"
            else:
                settings["key_mapping"] = TEXT_KEYS
        if quantize is not None:
            settings["quantization_config"] = settings_of(quantize, how.dtype)
        if how.spread is not None:
            scratch = tempfile.mkdtemp(prefix="repsim-")  # of weights that are not read as they are saved
            on_devices = {"device_map": "auto", "max_memory": dict(how.spread), "offload_folder": scratch}
        elif quantize is not None or getattr(text, "quantization_config", None) is not None:
            on_devices = {"device_map": {"": how.device}}  # such weights may not be moved
            logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of rounded inputs at every product
    try:
        with alone():
            model, info = _pretrained(
                getattr(library(), auto) if how.kept is None else part_of(_backbone(settings["config"]), how.kept),
                where,
                revision,
                dtype=how.dtype,
                attn_implementation=_attention(eager),
                use_safetensors=True,
                **settings,
                **on_devices,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below, with the names
            )
    except Exception as error:
        if _is_local(where):
            raise BadInput(
                f"path: the weights cannot be loaded, got '{where}' ({_reason(error)}); save them again"
            ) from error
        raise _unreachable(where, revision, error) from error
    if getattr(model, "_hf_peft_config_loaded", False):
        raise BadInput(f"hub: an adapter is in it, got '{where}'; give its base model, and this as adapter")
    backbone = "" if model.base_model is model else f"{model.base_model_prefix}."
    lacking = info["missing_keys"]
    missing = sorted(key for key in lacking if key.startswith(backbone) and "pooler" not in key)
    wrong = sorted(f"{key}: {tuple(saved)} for {tuple(wanted)}" for key, saved, wanted in info["mismatched_keys"])
    if missing or wrong:
        raise BadInput(
            f"path: {len(missing)} weights are missing and {len(wrong)} have the wrong shape, "
            f"got '{where}' (first: {(missing + wrong)[0]}); save the model again"
        )
    if how.spread is not None:
        weakref.finalize(model, shutil.rmtree, scratch, ignore_errors=True)
    return (model if on_devices else model.to(how.device)), sorted(lacking)


def _backbone(config: Any) -> Any:
    """The class of AutoModel for a config."""
    found = library().MODEL_MAPPING[type(config)]
    return found[0] if isinstance(found, tuple | list) else found


def source(
    config: Any,
    tokenizer: Callable[[], Any],
    load: Loader,
    identity: Callable[[], dict],
    where: str | None,
    revision: str | None = None,
    with_head: WithHead = headless,
    metrics: Callable[[], dict[str, float]] | None = None,
) -> Source:
    """A model from its transformers config.

    where, revision: the folder or hub id with the preprocessor of an image model; None: there is none.
    """
    whole, config = config, config.get_text_config()
    if not hasattr(config, "model_type"):
        raise BadInput(f"config.text_config: not a config, got {config!r:.60} in a {whole.model_type}; fix it")
    layers, width = _size(config, *DEPTH), _size(config, *WIDTH)
    heads = _heads(config)
    for name in ("output_hidden_states", "output_attentions"):
        if not isinstance(getattr(config, name, False), bool):
            raise BadInput(f"config.{name}: not true or false, got {getattr(config, name)!r:.60}; fix it")
    _check_quantization(config)
    with refusing(f"config: no {config.model_type} can be built from it", where or config.model_type, "fix it"):
        skeleton = _skeleton(config)
    kind = modality(skeleton)

    def ready(eager: bool, how: Loading = WHOLE) -> nn.Module:
        return uncached(load(eager, how))

    # RoBERTa counts positions from the padding id, so that the first ones are lost
    embeddings = getattr(skeleton, "embeddings", None)
    padding = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
    context = patch_grid(config).places if kind == "images" else getattr(config, "max_position_embeddings", None)
    if context is not None and context <= 0:  # no limit, in XLNet
        context = None
    if context is not None and padding is not None:
        context -= padding + 1

    def checked() -> Any:
        loaded = tokenizer()
        if padding is not None and loaded.pad_token_id != padding:
            raise BadInput(
                f"tokenizer: it pads with id {loaded.pad_token_id}, by which {config.model_type} counts positions, "
                f"got pad_token_id {padding} in the config; use the model's own tokenizer"
            )
        return loaded

    table = architecture(config, skeleton)
    # what attention modules say of themselves; configs call it by other names, or say it for each layer
    own = next(iter(table.heads.values()), None) if table else None
    if own is None:
        keys = getattr(config, "num_key_value_heads", None) or heads
        own = Heads(heads, keys, *(2 * [getattr(config, "head_dim", None) or (width // heads if heads else 0)]))
    return Source(
        layers=(table and table.depth) or layers,
        heads=own.queries,
        kv_heads=own.keys,
        width=width,
        context=context,
        parameters=sum(p.numel() for p in skeleton.parameters()),
        vocabulary=config.vocab_size if kind == "text" else 0,
        architecture=table,
        model_type=config.model_type,
        skeleton=skeleton,
        tokenizer=(lambda: patch_grid(config, _preprocessor(where, revision))) if kind == "images" else checked,
        load=ready,
        identity=lambda: {**identity(), "config_hash": config_hash(config.to_dict())},
        head_width=own.width,
        rotary=rotary(config, own.width),
        modality=kind,
        # others take token types for word ids (GPT-2) or have a single type (RoBERTa); XLNet's config has no number
        segments=getattr(config, "type_vocab_size", 1) > 1 or config.model_type == "xlnet",
        with_head=with_head,
        metrics=metrics,
        labels=class_names(config),
        bits=bits_of(getattr(config, "quantization_config", None)),
    )


def modality(model: nn.Module) -> Modality:
    """What a backbone reads. Raises BadInput where that is neither text, images nor sound."""
    given = str(getattr(model, "main_input_name", None))
    if given not in INPUTS:
        raise BadInput(f"config: it reads neither text, images nor sound, got a model of {given}; use another model")
    return INPUTS[given]


def _size(config: Any, most: int, *names: str) -> int:
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


def _heads(config: Any) -> int:
    """The heads of each block; 0 without attention, or where blocks differ."""
    heads = getattr(config, "num_attention_heads", None)
    if heads is None or isinstance(heads, list | tuple):
        return 0
    return _size(config, MOST_HEADS, "num_attention_heads")


def _check_quantization(config: Any) -> None:
    """Raises BadInput for quantized weights that need a missing package or device."""
    given = getattr(config, "quantization_config", None)
    if given is None:
        return
    from transformers.quantizers.auto import AutoHfQuantizer

    got = given.get("quant_method", given) if isinstance(given, dict) else given
    advice = "install the package that it needs, or use the model without quantization"
    with refusing("config.quantization_config: cannot be used here", got, advice), silent():
        AutoHfQuantizer.from_config(given, pre_quantized=True).validate_environment(device_map=None)


def class_names(config: Any) -> tuple[str, ...]:
    """The labels in a classifier's config, in the order of its logits; () for other models."""
    named = config.architectures if isinstance(config.architectures, list) else []
    if not any(str(name).endswith("ForSequenceClassification") for name in named):
        return ()
    return tuple(config.id2label[code] for code in sorted(config.id2label))


_skeletons: dict[str, nn.Module] = {}


def _skeleton(config: Any) -> nn.Module:
    """The backbone without weights, shared by all checkpoints of a training run."""
    known = config_hash(config.to_dict())
    if known not in _skeletons:
        with alone(), torch.device("meta"):
            _skeletons[known] = library().AutoModel.from_config(config).eval()
    return _skeletons[known]


def config_hash(config: dict[str, Any]) -> str:
    """sha256 of the settings that, with the weights, determine the activations: equal weights can be two models."""
    settings = {k: v for k, v in config.items() if k not in ("_name_or_path", "transformers_version", "dtype")}
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def rotary(config: Any, head_width: int) -> int:
    """The number of features per head that are rotated by position; 0 for other position encodings."""
    settings = getattr(config, "rope_parameters", None)
    if not settings:
        return 0
    if part := getattr(config, "qk_rope_head_dim", None):  # of latent attention
        return part
    return int(head_width * settings.get("partial_rotary_factor", 1.0))


def patch_grid(config: Any, preprocessor: Mapping[str, Any] | None = None) -> Patches:
    """How a model with this config reads images; pixels range from -1 to 1 unless its preprocessor differs.

    Of a model in stages, the places are those of the first; of one that reads images of any size, a single one.
    """
    size = _pair(config.image_size) if hasattr(config, "image_size") else None
    patch = _pair(getattr(config, "patch_size", 1))
    if size is not None and (min(*size, *patch, config.num_channels) < 1 or min(patch) > min(size)):
        raise BadInput(f"config: no patches, got image_size {size}, patch_size {patch}; patches must fit the image")
    settings = preprocessor or {}
    plain = not settings.get("do_normalize", True)
    half = [0.5] * config.num_channels
    mean = [0.0] * config.num_channels if plain else settings.get("image_mean", half)
    std = [1.0] * config.num_channels if plain else settings.get("image_std", half)
    before = BEFORE_PATCHES.get(config.model_type, 0) + getattr(config, "num_register_tokens", 0)
    return Patches(size, patch, config.num_channels, tuple(mean), tuple(std), before)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _preprocessor(where: str | None, revision: str | None) -> dict[str, Any]:
    """preprocessor_config.json of a folder or hub model; empty if there is none."""
    if where is None:
        return {}
    file = Path(where) / "preprocessor_config.json"
    if not Path(where).is_dir():
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            file = Path(hf_hub_download(where, file.name, revision=revision, local_files_only=local_only()))
        except LocalEntryNotFoundError as error:  # there may be a file
            raise _unreachable(where, revision, error) from error
        except EntryNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise _unreachable(where, revision, error) from error
    return json_file(file) if file.is_file() else {}
