"""The transformer of the modular-sum studies: two tokens, a and b, that attend to each other; ReLU, no normalisation.

Except for the missing `=` token, it follows the protocol that Gao et al. 2024 cite (Nanda et al. 2023, Zhong et al.
2023): learned positions, biases only in the MLPs, weights drawn with a standard deviation of 1 / sqrt(inputs).
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import safetensors.torch
import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from repsim_cli.base.registry import models
from repsim_cli.base.settings import Modulus
from repsim_cli.data.files import read_json_file
from repsim_cli.data.modular import Numbers, list_number_pairs
from repsim_cli.models.architectures import MODULAR
from repsim_cli.models.checkpoints import hash_files
from repsim_cli.models.loading import WHOLE, place_model
from repsim_cli.models.source import Precomputed, Source

CONFIG, WEIGHTS = "config.json", "model.safetensors"


@dataclass(frozen=True, kw_only=True)
class ModularShape:
    """numbers: how many values a and b have. outputs: the number of classes of each head, by name."""

    numbers: int
    blocks: int
    outputs: dict[str, int]
    width: int = 128
    heads: int = 4
    mlp: int = 512


class PairAttention(nn.Module):
    """Both tokens attend to both; scores and pattern pass through modules, so that hooks can read them."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.scores, self.pattern = nn.Identity(), nn.Identity()

    def forward(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b s d"]:
        # sums of products, (query, key, head): faster than thousands of matrix products of two by two
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)) for part in (self.q, self.k, self.v))
        scores = self._read(self.scores, (q[:, :, None] * k[:, None]).sum(-1) / q.shape[-1] ** 0.5)
        pattern = self._read(self.pattern, scores.softmax(2))
        return self.out((pattern[..., None] * v[:, None]).sum(2).flatten(2))

    def _read(self, place: nn.Module, x: Float[Tensor, "b q k h"]) -> Float[Tensor, "b q k h"]:
        """Gives x as the module leaves it, which sees it as (batch, head, query, key)."""
        return place(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, mlp: int):
        super().__init__()
        self.attention = PairAttention(width, heads)
        self.mlp_in, self.mlp_out = nn.Linear(width, mlp), nn.Linear(mlp, width)

    def forward(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b s d"]:
        x = x + self.attention(x)
        return x + self.mlp_out(self.mlp_in(x).relu())


class Modular(nn.Module):
    """The heads c1, c2, ... read the stream of token a, the heads b1, b2, ... that of token b."""

    main_input_name = "input_ids"

    def __init__(self, shape: ModularShape):
        super().__init__()
        self.embed = nn.Embedding(shape.numbers, shape.width)
        self.position = nn.Parameter(torch.empty(2, shape.width))
        self.embedded = nn.Identity()
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads, shape.mlp) for _ in range(shape.blocks))
        self.heads = nn.ModuleDict(
            {name: nn.Linear(shape.width, classes, bias=False) for name, classes in shape.outputs.items()}
        )
        for weights in (self.embed.weight, self.position):
            nn.init.normal_(weights, std=shape.width**-0.5)
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=part.in_features**-0.5)
                if part.bias is not None:
                    nn.init.zeros_(part.bias)

    def stream(self, input_ids: Int[Tensor, "b 2"], blocks: int | None = None) -> Float[Tensor, "b 2 d"]:
        """The residual stream after the first `blocks` blocks, or after all."""
        x = self.embedded(self.embed(input_ids) + self.position)
        for block in self.blocks[:blocks]:
            x = block(x)
        return x

    def forward(self, input_ids: Int[Tensor, "b 2"], attention_mask: Tensor | None = None) -> Float[Tensor, "b 2 d"]:
        return self.stream(input_ids)

    def read(self, name: str, stream: Float[Tensor, "b 2 d"]) -> Float[Tensor, "b c"]:
        """The logits of a head."""
        return self.heads[name](stream[:, int(name.startswith("b"))])


def save(model: Modular, shape: ModularShape, folder: Path) -> None:
    """Writes the model in the format that `load` reads."""
    state = {name: weights.detach().contiguous() for name, weights in model.state_dict().items()}
    safetensors.torch.save_file(state, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps({"model_type": "modular", **asdict(shape)}, indent=1) + "\n")


def load(folder: Path) -> Modular:
    settings = read_json_file(folder / CONFIG)
    model = Modular(ModularShape(**{key: value for key, value in settings.items() if key != "model_type"}))
    model.load_state_dict(safetensors.torch.load_file(folder / WEIGHTS))
    return model.eval().requires_grad_(False)


def make_modular_source(shape: ModularShape, folder: Callable[[], Path], **more: Any) -> Source:
    """The Source of the model in `folder()`, which need not exist before it is loaded."""
    with torch.device("meta"):
        skeleton = Modular(shape)
    return Source(
        layers=shape.blocks,
        heads=shape.heads,
        kv_heads=shape.heads,
        width=shape.width,
        context=2,
        parameters=sum(weights.numel() for weights in skeleton.parameters()),
        vocabulary=shape.numbers,
        architecture=MODULAR,
        model_type="modular",
        build=lambda: skeleton,
        tokenizer=lambda: Numbers(shape.numbers),
        load=lambda eager, how=WHOLE: place_model(load(folder()), how),
        identity=lambda: {"source": str(folder()), "weights_hash": hash_files([folder() / WEIGHTS])},
        head_width=shape.width // shape.heads,
        modality="numbers",
        **more,
    )


def chain(a: Int[Tensor, " n"], b: Int[Tensor, " n"], moduli: Sequence[int]) -> list[Int[Tensor, " n"]]:
    """c1 = (a + b) mod p1, c2 = (c1 + b) mod p2, ...

    >>> [c.tolist() for c in chain(torch.tensor([58]), torch.tensor([3]), [59, 31, 17])]
    [[2], [5], [8]]
    """
    sums, last = [], a
    for modulus in moduli:
        last = (last + b) % modulus
        sums.append(last)
    return sums


@models.register("modular_targets")
def modular_targets(
    *, moduli: Annotated[list[Modulus], Field(min_length=1)], coding: Literal["one_hot", "scalar"] = "one_hot"
) -> Precomputed:
    """The sums of the task `modular` as stored representations c1, c2, ... of all pairs (a, b), to compare models with.

    c1 = (a + b) mod p1, c2 = (c1 + b) mod p2, c3 = (c2 + b) mod p3 ...

    moduli: p1, p2, ...; a and b are whole numbers below p1.
    coding: `one_hot`: a feature per class; `scalar`: the number itself.
    """
    a, b = torch.from_numpy(list_number_pairs(moduli[0])).unbind(1)
    features = {}
    for k, (modulus, c) in enumerate(zip(moduli, chain(a, b, moduli), strict=True), 1):
        features[f"c{k}"] = nn.functional.one_hot(c, modulus).float() if coding == "one_hot" else c[:, None].float()
    about = f"sums modulo {', '.join(map(str, moduli))}, {coding}"
    return Precomputed(
        names=list(features),
        rows=len(a),
        widths=[x.shape[1] for x in features.values()],
        read=lambda name, rows: features[name][rows],
        identity=lambda: {"source": about, "weights_hash": about},
    )
