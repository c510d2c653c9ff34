"""Models under TransformerLens: from the hub or a folder through its bridge, and its native architecture.

Weights are raw unless `process_weights` is set. The library takes seconds to import and is imported when first needed.
Its errors are excluded: see `architectures.find_lens_architecture` and MISNAMED_BERT.
"""

import copy
import json
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from repsim_cli.base.documents import read
from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import expand_path
from repsim_cli.base.registry import did_you_mean, models
from repsim_cli.base.settings import Seed
from repsim_cli.models.architectures import build_native_architecture, find_lens_architecture
from repsim_cli.models.checkpoints import fetch_hub_files, hash_files, locate
from repsim_cli.models.configs import build_source_from_config, hash_config
from repsim_cli.models.gguf import is_gguf
from repsim_cli.models.library import import_transformers
from repsim_cli.models.loading import WHOLE, Loading, place_model
from repsim_cli.models.native_weights import check_weights_file, fill, find_native_weights
from repsim_cli.models.pretrained import HEADLESS, load, load_with_head
from repsim_cli.models.shapes import compare_with_shipped, find_planned_shape, find_shipped_shape
from repsim_cli.models.source import Source
from repsim_cli.models.tokenizers import TOKENIZER_FILES, load_tokenizer
from repsim_cli.models.transformers import check_place, place

HEADS = {"bert": "AutoModelForMaskedLM", "roberta": "AutoModelForMaskedLM"}  # the rest: AutoModelForCausalLM
NATIVE = (
    "d_model", "n_layers", "n_heads", "n_ctx", "d_vocab", "d_head", "d_mlp", "act_fn", "normalization_type", "eps",
    "attn_only", "gated_mlp", "final_rms", "attention_dir", "n_key_value_heads", "positional_embedding_type",
    "rotary_dim", "rotary_base", "init_mode", "initializer_range",
)  # fmt: skip
NEEDED = NATIVE[:5]
# in the config.json of the native format: older names, and settings that must have these values
OLD_NAMES = {"normalization": "normalization_type", "ln_eps": "eps"}
FIXED = {"shortformer_pos": False, "use_attn_scale": True, "use_local_attn": False, "parallel_attn_mlp": False}


@models.register("transformer_lens")
def transformer_lens(  # noqa: PLR0913 - keys of YAML
    *,
    path: str | None = None,
    hub: str | None = None,
    revision: str | None = None,
    config: dict[str, Any] | None = None,
    weights: str | None = None,
    tokenizer: str | None = None,
    seed: Seed = 0,
    process_weights: bool = False,
) -> Source:
    """A model run by TransformerLens.

    It comes from a folder or the hub, in the transformers or in TransformerLens' own format, or from a config.

    path: a folder; give one of path, hub and config.
    hub: the id of a model on the Hugging Face hub.
    revision: a branch, tag or commit of the hub id; null: its main branch.
    config: of TransformerLens' native architecture, e.g. {d_model: 64, n_layers: 2, n_heads: 4, n_ctx: 128, d_vocab:
        512, act_fn: solu_ln}.
    weights: the weights of a config, a .safetensors file or a .pth state dict; null: random weights.
    tokenizer: a folder, a hub id or a shipped model; null: the model's own.
    seed: of random weights.
    process_weights: fold the norms into the weights and centre them, which changes coordinates but not the outputs.
    """
    if config is not None:
        if (path, hub, revision) != (None, None, None):
            raise BadInput(
                f"config, path, hub: give exactly one, got config and '{path or hub or revision}'; leave one out"
            )
        file = None if weights is None else check_weights_file(expand_path(weights))
        about = {"source": f"random weights, seed {seed}, native" if weights is None else weights}
        native = _Native(
            config=config,
            about=about,
            file=lambda: file,
            tokenizer=tokenizer,
            seed=seed,
            process=process_weights,
        )
        return replace(_make_native_source(native), trained=weights is not None)
    if weights is not None:
        raise BadInput(f"weights: only a native config takes separate weights, got '{weights}'; give config too")
    check_place(path, hub, revision)
    native_config = _read_native_config(path, hub, revision)
    if native_config is not None:
        return _read_saved(native_config, path, hub, revision, tokenizer, process_weights)
    return _bridge(path, hub, revision, tokenizer, process_weights)


