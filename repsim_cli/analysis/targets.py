"""Which layers are closest to a known function of the input."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

LISTED = 10  # layers per target
ALIKE = 0.1  # share of the best value up to which another layer is as close
CLOSEST = ["measure", "model", "target", "closest", "value", "others within 10 %"]
RANKED = ["measure", "model", "target", "rank", "layer", "value"]


def ranking(values: Float[np.ndarray, " l"], larger_is_closer: bool) -> list[int]:
    """Places of the layers from the closest on; equal ones keep their order."""
    return (-values if larger_is_closer else values).argsort(kind="stable").tolist()


def alike(values: Float[np.ndarray, " l"], larger_is_closer: bool) -> int:
    """How many layers beside the closest one are within 10 % of its value.

    >>> alike(np.array([0.5, 0.2, 0.21, 0.22, 0.23]), False)
    2
    """
    best = values.max() if larger_is_closer else values.min()
    return int((np.abs(values - best) <= ALIKE * abs(best) + 1e-12).sum()) - 1


Near = Mapping[str, Mapping[str, Float[np.ndarray, " l"]]]  # of a model and a target, by layer


def tables(found: Mapping[str, tuple[Near, bool]], names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The closest layers of every model under every measure (with whether larger is closer), as results.json keeps
    tables. names: of the layers of each model, in the order of the values."""

    def each() -> Iterator[tuple[str, str, str, np.ndarray, bool]]:
        for measure, (near, larger) in found.items():
            for model, targets in near.items():
                for target, values in targets.items():
                    yield measure, model, target, values, larger

    closest, ranked = [], []
    for measure, model, target, values, larger in each():
        places = ranking(values, larger)[:LISTED]
        best = places[0]
        closest.append([measure, model, target, names[model][best], float(values[best]), alike(values, larger)])
        ranked += [[measure, model, target, k, names[model][i], float(values[i])] for k, i in enumerate(places, 1)]
    return {
        "closest to targets": {"columns": CLOSEST, "rows": closest},
        "layers by target": {"columns": RANKED, "rows": ranked},
    }
