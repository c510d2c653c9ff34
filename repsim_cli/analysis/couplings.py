"""How Gromov-Wasserstein matches the rows of one layer with those of another (Gao et al. 2024, figure 10)."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from repsim_cli.measures.assignment import matching
from repsim_cli.measures.gromov import Space, best_gromov, coupling_of, gromov_objective, in_one_order

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

    @property
    def diagonal(self) -> float:
        """The mass that stays with its row: 1 for the identity, 1 / n on average for a random permutation."""
        return float(np.trace(self.coupling))

    @property
    def is_permutation(self) -> bool:
        """Whether each row goes to one row."""
        return matching(self.coupling) is not None

    def within(self, codes: Int[np.ndarray, " n"]) -> float:
        """The mass that goes to a row of the same class."""
        return float(self.coupling[codes[:, None] == codes].sum())


def matched(a: Space, b: Space, *, restarts: int, seed: int) -> dict[str, Plan]:
    """The plan that POT's start leads to, as published, and the best of this one, of the one from the identity and of
    those from `restarts` drawn starts."""
    # the solver puts both sides in one order of its own
    swapped = in_one_order(a, b)[0] is not a
    found = {
        PUBLISHED: best_gromov(a, b, start="pot", restarts=0, seed=seed),
        BEST: best_gromov(a, b, start="best", restarts=restarts, seed=seed),
    }
    of_identity = gromov_objective(a.distances, b.distances, coupling_of(np.arange(len(a.rows))))
    return {
        name: Plan(one.coupling.T if swapped else one.coupling, one.value, one.start, of_identity)
        for name, one in found.items()
    }
