"""Distances among the rows of each layer: their spread and their histograms, in bins that the layers of a model share,
of all rows and without a part of them (Gao et al. 2024, figures 2 and 11)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Num
from pydantic import Field
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.base.plain import slug
from repsim_cli.measures.centring import FLAT, centre
from repsim_cli.measures.rdm import compute_distance_blocks
from repsim_cli.runs.content import Matrix, Side
from repsim_cli.runs.results import Run
from repsim_cli.studies.views.rows import LayerRows

DistanceScale = Literal["none", "mean"]
Subsets = Bool[np.ndarray, "subsets n"]  # which rows are in each

LEFT_OUT = 10  # groups of neighbouring rows that are left out in turn


@dataclass(frozen=True, kw_only=True)
class Histograms:
    """Histograms of the distances of all rows within each layer, in bins that the layers of a model share.

    bins: how many equal bins, from 0 to the largest distance in any layer of the model.
    scale: distances as they are (`none`), or divided by the mean of their layer (`mean`).
    """

    bins: Annotated[int, Field(ge=2, le=10_000)] = 50
    scale: DistanceScale = "none"


class DistanceSpread(NamedTuple):
    """Over all pairs of rows i < j: mean, standard deviation and largest of the Euclidean distances."""

    mean: float
    deviation: float
    largest: float


def centre_and_scale(x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n d"], float]:
    """Rows in float64, centred and of mean squared norm 1, and the scale removed. Raises Degenerate where all rows are
    equal, but for rounding."""
    unit, scale = centre(x.double())
    if scale <= FLAT * float(x.abs().max()):
        raise Degenerate(
            f"all rows are equal but for rounding, got a spread of {scale:.2g}; drop this layer or change the data"
        )
    return unit, scale


def make_jackknife_subsets(n: int) -> Subsets:
    """Makes the subsets: all rows, then all but those of each of LEFT_OUT groups of neighbouring rows (at most n)."""
    groups = np.array_split(np.arange(n), min(LEFT_OUT, n))
    return np.stack([np.ones(n, bool), *(~np.isin(np.arange(n), group) for group in groups)])


def compute_subset_distances(x: Float[Tensor, "n d"], of: Subsets) -> Iterator[tuple[int, Float[np.ndarray, " _"]]]:
    """Computes (subset, Euclidean distances of its rows i < j), float64, a block of rows i at a time."""
    unit, scale = centre_and_scale(x)
    for first, squared in compute_distance_blocks(unit):
        rows, columns = np.triu_indices(len(squared), 1, squared.shape[1])
        cells = squared.sqrt_().mul_(scale).cpu().numpy()[rows, columns]
        for subset, kept in enumerate(of[:, first:]):
            yield subset, cells if kept.all() else cells[kept[rows] & kept[columns]]


def measure_distance_spreads(x: Float[Tensor, "n d"], of: Subsets) -> list[DistanceSpread]:
    """Measures the spread of the distances in each subset, which has two rows or more."""
    totals, squares, largest = np.zeros((3, len(of)))
    for subset, cells in compute_subset_distances(x, of):
        totals[subset] += cells.sum()
        squares[subset] += cells @ cells
        largest[subset] = max(largest[subset], cells.max(initial=0.0))
    sizes = of.sum(1)
    pairs = sizes * (sizes - 1) // 2
    means, mean_squares = totals / pairs, squares / pairs
    deviations = np.sqrt(np.maximum(0.0, mean_squares - means**2))
    return [DistanceSpread(*each) for each in zip(means.tolist(), deviations.tolist(), largest.tolist(), strict=True)]


class LayerHistograms(NamedTuple):
    """Of the layers of one model. Of all rows (the first subset), bin b counts distances from edges[b] to edges[b + 1],
    the last bin both; every other subset has as many equal bins, up to its own largest distance."""

    edges: Float[np.ndarray, " edges"]
    counts: Num[np.ndarray, "subsets layers bins"]


def make_distance_histograms(
    layers: Sequence[Float[Tensor, "n _"]],
    of: Subsets,
    spread: Sequence[Sequence[DistanceSpread] | None],
    *,
    bins: int,
    scale: DistanceScale,
) -> LayerHistograms:
    """Counts the distances of each layer in each of `bins` equal bins from 0 to the largest distance of any layer.

    spread: of the subsets of each layer; None: its counts are NaN. scale: distances as they are (`none`), or over the
    mean of their layer (`mean`).
    """
    there = {i: layer for i, layer in enumerate(spread) if layer is not None}
    units = {i: np.array([x.mean if scale == "mean" and x.mean else 1.0 for x in of]) for i, of in there.items()}
    tops = np.max([np.array([x.largest for x in of]) / units[i] for i, of in there.items()], 0)
    counts = np.full((len(of), len(layers), bins), np.nan)
    counts[:, [*there]] = 0
    for layer in there:
        for subset, cells in compute_subset_distances(layers[layer], of):
            # rounding may leave the largest distance above the last edge
            scaled = (cells / units[layer][subset]).clip(max=tops[subset])
            counts[subset, layer] += np.histogram(scaled, bins, (0, tops[subset]))[0]
    return LayerHistograms(np.linspace(0, tops[0], bins + 1), counts)


def make_histogram_matrices(run: Run, viewed: LayerRows, settings: Histograms) -> dict[str, Matrix]:
    """Counts the distances of rows in every layer of each model, of all rows and with parts of them left out."""
    rows = viewed.rows
    count = len(next(iter(rows.values()))[0])
    of, bins = make_jackknife_subsets(count), settings.bins
    spread = viewed.apply(run, partial(measure_distance_spreads, of=of), "histograms", "distances")
    matrices = {}
    for number, label in enumerate(spread):
        edges, counts = make_distance_histograms(rows[label], of, spread[label], bins=bins, scale=settings.scale)
        none = [[np.nan] * len(DistanceSpread._fields)]  # of a layer without a value
        stem = slug("histograms", f"{number:02d}", label)
        matrices[f"histograms of {label}"] = Matrix(
            rows=Side(model=label, layers=viewed.names(label)),
            columns=Side(model="bins", layers=[str(place) for place in range(bins)]),
            values=run.write_array(stem, counts[0]),
            n=count,
            label="pairs of rows",
            details={
                "edges": run.write_array(slug(stem, "edges"), edges),
                "spread": run.write_array(slug(stem, "spread"), np.array([(x or none)[0] for x in spread[label]])),
                "left out": run.write_array(slug(stem, "left_out"), counts[1:]),
            },
            about={"kind": "histograms", "scale": settings.scale},
        )
    return matrices
