"""Sparse dictionaries, and the files that hold them.

A folder has one of these (`FILES`), or the path names a file of tensors by itself:

- SAELens: `sae_weights.safetensors` and `cfg.json`. Dictionaries that are trained here are written so.
- sparsify: `sae.safetensors` and `cfg.json`.
- Gemma Scope: `params.npz`.
- dictionary_learning: `ae.safetensors`, the tensors of its `ae.pt`; what they are is seen by their names.
"""

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.base.documents import Unreadable, read_json
from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import expand_path, refuse
from repsim_cli.runs.results import dumps

WEIGHTS, CONFIG, ALONE = "sae_weights.safetensors", "cfg.json", "params.npz"
ARCHITECTURES = ("standard", "jumprelu", "topk")
GATED = ("gate_bias", "r_mag", "b_gate", "b_mag")
NAMES = {  # of this package -> of other programs; a linear map has its weights transposed
    "W_enc": ("W_enc", "encoder.weight"),
    "W_dec": ("W_dec", "decoder.weight"),
    "b_enc": ("b_enc", "encoder.bias"),
    "b_dec": ("b_dec", "bias", "decoder.bias"),
    "threshold": ("threshold",),
}
LINEAR = ("encoder.weight", "decoder.weight")


@dataclass(frozen=True)
class Dictionary:
    """encoder (d, m), decoder (m, d). k: the active latents of a row, where a TopK picks them; else those above the
    threshold are active. centred: the decoder's bias is taken off before the encoder."""

    encoder: Float[Tensor, "d m"]
    encoder_bias: Float[Tensor, " m"]
    decoder: Float[Tensor, "m d"]
    bias: Float[Tensor, " d"]
    threshold: Float[Tensor, " m"]
    k: int | None = None
    centred: bool = True

    @property
    def width(self) -> int:
        return len(self.decoder)

    def encode(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n m"]:
        values = ((x - self.bias if self.centred else x) @ self.encoder + self.encoder_bias).clamp_min(0)
        if self.k is None:
            return torch.where(values > self.threshold, values, 0.0)
        largest = values.topk(self.k, dim=1)
        return torch.zeros_like(values).scatter_(1, largest.indices, largest.values)

    def decode(self, code: Float[Tensor, "n m"]) -> Float[Tensor, "n d"]:
        return code @ self.decoder + self.bias

    def to(self, device: str) -> "Dictionary":
        moved: dict[str, Any] = {name: x.to(device) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **moved)


def save(dictionary: Dictionary, folder: Path) -> None:
    """Writes a dictionary as SAELens does."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        "W_enc": dictionary.encoder,
        "b_enc": dictionary.encoder_bias,
        "W_dec": dictionary.decoder,
        "b_dec": dictionary.bias,
        "threshold": dictionary.threshold,
    }
    safetensors.torch.save_file({name: x.detach().cpu().contiguous() for name, x in tensors.items()}, folder / WEIGHTS)
    config = {
        "architecture": "jumprelu",
        "d_in": dictionary.decoder.shape[1],
        "d_sae": dictionary.width,
        "dtype": "float32",
        "apply_b_dec_to_input": True,
        "normalize_activations": "none",
    }
    (folder / CONFIG).write_text(dumps(config))


class Form(NamedTuple):
    """Says how a dictionary uses its tensors. threshold: whether the file's counts."""

    k: int | None
    centred: bool
    threshold: bool


Config = Mapping[str, Any]
Tensors = Mapping[str, Tensor]


def load(path: str | Path) -> Dictionary:
    """Reads a dictionary from a folder or a file.

    Raises BadInput for what holds none, or one that does more than a `Dictionary` does.
    """
    file, form = _find_dictionary_file(expand_path(path))
    with refuse(f"path: {file.name} cannot be read", path, "write it again"):
        given = _load_npz_tensors(file) if file.suffix == ".npz" else safetensors.torch.load_file(file)
    tensors = {name: x.float() for name, x in given.items()}
    for name in GATED:
        if name in tensors:
            raise BadInput(f"path: a gated dictionary cannot be read, got {name} in {file.name}; use another")
    for name, x in tensors.items():
        if not bool(x.isfinite().all()):
            raise BadInput(f"path: not finite, got {name} in {file.name}; write it again")
    return _build_dictionary(
        tensors, form(_read_dictionary_config(file.parent / CONFIG) if form in CONFIGURED else {}, tensors)
    )


def _find_dictionary_file(place: Path) -> "tuple[Path, Callable[[Config, Tensors], Form]]":
    """Finds the file that holds the tensors, and what says how they are used."""
    if place.is_file():
        return place, FILES.get(place.name, _guess_form)
    for name, form in FILES.items():
        if (place / name).is_file():
            return place / name, form
    pickled = "; save the tensors of ae.pt as ae.safetensors" if (place / "ae.pt").is_file() else ""
    raise BadInput(f"path: no dictionary in the folder, got '{place}'; name one with {', '.join(FILES)}{pickled}")


def _build_dictionary(tensors: Tensors, form: Form) -> Dictionary:
    made = {name: _find(tensors, others) for name, others in NAMES.items()}
    encoder, decoder = made.pop("W_enc"), made.pop("W_dec")
    if encoder is None or decoder is None or decoder.ndim != 2 or encoder.shape != decoder.T.shape:
        shapes = {name: tuple(x.shape) for name, x in tensors.items()}
        raise BadInput(f"path: W_enc (d, m) and W_dec (m, d) are needed, got {shapes}; write it again")
    width, features = decoder.shape
    vectors = {}
    for name, x in made.items():
        size = features if name == "b_dec" else width
        x = torch.zeros(size) if x is None or (name == "threshold" and not form.threshold) else x
        vectors[name] = x.expand(size).clone() if x.ndim == 0 else x
        if vectors[name].shape != (size,):
            raise BadInput(f"path: {name} has {size} numbers, got {tuple(x.shape)}; write it again")
    if form.k is not None and not 0 < form.k <= width:
        raise BadInput(f"path: k is from 1 to {width}, got {form.k or 'none'}; write it again")
    encoder, decoder = encoder.contiguous(), decoder.contiguous()
    return Dictionary(encoder, vectors["b_enc"], decoder, vectors["b_dec"], vectors["threshold"], form.k, form.centred)


def _load_npz_tensors(file: Path) -> dict[str, Tensor]:
    with zipfile.ZipFile(file):
        pass  # NumPy would take anything else for a pickle
    with np.load(file, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(np.asarray(arrays[name], dtype=np.float32)) for name in arrays.files}


def _read_dictionary_config(file: Path) -> Config:
    if not file.is_file():
        raise BadInput(f"path: no {CONFIG} in the folder, got '{file.parent}'; copy it too")
    try:
        config = read_json(file)
    except Unreadable as error:
        raise BadInput(f"path: {CONFIG} cannot be read, got {error}; write it again") from None
    if not isinstance(config, dict):
        raise BadInput(f"path: {CONFIG} is not a mapping, got {type(config).__name__}; write it again")
    return config


def _find(tensors: Tensors, names: tuple[str, ...]) -> Tensor | None:
    for name in names:
        if name in tensors:
            return tensors[name].T if name in LINEAR else tensors[name]
    return None


def _refuse(config: Config, plain: Mapping[str, Any]) -> None:
    """Raises BadInput where a setting asks for more than a `Dictionary` does."""
    for key, value in plain.items():
        if config.get(key, value) not in (value, None):
            raise BadInput(f"path: {CONFIG} asks for more than is supported, got {key}={config[key]}; fold it first")


def _read_integer(value: Any) -> int | None:
    """An integer that JSON or a tensor may hold; 0 where it holds another value, which `load` refuses."""
    if value is None or isinstance(value, bool):
        return None
    return int(value) if float(value).is_integer() else 0


def _saelens(config: Config, tensors: Tensors) -> Form:
    kind = config.get("architecture", "standard")
    if kind not in ARCHITECTURES:
        raise BadInput(f"path: unknown architecture of a dictionary, got {kind!r}; use {', '.join(ARCHITECTURES)}")
    _refuse(config, {"normalize_activations": "none", "rescale_acts_by_decoder_norm": False})
    k = (_read_integer(config.get("k")) or 0) if kind == "topk" else None
    return Form(k, bool(config.get("apply_b_dec_to_input", True)), kind == "jumprelu")


def _sparsify(config: Config, tensors: Tensors) -> Form:
    _refuse(config, {"activation": "topk", "transcode": False, "skip_connection": False})
    return Form(_read_integer(config.get("k")) or 0, True, False)


def _gemma_scope(config: Config, tensors: Tensors) -> Form:
    return Form(None, False, True)


def _guess_form(config: Config, tensors: Tensors) -> Form:
    """Guesses the form from the tensors, for dictionary_learning and for files without a config. The threshold of a
    BatchTopK comes with its k, that of a JumpReLU alone. A JumpReLU takes rows as they are (not centred), and so does
    a dictionary whose decoder has a bias of its own."""
    k, threshold = tensors.get("k"), tensors.get("threshold")
    learned = threshold is not None and bool((threshold >= 0).all())  # -1: it was never set
    centred = "decoder.bias" not in tensors and (k is not None or threshold is None)
    return Form(None if learned or k is None else _read_integer(k.item()), centred, learned)


FILES: Mapping[str, Callable[[Config, Tensors], Form]] = {
    WEIGHTS: _saelens,
    "sae.safetensors": _sparsify,
    ALONE: _gemma_scope,
    "ae.safetensors": _guess_form,
}
CONFIGURED = (_saelens, _sparsify)
