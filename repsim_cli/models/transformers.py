"""Models in the transformers format: from the hub, a local folder, this package, or with fresh weights.

Raw weights: nothing is folded or centred. Safetensors only; code that comes with a model is never run.
"""

import hashlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import nn

from repsim_cli.data.images import Patches
from repsim_cli.errors import BadInput
from repsim_cli.models.architectures import architecture
from repsim_cli.models.source import Source
from repsim_cli.registry import did_you_mean, models

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")
IMAGE_MODELS = ("vit",)
SHIPPED = Path(str(resources.files("repsim_cli"))) / "assets" / "models"


@models.register("transformers")
def transformers(*, path: str | None = None, hub: str | None = None, revision: str | None = None) -> Source:
    """A model of the Hugging Face hub (`hub`, optionally `revision`: a branch, tag or commit), or a folder (`path`)."""
    if (path is None) == (hub is None):
        raise BadInput(f"path, hub: give exactly one of them, got path={path}, hub={hub}; path is a folder, hub an id")
    if path is None:
        assert hub is not None
        return _from_hub(hub, revision)
    if revision is not None:
        raise BadInput(f"revision: a local folder has none, got '{revision}'; name the folder of that checkpoint")
    return _from_folder(Path(path).expanduser())


@models.register("shipped")
def shipped(*, name: str) -> Source:
    """A small model that ships with the package (made by `repsim run experiment=pretrain_tiny`)."""
    return _from_folder(shipped_folder(name))


def shipped_folder(name: str) -> Path:
    known = sorted(p.name for p in SHIPPED.iterdir())
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
    seed: int = 0,
) -> Source:
    """Fresh weights under `seed`, in the shape of a shipped, local or hub model, or of `config`.

    config: e.g. {model_type: gpt2, n_layer: 2}. tokenizer: a folder or hub id; by default that of the model.
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
        like = hub or str(shipped_folder(shipped) if shipped else _folder(Path(str(path)).expanduser()))
        settings, where = _config(like, revision), tokenizer or like

    def tokenizer_of() -> Any:
        if where is None:
            raise BadInput("tokenizer: a random model from a config has none; set tokenizer to a folder or hub id")
        return _tokenizer(where, None if tokenizer else revision)

    def load(eager: bool) -> nn.Module:
        auto = library().AutoModel
        with torch.random.fork_rng(devices=[]), _silent():
            torch.manual_seed(seed)
            return auto.from_config(settings, dtype=torch.float32, attn_implementation=_attention(eager))

    described = json.dumps(settings.to_dict(), sort_keys=True, default=str).encode()
    identity = {
        "source": f"random weights, seed {seed}, {given[0] if given else settings.model_type}",
        "weights_hash": f"seed {seed}, config {hashlib.sha256(described).hexdigest()}",
    }
    return _source(settings, tokenizer_of, load, lambda: identity, like, revision)


def library() -> Any:
    """transformers, imported when first needed (seconds) and without its chatter."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


