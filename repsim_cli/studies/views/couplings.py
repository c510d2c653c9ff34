"""How Gromov-Wasserstein matches the rows of one layer with those of another (Gao et al. 2024, figure 10)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from repsim_cli.base.plain import find_free_key, slug
from repsim_cli.base.settings import Tries
from repsim_cli.data.base import draw
from repsim_cli.measures.assignment import make_coupling
from repsim_cli.measures.gromov_descents import compute_gromov_objective
from repsim_cli.measures.gromov_search import find_best_gromov
from repsim_cli.measures.gromov_spaces import Space, order_pair, prepare_space
from repsim_cli.runs.content import Matrix, Side
from repsim_cli.runs.results import Run
from repsim_cli.studies.views.histograms import centre_and_scale
from repsim_cli.studies.views.rows import LayerRows, ViewBatch

PUBLISHED, BEST = "POT's start", "best of all starts"
PAIRS = 5  # drawn where none are named, as published


@dataclass(frozen=True, kw_only=True)
class CouplingSettings:
    """How Gromov-Wasserstein matches the rows of the batch between pairs of layers of a model.

    pairs: [[LAYER, LAYER], ...], the same for each model; null: five of each model, drawn at random.
    restarts: random starts beside POT's and the identity.
    """

    pairs: list[list[str]] | None = None
    restarts: Tries = 0


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


def make_coupling_matrices(
    run: Run, viewed: LayerRows, batch: ViewBatch, settings: CouplingSettings, *, seed: int
) -> dict[str, Matrix]:
    """Matches the rows of a batch between pairs of layers of each model, from POT's start and from the best of all
    starts.

    viewed: the rows of all layers.
    batch: which of them are matched.
    seed: that of pairs and starts.
    """
    made = viewed.take(batch).apply(run, _prepare_standardised_space, "couplings", "distances")
    spaces = {
        label: {name: x for name, x in zip(viewed.names(label), of, strict=True) if x is not None}
        for label, of in made.items()
    }
    wanted = [(label, *pair) for label, of in spaces.items() for pair in _choose_pairs([*of], settings.pairs, seed)]
    matrices = {}
    for number in run.progress(range(len(wanted)), label="couplings", unit="pairs of layers"):
        label, row, column = wanted[number]
        a, b = spaces[label][row], spaces[label][column]
        for starts, plan in match_rows(a, b, restarts=settings.restarts, seed=seed).items():
            of = ["best"] if starts == BEST else []  # both may lead from one start
            stem = slug("couplings", f"{number:03d}", label, row, column, *of, plan.start)
            matrices[find_free_key(f"coupling of {label}, {row} and {column}, {starts}", matrices)] = Matrix(
                rows=Side(model=row, layers=batch.names),
                columns=Side(model=column, layers=batch.names),
                values=run.write_array(stem, plan.coupling),
                n=len(batch),
                label="mass",
                about={
                    "kind": "couplings",
                    "model": label,
                    "starts": starts,
                    "objective": plan.objective,
                    "from": plan.start,
                    "objective of the identity": plan.of_identity,
                },
            )
    return matrices


def _choose_pairs(layers: Sequence[str], named: list[list[str]] | None, seed: int) -> list[tuple[str, str]]:
    """Chooses the pairs of these layers that are named, or some of all, drawn under the seed."""
    if named is not None:
        return [(row, column) for row, column in named if row in layers and column in layers]
    known = list(combinations(layers, 2))
    return [known[i] for i in draw(len(known), PAIRS, seed)]


def _prepare_standardised_space(x: Tensor) -> Space:
    return prepare_space(centre_and_scale(x)[0], cost_scale="mean")
