"""The numbers of a dictionary in a model, with errors over documents."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.engine.proportions import count_like_freedom
from repsim_cli.findings.extremes import find_width
from repsim_cli.studies.dictionaries.columns import MEAN, SAID, SHUFFLED
from repsim_cli.studies.dictionaries.spliced import Told

Sums = Float[np.ndarray, "p ..."]


def jackknife(
    value: Callable[[Sums], Any], sums: Float[np.ndarray, "p N"], documents: Int[np.ndarray, " N"]
) -> tuple[float | None, float | None]:
    """Computes value(sums over all sequences), and its standard error from leaving out one document at a time; None for
    what has no value, and for an error of fewer than three documents."""
    known = ~np.isnan(sums).any(0)
    _, place = np.unique(documents[known], return_inverse=True)
    if not len(place):
        return None, None
    of_each = np.stack([np.bincount(place, part[known]) for part in sums])
    whole = of_each.sum(1)
    found, count = float(value(whole)), of_each.shape[1]
    if not np.isfinite(found):
        return None, None
    without = value(whole[:, None] - of_each)
    error = np.sqrt((count - 1) / count * np.square(without - without.mean()).sum())
    return found, float(error) if count > 2 and np.isfinite(error) else None


def compute_explained_share(sums: Sums) -> Any:
    """The share of squares (second) that is not left (first)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return 1 - sums[0] / sums[1]


def average(sums: Sums) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return sums[0] / sums[1]


def subtract(sums: Sums) -> Any:
    """Subtracts the explained share of the last two sums from that of the first two."""
    return compute_explained_share(sums[:2]) - compute_explained_share(sums[2:])


def _has_meaning(told: Told, documents: Int[np.ndarray, " N"]) -> bool:
    """Says whether a share of what the next token loses with the mean row has a meaning: it loses more than the error
    of that, and the share's interval is narrower than the whole to each side."""
    if told.loss is None:
        return False
    lost, error = jackknife(average, np.stack([told.loss[MEAN], np.ones_like(told.rows)]), documents)
    _, of_share = jackknife(compute_explained_share, np.stack([told.loss[SAID], told.loss[MEAN]]), documents)
    errors = find_width(2, _count_freedom(told, documents))
    return lost is not None and lost > errors * (error or 0.0) and errors * (of_share or 0.0) < 1


def _count_freedom(told: Told, documents: Int[np.ndarray, " N"]) -> int:
    """Counts the degrees of freedom of errors: few where few documents have most of the squares."""
    return count_like_freedom(np.bincount(np.unique(documents, return_inverse=True)[1], told.squares))


def check_told(told: Told, layer: str) -> None:
    """Raises BadInput where the rows of a layer do not vary, RunFailed where what a dictionary gives for them is not
    finite."""
    squares, left = float(told.squares.sum()), float(sum(each.sum() for each in told.left.values()))
    if not squares > 0:
        raise BadInput(f"{layer}: its rows are all the same, got {int(told.rows.sum())} of them; leave it out")
    if not np.isfinite(squares + left):
        raise RunFailed(f"{layer}: what the dictionary says is not finite; use hardware.dtype=float32")


def make_worth_cells(told: Told, base: Told | None, documents: Int[np.ndarray, " N"]) -> list[Any]:
    """Makes the cells of `COLUMNS` behind the number of documents. base: the same dictionary in the base, of the same
    sequences; None for the base itself."""
    by_rows = {kind: np.stack([told.left[kind], told.squares]) for kind in (SAID, SHUFFLED)}
    cells: list[Any] = [_count_freedom(told, documents), *jackknife(compute_explained_share, by_rows[SAID], documents)]
    cells.append(jackknife(compute_explained_share, by_rows[SHUFFLED], documents)[0])
    by_loss, more, divergence = None, (None, None), None
    if told.loss is not None and told.kl is not None:
        ones = np.ones_like(told.rows)
        by_loss = {kind: np.stack([told.loss[kind], told.loss[MEAN]]) for kind in (SAID, SHUFFLED)}
        more = jackknife(average, np.stack([told.loss[SAID], ones]), documents)
        divergence = jackknife(average, np.stack([told.kl[SAID], ones]), documents)[0]
        by_loss = by_loss if _has_meaning(told, documents) else None
    recovered: tuple[Any, Any] = (
        (None, None) if by_loss is None else jackknife(compute_explained_share, by_loss[SAID], documents)
    )
    cells += [
        *recovered,
        None if by_loss is None else jackknife(compute_explained_share, by_loss[SHUFFLED], documents)[0],
    ]
    cells += [*more, divergence, float(told.active.sum() / told.rows.sum()), 1 - float(told.alive.mean())]
    if base is None:
        return [*cells, None, None, None, None]
    cells += jackknife(subtract, np.stack([*by_rows[SAID], base.left[SAID], base.squares]), documents)
    if by_loss is None or base.loss is None or not _has_meaning(base, documents):
        return [*cells, None, None]
    return [
        *cells,
        *jackknife(subtract, np.stack([*by_loss[SAID], base.loss[SAID], base.loss[MEAN]]), documents),
    ]
