"""How far values of one sample scatter by the documents that were drawn, from leaving out groups of them: of measures
whose influence of documents has no form of its own (`scatter.py` has the others)."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.engine.comparison import Comparison
from repsim_cli.engine.cost import Cost, estimate_pairs_cost
from repsim_cli.engine.estimates import Beside, Key
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.engine.scatter import (
    CLOSEST,
    MOST,
    SCATTER,
    choose_clusters,
    choose_layers,
    describe_scatter,
    find_closest_layers,
)
from repsim_cli.measures import Measure, Pairwise
from repsim_cli.measures.base import MeasureWarning, is_cosine

GROUPS, FEWEST = 10, 5  # of documents, that are left out in turn
SMALL = 2**20  # cells of a layer, up to which no pair takes long; of larger ones as many pairs as the run has, at most


def make_left_out_observer(comparison: Comparison, labels: Callable[[int], Tensor | None]) -> Beside | None:
    """Makes what observes the scatter beside the values of the only batch; None where no measure needs it.

    labels(batch): a class code per row.
    """
    if not (measures := find_left_out_measures(comparison)):
        return None

    def observe(batch: int, representations: Any, values: Mapping[Key, Tensor]) -> Mapping[Key, Tensor]:
        closest = {
            label: find_closest_layers(
                values[label,] if measure.card.larger_is_closer else -values[label,], comparison.places
            )
            for label, measure in measures.items()
        }
        return measure_left_out(
            measures,
            representations,
            comparison.documents[comparison.numbers(batch)],
            Asked(list_spread_pairs(len(representations), comparison.wanted), closest),
            tile=comparison.hardware.tile,
            labels=labels(batch),
            apart=comparison.documents_apart(batch),
        )

    return observe


class Asked(NamedTuple):
    """Pairs of layers whose values are computed without each group of documents. spread: those that say how far values
    lie apart. closest: by measure, the closest layers of every two models, which have an error of their own."""

    spread: Sequence[tuple[int, int]]
    closest: Mapping[str, Sequence[tuple[int, int]]] = MappingProxyType({})

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Lists all of them, once each."""
        return list(dict.fromkeys([*self.spread, *(pair for pairs in self.closest.values() for pair in pairs)]))


def list_spread_pairs(count: int, wanted: Tensor | None = None) -> list[tuple[int, int]]:
    """Lists pairs of a few of `count` layers. wanted: as in `compute_all_pairs`."""
    pairs = combinations(choose_layers(count), 2)
    return [pair for pair in pairs if wanted is None or bool(wanted[pair])]


def find_left_out_measures(comparison: Comparison) -> dict[str, Measure]:
    """Finds the measures of a comparison that need it; none where no layers of several models are held together."""
    several = 1 < len(comparison.readings) < len(comparison.layers)
    held = comparison.extract.estimate == "full" and comparison.groups is None and comparison.significance.chance
    if not (comparison.scatter and several and held):
        return {}
    return {label: measure for label, measure in comparison.measures.items() if _takes_left_out(measure)}


def estimate_left_out_cost(comparison: Comparison, rows: int) -> Cost:
    """Estimates what leaving out groups of documents takes. rows: of the comparison."""
    places = choose_layers(len(comparison.layers))
    pairs = 1 + len(places) * (len(places) - 1) // 2
    widths = [comparison.layers[place].width for place in (*places, 0, -1)]  # and about those of the closest layers
    some = min(rows, MOST)
    groups = _count_groups(some * max(widths), comparison.pairs * rows / some / pairs)
    measures = find_left_out_measures(comparison).values() if groups >= FEWEST else ()
    return estimate_pairs_cost(measures, widths, pairs, some, comparison.hardware, batches=groups)


