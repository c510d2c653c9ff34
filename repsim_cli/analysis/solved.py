"""How the pairs of a measure that is solved pair by pair were solved: numbers over all pairs of two layers."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

WON = "won_"


def summary(
    details: Sequence[str], values: Float[np.ndarray, "r r"], numbers: Mapping[str, np.ndarray]
) -> list[list[str | int | float]]:
    """[number, value] of the pairs of different layers: what each start won, steps, and how far bounds are below.

    numbers: (r, r) of every detail. NaN: not compared. A gap is (value - bound) / value, of the pairs whose value is
    not 0.
    """
    above = np.triu(~np.isnan(values), 1)
    own = values[above]
    rows: list[list[str | int | float]] = [["pairs", len(own)]]
    for name in details:
        of_pairs = numbers[name][above]
        if name.startswith(WON):
            rows.append([f"won from {name.removeprefix(WON).replace('_', ' ')}, pairs", float(of_pairs.sum())])
        elif name.endswith("_bound"):
            gaps = (own - of_pairs)[own > 0] / own[own > 0]
            if len(gaps):
                rows.append([f"gap to the {name.replace('_bound', ' lower bound')}, median", float(np.median(gaps))])
        else:
            rows += [[f"{name}, median", float(np.median(of_pairs))], [f"{name}, mean", float(of_pairs.mean())]]
    return rows
