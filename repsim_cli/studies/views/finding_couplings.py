"""Whether Gromov-Wasserstein matches each row with itself between two layers (Gao et al. 2024, figure 10)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float

from repsim_cli.base.plain import slug
from repsim_cli.figures.frame import COLOURS
from repsim_cli.figures.panels import add_colour_bar, make_panels, set_headline, split_into_pages
from repsim_cli.findings.analysis import FEW, Finished, Job, Part, analysis
from repsim_cli.findings.claims import Claim
from repsim_cli.runs.content import Matrix, Table
from repsim_cli.studies.views.lacking import name_left_out

COLUMNS = [
    "model", "rows", "columns", "starts", "objective", "from", "objective of the identity", "coupling",
    "on the diagonal", "by chance", "p", "within classes",
]  # fmt: skip
TERMS = 20
Square = Float[np.ndarray, "n n"]


@dataclass(frozen=True, kw_only=True)
class CouplingOptions:
    """How much of each coupling stays with its row and within its class, and whether the identity would have a smaller
    objective. It has no settings."""


def is_permutation(coupling: Square) -> bool:
    """Says whether each row goes to one row, and no two to the same.

    >>> is_permutation(np.eye(2) / 2), is_permutation(np.full((2, 2), 0.25))
    (True, False)
    """
    cells = coupling != 0
    return bool((cells.sum(0) == 1).all() and (cells.sum(1) == 1).all())


def measure_diagonal_mass(coupling: Square) -> float:
    """The mass that stays with its row: 1 for the identity, 1 / n on average for a random permutation."""
    return float(np.trace(coupling))


def find_fixed_tail(kept: int, n: int) -> float:
    """Computes the probability that a random permutation of n leaves at least `kept` in place.

    >>> [round(find_fixed_tail(kept, 3), 3) for kept in range(5)]
    [1.0, 0.667, 0.167, 0.167, 0.0]
    """
    # j stay, and of n - j others none does, in as many orders as the inner sum says; later terms are below rounding
    return math.fsum(
        (-1) ** i / (math.factorial(i) * math.factorial(j))
        for j in range(kept, min(n, kept + TERMS) + 1)
        for i in range(min(n - j, TERMS) + 1)
    )


def measure_class_mass(coupling: Square, classes: Sequence[str]) -> float:
    """The mass that goes to a row of the same class.

    >>> measure_class_mass(np.array([[0.0, 0.5], [0.5, 0.0]]), ["a", "a"])
    1.0
    >>> measure_class_mass(np.eye(2)[::-1] / 2, ["a", "b"])
    0.0
    """
    of = np.array(classes)
    return float(coupling[of[:, None] == of].sum())


# ---- figures ----

SIDE, SMALLEST = 1.25, 0.95  # of a panel, inches
ACROSS, MOST = 5, 12  # panels side by side, as published, and in a figure


def draw_figures(run: Finished, whole: bool) -> Iterator[Job]:
    """couplings-NUMBER-MODEL, with all pairs of layers of a model, on demand or where there are few models"""
    measured = run.select_kind("couplings")
    models = list(dict.fromkeys(matrix.about["model"] for matrix in measured))
    for number, model in enumerate(models if whole or len(models) <= FEW else ()):
        plans = [matrix for matrix in measured if matrix.about["model"] == model]
        for name, some in split_into_pages(slug("couplings", f"{number:02d}", model), plans, MOST):
            yield name, partial(_draw_couplings, run, model, some)


def _draw_couplings(run: Finished, model: str, plans: Sequence[Matrix]) -> Any:
    """The mass of every cell over that of a row, 1 / n; lines separate classes."""
    classes, n = run.results.about["batch"]["classes"], len(plans[0].rows.layers)
    starts = list(dict.fromkeys(matrix.about["starts"] for matrix in plans))
    across = ACROSS - ACROSS % len(starts)  # those of one pair of layers beside each other
    figure, axes = make_panels(len(plans), min(across, len(plans)), SIDE, SIDE, gaps=(0.3, 0.72), least=SMALLEST)
    ends = [i + 0.5 for i, (a, b) in enumerate(pairwise(classes)) if a != b] if classes else []
    image: Any = None
    for panel, matrix in zip(axes, plans, strict=True):
        coupling = run.array(matrix.values)
        image = panel.imshow(n * coupling, cmap="Greys", vmin=0, vmax=1)
        panel.plot([-0.5, n - 0.5], [-0.5, n - 0.5], color=COLOURS[1], linewidth=0.8, linestyle="--")
        for end in ends:
            panel.axhline(end, color=COLOURS[0], linewidth=0.7)
            panel.axvline(end, color=COLOURS[0], linewidth=0.7)
        panel.set_xticks([])
        panel.set_yticks([])
        panel.set_ylabel(matrix.rows.model, fontsize=7, labelpad=2, parse_math=False)
        panel.set_xlabel(matrix.columns.model, fontsize=7, labelpad=2, parse_math=False)
        numbers = f"{measure_diagonal_mass(coupling):.2f} on it; {matrix.about['objective']:.2g}"
        panel.set_title(f"{matrix.about['starts']}\n{numbers}", fontsize=6.5, pad=3, loc="left")
    add_colour_bar(figure, image, "share of the row's mass")
    order = f", by class ({', '.join(dict.fromkeys(classes))})" if classes else ""
    said = f"dashed: the diagonal; above each: the share of the mass on it, by chance {1 / n:.2f}, and the objective"
    seen = f"{model}: which rows of one layer go to which of another, {n} rows{order}"
    set_headline(figure, seen, f"{said}, in squared mean distances{name_left_out(run, 'couplings', model)}")
    return figure


@analysis(
    studies=("views",), unasked=lambda planned: planned.options.get("couplings", {}) is not None, figures=draw_figures
)
def couplings(run: Finished, options: CouplingOptions, claims: Sequence[Claim]) -> Part:
    measured = run.select_kind("couplings")
    if not measured:
        return Part()
    classes = run.results.about["batch"]["classes"]
    rows: list[list[Any]] = []
    for matrix in measured:
        about, coupling = matrix.about, run.array(matrix.values)
        kind = "permutation" if is_permutation(coupling) else "spread"
        inside = None if classes is None else measure_class_mass(coupling, classes)
        solved = [about[key] for key in ("starts", "objective", "from", "objective of the identity")]
        head = [about["model"], matrix.rows.model, matrix.columns.model]
        mass, n = measure_diagonal_mass(coupling), len(coupling)
        # a descent from the identity favours the diagonal by itself
        p = None if kind == "spread" or about["from"] == "identity" else find_fixed_tail(round(mass * n), n)
        rows.append([*head, *solved, kind, mass, 1 / n, p, inside])
    return Part(tables={"couplings": Table(columns=COLUMNS, rows=rows)})
