"""Claims on the matrix of all layers under one measure."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.stats

from repsim_cli.analysis.claims.finding import Finding, record, untestable

Models = dict[str, slice]


def falls_with_layer_distance(models: Models, values: np.ndarray) -> Finding:
    """Brown et al. 2023, section 4: within a model, similarity falls with the distance between layers."""
    statistic, threshold = "mean over models of Spearman's rho between similarity and layer distance", -0.5
    rhos = []
    for place in models.values():
        within = values[place, place]
        a, b = np.triu_indices(len(within), k=1)
        if len(within) >= 4:
            rhos.append(float(np.asarray(scipy.stats.spearmanr(b - a, within[a, b]))[0]))
    if not rhos or not np.isfinite(rhos).all():
        return untestable(statistic, threshold, "no model has four layers that differ in similarity")
    value = float(np.mean(rhos))
    return Finding(statistic, threshold, value <= threshold, value)


def early_layers_agree(models: Models, values: np.ndarray) -> Finding:
    """Brown et al. 2023, section 4: across models, early layers are more similar than late ones."""
    statistic, threshold = (
        "similarity across models at equal relative depth: first third minus last third",
        0.0,
    )
    gaps = []
    names = list(models)
    for i, row in enumerate(names):
        for column in names[i + 1 :]:
            curve = _equal_depth(values[models[row], models[column]])
            third = len(curve) // 3
            if third:
                gaps.append(float(curve[:third].mean() - curve[-third:].mean()))
    if not gaps:
        return untestable(statistic, threshold, "needs two models of three layers or more")
    value = float(np.mean(gaps))
    return Finding(statistic, threshold, value > threshold, value)


def pythia_2_8b_stands_apart(models: Models, values: np.ndarray) -> Finding:
    """Brown et al. 2023, section 4: 2.8b is less similar to 1b, 1.4b and 6.9b than these are to each other."""
    statistic, threshold = "mean similarity at equal relative depth: among the others minus with 2.8b", 0.0
    odd, others = "pythia_2_8b", ("pythia_1b", "pythia_1_4b", "pythia_6_9b")
    absent = [name for name in (odd, *others) if name not in models]
    if absent:
        return untestable(statistic, threshold, f"needs {', '.join(absent)}")

    def mean(row: str, column: str) -> float:
        return float(_equal_depth(values[models[row], models[column]]).mean())

    among = [mean(a, b) for i, a in enumerate(others) for b in others[i + 1 :]]
    value = float(np.mean(among) - np.mean([mean(a, odd) for a in others]))
    return Finding(statistic, threshold, value > threshold, value)


def _equal_depth(block: np.ndarray) -> np.ndarray:
    """The entries at equal relative depth, one per layer of the shallower model."""
    steps = min(block.shape)
    at = [np.round(np.linspace(0, size - 1, steps)).astype(int) for size in block.shape]
    return block[at[0], at[1]]


CLAIMS: dict[str, Callable[[Models, np.ndarray], Finding]] = {
    function.__name__: function
    for function in (falls_with_layer_distance, early_layers_agree, pythia_2_8b_stands_apart)
}


def verdict(name: str, measure: str, labels: Sequence[str], values: np.ndarray) -> dict[str, Any]:
    """One claim on the matrix of all layers, as results.json keeps it. labels: the model of each row, in order."""
    order = list(dict.fromkeys(labels))
    models = {m: slice(labels.index(m), labels.index(m) + labels.count(m)) for m in order}
    return record(CLAIMS[name], measure, CLAIMS[name](models, values))
