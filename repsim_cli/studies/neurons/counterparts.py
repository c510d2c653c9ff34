"""The best counterpart of each neuron of a model among the neurons of another, and the same in a rotated basis.

Source: Gurnee, Horsley, Guo, Kheirkhah, Sun, Hathaway, Nanda, Bertsimas, Universal Neurons in GPT2 Language Models,
2024 (arXiv 2401.12181). Theirs: Pearson correlations over tokens, the largest (not the largest absolute one) over all
neurons of the other model, and the same where each layer of the other model is multiplied by a random matrix. Ours: the
random matrix is orthogonal, and several are drawn.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, permutations
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

TINY = 1e-300
CONSTANT = 1e-12  # share of a neuron's mean square below which its variance is rounding


class CrossMoments:
    """Second moments of the neurons of several models over paired rows: between any two models, and within each layer.

    They add up in float64 over batches, so that memory grows with the square of the neurons and not with the rows.
    widths: of the layers of each model, once a batch is there.
    """

    def __init__(self):
        self.widths: list[list[int]] = []
        self.rows = 0
        self._shift: list[Tensor] = []
        self._total: list[Tensor] = []
        self._within: list[list[Tensor]] = []
        self._across: dict[tuple[int, int], Tensor] = {}

    def add(self, batch: Sequence[Sequence[Float[Tensor, "n _"]]]) -> None:
        """Adds a batch: the same rows of every layer of every model."""
        models = [torch.cat(list(layers), 1).double() for layers in batch]
        if not self.rows:
            self.widths = [[x.shape[1] for x in layers] for layers in batch]
            self._shift = [x.mean(0) for x in models]  # so that the correction for the mean cancels no digits
            self._total = [torch.zeros_like(shift) for shift in self._shift]
            self._within = [[x.new_zeros(d, d) for d in sizes] for x, sizes in zip(models, self.widths, strict=True)]
            self._across = {
                (a, b): models[a].new_zeros(models[a].shape[1], models[b].shape[1])
                for a, b in combinations(range(len(models)), 2)
            }
        for x, shift, total in zip(models, self._shift, self._total, strict=True):
            x -= shift
            total += x.sum(0)
        for x, sizes, squares in zip(models, self.widths, self._within, strict=True):
            for part, square in zip(x.split(sizes, 1), squares, strict=True):
                square.addmm_(part.T, part)
        for (a, b), product in self._across.items():
            product.addmm_(models[a].T, models[b])
        self.rows += len(models[0])

    def compute_across(self, a: int, b: int) -> Iterator[Float[Tensor, "neurons _"]]:
        """Sums of products of the centred neurons of a model with those of each layer of another."""
        product = self._across[a, b] if a < b else self._across[b, a].T
        totals = self._total[b].split(self.widths[b])
        for part, total in zip(product.split(self.widths[b], 1), totals, strict=True):
            yield part - torch.outer(self._total[a], total) / self.rows

    def compute_within(self, model: int) -> list[Float[Tensor, "_ _"]]:
        """Sums of products of the centred neurons of each layer."""
        totals = self._total[model].split(self.widths[model])
        return [x - torch.outer(t, t) / self.rows for x, t in zip(self._within[model], totals, strict=True)]

    def lengths(self, model: int) -> tuple[Float[Tensor, " neurons"], Bool[Tensor, " neurons"]]:
        """The norm of every centred neuron, and whether it varies."""
        squares = torch.cat([x.diagonal() for x in self.compute_within(model)]).clamp_min(0)
        mean = self._shift[model] + self._total[model] / self.rows
        return squares.sqrt(), squares > CONSTANT * (squares + self.rows * mean.square())


class NeuronCounterparts(NamedTuple):
    """Of every neuron of a model, its best counterpart in another.

    correlation: with it. neuron: its number among all neurons of the other model. rotated: the largest correlation with
    a neuron of the other model in each rotated basis. Where a neuron does not vary, all are 0.
    """

    correlation: Float[np.ndarray, " neurons"]
    neuron: Int[np.ndarray, " neurons"]
    rotated: Float[np.ndarray, "rotations neurons"]


def draw_rotation(width: int, draw: Sequence[int]) -> Float[np.ndarray, "width width"]:
    """A random orthogonal matrix, uniformly distributed. draw: the seed."""
    q, r = np.linalg.qr(np.random.default_rng(draw).standard_normal((width, width)))
    return q * np.sign(r.diagonal())


def find_counterparts(
    moments: CrossMoments,
    *,
    rotations: int,
    seed: int,
    absolute: bool = False,
    progress: Callable[[Sequence[int]], Iterator[int]] = iter,
) -> dict[tuple[int, int], NeuronCounterparts]:
    """Finds for every ordered pair of models the counterparts of the neurons of the first in the second, by their
    numbers. absolute: by absolute correlation."""
    models = range(len(moments.widths))
    lengths, varying = zip(*(moments.lengths(model) for model in models), strict=True)

    def find_best_matches(model: int, other: int) -> NeuronCounterparts:
        scale = torch.where(varying[model], 1 / lengths[model].clamp_min(TINY), 0.0)
        best, neuron = torch.full_like(scale, -1.0), torch.zeros_like(scale, dtype=torch.long)
        rotated = best.repeat(rotations, 1)
        first = 0
        for layer, (products, square) in enumerate(
            zip(moments.compute_across(model, other), moments.compute_within(other), strict=True)
        ):
            products, span = products * scale[:, None], slice(first, first + len(square))
            correlations = torch.where(varying[other][span], products / lengths[other][span].clamp_min(TINY), 0.0)
            first = span.stop
            largest, place = _convert_to_strengths(correlations, absolute).max(1)
            neuron = torch.where(largest > best, span.start + place, neuron)
            best = best.maximum(largest)
            for draw in range(rotations):
                q = torch.from_numpy(draw_rotation(len(square), [seed, draw, other, layer])).to(square)
                norms = (q * (square @ q)).sum(0).clamp_min(0).sqrt()
                turned = torch.where(norms > 0, products @ q / norms.clamp_min(TINY), 0.0)
                rotated[draw] = rotated[draw].maximum(_convert_to_strengths(turned, absolute).amax(1))
        values = (best.clamp(max=1), neuron, rotated.clamp(max=1))
        return NeuronCounterparts(*(x.cpu().numpy() for x in values))

    pairs = list(permutations(models, 2))
    return {pairs[i]: find_best_matches(*pairs[i]) for i in progress(range(len(pairs)))}


def _convert_to_strengths(correlations: Tensor, absolute: bool) -> Tensor:
    return correlations.abs() if absolute else correlations