class Backbone(nn.Module):
    """A bridge that is called like a transformers backbone."""

    def __init__(self, bridge: nn.Module):
        super().__init__()
        self.bridge: Any = bridge

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **more: Tensor) -> SimpleNamespace | None:
        self.bridge(input_ids, attention_mask=attention_mask, return_type=None, **more)


class LanguageModel(Backbone):
    """A native model with its head that is called like a causal language model of transformers."""

    base_model_prefix = "native"

    def __init__(self, bridge: nn.Module):
        super().__init__(bridge)
        self.native = self.bridge.original_model

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **more: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.native(input_ids, attention_mask=attention_mask))


def list_hook_modules(backbone: nn.Module, misnamed: str) -> dict[str, nn.Module]:
    """The hook points of TransformerLens by name, each a module that returns its input; without misnamed ones.

    Also its attention modules, since it names no point for rotated q and k in every model.
    """
    assert isinstance(backbone, Backbone)
    by_name = backbone.bridge.hook_dict
    attention = {f"blocks.{i}.attn": block.attn for i, block in enumerate(backbone.bridge.blocks)}
    return {**{name: hook for name, hook in by_name.items() if not re.search(misnamed, name)}, **attention}


# names of other tensors: after the norm, before the norm, after the softmax
MISNAMED_BERT = r"hook_attn_out$|attn\.hook_out$|hook_resid_mid$|hook_attn_scores$|^ln_final\."
MISNAMED_NATIVE = r"hook_attn_scores$"
MISNAMED_NONE = r"^$"


def _bridge(path: str | None, hub: str | None, revision: str | None, tokenizer: str | None, process: bool) -> Source:
    model_place = place(path, hub, revision)
    settings = model_place.config.get_text_config()
    table = find_lens_architecture(settings)
    auto = HEADS.get(settings.model_type, "AutoModelForCausalLM")
    if process and settings.model_type in HEADS:
        raise BadInput(
            f"process_weights: norms after the additions cannot be folded, got model_type '{settings.model_type}'; "
            "leave it false"
        )

    def bridge(model: Any) -> nn.Module:
        from transformer_lens.model_bridge.sources import build_bridge_from_module

        return build_bridge_from_module(model, type(model).__name__, hf_config=model.config, dtype=torch.float32)

    def load_bridge(eager: bool, how: Loading = WHOLE) -> nn.Module:
        # its attention is always eager
        model = load(model_place.where, model_place.revision, True, auto)
        return place_model(_wrap_backbone(bridge(model), process), how)

    def skeleton() -> nn.Module:
        """The same modules with a single narrow head: the bridge splits projections, which needs weights."""
        narrow = copy.deepcopy(settings)
        for key, value in NARROW.items():
            if hasattr(narrow, key):
                setattr(narrow, key, value)
        with torch.random.fork_rng(devices=[]):
            return _wrap_backbone(
                bridge(getattr(import_transformers(), auto).from_config(narrow, attn_implementation="eager")), False
            )

    def whole(auto_class: str, how: Loading = WHOLE) -> nn.Module:
        """The model in transformers itself, whose activations equal those of the bridge with raw weights."""
        if process:
            raise BadInput("process_weights: a model with folded norms has no head, got true; leave it false")
        return load_with_head(model_place.where, model_place.revision, auto_class, how)

    misnamed = MISNAMED_BERT if auto == "AutoModelForMaskedLM" else MISNAMED_NONE
    like = build_source_from_config(
        settings,
        lambda: load_tokenizer(tokenizer or model_place.where, None if tokenizer else model_place.revision),
        load_bridge,
        model_place.identity,
        None,
    )
    made = skeleton()
    return replace(
        like,
        architecture=table,
        build=lambda: made,
        load=load_bridge,
        identity=lambda: _mark(like.identity(), process),
        modules=lambda model: list_hook_modules(model, misnamed),
        with_head=whole,
    )


