"""Weights that were saved in the transformers format, or in a .gguf file, loaded as the model of an auto class."""

import logging
import shutil
import tempfile
import weakref
from typing import Any

import torch

from repsim_cli.base.errors import BadInput
from repsim_cli.models.checkpoints import describe_error, is_local, load_pretrained, make_unreachable_error
from repsim_cli.models.complete import check_complete
from repsim_cli.models.configs import read_config, take_text_config
from repsim_cli.models.gguf import is_gguf
from repsim_cli.models.library import hold_loading_lock, import_transformers
from repsim_cli.models.loading import WHOLE, Loading, disable_cache, keep_in_one_place
from repsim_cli.models.parts import make_partial_class
from repsim_cli.models.quantized import make_quantization_config
from repsim_cli.models.rounding import Quantize

log = logging.getLogger("repsim")

CAUSAL = "AutoModelForCausalLM"
# names of the text backbone's weights within a larger model -> its own
TEXT_KEYS = {
    r"^(model\.)?(language_model|text_model)\.lm_head": "lm_head",
    r"^(model\.)?(language_model|text_model)\.(model\.)?": "model.",
}
HEADLESS = "use a model that was trained with that head"


def choose_attention(eager: bool) -> str | None:
    return "eager" if eager else None


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
    model, lacking = _load(where, revision, eager, auto, how, quantize)
    weights = model.state_dict()
    for key in lacking:
        weights[key].fill_(torch.nan)
    return model


def load_with_head(
    where: str, revision: str | None, auto: str, how: Loading = WHOLE, quantize: Quantize | None = None
) -> Any:
    """The whole model of an auto class, in eval mode. Raises BadInput where the checkpoint lacks the head.

    Some text backbones have no class with a head; then it is the model with all its parts, which reads text alone too.
    """
    model, lacking = _load(where, revision, False, auto, how, quantize)
    if lacking:
        raise BadInput(f"path: its checkpoint has no head for {auto}, got '{where}' without {lacking[0]}; {HEADLESS}")
    return disable_cache(model)


def _load(
    where: str, revision: str | None, eager: bool, auto: str, how: Loading, quantize: Quantize | None = None
) -> tuple[Any, list[str]]:
    """The model, and the names of weights outside the backbone that the checkpoint lacks.

    Of a model that also reads images or sound, the text backbone is loaded. transformers maps safetensors into memory:
    weights of the file's type are its pages, others are converted one at a time.
    """
    on_devices: dict[str, Any] = {}
    scratch = None
    if is_gguf(where):
        how = keep_in_one_place(how)
        dequantized = import_transformers().GgufConfig(dequantize=True)
        settings = {"config": read_config(where), "quantization_config": dequantized}
    else:
        config = read_config(where, revision)
        text = take_text_config(config)
        auto, settings = _select_text_backbone(where, config, text, auto)
        rounded = quantize is not None or getattr(text, "quantization_config", None) is not None
        if quantize is not None:
            settings["quantization_config"] = make_quantization_config(quantize, how.dtype)
        if how.spread is not None:
            scratch = tempfile.mkdtemp(prefix="repsim-")  # of weights that are not read as they are saved
            on_devices = {"device_map": "auto", "max_memory": dict(how.spread), "offload_folder": scratch}
        elif rounded:
            on_devices = {"device_map": {"": how.device}}  # such weights may not be moved
            logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of rounded inputs at every product
    kind = getattr(import_transformers(), auto)
    if how.kept is not None:
        kind = make_partial_class(_find_model_class(kind, settings["config"]), how.kept)
    more = {"dtype": how.dtype, "attn_implementation": choose_attention(eager), **settings, **on_devices}
    model, info = _load_checkpoint(kind, where, revision, **more)
    if getattr(model, "_hf_peft_config_loaded", False):
        raise BadInput(f"hub: an adapter is in it, got '{where}'; give its base model, and this as adapter")
    lacking = info["missing_keys"]
    check_complete(model, info, where)
    if scratch is not None:
        weakref.finalize(model, shutil.rmtree, scratch, ignore_errors=True)
    return (model if on_devices else model.to(how.device)), sorted(lacking)


def _select_text_backbone(where: str, config: Any, text: Any, auto: str) -> tuple[str, dict[str, Any]]:
    """The auto class, and its keyword arguments, that load what of a model reads text, or all of it where that part has
    no class with a head."""
    if text is config:
        return auto, {"config": text}
    log.info("%s: the text backbone of a %s is read", where, config.model_type)
    if auto == CAUSAL and type(text) not in import_transformers().MODEL_FOR_CAUSAL_LM_MAPPING:
        return "AutoModelForMultimodalLM", {"config": config}
    return auto, {"config": text, "key_mapping": TEXT_KEYS}


def _load_checkpoint(kind: Any, where: str, revision: str | None, **more: Any) -> tuple[Any, dict[str, Any]]:
    """The model, and what transformers says of its weights. Raises BadInput where they cannot be read."""
    try:
        with hold_loading_lock():
            return load_pretrained(
                kind,
                where,
                revision,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # `check_complete` reports them, with the names
                **more,
            )
    except Exception as error:
        if is_local(where):
            raise BadInput(
                f"path: the weights cannot be loaded, got '{where}' ({describe_error(error)}); save them again"
            ) from error
        raise make_unreachable_error(where, revision, error) from error


def _find_model_class(auto: Any, config: Any) -> Any:
    """The class that an auto class has for a config."""
    loaded = auto._model_mapping[type(config)]
    return loaded[0] if isinstance(loaded, tuple | list) else loaded
