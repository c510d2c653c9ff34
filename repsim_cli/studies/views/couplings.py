"""How Gromov-Wasserstein matches the rows of one layer with those of another (Gao et al. 2024, figure 10)."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from repsim_cli.measures.assignment import make_coupling
from repsim_cli.measures.gromov_descents import compute_gromov_objective
from repsim_cli.measures.gromov_search import find_best_gromov
from repsim_cli.measures.gromov_spaces import Space, order_pair

PUBLISHED, BEST = "POT's start", "best of all starts"


class Plan(NamedTuple):
    """The coupling of two layers, the rows of the first as rows; all of its mass is 1.

    objective: mean squared difference of the distances, each side over its mean. start: which of the starts led here.
    of_identity: the objective of the coupling of every row with itself.
    """

    coupling: Float[np.ndarray, "n n"]
    objective: float
    start: str
    of_identity: float


def match_rows(a: Space, b: Space, *, restarts: int, seed: int) -> dict[str, Plan]:
    """The plan that POT's start leads to, as published, and the best of this one, of the one from the identity and of
    those from `restarts` drawn starts."""
    # the solver puts both sides in one order of its own
    swapped = order_pair(a, b)[0] is not a
    solved = {
        PUBLISHED: find_best_gromov(a, b, start="pot", restarts=0, seed=seed),
        BEST: find_best_gromov(a, b, start="best", restarts=restarts, seed=seed),
    }
    of_identity = compute_gromov_objective(a.distances, b.distances, make_coupling(np.arange(len(a.rows))))
    return {
        name: Plan(end.coupling.T if swapped else end.coupling, end.value, end.start, of_identity)
        for name, end in solved.items()
    }
