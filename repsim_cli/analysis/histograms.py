"""Distances among the rows of each layer: their histograms in bins that the layers of a model share, and how far the
distribution moves from one layer to the next (Gao et al. 2024, figures 2 and 11)."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.errors import Degenerate
from repsim_cli.measures.base import FLAT, centred
from repsim_cli.measures.rdm import distance_rows

DistanceScale = Literal["none", "mean"]
Counts = Int[np.ndarray, " bins"]

PSEUDO = 0.5  # distances added to every bin before two histograms are compared


class Spread(NamedTuple):
    """Over all pairs of rows i < j: mean, standard deviation and largest of the Euclidean distances."""

    mean: float
    deviation: float
    largest: float


def apart(x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n d"], float]:
    """Rows in float64, centred and of mean squared norm 1, and the scale removed. Raises Degenerate where all rows are
    equal, but for rounding."""
    unit, scale = centred(x.double())
    if scale <= FLAT * float(x.abs().max()):
        raise Degenerate(
            f"all rows are equal but for rounding, got a spread of {scale:.2g}; drop this layer or change the data"
        )
    return unit, scale


def distances(x: Float[Tensor, "n d"]) -> Iterator[Float[np.ndarray, " cells"]]:
    """Euclidean distances of all rows i < j, float64, a block of rows at a time."""
    unit, scale = apart(x)
    for _, squared in distance_rows(unit):
        rows, columns = np.triu_indices(len(squared), 1, squared.shape[1])
        yield squared.sqrt_().mul_(scale).cpu().numpy()[rows, columns]


def spread(x: Float[Tensor, "n d"]) -> Spread:
    total = squares = largest = 0.0
    cells = len(x) * (len(x) - 1) // 2
    for block in distances(x):
        total, squares = total + float(block.sum()), squares + float(block @ block)
        largest = max(largest, float(block.max(initial=0.0)))
    mean = total / cells
    return Spread(mean, max(0.0, squares / cells - mean**2) ** 0.5, largest)


class Histograms(NamedTuple):
    """Of the layers of one model: bin b of each counts distances from edges[b] to edges[b + 1], the last one both."""

    edges: Float[np.ndarray, " edges"]
    counts: Int[np.ndarray, "layers bins"]


def histograms(
    layers: Sequence[Float[Tensor, "n _"]], spreads: Sequence[Spread], *, bins: int, scale: DistanceScale
) -> Histograms:
    """How many of the n (n - 1) / 2 distances of each layer fall into each of `bins` equal bins from 0 to the largest
    distance of any layer. spreads: of the layers. scale: distances as they are (`none`), or over the mean of their
    layer (`mean`)."""
    units = [found.mean if scale == "mean" else 1.0 for found in spreads]
    top = max(found.largest / unit for found, unit in zip(spreads, units, strict=True))
    counts = np.zeros((len(layers), bins), int)
    for own, x, unit in zip(counts, layers, units, strict=True):
        for block in distances(x):
            # rounding may leave the largest distance above the last edge
            own += np.histogram((block / unit).clip(max=top), bins, (0, top))[0]
    return Histograms(np.linspace(0, top, bins + 1), counts)


def divergence(a: Counts, b: Counts) -> float:
    """KL(a || b) = sum p log(p / q) in nats, of two histograms in the same bins, where p and q are the shares of the
    bins after half a distance is added to each: no bin is empty, and equal histograms are at 0.

    Shares 0.7, 0.3 and 0.3, 0.7 are 0.4 log(7 / 3) apart:

    >>> round(divergence(np.array([3, 1]), np.array([1, 3])), 6)
    0.338919
    """
    p, q = ((one + PSEUDO) / (one + PSEUDO).sum() for one in (a, b))
    return max(0.0, float(np.sum(p * np.log(p / q))))
