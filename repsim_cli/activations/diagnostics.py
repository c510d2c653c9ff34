"""How far few features and few rows hold the variance of a layer, and the norm of its rows by place in the sequence.

All of it comes from the rows that are compared, as they pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.activations.readings import Layer
from repsim_cli.activations.rows import HeldRows, RowBlock
from repsim_cli.base.gram import cut_feature_strips, gram_matrix, squared_norms
from repsim_cli.data.base import draw
from repsim_cli.runs.content import DIAGNOSED, DIAGNOSTICS, PLACES, Table

MOST = 2048  # rows that shares of the variance rest on
CELLS = 2**22  # that are read of a wide layer, such as a flattened map, from fewer rows (FEWEST at least)
FEWER = 1024  # of them, that the participation ratio rests on: its cost is that of a product with d x d weights
FEWEST = 100  # rows of which 1 % is at least one


class FeatureSpread(NamedTuple):
    """Of centred rows: the feature of the largest variance and its share of the variance, the share of the squared norm
    in the largest 1 % of the rows (None below `FEWEST` rows), and the participation ratio (None below four rows)."""

    feature: int
    share: float
    rows_share: float | None
    participation: float | None


def measure_spread(x: Float[Tensor, "n d"]) -> FeatureSpread | None:
    """Measures how the variance of a layer is spread over features, rows and directions; None where all rows are equal.

    Sums along rows or features are in the precision of x, sums of these in float64.
    """
    n, size = len(x), _find_largest_magnitude(x)
    few = n <= min(x.shape[1], FEWER)
    scale = 1.0 if 1e-10 < size < 1e10 else size or 1.0  # squares are numbers in float32
    features, products = [], x.new_zeros((), dtype=torch.float64)
    centred = thin = x
    for strip in cut_feature_strips(x) if few else [slice(None)]:
        centred = x[:, strip] - x[0, strip]  # exactly 0 where all rows are equal
        centred -= centred.mean(0)
        if scale != 1:
            centred /= scale
        features.append(centred.square().sum(0).double())  # vector_norm is slow along columns
        thin = centred if few else centred[:: -(-n // FEWER)]
        thin = thin if few else thin - thin.mean(0)
        products = products + gram_matrix(thin if few or thin.shape[1] > len(thin) else thin.T).double()
    variances = torch.cat(features)
    if float((variances.max() / n).sqrt()) <= 1e-7 * size / scale:  # what rounding in float32 leaves of equal rows
        return None
    rows, norms = [products.diagonal()] * 2 if few else (squared_norms(centred), squared_norms(thin))
    return FeatureSpread(
        feature=int(variances.argmax()),
        share=float(variances.max() / variances.sum()),
        rows_share=float(rows.topk(n // FEWEST).values.sum() / rows.sum()) if n >= FEWEST else None,
        participation=estimate_participation_ratio(norms, products.square().sum(), x.shape[1]),
    )


def estimate_participation_ratio(
    norms: Float[Tensor, " n"], products: Float[Tensor, ""], features: int
) -> float | None:
    """Estimates (tr C)^2 / tr C^2 of the covariance matrix C of all rows that there might be: from 1 (a single
    direction) to the number of features; None for fewer than four rows.

    Both parts are means over differences u, v of two pairs of four different rows, of |u|^2 |v|^2 and of (u'v)^2, so
    neither is biased by the number of rows. The ratio of the sample's own covariance matrix is at most that number.

    norms, products: of n centred rows the squared norms, and the sum of the squares of all products of two of them.
    """
    n, whole, squares = len(norms), norms.sum() ** 2, norms.square().sum()
    of_trace = (n**2 - 3 * n + 1) * whole - n * (n - 1) * squares + 2 * products
    of_squares = (n - 1) * (n - 2) * (products - squares) + whole - 2 * (n - 1) * squares
    if n < 4 or of_trace <= 0:
        return None
    return min(max(1.0, float(of_trace / of_squares)), float(features)) if of_squares > 0 else float(features)


def _find_largest_magnitude(x: Tensor) -> float:
    least, most = x.aminmax()
    return max(-float(least), float(most))


class KeptRows:
    """Rows of a layer, at most `most`, chosen from its blocks; those that stay in memory are copied when they are
    asked for, layer by layer."""

    def __init__(self, most: int):
        self.most, self.filled = most, 0
        self.copied: Tensor | None = None
        self.held: list[tuple[Tensor, Tensor]] = []

    def add(self, x: Float[Tensor, "m d"], inside: Int[Tensor, " k"], held: bool) -> None:
        self.held.append((x, inside))
        if not held:
            self._copy()

    def _copy(self) -> None:
        for x, inside in self.held:
            if self.copied is None:  # whole at first: many small pieces would leave the heap in fragments
                self.copied = x.new_empty(self.most, x.shape[1])
            torch.index_select(x, 0, inside, out=self.copied[self.filled : self.filled + len(inside)])
            self.filled += len(inside)
        self.held.clear()

    def gather(self) -> Float[Tensor, "n d"]:
        self._copy()
        assert self.copied is not None
        return self.copied[: self.filled]


class Diagnosis:
    """Collects what the diagnostics of every layer need while its rows pass for the first time.

    places: by model, the place of every row in its sequence, None where rows have none (pooled sequences, stored
        activations). total: the rows of the run; at most `MOST`, drawn under the seed, are kept.
    """

    def __init__(self, places: Mapping[str, Int[np.ndarray, " n"] | None], total: int, seed: int):
        self.places = {label: torch.from_numpy(x).clamp(max=PLACES) for label, x in places.items() if x is not None}
        self.chosen = torch.from_numpy(draw(total, MOST, seed))
        self.rows: dict[Layer, list[Any]] = {}

    def lacks(self, layers: Sequence[Layer]) -> bool:
        return any(layer not in self.rows for layer in layers)

    def _choose_rows(self, width: int) -> Int[Tensor, " n"]:
        """The rows that are kept of a layer of this width, evenly among the chosen ones."""
        most = len(self.chosen)
        count = min(most, max(CELLS // width, FEWEST))
        return self.chosen[torch.arange(count) * most // count]

    def watch(self, stream: Iterator[RowBlock], layers: Sequence[Layer]) -> Iterator[RowBlock]:
        """The stream, which has all rows from the first on, of these layers."""
        new = [i for i, layer in enumerate(layers) if layer not in self.rows]
        chosen = {i: self._choose_rows(layers[i].width) for i in new}
        kept = {i: KeptRows(len(chosen[i])) for i in new}
        sums = {i: torch.zeros(PLACES + 1, dtype=torch.float64) for i in new}
        counts = {i: torch.zeros(PLACES + 1, dtype=torch.float64) for i in new}
        for block in stream:
            count = len(block.rows[0])
            for i in new if count else ():
                x, places = block.rows[i], self.places.get(layers[i].model)
                inside = chosen[i][(chosen[i] >= block.first) & (chosen[i] < block.first + count)] - block.first
                kept[i].add(x, inside.to(x.device), isinstance(block, HeldRows))
                at = torch.full((count,), PLACES) if places is None else places[block.first : block.first + count]
                norms = torch.linalg.vector_norm(x, dim=1).double().cpu()
                sums[i] += torch.bincount(at, weights=norms, minlength=PLACES + 1)
                counts[i] += torch.bincount(at, minlength=PLACES + 1)
            yield block
        for i in new:
            x = kept.pop(i).gather()
            # the order of sums over blocks shows in the last digits of float64, and must not in the results
            means = [float((s / n).float()) if n else None for s, n in zip(sums[i], counts[i], strict=True)]
            shares = measure_spread(x) or (None,) * 4
            self.rows[layers[i]] = [layers[i].model, layers[i].name, *x.shape, *shares, *means]

    def tables(self, layers: Sequence[Layer]) -> dict[str, Table]:
        """A table with a row per layer, in this order; None where there is no number."""
        return {DIAGNOSTICS: Table(columns=DIAGNOSED, rows=[self.rows[layer] for layer in layers])}
