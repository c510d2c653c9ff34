"""Training curves by layer, and what they say together: which layers converge early, and whether these have large rank.

A curve is one number per layer and checkpoint of one model, as results.json keeps it; a checkpoint that could not be
read is a gap (None) in every layer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from repsim_cli.errors import BadInput

PERCENTILES = (10, 25, 50, 75, 90)
COLUMNS = ["model", "matrices", "of", "layers", "early", "large rank", "both", "matthews", "undefined because"]
Curve = dict[str, Any]


def curve(
    *,
    quantity: str,
    label: str,
    point: str,
    model: str,
    parameters: int,
    steps: Sequence[int],
    layers: Sequence[str],
    values: Mapping[int, Sequence[float]],
    se: Mapping[int, Sequence[float]] | None = None,
    bounds: Sequence[float | None] = (0.0, 1.0),
) -> Curve:
    """A curve with its mean and percentiles over layers. values, se: by step, one number per layer; no step: a gap."""

    def by_layer(numbers: Mapping[int, Sequence[float]]) -> list[list[float | None]]:
        return [[numbers[step][i] if step in numbers else None for step in steps] for i in range(len(layers))]

    spread = {step: np.percentile(numbers, PERCENTILES).tolist() for step, numbers in values.items()}
    return {
        "quantity": quantity,
        "label": label,
        "point": point,
        "model": model,
        "parameters": parameters,
        "bounds": list(bounds),
        "steps": list(steps),
        "layers": list(layers),
        "values": by_layer(values),
        "se": by_layer(se) if se else None,
        "mean": [float(np.mean(values[step])) if step in values else None for step in steps],
        "percentiles": {
            str(percent): [spread[step][i] if step in spread else None for step in steps]
            for i, percent in enumerate(PERCENTILES)
        },
    }


def at_share(found: Mapping[str, Any], share: float) -> list[float] | None:
    """The values of all layers at the last checkpoint within the first `share` of training; None without one."""
    inside = [i for i in _present(found) if found["steps"][i] <= share * found["steps"][-1]]
    return [row[inside[-1]] for row in found["values"]] if inside else None


def early(found: Curve, similarity: float, share: float) -> list[bool] | None:
    """Which layers reach `similarity` at some checkpoint within the first `share` of training; None without one."""
    inside = [i for i in _present(found) if found["steps"][i] <= share * found["steps"][-1]]
    return [any(row[i] >= similarity for i in inside) for row in found["values"]] if inside else None


def large(found: Curve, threshold: float, relative: bool) -> list[bool]:
    """Which layers are at or above the threshold at the last checkpoint; relative: to the largest of them."""
    last = [row[-1] for row in found["values"]]
    bar = threshold * max(last) if relative else threshold
    return [value >= bar for value in last]


def _present(found: Mapping[str, Any]) -> list[int]:
    return [i for i, value in enumerate(found["mean"]) if value is not None]


def matthews(one: Sequence[bool], other: Sequence[bool], names: tuple[str, str]) -> tuple[float | None, str]:
    """Matthews correlation of two binary variables in [-1, 1]; None and the reason where one has one class only.

    >>> matthews([True, True, False, False], [True, False, False, False], ("early", "large"))[0]
    0.5773502691896258
    >>> matthews([True, True], [True, False], ("early", "large"))
    (None, 'all early')
    """
    for side, name in ((one, names[0]), (other, names[1])):
        if len(set(side)) < 2:
            return None, f"{'all' if side[0] else 'none'} {name}"
    x, y = (np.asarray(side, dtype=np.float64) for side in (one, other))
    return float(np.clip(((x - x.mean()) * (y - y.mean())).mean() / (x.std() * y.std()), -1.0, 1.0)), ""


def table(
    similarity: Sequence[Curve],
    ranks: Sequence[Curve],
    *,
    early_similarity: float,
    early_share: float,
    large_parameters: float,
    large_gradients: float,
) -> dict[str, Any]:
    """Per model and kind of matrix: layers that converge early, layers of large rank, and their Matthews correlation.

    Raises BadInput where the two have other layers.
    """
    rows: list[list[Any]] = []
    for rank in ranks:
        pair = [c for c in similarity if (c["model"], c["point"]) == (rank["model"], rank["point"])]
        if not pair or pair[0]["layers"] != rank["layers"]:
            got = pair[0]["layers"] if pair else "none"
            raise BadInput(f"extract: the table needs the similarity of {rank['layers']}, got {got}; read all layers")
        is_gradient = rank["quantity"] == "gradients"
        rises = early(pair[0], early_similarity, early_share)
        wide = large(rank, large_gradients if is_gradient else large_parameters, is_gradient)
        head = [rank["model"], rank["point"], rank["quantity"], len(wide)]
        if rises is None:
            rows.append([*head, None, sum(wide), None, None, f"no checkpoint in the first {early_share:.0%}"])
            continue
        both = sum(a and b for a, b in zip(rises, wide, strict=True))
        value, why = matthews(rises, wide, ("early", "of large rank"))
        rows.append([*head, sum(rises), sum(wide), both, value, why])
    return {"columns": COLUMNS, "rows": rows}
