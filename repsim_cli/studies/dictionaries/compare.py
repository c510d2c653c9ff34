"""Sparse dictionaries against each other: shared directions, spaces of paired features, and cross-reconstruction."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from repsim_cli import measures
from repsim_cli.studies.dictionaries.formats import Dictionary

MEASURES = ("svcca", "rsa")  # of paired decoder rows
BLOCK = 4096  # rows that are encoded at a time
LEAST_PAIRS = 4
LARGE = 0.1  # share of the variance of an axis that is not mirrored


class Quality(NamedTuple):
    """explained: share of the variance of the rows. active: latents per row. alive: latents that are active on any
    row."""

    explained: float
    active: float
    alive: Bool[np.ndarray, " m"]


def encode_in_blocks(dictionary: Dictionary, x: Float[Tensor, "n d"]) -> Float[Tensor, "n m"]:
    return torch.cat([dictionary.encode(part) for part in x.split(BLOCK)])


def compute_explained_variance(
    x: Float[Tensor, "n d"], predicted: Float[Tensor, "n d"], centre: Float[Tensor, " d"]
) -> float:
    """The share of the squared distance to `centre` that a prediction removes; below 0 where it is worse."""
    return 1 - float((x - predicted).double().square().sum() / (x - centre).double().square().sum())


def measure_dictionary_quality(
    dictionary: Dictionary, x: Float[Tensor, "n d"], held_out: Float[Tensor, "k d"]
) -> Quality:
    """Measures a dictionary on held-out rows. A latent is alive if it is active on any row, held out or trained on."""
    code = encode_in_blocks(dictionary, held_out)
    alive = (code > 0).any(0) | torch.stack([(dictionary.encode(part) > 0).any(0) for part in x.split(BLOCK)]).any(0)
    return Quality(
        compute_explained_variance(held_out, dictionary.decode(code), x.mean(0)),
        float((code > 0).sum(1).double().mean()),
        alive.cpu().numpy(),
    )


# ---- shared latents ----


class Matched(NamedTuple):
    """Latents of two dictionaries matched one to one by the cosine of their directions, for each of the latents of the
    smaller one: the cosines by decoder and by encoder, and whether both matchings agree."""

    decoder: Float[np.ndarray, " m"]
    encoder: Float[np.ndarray, " m"]
    agree: Bool[np.ndarray, " m"]


def compute_cosines(a: Float[Tensor, "m d"], b: Float[Tensor, "l d"], absolute: bool) -> Float[np.ndarray, "m l"]:
    a, b = (x.double() / x.double().norm(dim=1, keepdim=True).clamp_min(1e-30) for x in (a, b))
    values = (a @ b.T).cpu().numpy()
    return np.abs(values) if absolute else values


def match_one_to_one(values: Float[np.ndarray, "m l"]) -> tuple[Int[np.ndarray, " p"], Int[np.ndarray, " p"]]:
    """The matching of largest sum (Hungarian algorithm)."""
    rows, columns = scipy.optimize.linear_sum_assignment(values, maximize=True)
    return rows, columns


def match_latents(
    a: Mapping[str, Float[Tensor, "m d"]], b: Mapping[str, Float[Tensor, "l d"]], absolute: bool
) -> Matched:
    """Matches the latents of two dictionaries, once by decoder and once by encoder. a, b: directions of both kinds."""
    if len(a["decoder"]) > len(b["decoder"]):
        a, b = b, a
    values = {side: compute_cosines(a[side], b[side], absolute) for side in ("decoder", "encoder")}
    partners = {side: match_one_to_one(cosine) for side, cosine in values.items()}
    decoder, encoder = (values[side][partners[side]] for side in ("decoder", "encoder"))
    return Matched(decoder, encoder, partners["decoder"][1] == partners["encoder"][1])


def take_alive_directions(dictionary: Dictionary, alive: Bool[np.ndarray, " m"]) -> dict[str, Tensor]:
    kept = torch.from_numpy(alive).to(dictionary.decoder.device)
    return {"decoder": dictionary.decoder[kept], "encoder": dictionary.encoder.T[kept]}


def draw_mirrored(
    directions: Mapping[str, Float[Tensor, "m d"]], rows: Float[Tensor, "n d"], count: int, seed: int
) -> Iterator[dict[str, Float[Tensor, "m d"]]]:
    """Draws, `count` times, the directions that a dictionary of unrelated rows of the same covariance may have:
    mirrored, all together, in principal axes of the rows that are chosen at random.

    Dictionaries follow large axes whatever else the rows hold, and mirrored ones keep that. An axis with a tenth of the
    variance or more, such as a massive feature, is never mirrored: its sign is known from the covariance and the mean.
    """
    centred = (rows - rows.mean(0)).double()
    variances, axes = torch.linalg.eigh(centred.T @ centred)
    large = variances >= LARGE * variances.sum()
    made = torch.Generator().manual_seed(seed)
    for _ in range(count):
        signs = 1.0 - 2.0 * torch.randint(0, 2, large.shape, generator=made).double().to(rows.device)
        mirror = (axes * torch.where(large, 1.0, signs)) @ axes.T
        yield {side: x.double() @ mirror for side, x in directions.items()}


# ---- spaces of paired features ----


class Spaces(NamedTuple):
    """pairs: of features, by activation correlation. correlation: its mean over them. By measure: its value, and those
    under random pairings of the rows."""

    pairs: int
    correlation: float
    values: dict[str, float]
    null: dict[str, Float[np.ndarray, " k"]]


def correlate(a: Float[Tensor, "n m"], b: Float[Tensor, "n l"]) -> Float[np.ndarray, "m l"]:
    """Pearson correlations of all latents; 0 with a latent that never varies."""

    def standardise(x: Tensor) -> Tensor:
        x = x - x.mean(0)
        return x / x.norm(dim=0).clamp_min(1e-20)

    return (standardise(a).T @ standardise(b)).double().cpu().numpy()


def compare_feature_spaces(
    codes: tuple[Tensor, Tensor],
    decoders: tuple[Tensor, Tensor],
    *,
    least: float,
    orders: Sequence[Int[np.ndarray, " n"]],
) -> Spaces | None:
    """Features paired one to one by the correlation of their activations, of those at least `least`; the similarity of
    the paired decoder rows, and that under random pairings of the rows. None where fewer than four pairs are left.

    Features that correlate by chance have decoder rows that follow the same chance, so that random pairings of features
    are not a null: under each order of the rows of the second model features are paired anew, and as many pairs
    are kept.

    orders: of the rows of the second model.
    """

    def pair(order: Int[np.ndarray, " n"] | None, count: int | None) -> tuple[float, np.ndarray, np.ndarray]:
        values = correlate(codes[0], codes[1] if order is None else codes[1][torch.from_numpy(order)])
        rows, columns = match_one_to_one(values)
        found = values[rows, columns]
        kept = np.argsort(-found, kind="stable")[: int((found >= least).sum()) if count is None else count]
        return float(found[kept].mean()) if len(kept) else 0.0, rows[kept], columns[kept]

    def measure(rows: np.ndarray, columns: np.ndarray) -> dict[str, float]:
        x, y = decoders[0][torch.from_numpy(rows)].cpu(), decoders[1][torch.from_numpy(columns)].cpu()
        return {name: bound(x, y) for name, bound in bounds.items()}

    correlation, *paired = pair(None, None)
    count = len(paired[0])
    if count < LEAST_PAIRS:
        return None
    bounds = {name: measures.get(name) for name in MEASURES}
    values, null = measure(*paired), [measure(*pair(order, count)[1:]) for order in orders]
    return Spaces(count, correlation, values, {name: np.array([each[name] for each in null]) for name in MEASURES})


# ---- cross-reconstruction ----


def cross_reconstruction(
    dictionaries: Sequence[Dictionary], rows: Sequence[Tensor], held_out: Sequence[Tensor]
) -> Float[np.ndarray, "models models"]:
    """R^2 of the held-out rows of each model (column) from the code of each model (row)."""
    codes = [encode_in_blocks(dictionary, x) for dictionary, x in zip(dictionaries, held_out, strict=True)]
    return np.array(
        [
            [
                compute_explained_variance(y, dictionary.decode(code), x.mean(0))
                for dictionary, x, y in zip(dictionaries, rows, held_out, strict=True)
            ]
            for code in codes
        ]
    )


def score_linear_maps(rows: Sequence[Tensor], held_out: Sequence[Tensor]) -> Float[np.ndarray, "models models"]:
    """R^2 of the held-out rows of each model (column) from the best affine map of those of each model (row)."""
    centres = [x.double().mean(0) for x in rows]
    values = np.ones((len(rows), len(rows)))
    for i, x in enumerate(rows):
        inverse = torch.linalg.pinv(x.double() - centres[i])
        for j, y in enumerate(rows):
            if i != j:
                predicted = (held_out[i].double() - centres[i]) @ (inverse @ (y.double() - centres[j])) + centres[j]
                values[i, j] = compute_explained_variance(held_out[j].double(), predicted, centres[j])
    return values
