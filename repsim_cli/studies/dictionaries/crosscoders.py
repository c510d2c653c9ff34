"""Crosscoders, and the files that hold them: one code for the rows of several models or layers.

A folder has one file of tensors (`*.safetensors`), or the path names it. What they are is seen by their names
(`LAYOUTS`): those of Kissane et al. and Nanda, of dictionary_learning, and of Language-Model-SAEs (OpenMOSS).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.torch
import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.base.documents import Unreadable, read_json
from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import expand_path, refuse

CONFIGS = ("config.json", "cfg.json")
# of the largest decoder norm: below for all others, above for all; relative norms of 0.1 and 0.4 of Minder et al. 2025
ALONE, ALL = 0.2, 0.8
BETWEEN = -2
OF_ALL = -1


class Layout(NamedTuple):
    """Names the tensors beside the encoders (s, d, m). order: of the decoder's axes as sides, latents, features."""

    encoder_bias: str
    decoder: str
    bias: str
    order: tuple[int, int, int]


LAYOUTS = {
    "W_enc": Layout("b_enc", "W_dec", "b_dec", (1, 0, 2)),
    "encoder.weight": Layout("encoder.bias", "decoder.weight", "decoder.bias", (0, 1, 2)),
    "W_E": Layout("b_E", "W_D", "b_D", (0, 1, 2)),
}
PLAIN = {"act_fn": "relu", "norm_activation": "inference"}  # of OpenMOSS: what is read
SUMMED, JOINED, UNSCALED = 1, 2, 4  # code_normalization_id of dictionary_learning


@dataclass(frozen=True)
class Crosscoder:
    """Reads s sides of d features as m latents, and says each from them. threshold: a code times `scale` is active
    above it."""

    encoder: Float[Tensor, "s d m"]
    encoder_bias: Float[Tensor, " m"]
    decoder: Float[Tensor, "s m d"]
    bias: Float[Tensor, "s d"]
    threshold: float | Float[Tensor, " m"] = 0.0
    scale: Float[Tensor, " m"] | None = None

    @property
    def sides(self) -> int:
        return len(self.encoder)

    @property
    def width(self) -> int:
        return self.encoder.shape[2]

    @property
    def norms(self) -> Float[np.ndarray, "m s"]:
        """The decoder norm of every latent on every side."""
        return self.decoder.norm(dim=2).T.double().numpy()

    def encode(self, rows: Sequence[Float[Tensor, "n d"]]) -> Float[Tensor, "n m"]:
        parts = [x @ part for x, part in zip(rows, self.encoder, strict=True)]
        code = (torch.stack(parts).sum(0) + self.encoder_bias).clamp_min(0)
        if self.scale is None:
            return code
        return torch.where(code * self.scale > self.threshold, code, 0.0)

    def decode(self, code: Float[Tensor, "n m"]) -> list[Float[Tensor, "n d"]]:
        return [code @ part + bias for part, bias in zip(self.decoder, self.bias, strict=True)]


def tell_whose(norms: Float[np.ndarray, "m s"]) -> np.ndarray:
    """Tells for each latent the number of the side it is of alone, where its decoder norm on all others is at most a
    fifth of that; OF_ALL where all are at least four fifths of the largest; else BETWEEN.

    >>> tell_whose(np.array([[1.0, 0.1], [0.0, 2.0], [1.0, 0.9], [1.0, 0.5]])).tolist()
    [0, 1, -1, -2]
    """
    shares = norms / np.maximum(norms.max(1, keepdims=True), np.finfo(float).tiny)
    alone = (shares <= ALONE).sum(1) == norms.shape[1] - 1
    of_all = (shares >= ALL).all(1)
    return np.where(alone, norms.argmax(1), np.where(of_all, OF_ALL, BETWEEN))


