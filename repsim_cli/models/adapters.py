"""LoRA adapters in the format of the package peft, merged into the weights of their base model."""

import hashlib
import importlib.util
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor, nn

from repsim_cli.base.bounded import limit_work
from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import check_readable, expand_path, refuse
from repsim_cli.data.files import read_json_file
from repsim_cli.models.library import silence_transformers
from repsim_cli.models.loading import WHOLE, keep_in_one_place
from repsim_cli.models.source import Source

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# of a repository on the hub: the adapter, and the tokenizer of one with a vocabulary of its own
FILES = [
    "adapter_*",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "chat_templ*",
]
OUTER = ("model", "language_model", "text_model")  # of models with more parts
HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
log = logging.getLogger("repsim")


class Adapter(NamedTuple):
    """settings: adapter_config.json. file: the weights."""

    settings: dict[str, Any]
    file: Path

    def weights(self) -> dict[str, Tensor]:
        """The adapter's tensors by name: a module of the model that it was trained on, and the part of the adapter."""
        return {name.removeprefix("base_model.model."): w for name, w in safetensors.torch.load_file(self.file).items()}

    def hash(self) -> str:
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode() + self.file.read_bytes()).hexdigest()


def read_adapter(folder: Path) -> Adapter:
    """The adapter in a folder. Raises BadInput where it is none, or no LoRA with safetensors."""
    if importlib.util.find_spec("peft") is None:
        raise BadInput("adapter: needs the package peft, which is not installed; pip install -e '.[peft]'")
    if not (folder / CONFIG).is_file():
        raise BadInput(f"adapter: no {CONFIG} in it, got '{folder}'; give the folder of a LoRA adapter")
    settings = read_json_file(folder / CONFIG)
    for key, known in {"peft_type": "LORA", "trainable_token_indices": None, "layer_replication": None}.items():
        if settings.get(key) != known:
            raise BadInput(
                f"adapter: only LoRA of the base's own modules is merged, got {key} {settings.get(key)!r:.60} in "
                f"'{folder}'; merge it yourself, and give the result as path"
            )
    file = folder / WEIGHTS
    if not file.is_file():
        pickles = [place.name for place in sorted(folder.glob("adapter_model.*"))]
        if pickles:
            raise BadInput(
                f"adapter: only pickled weights ({pickles[0]}), which can run code, got '{folder}'; save it again as "
                "safetensors"
            )
        raise BadInput(f"adapter: no {WEIGHTS} in it, got '{folder}'; give a folder with weights")
    with (
        refuse(f"adapter: {WEIGHTS} is not a complete safetensors file", check_readable(file), "copy it again"),
        safetensors.safe_open(file, framework="pt"),
    ):
        pass
    return Adapter(settings, file)


def find_base_model(folder: Path) -> dict[str, str | None]:
    """The base model that the adapter in a folder names, as the arguments path, or hub and revision, of a model; empty
    where the folder has no adapter, or a model too. Raises BadInput where the base is not there, with what to set."""
    if not (folder / CONFIG).is_file() or (folder / "config.json").is_file():
        return {}
    settings = read_json_file(folder / CONFIG)
    name, revision = (settings.get(key) for key in ("base_model_name_or_path", "revision"))
    if isinstance(name, str) and name and expand_path(name).exists():
        return {"path": name}
    if isinstance(name, str) and HUB_ID.fullmatch(name) and isinstance(revision, str | None):
        return {"hub": name, "revision": revision}
    raise BadInput(
        f"path: an adapter is in it, got '{folder}', whose base {name!r:.100} is not here; give the base as path or "
        f"hub, and adapter: {folder}"
    )


def count_adapter_tokens(adapter: Adapter, model: Any) -> int | None:
    """The number of tokens of an adapter that was trained with another vocabulary than its base; None for others."""
    own = model.get_input_embeddings().weight
    modules = dict(model.named_modules())
    for key, weight in adapter.weights().items():
        path, _, parameter = key.replace(".base_layer.", ".").rpartition(".")
        name = name_in(modules, path, model.base_model_prefix) if parameter == "weight" else None
        if name is not None and getattr(modules[name], "weight", None) is own and len(weight) != len(own):
            return len(weight)
    return None


def apply_adapter(source: Source, where: str, folder: Callable[[], Path], base: str, check: bool) -> Source:
    """The model with the adapter merged into its weights. Its modules have the names of the base model.

    where: the adapter's folder or hub id. base: where the base model is. check: whether the adapter fits, now.
    """

    def merge_in(model: nn.Module) -> nn.Module:
        return merge_adapter(model, read_adapter(folder()))

    def identity() -> dict[str, Any]:
        known, adapter = source.identity(), read_adapter(folder())
        both = hashlib.sha256(f"{known['weights_hash']} {adapter.hash()}".encode()).hexdigest()
        return {**known, "adapter": where, "base_hash": known["weights_hash"], "weights_hash": both}

    if check:
        adapter = read_adapter(folder())
        match_modules(adapter, source.skeleton)
        trained_on = str(adapter.settings.get("base_model_name_or_path"))
        if Path(trained_on).name.lower() != Path(base).name.lower():
            log.info("adapter: '%s' was trained on '%s', got the base '%s'", where, trained_on, base)
    return replace(
        source,
        load=lambda eager, how=WHOLE: merge_in(source.load(eager, keep_in_one_place(how))),
        with_head=lambda auto, how=WHOLE: merge_in(source.with_head(auto, keep_in_one_place(how))),
        identity=identity,
        parts=False,
    )


