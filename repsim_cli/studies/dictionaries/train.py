"""Sparse dictionaries of a layer: BatchTopK autoencoders, trained when they are first needed.

Source: Bussmann, Leask, Nanda, BatchTopK Sparse Autoencoders, 2024 (arXiv 2412.06410): of all latents of a batch the
largest k per row stay, on average; dead latents are trained to reconstruct what is left; at inference a threshold
stands for the batch. The dictionary of several models (Thasarathan et al., Universal Sparse Autoencoders, 2025, arXiv
2502.03714) has an encoder and a decoder for each and one code for all: each step encodes the rows of one model, drawn
at random, and decodes them into all.

Ours: rows are centred, and divided by one number per model so that features have variance 1 on average; the norm of a
latent's decoder directions, over all models together, is 1; the threshold is the one by which k latents are active per
training row; all seeds see the same batches.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Above0, From0, Medium, Positive
from repsim_cli.runs.reader import STATE
from repsim_cli.runs.results import Progress
from repsim_cli.studies.dictionaries.formats import Dictionary, save
from repsim_cli.training.loop import Along, Pace, train
from repsim_cli.training.trained import Metrics, Trained

CODE = 1  # raise when a change of the code changes what is trained (tests/test_codes.py)
ORDER = 0  # the seed of the batches
LEAST = 1e-8  # of a residual's mean square
THRESHOLD_ROWS = 8192  # training rows from which the threshold is taken, at most


@dataclass(frozen=True, kw_only=True)
class DictionaryRecipe:
    """How a dictionary is trained: Adam, at a constant rate that falls to zero over the last fifth of the steps.

    width: latents.
    k: active latents per row, on average over a batch.
    steps: how many steps of training.
    batch_size: rows per step, drawn with replacement.
    learning_rate: the rate before it falls.
    auxiliary: the weight of the loss by which dead latents learn what the others leave.
    dead_after: the steps without activity after which a latent is dead.
    """

    width: Annotated[int, Field(ge=2, le=2**20)] = 512
    k: Positive = 16
    steps: Positive = 1000
    batch_size: Medium = 512
    learning_rate: Above0 = 2e-3
    auxiliary: From0 = 1 / 32
    dead_after: Positive = 50

    def __post_init__(self) -> None:
        if self.k > self.width:
            raise BadInput(f"k: more active latents than there are, got {self.k} of {self.width}; lower k")

    def rate(self, step: int) -> float:
        return self.learning_rate * min(1.0, (self.steps - step) / max(1, self.steps // 5))


class Autoencoder(nn.Module):
    """Encoders and decoders of one or several models with one code. What is not a weight (`idle`: steps since a latent
    was active) is a parameter without gradient, so that it is saved with the weights."""

    def __init__(self, features: Sequence[int], width: int, seed: int):
        super().__init__()
        made = torch.Generator().manual_seed(seed)
        directions = [torch.randn(width, d, generator=made) / d**0.5 for d in features]
        self.decoders = nn.ParameterList(directions)
        unit = F.normalize(torch.cat(directions, 1), dim=1).split(list(features), 1)
        self.encoders = nn.ParameterList(x.T.clone() for x in unit)
        self.encoder_biases = nn.ParameterList(torch.zeros(width) for _ in features)
        self.biases = nn.ParameterList(torch.zeros(d) for d in features)
        self.idle = nn.Parameter(torch.zeros(width), requires_grad=False)

    def directions(self) -> list[Tensor]:
        """The decoder directions of every model, (m, d) each; a latent's have norm 1 over all models together."""
        norms = torch.stack([x.square().sum(1) for x in self.decoders]).sum(0).sqrt()
        return [x / norms[:, None] for x in self.decoders]

    def encode(self, x: Float[Tensor, "n d"], model: int) -> Float[Tensor, "n m"]:
        return F.relu((x - self.biases[model]) @ self.encoders[model] + self.encoder_biases[model])


def keep_largest(values: Float[Tensor, "n m"], k: int) -> Float[Tensor, "n m"]:
    """The k largest values per row, on average over the batch; the others are 0."""
    least = values.flatten().topk(min(k * len(values), values.numel()), sorted=False).values.min()
    return torch.where(values >= least, values, 0.0)