NARROW = {
    "hidden_size": 16,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 16,
    "vocab_size": 8,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def _wrap_backbone(bridge: Any, process: bool) -> nn.Module:
    with redirect_stdout(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if process:
            bridge.enable_compatibility_mode()
    return Backbone(bridge).eval()


def _mark(identity: dict[str, Any], process: bool) -> dict[str, Any]:
    """The identity with `transformer_lens` in it: numbers differ from those of kind: transformers, so the cache must
    tell them apart."""
    how = "transformer_lens, processed weights" if process else "transformer_lens"
    return {**identity, "kind": how, "weights_hash": f"{how}: {identity['weights_hash']}"}


def _read_native_config(path: str | None, hub: str | None, revision: str | None) -> dict[str, Any] | None:
    """Reads config.json of a model in the native format of TransformerLens; None for the transformers format."""
    if hub is not None and (shape := find_planned_shape(hub)):
        content = shape.config
    else:
        where = locate(path) if path is not None else fetch_hub_files(str(hub), revision, ["config.json"])
        if is_gguf(where):
            return None
        try:
            content = json.loads(read(where / "config.json"))
        except (OSError, ValueError, RecursionError):
            return None  # the checks of the transformers format say what is wrong
        if hub is not None and isinstance(content, dict) and (shape := find_shipped_shape(hub)):
            compare_with_shipped(hub, *((key, content.get(key)) for key in shape.config))
    return content if isinstance(content, dict) and "model_type" not in content and "d_model" in content else None


def _read_saved(
    saved: dict[str, Any], path: str | None, hub: str | None, revision: str | None, tokenizer: str | None, process: bool
) -> Source:
    for key, value in FIXED.items():
        if saved.get(key, value) != value:
            raise BadInput(
                f"config.json: only {key} {value} is supported, got {saved[key]} in '{path or hub}'; use another model"
            )
    if not saved.get("attn_only") and "act_fn" not in saved:
        raise BadInput(f"config.json: act_fn is missing, got '{path or hub}'; add it")
    config = {OLD_NAMES.get(k, k): v for k, v in saved.items()}
    config = {k: v for k, v in config.items() if k in NATIVE}
    about = {"source": str(path or hub)} if revision is None else {"source": hub, "revision": revision}

    def file() -> Path:
        if path is not None:
            return find_native_weights(expand_path(path))
        return find_native_weights(fetch_hub_files(str(hub), revision, ["*final.pth", "model.safetensors"]))

    if path is not None:
        file()
        has_tokenizer = any((expand_path(path) / name).is_file() for name in TOKENIZER_FILES)
        tokenizer = tokenizer or (path if has_tokenizer else None)
    tokenizer = tokenizer or saved.get("tokenizer_name")
    return _make_native_source(_Native(config=config, about=about, file=file, tokenizer=tokenizer, process=process))


@dataclass(frozen=True, kw_only=True)
class _Native:
    """A native model.

    config: as it was given. about: where it is from. file(): its weights; None: they are drawn under the seed.
    process: whether its norms are folded into the weights.
    """

    config: Mapping[str, Any]
    about: Mapping[str, Any]
    file: Callable[[], Path | None]
    tokenizer: str | None
    seed: int = 0
    process: bool

    @property
    def settings(self) -> dict[str, Any]:
        """The config with its defaults."""
        head = self.config["d_model"] // max(self.config["n_heads"], 1)
        return {"d_head": head, "act_fn": "gelu", "normalization_type": "LN", **self.config}

    def boot(self, init: bool) -> Any:
        """Builds the module, without weights or with those of the seed. Raises BadInput with the config that was given
        where its settings cannot be built."""
        from transformer_lens import TransformerBridgeConfig
        from transformer_lens.model_bridge.sources import boot_native

        more = {"seed": self.seed, "init_weights": init, "architecture": "TransformerLensNative"}
        try:
            settings = TransformerBridgeConfig(**self.settings, **more)
            with torch.random.fork_rng(devices=[]):
                return boot_native(settings)
        except (ValueError, TypeError, RuntimeError, NotImplementedError, AssertionError, ZeroDivisionError) as error:
            reason = str(error).splitlines()[0]
            raise BadInput(
                f"config: no native model can be built from it, got {self.config} ({reason[:200]}); fix it"
            ) from error

    def load(self, eager: bool, how: Loading = WHOLE) -> Backbone:
        weights_file = self.file()
        bridge = self.boot(init=weights_file is None)
        if weights_file is not None:
            fill(bridge, weights_file)
        return place_model(_wrap_backbone(bridge, self.process), how)

    def load_with_head(self, auto: str, how: Loading = WHOLE) -> nn.Module:
        if auto != "AutoModelForCausalLM" or self.process:
            raise BadInput(
                f"kind: a native model with raw weights has only the head of AutoModelForCausalLM, got {auto}"
                f"{' and process_weights' if self.process else ''}; {HEADLESS}"
            )
        return LanguageModel(self.load(False, how).bridge).eval()

    def load_tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise BadInput("tokenizer: a native model has none; set tokenizer to a folder, a hub id or tiny_a")
        return load_tokenizer(self.tokenizer)

    def identify(self) -> dict[str, Any]:
        weights_file = self.file()
        weights = f"seed {self.seed}" if weights_file is None else hash_files([weights_file])
        return _mark({**self.about, "weights_hash": weights, "config_hash": hash_config(self.settings)}, self.process)


def _make_native_source(native: _Native) -> Source:
    _check_native(native.config)
    settings = native.settings
    with torch.device("meta"):
        skeleton = Backbone(native.boot(init=False))
    head = sum(p.numel() for name, p in skeleton.bridge.named_parameters() if name.startswith("head."))
    rotated = str(settings.get("positional_embedding_type")).lower() == "rotary"
    return Source(
        layers=settings["n_layers"],
        heads=settings["n_heads"],
        kv_heads=settings.get("n_key_value_heads") or settings["n_heads"],
        width=settings["d_model"],
        context=settings["n_ctx"],
        parameters=sum(p.numel() for p in skeleton.parameters()) - head,
        vocabulary=settings["d_vocab"],
        architecture=build_native_architecture(
            gated=bool(settings.get("gated_mlp")), attention_only=bool(settings.get("attn_only")), rotary=rotated
        ),
        model_type=f"native {settings['act_fn']}",
        build=lambda: skeleton,
        tokenizer=native.load_tokenizer,
        load=native.load,
        identity=native.identify,
        head_width=settings["d_head"],
        rotary=(settings.get("rotary_dim") or settings["d_head"]) if rotated else 0,
        modules=lambda model: list_hook_modules(model, MISNAMED_NATIVE),
        with_head=native.load_with_head,
    )


def _check_native(config: Mapping[str, Any]) -> None:
    for key in config:
        if key not in NATIVE:
            raise BadInput(
                f"config.{key}: a native model has no such setting, got {config[key]!r}; {_suggest_setting(key)}"
            )
    for key in NEEDED:
        if not isinstance(config.get(key), int):
            raise BadInput(f"config.{key}: missing or not a number, got {config.get(key)!r}; set it")


def _suggest_setting(key: str) -> str:
    hint = did_you_mean(key, NATIVE)
    return hint if len(hint) < 300 else "see the docstring"