@contextmanager
def _silent() -> Iterator[None]:
    """Its load report goes to the log at error level; missing weights are our error, raised by us."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _attention(eager: bool) -> str | None:
    return "eager" if eager else None


def _folder(path: Path) -> Path:
    if path.is_file():
        raise BadInput(f"path: not a folder, got '{path}'; name the folder that it is in")
    if not path.is_dir():
        near = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = f"; {did_you_mean(path.name, near)}" if 0 < len(near) <= 20 else "; check the path"
        raise BadInput(f"path: no such folder, got '{path}'{hint}")
    if not (path / "config.json").is_file():
        raise BadInput(f"path: no config.json in it, got '{path}'; give a folder in the transformers format")
    return path


def _weight_files(path: Path) -> list[Path]:
    """The folder's safetensors files, each with a whole header; BadInput says what is missing."""
    index = path / "model.safetensors.index.json"
    if index.is_file():
        files = [path / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    else:
        files = [path / "model.safetensors"]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        pickles = [p.name for p in sorted(path.iterdir()) if p.suffix in PICKLES]
        if pickles:
            raise BadInput(
                f"path: only pickled weights ({pickles[0]}), which can run code, got '{path}'; "
                "save the model again with safe_serialization=True"
            )
        raise BadInput(f"path: no {missing[0]} in it, got '{path}'; give a folder with weights, or kind: random")
    for file in files:
        try:
            with safetensors.safe_open(file, framework="pt"):
                pass
        except (safetensors.SafetensorError, OSError) as error:
            raise BadInput(f"path: {file.name} is not a whole safetensors file, got '{error}'; copy it again") from None
    return files


def _from_folder(path: Path) -> Source:
    path = _folder(path)
    config = _config(str(path))
    files = _weight_files(path)

    def identity() -> dict[str, Any]:
        return {"source": str(path), "weights_hash": hash_files(files)}

    return _source(
        config, lambda: _tokenizer(str(path)), lambda eager: _load(str(path), None, eager), identity, str(path)
    )


def _from_hub(hub: str, revision: str | None) -> Source:
    config = _config(hub, revision)

    def identity() -> dict[str, Any]:
        from huggingface_hub import snapshot_download

        try:
            weights = ["*.safetensors", "*.safetensors.index.json"]
            folder = Path(snapshot_download(hub, revision=revision, allow_patterns=weights))
        except (OSError, ValueError) as error:
            raise _unreachable(hub, revision, error) from error
        return {
            "source": hub,
            "revision": revision,
            "commit": folder.name,
            "weights_hash": hash_files(_weight_files(folder)),
        }

    return _source(
        config, lambda: _tokenizer(hub, revision), lambda eager: _load(hub, revision, eager), identity, hub, revision
    )


def hash_files(files: list[Path]) -> str:
    """sha256 over the files' contents, in order."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _unreachable(where: str, revision: str | None, error: Exception) -> BadInput:
    reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    at = f"{where}@{revision}" if revision else where
    return BadInput(
        f"hub: the model could not be read, got '{at}' ({reason[:160]}); check the id and revision, the network, "
        "or download it and use path: FOLDER"
    )


def _check_config_file(file: Path) -> None:
    """What the library would say at length: broken JSON, an unknown architecture, code that comes with a model."""
    try:
        given = json.loads(file.read_text())
        kind = given["model_type"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"path: config.json cannot be used, got '{file}' ({error!r:.100}); mend it") from None
    if "auto_map" in given:
        raise BadInput(
            f"path: the model needs code that comes with it, which is never run, got auto_map in '{file}'; "
            "use a model that transformers knows"
        )
    known = list(library().CONFIG_MAPPING.keys())
    if kind not in known:
        raise BadInput(f"path: unknown architecture, got model_type '{kind}' in '{file}'; {did_you_mean(kind, known)}")


def _config(where: str, revision: str | None = None) -> Any:
    if Path(where).is_dir():
        _check_config_file(Path(where) / "config.json")
    try:
        return library().AutoConfig.from_pretrained(where, revision=revision, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        if Path(where).is_dir():
            reason = str(error).splitlines()[0]
            raise BadInput(f"path: config.json cannot be used, got '{where}' ({reason[:160]}); mend it") from error
        raise _unreachable(where, revision, error) from error


def inline_config(given: dict[str, Any]) -> Any:
    kind = given.get("model_type")
    known = list(library().CONFIG_MAPPING.keys())
    if kind not in known:
        hint = did_you_mean(str(kind), known) if kind else "e.g. model_type: gpt2"
        raise BadInput(f"config.model_type: unknown, got '{kind}'; {hint if len(hint) < 200 else 'see transformers'}")
    rest = {k: v for k, v in given.items() if k != "model_type"}
    default = library().AutoConfig.for_model(kind)
    unknown = [k for k in rest if not hasattr(default, k)]
    if unknown:
        hint = did_you_mean(unknown[0], default.to_dict())
        raise BadInput(f"config.{unknown[0]}: {kind} has no such setting, got {rest[unknown[0]]!r}; {hint[:200]}")
    try:
        return library().AutoConfig.for_model(kind, **rest)
    except (TypeError, ValueError) as error:
        raise BadInput(f"config: not usable for {kind}, got {rest} ({error}); mend it") from error


def _tokenizer(where: str, revision: str | None = None) -> Any:
    folder = Path(where)
    if folder.is_dir() and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise BadInput(f"path: no tokenizer in it, got '{where}'; save the tokenizer there (tokenizer.json)")

    try:
        with _silent():
            return library().AutoTokenizer.from_pretrained(where, revision=revision, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        if folder.is_dir():
            raise BadInput(f"path: its tokenizer cannot be used, got '{where}' ({error}); save it again") from error
        raise _unreachable(where, revision, error) from error


def _load(where: str, revision: str | None, eager: bool) -> nn.Module:
    try:
        with _silent():
            model, info = library().AutoModel.from_pretrained(
                where,
                revision=revision,
                dtype=torch.float32,
                attn_implementation=_attention(eager),
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below, with the names
            )
    except (OSError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        if Path(where).is_dir():
            reason = str(error).splitlines()[0]
            raise BadInput(
                f"path: the weights cannot be loaded, got '{where}' ({reason[:200]}); save them again"
            ) from error
        raise _unreachable(where, revision, error) from error
    # a masked language model has no pooler, and no hook point reads it
    missing = sorted(key for key in info["missing_keys"] if "pooler" not in key)
    wrong = sorted(f"{key}: {tuple(saved)} for {tuple(wanted)}" for key, saved, wanted in info["mismatched_keys"])
    if missing or wrong:
        raise BadInput(
            f"path: {len(missing)} weights are missing and {len(wrong)} have the wrong shape, "
            f"got '{where}' (first: {(missing + wrong)[0]}); save the model again"
        )
    return model


def _source(
    config: Any,
    tokenizer: Callable[[], Any],
    load: Callable[[bool], nn.Module],
    identity: Callable[[], dict],
    where: str | None,
    revision: str | None = None,
) -> Source:
    config = config.get_text_config()
    images = config.model_type in IMAGE_MODELS
    if not images and not hasattr(config, "vocab_size"):
        known = ", ".join(IMAGE_MODELS)
        raise BadInput(f"config: neither of text nor of patches, got {config.model_type}; image models: {known}")
    try:
        with torch.device("meta"), _silent():
            skeleton = library().AutoModel.from_config(config)
    except (ValueError, TypeError, RuntimeError, ZeroDivisionError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"config: no {config.model_type} can be built from it ({reason[:200]}); mend it") from error

    def ready(eager: bool) -> nn.Module:
        model: Any = load(eager).eval()
        model.config.use_cache = False
        return model

    return Source(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        width=config.hidden_size,
        context=patch_grid(config).places if images else getattr(config, "max_position_embeddings", None),
        parameters=sum(p.numel() for p in skeleton.parameters()),
        vocabulary=0 if images else config.vocab_size,
        architecture=architecture(config),
        model_type=config.model_type,
        skeleton=skeleton,
        tokenizer=(lambda: patch_grid(config, _preprocessor(where, revision))) if images else tokenizer,
        load=ready,
        identity=identity,
        modality="images" if images else "text",
        # others take token types for ids of words (GPT-2), or have one type alone (RoBERTa)
        segments=getattr(config, "type_vocab_size", 1) > 1,
    )


def patch_grid(config: Any, preprocessor: Mapping[str, Any] | None = None) -> Patches:
    """How a model of this config reads images; pixels go from -1 to 1 unless its preprocessor says otherwise."""
    size, patch = (_pair(value) for value in (config.image_size, config.patch_size))
    if min(*size, *patch, config.num_channels) < 1 or min(patch) > min(size):
        raise BadInput(f"config: no patches, got image_size {size}, patch_size {patch}; patches must fit the image")
    settings = preprocessor or {}
    plain = not settings.get("do_normalize", True)
    half = [0.5] * config.num_channels
    mean = [0.0] * config.num_channels if plain else settings.get("image_mean", half)
    std = [1.0] * config.num_channels if plain else settings.get("image_std", half)
    return Patches(size, patch, config.num_channels, tuple(mean), tuple(std))


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _preprocessor(where: str | None, revision: str | None) -> dict[str, Any]:
    """preprocessor_config.json of a folder or hub model; empty where it has none."""
    if where is None:
        return {}
    file = Path(where) / "preprocessor_config.json"
    if not Path(where).is_dir():
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            file = Path(hf_hub_download(where, file.name, revision=revision))
        except LocalEntryNotFoundError as error:  # it may have one
            raise _unreachable(where, revision, error) from error
        except EntryNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise _unreachable(where, revision, error) from error
    try:
        return json.loads(file.read_text()) if file.is_file() else {}
    except ValueError as error:
        raise BadInput(f"path: {file.name} cannot be used, got '{where}' ({error}); mend it") from None
