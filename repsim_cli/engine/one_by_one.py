"""Pairs of prepared representations, compared one by one: at once, or as slow pairs, which are noted and audited."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.base.plain import slug
from repsim_cli.engine.known import AUDIT, VALUES, Cell, KnownPairs
from repsim_cli.engine.processes import Turn, Work, hidden, solve_all
from repsim_cli.engine.undefined import Matrix, Undefined, Wanted
from repsim_cli.measures import Pairwise
from repsim_cli.measures.base import at, issued_by
from repsim_cli.measures.cards import Slow, Solved


def pairs(
    measure: Pairwise,
    rows: Sequence[Any],
    columns: Sequence[Any],
    names: Sequence[str],
    wanted: Wanted | None = None,
    known: KnownPairs | None = None,
    batch: int = 0,
    show: Callable[[Callable[[], np.ndarray], int], None] = lambda values, done: None,
    undefined: Undefined | None = None,
) -> Matrix:
    """A measure that is not an inner product, for all pairs of prepared representations; NaN where not wanted.

    known: the pairs of the batch in the cache, where they are compared one by one. show: is given the values after each
    row, and 0. undefined: is given the pairs without a value, which are NaN.
    """
    undefined = {} if undefined is None else undefined
    if measure.compare_all is not None:
        with suppress(Degenerate):  # of which pair, only one by one can say
            return measure.compare_all(rows, columns)
    mirrored = measure.card.symmetric and rows is columns
    values = torch.full((len(rows), len(columns)), torch.nan, dtype=torch.float64)
    if known is not None:
        known.fill(VALUES, batch, values[..., None].numpy())
    for a, x in enumerate(rows):
        for b, y in enumerate(columns):
            if (wanted is not None and not wanted[a, b]) or not values[a, b].isnan():
                continue
            if mirrored and b < a:
                values[a, b] = values[b, a]
                undefined |= {(a, b): undefined[b, a]} if (b, a) in undefined else {}
                continue
            try:
                with issued_by() as caught:
                    values[a, b] = at(f"{names[a]} and {names[b]}", partial(measure.compare, x, y))
            except Degenerate as error:
                undefined[a, b] = error
                continue
            if known is not None and not caught:  # what is warned of is computed and warned of each time
                known.add(VALUES, batch, (a, b), [float(values[a, b])])
        show(partial(array, values), 0)
    return values


def array(values: Tensor) -> np.ndarray:
    return values.cpu().numpy()


def note_name(label: str) -> str:
    """The file name of the notes on a measure's pairs; hashes distinguish labels that differ in case alone."""
    return f"{slug(label)}-{xxhash.xxh3_64_hexdigest(label.encode())[:6]}"


AUDITED = 40  # pairs at most: POT takes seconds for each


def slow_pairs(
    measure: Pairwise,
    slow: Slow,
    states: Sequence[Any],
    names: Sequence[str],
    wanted: Wanted | None,
    work: Work | None,
    batch: int,
    label: str,
    undefined: Undefined,
) -> tuple[Matrix, dict[str, Matrix]]:
    """A slow measure for all wanted pairs, and its details; with work the first batch is audited.

    undefined: is given the pairs without a value, which are NaN. An audit's details are NaN but for the pairs that were
    drawn: `audit_value`, `audit_reference` and `audit_tied`.
    """
    count = len(states)
    cells = [(a, b) for a in range(count) for b in range(count) if a <= b or not measure.card.symmetric]
    cells = [cell for cell in cells if wanted is None or wanted[cell]]
    solve = slow.solve or partial(plain, measure.compare)
    shape = (count, count, 1 + len(slow.details))
    note, known = note_name(label), None if work is None else work.known.get(label)
    noted = np.full(shape, np.nan) if work is None else work.notes(batch, note, shape)
    turn = Turn(VALUES, batch, _later(cells, count, work, known, batch), known)
    show = partial(work.show if work is not None and batch == 0 else hidden, label, lambda: noted[..., 0], 0)
    given = {"names": names, "work": work}
    undefined |= solve_all(solve, states, cells, noted, name=measure.name, turn=turn, show=show, **given)
    numbers = np.array(noted)
    if measure.card.symmetric:
        undefined |= {(b, a): error for (a, b), error in undefined.items()}
        below = np.tril_indices(count, -1)
        numbers[below] = numbers.swapaxes(0, 1)[below]
    value, *details = torch.from_numpy(numbers).unbind(2)
    further = dict(zip(slow.details, details, strict=True))
    seed = None if work is None or batch > 0 else work.seed
    if slow.audit is not None and slow.audit.share and work is not None and seed is not None:
        drawn = audited([cell for cell in cells if cell not in undefined], slow.audit.share, seed)
        checked = work.notes(batch, f"{note}-audit", (count, count, 2))
        audit, turn = f"{measure.name}, audit", Turn(AUDIT, batch, 0, known)
        solve_all(slow.audit.reference, states, drawn, checked, name=audit, turn=turn, **given)
        reference, tied = torch.from_numpy(np.array(checked)).unbind(2)
        audited_values = torch.where(reference.isnan(), reference, value)
        further |= {"audit_value": audited_values, "audit_reference": reference, "audit_tied": tied}
    return value, further


def _later(cells: Sequence[Cell], count: int, work: Work | None, known: KnownPairs | None, batch: int) -> int:
    """How many pairs are left to solve in later batches."""
    later = range(batch + 1, 1 if work is None else work.batches)
    if known is None or not cells:
        return len(later) * len(cells)
    rows, columns = np.transpose(cells)
    return sum(int((~known.holds(VALUES, number, count)[rows, columns]).sum()) for number in later)


def plain(compare: Callable[[Any, Any], float], a: Any, b: Any) -> Solved:
    return Solved(float(compare(a, b)))


def audited(cells: Sequence[tuple[int, int]], share: float, seed: int) -> list[tuple[int, int]]:
    """A share of the pairs of different representations, at least one and at most AUDITED."""
    different = [(a, b) for a, b in cells if a != b]
    count = min(len(different), AUDITED, max(1, round(share * len(different))))
    drawn = np.random.default_rng(seed).choice(len(different), count, replace=False) if different else []
    return [different[i] for i in sorted(drawn)]
