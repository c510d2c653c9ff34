"""Cells of a run without a value: one line of warning, and rows of a table in results.json; the run goes on with all
other cells."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch

from repsim_cli.base.errors import RunFailed
from repsim_cli.engine.prepared import SimilarityMatrix
from repsim_cli.engine.undefined import Wanted
from repsim_cli.runs.results import Run

MOST = 3  # reasons in a warning


class NoValue(RunFailed):
    """No measure has a value for any two layers."""


class Lacking(NamedTuple):
    """Why cells of a measure have no value: a reason for each. cells: of the map, with those that have one. some:
    whether any has one."""

    why: list[str]
    cells: int
    some: bool


def select_measures_with_values(run: Run, found: Mapping[str, Lacking]) -> list[str]:
    """Lists the measures with a value at all, by label: the run skips all others, and warns of cells without a value.

    Raises NoValue where no measure has any.
    """
    said: dict[tuple[int, int, str], list[str]] = {}
    for label, (why, cells, some) in found.items():
        if some and why:
            said.setdefault((len(why), cells, join_reasons(why)), []).append(label)
    none = {label: join_reasons(why) for label, (why, _, some) in found.items() if not some}
    if len(none) == len(found):
        why = "; ".join(f"{', '.join(labels)} ({text})" for text, labels in invert(none).items())
        raise NoValue(f"measure: no two layers have a value under any measure, got {why}; read other layers or data")
    for (count, cells, text), labels in said.items():
        run.warn(f"{', '.join(labels)}: {count:,} of {cells:,} cells without a value: {text}")
    for label, text in none.items():
        run.skip(label, f"no two layers have a value: {text}")
    return [label for label in found if label not in none]


def join_reasons(why: Iterable[str]) -> str:
    """Joins the reasons, each once and without its advice; without any, the values themselves are none.

    >>> join_reasons(["a: all rows are equal, got 3; drop it", "a: all rows are equal, got 3; drop it"])
    'a: all rows are equal'
    """
    distinct = list(dict.fromkeys(text.partition(", got ")[0] for text in why))
    more = f" and {len(distinct) - MOST} more reasons" if len(distinct) > MOST else ""
    return "; ".join(distinct[:MOST] or ["its values are not finite"]) + more


def invert(labels: Mapping[str, str]) -> dict[str, list[str]]:
    """Groups labels by their text."""
    return {text: [label for label, other in labels.items() if other == text] for text in labels.values()}


def keep_matrices(
    run: Run, matrices: Mapping[str, SimilarityMatrix], wanted: Wanted | None = None
) -> dict[str, SimilarityMatrix]:
    """Keeps the matrices with a value for any two layers (see `select_measures_with_values`)."""
    labels = select_measures_with_values(
        run, {label: collect_lacking([matrix], wanted) for label, matrix in matrices.items()}
    )
    return {label: matrices[label] for label in labels}


def collect_lacking(matrices: Iterable[SimilarityMatrix], wanted: Wanted | None = None) -> Lacking:
    """Collects the cells that all matrices of a measure lack. The cell of a layer with itself counts only where there
    is no other layer."""
    why, cells, some = [], 0, False
    for matrix in matrices:
        known = matrix.values.isfinite().cpu()
        asked = torch.ones_like(known) if wanted is None else wanted
        different = ~torch.eye(len(known), dtype=torch.bool) | (len(known) == 1)
        why, cells = [*why, *matrix.undefined.values()], cells + int(asked.sum())
        some |= bool((known & asked & different).any())
    return Lacking(why, cells, some)