def compute_dictionary_loss(
    autoencoder: Autoencoder, recipe: DictionaryRecipe, rows: Sequence[Tensor], step: int, draw: np.random.Generator
) -> Tensor:
    """The share of variance that is not explained, summed over models, and the auxiliary loss of dead latents."""
    chosen = torch.from_numpy(draw.integers(len(rows[0]), size=recipe.batch_size)).to(rows[0].device)
    batch, source = [x[chosen] for x in rows], int(draw.integers(len(rows)))
    values = autoencoder.encode(batch[source], source)
    code, directions = keep_largest(values, recipe.k), autoencoder.directions()
    left = [x - code @ decoder - bias for x, decoder, bias in zip(batch, directions, autoencoder.biases, strict=True)]
    loss = torch.stack([x.square().mean() for x in left]).sum()
    with torch.no_grad():
        autoencoder.idle.add_(1).mul_(~(code > 0).any(0))
        dead = autoencoder.idle > recipe.dead_after
    count = int(dead.sum())
    if count and recipe.auxiliary:
        best = values[:, dead].topk(min(count, max(1, batch[source].shape[1] // 2)), dim=1)
        of_dead = torch.zeros_like(values[:, dead]).scatter(1, best.indices, best.values)
        further = [
            (x.detach() - of_dead @ decoder[dead]).square().mean() / x.detach().square().mean().clamp_min(LEAST)
            for x, decoder in zip(left, directions, strict=True)
        ]
        loss = loss + recipe.auxiliary * torch.stack(further).sum()
    return loss


def train_dictionary(
    rows: Sequence[Float[Tensor, "n _"]], recipe: DictionaryRecipe, *, seed: int, digest: str
) -> Trained:
    """A dictionary of the rows of one model, or of the same rows of several: a folder per model, by its number.

    seed: of the first weights. digest: of the rows.
    """
    parts = {"code": CODE, "dictionary of": digest, "seed": seed, **asdict(recipe)}
    return Trained(parts, partial(_fit, rows, recipe, seed))


def list_model_folders(trained: Trained, models: int) -> list[Path]:
    return [trained.folder() / str(model) for model in range(models)]


def _fit(
    rows: Sequence[Tensor], recipe: DictionaryRecipe, seed: int, folder: Path, scratch: Path, progress: Progress
) -> Metrics:
    centres = [x.mean(0) for x in rows]
    scales = [
        float((x - centre).square().mean().sqrt().clamp_min(1e-30)) for x, centre in zip(rows, centres, strict=True)
    ]
    scaled = [(x - centre) / scale for x, centre, scale in zip(rows, centres, scales, strict=True)]
    autoencoder = Autoencoder([x.shape[1] for x in rows], recipe.width, seed).to(rows[0].device)
    weights = [x for x in autoencoder.parameters() if x.requires_grad]
    losses = train(
        autoencoder,
        torch.optim.Adam(weights, lr=recipe.learning_rate),
        partial(compute_dictionary_loss, autoencoder, recipe, scaled),
        pace=Pace(progress(range(recipe.steps), label="dictionary", unit="steps"), recipe.rate, 1.0),
        seed=ORDER,
        along=Along(state=scratch / STATE),
    )
    last = list(losses)[-1]
    alone = len(rows) == 1
    with torch.no_grad():
        for model, directions in enumerate(autoencoder.directions()):
            kept = keep_largest(autoencoder.encode(scaled[model][:THRESHOLD_ROWS], model), recipe.k)
            active = kept[kept > 0]
            threshold = float(active.min()) * (1 - 1e-6) if len(active) else 0.0  # the least of them is active too
            # of one model, the code has the scale of its rows, and directions have norm 1
            scale, code = scales[model], scales[model] if alone else 1.0
            made = Dictionary(
                encoder=autoencoder.encoders[model] * (code / scale),
                encoder_bias=autoencoder.encoder_biases[model] * code,
                decoder=directions * (scale / code),
                bias=centres[model] + scale * autoencoder.biases[model],
                threshold=torch.full((recipe.width,), threshold * code),
            )
            save(made, folder / str(model))
    return {"training_loss": last}