def name_in(modules: Mapping[str, Any], path: str, prefix: str) -> str | None:
    """The name in a model of a module that has this path in the model that the adapter was trained on, where one of
    them may be the backbone of the other; None where it is outside.

    prefix: the name of the backbone in models of this architecture that have a head.

    >>> name_in({"layers.0.mlp": 1}, "gpt_neox.layers.0.mlp", "gpt_neox")
    'layers.0.mlp'
    """
    while path:
        if (name := next((name for name in (path, f"{prefix}.{path}") if name in modules), None)) is not None:
            return name
        outer, _, path = path.partition(".")
        if outer not in (prefix, *OUTER):
            return None
    return None


def match_modules(adapter: Adapter, model: Any) -> dict[str, str]:
    """The name in the model of each module that the adapter changes, without heads that the model lacks. Raises
    BadInput where a block has no such module, or one of another shape."""
    names: dict[str, str] = {}
    modules = dict(model.named_modules())
    for key, weight in adapter.weights().items():
        path, _, kind = key.partition(".lora_")
        if not kind:
            continue
        name = name_in(modules, path, model.base_model_prefix)
        if name is None:
            if re.search(r"\.\d+\.", path):
                raise BadInput(
                    f"adapter: the base has no such module, got {path} in '{adapter.file.parent}'; "
                    "give the base that it was trained on"
                )
            continue
        names[path] = name
        matrix = getattr(modules[name], "weight", None)
        if kind == "A.weight" and matrix is not None and weight.ndim == 2 and weight.shape[1] not in matrix.shape:
            raise BadInput(
                f"adapter: it does not fit its base, got {tuple(weight.shape)} for {path} of {tuple(matrix.shape)}; "
                "give the base that it was trained on"
            )
    if not names:
        raise BadInput(f"adapter: it changes no module of the base, got '{adapter.file.parent}'; give its own base")
    return names


def _find_ranks_and_alphas(
    settings: Any, names: Mapping[str, str], weights: Mapping[str, Tensor]
) -> tuple[dict[str, Any], ...]:
    """The rank and alpha of each module by its name in the base, where the adapter has regular expressions for names
    in the model that it was trained on, some of which never end."""
    ranks, alphas = {}, {}
    parts = [(*key.partition(".lora_")[::2], weight) for key, weight in weights.items()]
    known = {path: weight.shape[0] for path, kind, weight in parts if "A" in kind}
    for path in sorted(names, key=lambda path: -len(names[path])):  # peft takes the first that a name ends with
        with limit_work():
            found = (key for key in settings.alpha_pattern if re.match(rf"(.*\.)?({key})$", path))
            alpha = settings.alpha_pattern.get(next(found, None), settings.lora_alpha)
        ranks[re.escape(names[path])], alphas[re.escape(names[path])] = known.get(path, settings.r), alpha
    return ranks, alphas


def merge_adapter(model: Any, adapter: Adapter) -> Any:
    """The model, with the adapter merged into its weights in place."""
    from peft import LoraConfig, LoraModel, set_peft_model_state_dict

    if (tokens := count_adapter_tokens(adapter, model)) is not None:
        model.resize_token_embeddings(tokens, mean_resizing=False)  # all of its rows are the adapter's
    weights, modules = adapter.weights(), dict(model.named_modules())
    names = match_modules(adapter, model)
    head = model.get_output_embeddings()
    if head is not None and head in [modules[name] for name in names.values()]:
        head.weight = nn.Parameter(head.weight.detach().clone())  # the embeddings, if tied, are not changed
    low_rank, whole = {}, {}
    for key, weight in weights.items():
        path, _, kind = key.partition(".lora_")
        if kind and path in names:
            low_rank[f"model.{names[path]}.lora_{kind}"] = weight
        elif not kind:
            path, _, parameter = key.replace(".base_layer.", ".").rpartition(".")
            whole[name_in(modules, path, model.base_model_prefix), parameter] = weight
    advice = "give the base that it was trained on"
    with (
        refuse("adapter: cannot be merged into its base", adapter.file.parent, advice),
        silence_transformers(),
        torch.no_grad(),
    ):
        settings: Any = LoraConfig.from_pretrained(str(adapter.file.parent))
        for setting in ("modules_to_save", "exclude_modules", "layers_to_transform", "layers_pattern"):
            setattr(settings, setting, None)
        settings.target_modules, settings.inference_mode = sorted(names.values()), True
        settings.rank_pattern, settings.alpha_pattern = _find_ranks_and_alphas(settings, names, weights)
        for (name, parameter), weight in whole.items():
            if name is not None:
                getattr(modules[name], parameter).copy_(weight)
        tuner: Any = LoraModel(model, settings, "default")
        outcome = set_peft_model_state_dict(tuner, low_rank)
        missing = [name for name in outcome.missing_keys if ".lora_" in name]
        if missing or outcome.unexpected_keys:
            raise ValueError(f"{(missing + outcome.unexpected_keys)[0]} does not match")
        return tuner.merge_and_unload().eval()