def measure_left_out(
    measures: Mapping[str, Measure],
    representations: Sequence[Tensor],
    documents: np.ndarray,
    asked: Asked,
    *,
    tile: int = 512,
    labels: Tensor | None = None,
    apart: Tensor | None = None,
) -> dict[Key, Tensor]:
    """Measures how far values of a few layers lie apart by the documents that were drawn, from the values without each
    group of neighbouring documents (the delete-a-group jackknife), which are centred on their own mean, as few rows
    fewer change values of many measures. Of more than MOST rows some documents stand for all. Empty for rows of too few
    documents, and without measures that take the rows that are left.

    documents: of the rows. apart: likewise, where pairs of rows of one document are left out.
    """
    if not (pairs := asked.pairs):
        return {}
    places = sorted({place for pair in pairs for place in pair})
    layers = [representations[place] for place in places]
    share = 1.0
    if len(documents) > MOST:
        chosen = choose_clusters(documents, MOST / len(documents))
        if chosen.sum() < FEWEST:
            return {}
        kept = np.flatnonzero(chosen[np.unique(documents, return_inverse=True)[1]])
        share, documents, rows = chosen.mean(), documents[kept], torch.from_numpy(kept)
        layers = [layer[rows.to(layer.device)] for layer in layers]
        labels, apart = (None if each is None else each[rows.to(each.device)] for each in (labels, apart))
    most = len(representations) * (len(representations) - 1) // 2 * len(representations[0]) / len(layers[0])
    groups = divide_documents(
        documents, _count_groups(max(layer.numel() for layer in layers), most / max(1, len(pairs)))
    )
    sizes = np.bincount(groups)
    rest, shapes = len(groups) - int(sizes.max()), [tuple(layer.shape) for layer in layers]
    measures = {label: measure for label, measure in measures.items() if _takes_rows(measure, rest, shapes, labels)}
    if len(sizes) < FEWEST or not measures:
        return {}
    at = {(a, b): (places.index(a), places.index(b)) for a, b in pairs}
    between = torch.zeros(len(places), len(places), dtype=torch.bool)
    for a, b in at.values():
        between[a, b] = between[b, a] = True
    left = dict[str, list[Tensor]]()
    for group in range(len(sizes)):
        rows = torch.from_numpy(np.flatnonzero(groups != group)).to(layers[0].device)
        given = {
            "labels": None if labels is None else labels[rows.to(labels.device)],
            "documents": None if apart is None else apart[rows].unique(return_inverse=True)[1],
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MeasureWarning)  # of the same rows as those of the values
            some = [x[rows] for x in layers]
            found = compute_all_pairs(measures, some, tile=tile, wanted=between, lack=lambda *_: None, **given)
        for label, values in found.items():
            left.setdefault(label, []).append(values.cpu())
    kept = torch.from_numpy(1 - sizes / len(groups))[:, None, None]
    found = dict[Key, Tensor]()
    for label, values in left.items():
        stacked = torch.stack(values)
        influence = kept * (stacked.mean(0) - stacked)
        spread = {pair: influence[:, *at[pair]] for pair in asked.spread}
        closest = [influence[:, *at[pair]] for pair in asked.closest.get(label, ())]
        for name, value in describe_scatter(spread, sizes, closest).items():
            found[label, name] = value * math.sqrt(share) if name in (SCATTER, CLOSEST) else value
    return found


def divide_documents(documents: np.ndarray, count: int) -> np.ndarray:
    """Divides documents into `count` groups of neighbours with about the same number of rows; gives the group of every
    row.

    >>> divide_documents(np.array([7, 7, 7, 2, 2, 3, 5, 5]), 2)
    array([1, 1, 1, 0, 0, 0, 1, 1])
    """
    _, ids, sizes = np.unique(documents, return_inverse=True, return_counts=True)
    middles = (sizes.cumsum() - sizes / 2) / sizes.sum()
    return np.unique((middles * count).astype(int)[ids], return_inverse=True)[1]


def _count_groups(cells: int, most: float) -> int:
    """Counts the groups that may be left out. cells: of the largest layer. most: leaving out this many takes as long as
    the map."""
    return GROUPS if cells <= SMALL else min(GROUPS, int(most))


def _takes_left_out(measure: Measure) -> bool:
    """Tells whether the scatter of a measure is known from leaving out documents, and not otherwise."""
    if measure.slow is not None or measure.leaps:
        return False
    return measure.of_rows is None if isinstance(measure, Pairwise) else not is_cosine(measure)


def _takes_rows(measure: Measure, rows: int, shapes: Sequence[tuple[int, ...]], labels: Tensor | None) -> bool:
    """Tells whether a measure takes this number of rows, beside the features of the layers."""
    given = [(rows, width) for _, width in shapes]
    if measure.card.width_limit and any(rows <= width for _, width in shapes):
        return False
    try:
        measure.check([""] * len(given), given, None if labels is None else labels[:rows])
    except Degenerate:
        return False
    return True
