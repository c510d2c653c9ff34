"""Claims on the matrix of all layers under one measure."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from repsim_cli.analysis.claims.evidence import by_depths, over_cells, ranks, thirds
from repsim_cli.analysis.claims.finding import Finding, judged, record, untestable

Models = dict[str, slice]


def falls_with_layer_distance(models: Models, values: np.ndarray) -> Finding:
    """Brown et al. 2023, section 4: within a model, similarity falls with the distance between layers."""
    statistic, threshold = "mean over models of Spearman's rho between similarity and layer distance", -0.5
    ranked = [ranked_cells(values[place, place]) for place in models.values() if place.stop - place.start >= 4]
    if not ranked or not all(np.isfinite(one).all() for one in ranked):
        return untestable(statistic, threshold, "no model has four layers that differ in similarity")
    return judged(statistic, threshold, *over_cells(ranked, ranked_distances), published="below")


def ranked_cells(square: np.ndarray) -> np.ndarray:
    """The ranks of the cells above the diagonal, both directions averaged, in their places and mirrored."""
    both = (square + square.T) / 2
    found, cells = np.zeros_like(both), np.triu_indices(len(both), k=1)
    found[cells] = ranks(both[cells])
    return found + found.T


def ranked_distances(layers: int) -> np.ndarray:
    a, b = np.triu_indices(layers, k=1)
    return ranks(b - a)


def early_layers_agree(models: Models, values: np.ndarray) -> Finding:
    """Brown et al. 2023, section 4: across models, early layers are more similar than late ones."""
    statistic, threshold = "similarity across models at equal relative depth: first third minus last third", 0.0
    deep = [place for place in models.values() if place.stop - place.start >= 3]
    if len(deep) < 2:
        return untestable(statistic, threshold, "needs two models of three layers or more")
    steps = min(place.stop - place.start for place in deep)
    curve = np.mean([_equal_depth(values[row, column], steps) for row, column in combinations(deep, 2)], axis=0)
    return judged(statistic, threshold, *thirds(curve))


def pythia_2_8b_stands_apart(models: Models, values: np.ndarray) -> Finding:
    """Brown et al. 2023, section 4: 2.8b is less similar to 1b, 1.4b and 6.9b than these are to each other."""
    statistic, threshold = "mean similarity at equal relative depth: among the others minus with 2.8b", 0.0
    odd, others = "pythia_2_8b", ("pythia_1b", "pythia_1_4b", "pythia_6_9b")
    absent = [name for name in (odd, *others) if name not in models]
    if absent:
        return untestable(statistic, threshold, f"needs {', '.join(absent)}")
    steps = min(models[name].stop - models[name].start for name in (odd, *others))
    if steps < 4:
        return untestable(statistic, threshold, f"needs four layers of each, got {steps}")

    def curve(row: str, column: str) -> np.ndarray:
        return _equal_depth(values[models[row], models[column]], steps)

    among = np.mean([curve(a, b) for a, b in combinations(others, 2)], axis=0)
    gaps = among - np.mean([curve(a, odd) for a in others], axis=0)
    return judged(statistic, threshold, float(gaps.mean()), by_depths(gaps, threshold))


def _equal_depth(block: np.ndarray, steps: int) -> np.ndarray:
    """The entries at equal relative depth, at so many steps from the first layers to the last."""
    rows, columns = (np.round(np.linspace(0, size - 1, steps)).astype(int) for size in block.shape)
    return block[rows, columns]


CLAIMS: dict[str, Callable[[Models, np.ndarray], Finding]] = {
    function.__name__: function
    for function in (falls_with_layer_distance, early_layers_agree, pythia_2_8b_stands_apart)
}


def verdict(name: str, measure: str, labels: Sequence[str], values: np.ndarray) -> dict[str, Any]:
    """One claim on the matrix of all layers, as results.json keeps it. labels: the model of each row, in order."""
    order = list(dict.fromkeys(labels))
    models = {m: slice(labels.index(m), labels.index(m) + labels.count(m)) for m in order}
    return record(CLAIMS[name], measure, CLAIMS[name](models, values))