def load(path: str | Path) -> Crosscoder:
    """Reads a crosscoder from a folder or a file.

    Raises BadInput for what holds none, or one that does more than a `Crosscoder` does.
    """
    file = _find_crosscoder_file(expand_path(path))
    with refuse(f"path: {file.name} cannot be read", path, "write it again"):
        tensors = {name: x.float() for name, x in safetensors.torch.load_file(file).items()}
    name = next((name for name in LAYOUTS if name in tensors), None)
    if name is None or tensors[name].ndim != 3:
        shapes = {key: tuple(x.shape) for key, x in tensors.items()}
        raise BadInput(f"path: encoders (sides, features, latents) are needed ({', '.join(LAYOUTS)}), got {shapes}")
    for key, x in tensors.items():
        if not bool(x.isfinite().all()):
            raise BadInput(f"path: not finite, got {key} in {file.name}; write it again")
    _refuse(file.parent)
    encoder, layout = tensors[name], LAYOUTS[name]
    sides, features, latents = encoder.shape
    parts = [tensors.get(layout.encoder_bias, torch.zeros(latents)), tensors.get(layout.decoder, torch.zeros(1, 1, 1)),
             tensors.get(layout.bias, torch.zeros(sides, features))]  # fmt: skip
    bias = parts[0].sum(0) if parts[0].ndim == 2 else parts[0]  # one for each side: they are added up
    decoder = parts[1].permute(layout.order).contiguous() if parts[1].ndim == 3 else parts[1]
    wanted = {layout.encoder_bias: (bias, (latents,)), layout.decoder: (decoder, (sides, latents, features)),
              layout.bias: (parts[2], (sides, features))}  # fmt: skip
    for key, (x, shape) in wanted.items():
        if tuple(x.shape) != shape:
            raise BadInput(f"path: {key} does not fit {name}, got {tuple(tensors[key].shape)}; write it again")
    return Crosscoder(encoder.contiguous(), bias, decoder, parts[2], *_read_threshold(tensors, decoder))


def _find_crosscoder_file(place: Path) -> Path:
    if place.is_file():
        return place
    if not place.is_dir():
        raise BadInput(f"path: no such folder or file, got '{place}'; check the path")
    files = sorted(place.glob("*.safetensors"))
    if len(files) != 1:
        pickled = (
            "; save the tensors of the .pt file as .safetensors" if list(place.glob("*.pt")) else "; name the file"
        )
        raise BadInput(f"path: one .safetensors file is needed in the folder, got {len(files)} in '{place}'{pickled}")
    return files[0]


def _refuse(folder: Path) -> None:
    """Raises BadInput where a config asks for more than a `Crosscoder` does."""
    for name in CONFIGS:
        if (folder / name).is_file():
            try:
                config = read_json(folder / name)
            except Unreadable as error:
                raise BadInput(f"path: {name} cannot be read, got {error}; write it again") from None
            for key, value in PLAIN.items() if isinstance(config, dict) else ():
                if config.get(key, value) != value:
                    raise BadInput(
                        f"path: {name} asks for more than is supported, got {key}={config[key]}; fold it first"
                    )


def _read_threshold(tensors: dict[str, Tensor], decoder: Float[Tensor, "s m d"]) -> tuple[float, Tensor | None]:
    """Finds what a BatchTopK crosscoder of dictionary_learning was left with for single rows: a threshold of codes,
    times the decoder norms as its sparsity counted them."""
    if "threshold" not in tensors:
        return 0.0, None
    threshold = tensors["threshold"]
    kind = int(tensors.get("code_normalization_id", torch.tensor(SUMMED)).item())
    if threshold.numel() != 1 or float(threshold) < 0 or kind not in (SUMMED, JOINED, UNSCALED):
        raise BadInput(
            f"path: only one threshold for all latents, on summed, joined or plain norms, can be read, "
            f"got {threshold.tolist()} with code_normalization_id {kind}; set the threshold first"
        )
    norms = decoder.norm(dim=2)
    scale = {SUMMED: norms.sum(0), JOINED: norms.square().sum(0).sqrt(), UNSCALED: torch.ones(decoder.shape[1])}
    return float(threshold), scale[kind]
