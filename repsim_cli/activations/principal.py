"""Caps the variance of principal directions: a remedy for few large directions that does not see how features are
rotated."""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.base.gram import gram_matrix

SHARE = 0.05  # of the variance that is left, which no direction exceeds
FEWEST = int(1 / SHARE)  # directions that the variance can then be spread over
LEAST = 1e-6  # of the variance, that as many directions have at least: less is rounding, to which all would be shrunk
LARGE = 256  # features, or rows, from which a few directions are found by iterations
SAMPLE = 512  # rows that directions are taken from, up to twice as many

Pairs = tuple[np.ndarray, np.ndarray]  # eigenvalues, and their vectors as columns


class Capped(NamedTuple):
    """mean (d), axes (k, d): directions around it. factors (k): what rows are multiplied by along them. share: of the
    variance that these hold before."""

    mean: Float[Tensor, " d"]
    axes: Float[Tensor, "k d"]
    factors: Float[Tensor, " k"]
    share: float

    def apply(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        mean, axes, factors = (part.to(x) for part in self[:3])
        return x + ((x - mean) @ axes.T * (factors - 1)) @ axes


class RowSample:
    """Rows of several layers, evenly spaced over all that pass."""

    def __init__(self) -> None:
        self.rows: list[list[Tensor]] = []
        self.stride, self.seen = 1, 0

    def add(self, batch: Sequence[Float[Tensor, "n _"]]) -> None:
        begin = -self.seen % self.stride
        self.seen += len(batch[0])
        for layer, x in enumerate(batch):
            if layer == len(self.rows):
                self.rows.append([])
            # a copy: a view would keep the whole batch
            self.rows[layer].append(x[begin :: self.stride].to("cpu", torch.float32, copy=True))
        if sum(map(len, self.rows[0])) > 2 * SAMPLE:
            self.rows = [[torch.cat(parts)[::2]] for parts in self.rows]
            self.stride *= 2

    def join(self, layer: int) -> Float[Tensor, "n d"]:
        return torch.cat(self.rows[layer])


def cap_directions(x: Float[Tensor, "n d"], *, iterate_from: int = LARGE) -> Capped | None:
    """Finds the directions of a layer that hold more than SHARE of the variance, once they are capped, and what they
    are multiplied by; None where there are none, or too few directions in all to spread the variance over.

    At most FEWEST - 1 directions change. A rotation of the features gives the rotated result.

    iterate_from: features, or rows, from which on principal axes are found by iterations.
    """
    x = x.double()
    mean = x.mean(0)
    x = x - mean
    wide = x.shape[1] > len(x)
    products = gram_matrix(x if wide else x.T).numpy()
    size, total = len(products), float(products.trace())
    if size <= FEWEST or not total > 0:
        return None
    found, vectors = _find_largest(products, FEWEST, iterate_from)
    variances, axes = torch.from_numpy(found[::-1].copy()).clamp_min(0), torch.from_numpy(vectors.T[::-1].copy())
    # with nothing beyond these, the only limit would make all of them equal
    if min(float(variances[-1]), total - float(variances.sum())) <= LEAST * total:
        return None
    cap = next(
        limit
        for k in range(FEWEST)
        if variances[k] <= (limit := SHARE * (total - float(variances[:k].sum())) / (1 - k * SHARE))
    )
    large = variances > cap
    if not large.any():
        return None
    axes, variances = axes[large], variances[large]
    if wide:
        axes = axes @ x / variances.sqrt()[:, None]
    factors = (cap / variances).sqrt()
    return Capped(mean.float(), axes.float(), factors.float(), float(variances.sum()) / total)


def _find_largest(products: Float[np.ndarray, "n n"], count: int, iterate_from: int) -> Pairs:
    """Finds the largest eigenvalues, ascending, and their vectors: of a large matrix by Lanczos' iterations, to the
    same digits, since reducing the whole of it takes three times as long."""
    from scipy.linalg import eigh  # only this remedy needs it
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    size = len(products)
    if size >= iterate_from:
        with suppress(ArpackNoConvergence):
            # of centred rows a start of ones would be orthogonal to all
            start = np.random.default_rng(0).standard_normal(size)
            return cast("Pairs", eigsh(products, k=count, which="LA", v0=start))
    return cast("Pairs", eigh(products, subset_by_index=[size - count, size - 1]))
