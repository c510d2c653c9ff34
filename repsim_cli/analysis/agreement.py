"""Which measures tell the same story: rank correlations of measures over the same pairs of layers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.cluster.hierarchy as hierarchy
import scipy.stats
from scipy.spatial.distance import squareform

from repsim_cli.errors import BadInput

COLUMNS = ["measure", "mean with the others", "closest", "with the closest"]


def agreement(matrices: Mapping[str, tuple[np.ndarray, bool]]) -> dict[str, Any]:
    """Spearman's rho between measures over all ordered pairs of different layers, distances taken with minus.

    matrices: label -> ((L, L) values, whether larger is closer). `measures` and the (m, m) `rho` come in the order
    of the leaves of an average-linkage clustering of 1 - rho, whose merges are `linkage`.
    Raises BadInput for fewer than 3 measures or 3 layers, or a measure that is the same for all pairs.
    """
    labels = list(matrices)
    count = len(next(iter(matrices.values()))[0]) if matrices else 0
    if len(labels) < 3 or count < 3:
        raise BadInput(
            f"measure: agreement needs 3 measures and 3 layers, got {len(labels)} and {count}; select more of them"
        )
    off = ~np.eye(count, dtype=bool)
    pairs = np.stack([values[off] * (1 if larger else -1) for values, larger in matrices.values()])
    for label, row in zip(labels, pairs, strict=True):
        if np.ptp(row) == 0:
            raise BadInput(
                f"measure: {label} is the same for all pairs of layers, got {row[0]:.3g}; leave it out of the agreement"
            )
    ranks = scipy.stats.rankdata(pairs, axis=1)
    rho = np.corrcoef(ranks)
    rho = (rho + rho.T) / 2
    np.fill_diagonal(rho, 1)
    linkage = hierarchy.linkage(squareform(1 - rho, checks=False), "average", optimal_ordering=True)
    order = hierarchy.leaves_list(linkage)
    others = np.where(np.eye(len(labels), dtype=bool), np.nan, rho)
    closest = np.nanargmax(others, axis=1)
    return {
        "measures": [labels[i] for i in order],
        "rho": rho[np.ix_(order, order)],
        "linkage": linkage,
        "pairs": int(off.sum()),
        "table": {
            "columns": COLUMNS,
            "rows": [
                [labels[i], float(np.nanmean(others[i])), labels[closest[i]], float(others[i, closest[i]])]
                for i in order
            ],
        },
    }
