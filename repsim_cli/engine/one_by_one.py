"""Pairs of prepared representations, compared one by one: at once, or as slow pairs, which are noted and audited."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from repsim_cli.base import registry
from repsim_cli.base.errors import Degenerate, RunFailed
from repsim_cli.base.plain import slug
from repsim_cli.engine.claimed import check_pair_symmetry
from repsim_cli.engine.known import AUDIT, VALUES, Cell
from repsim_cli.engine.processes import ALONE, PairTurn, open_state, solve_all
from repsim_cli.engine.undefined import Matrix, Undefined, Wanted
from repsim_cli.measures import Pairwise
from repsim_cli.measures.base import attribute_warnings, run_with_label
from repsim_cli.measures.cards import Solved


def compute_pair_values(
    measure: Pairwise,
    rows: Sequence[Any],
    columns: Sequence[Any],
    names: Sequence[str],
    wanted: Wanted | None = None,
    undefined: Undefined | None = None,
    turn: PairTurn = ALONE,
) -> Matrix:
    """A measure that is not an inner product, for all pairs of prepared representations; NaN where not wanted.

    undefined: is given the pairs without a value, which are NaN. turn: where pairs that are compared one by one are
    known, and shown.
    """
    known, batch = turn.known, turn.batch
    undefined = {} if undefined is None else undefined
    if measure.compare_all is not None:
        with suppress(Degenerate):  # of which pair, only one by one can say
            every = partial(measure.compare_all, rows, columns)
            return registry.measures.call(measure.name, every, RunFailed)
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
            step = partial(registry.measures.call, measure.name, partial(measure.compare, x, y), RunFailed)
            try:
                with attribute_warnings() as caught:
                    values[a, b] = run_with_label(f"{names[a]} and {names[b]}", step)
            except Degenerate as error:
                undefined[a, b] = error
                continue
            if known is not None and not caught:  # what is warned of is computed and warned of each time
                known.add(VALUES, batch, (a, b), [float(values[a, b])])
            if mirrored and b == a + 1:
                check_pair_symmetry(measure, float(values[a, b]), x, y)
        turn.show(partial(convert_to_numpy, values), 0)
    return values


def convert_to_numpy(values: Tensor) -> np.ndarray:
    return values.cpu().numpy()


def note_name(label: str) -> str:
    """The file name of the notes on a measure's pairs; hashes distinguish labels that differ in case alone."""
    return f"{slug(label)}-{xxhash.xxh3_64_hexdigest(label.encode())[:6]}"


AUDITED = 40  # pairs at most: POT takes seconds for each


def compute_slow_pairs(
    label: str,
    measure: Pairwise,
    states: Sequence[Any],
    names: Sequence[str],
    wanted: Wanted | None,
    undefined: Undefined,
    turn: PairTurn,
) -> tuple[Matrix, dict[str, Matrix]]:
    """A slow measure for all wanted pairs, and its details; with work the first batch is audited.

    undefined: is given the pairs without a value, which are NaN. An audit's details are NaN but for the pairs that were
    drawn: `audit_value`, `audit_reference` and `audit_tied`.
    """
    slow, count, work, batch = measure.slow, len(states), turn.work, turn.batch
    assert slow is not None
    cells = [(a, b) for a in range(count) for b in range(count) if a <= b or not measure.card.symmetric]
    cells = [cell for cell in cells if wanted is None or wanted[cell]]
    solve = slow.solve or partial(solve_plain, measure.compare)
    shape = (count, count, 1 + len(slow.details))
    note = note_name(label)
    noted = np.full(shape, np.nan) if work is None else work.notes(batch, note, shape)
    turn = turn._replace(later=_count_later_pairs(cells, count, turn))
    undefined |= solve_all(solve, states, cells, noted, name=measure.name, names=names, turn=turn)
    numbers = np.array(noted)
    if measure.card.symmetric:
        undefined |= {(b, a): error for (a, b), error in undefined.items()}
        below = np.tril_indices(count, -1)
        numbers[below] = numbers.swapaxes(0, 1)[below]
    value, *details = torch.from_numpy(numbers).unbind(2)
    further = dict(zip(slow.details, details, strict=True))
    seed = None if work is None or batch > 0 else work.seed
    audit = slow.audit
    if audit and audit.share and work is not None and seed is not None and audit.takes(open_state(states[0])):
        drawn = choose_audited([cell for cell in cells if cell not in undefined], audit.share, seed)
        checked = work.notes(batch, f"{note}-audit", (count, count, 2))
        shown, turn = f"{measure.name}, audit", PairTurn(AUDIT, batch, known=turn.known, work=work)
        solve_all(audit.reference, states, drawn, checked, name=shown, names=names, turn=turn)
        reference, tied = torch.from_numpy(np.array(checked)).unbind(2)
        audited_values = torch.where(reference.isnan(), reference, value)
        further |= {"audit_value": audited_values, "audit_reference": reference, "audit_tied": tied}
    return value, further


def _count_later_pairs(cells: Sequence[Cell], count: int, turn: PairTurn) -> int:
    """Counts the pairs of these cells that are left to solve in later batches."""
    known, later = turn.known, range(turn.batch + 1, 1 if turn.work is None else turn.work.batches)
    if known is None or not cells:
        return len(later) * len(cells)
    rows, columns = np.transpose(cells)
    return sum(int((~known.holds(VALUES, number, count)[rows, columns]).sum()) for number in later)


def solve_plain(compare: Callable[[Any, Any], float], a: Any, b: Any) -> Solved:
    return Solved(float(compare(a, b)))


def choose_audited(cells: Sequence[tuple[int, int]], share: float, seed: int) -> list[tuple[int, int]]:
    """A share of the pairs of different representations, at least one and at most AUDITED."""
    different = [(a, b) for a, b in cells if a != b]
    count = min(len(different), AUDITED, max(1, round(share * len(different))))
    drawn = np.random.default_rng(seed).choice(len(different), count, replace=False) if different else []
    return [different[i] for i in sorted(drawn)]
