"""All pairs of representations of one batch.

What depends on one representation is done once per representation, and once for all measures that share it.
Measures that are inner products of one matrix per representation share one tiled pass (`measures/inner.py`).
Memory: the representations of one batch, what one measure prepares of them, and one tile of every matrix.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import starmap
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.engine.claimed import check_states, check_symmetry
from repsim_cli.engine.expected import RowPlaces
from repsim_cli.engine.one_by_one import compute_pair_values, compute_slow_pairs, convert_to_numpy
from repsim_cli.engine.prepared import Batch, Observe, Prepared, PreparedProducts, PreparedStates
from repsim_cli.engine.processes import PairTurn, PairWork, open_state, show_nothing
from repsim_cli.engine.products import prepare_inner_products
from repsim_cli.engine.undefined import (
    Lack,
    Matrix,
    Undefined,
    Wanted,
    compute_defined_values,
    list_undefined_cells,
    make_with_stand_ins,
    mask,
    raise_first,
)
from repsim_cli.measures import Measure, Pairwise
from repsim_cli.measures.base import (
    attribute_warnings,
    clamp_to_bounds,
    restrict_to_other_documents,
)
from repsim_cli.measures.kernels import Documents


def compute_all_pairs(
    measures: Mapping[str, Measure],
    representations: Batch,
    names: Sequence[str] | None = None,
    *,
    tile: int = 512,
    labels: Tensor | None = None,
    observe: Observe = lambda *_: None,
    wanted: Wanted | None = None,
    work: PairWork | None = None,
    batch: int = 0,
    lack: Lack = raise_first,
    places: RowPlaces | None = None,
    documents: Documents | None = None,
) -> dict[str, Matrix]:
    """Computes every measure for all pairs of representations (n, d_r) with paired rows.

    Returns matrices (r, r) by label. Entry [a, b] of an asymmetric measure: a is explained by b, matched into it, or
    predicted from it. Errors and warnings name the representations.

    representations: tensors, or `Grams` for measures that are made of HSIC.
    labels: a class code per row, for the measures that need them.
    observe: called once for each measure that has a value, with what was prepared and the values.
    wanted: the pairs to compute, symmetric; measures that are computed pair by pair leave all others NaN.
    work: where the pairs of slow measures are solved, and noted under the number of the batch; None: in this process.
    lack: is told of cells without a value, which are NaN; by default it raises Degenerate.
    places: of the rows, where the means of inner products over random pairings are wanted.
    documents: the document of every row, for measures that can leave pairs of rows of one document out; None: all
        pairs count.
    """
    names = names or [f"representation {r}" for r in range(len(representations))]
    apart = {label: documents for label, measure in measures.items() if measure.apart is not None}
    measures = {label: restrict_to_other_documents(measure, documents) for label, measure in measures.items()}
    show = work.show if work is not None and batch == 0 else show_nothing
    for measure in measures.values():
        measure.check(names, [x.shape for x in representations], labels)
    matrices: dict[str, Matrix] = {}
    without: dict[str, Undefined] = {}

    def finish(label: str, prepared: Prepared | None, values: Matrix, undefined: Undefined) -> None:
        without[label] = undefined
        matrices[label] = mask(values, undefined)
        check_symmetry(measures[label], matrices[label], matrices[label].T)
        show(label, partial(convert_to_numpy, matrices[label]), 0)
        if prepared is not None:
            observe(label, prepared.measure, replace(prepared, documents=apart.get(label)), matrices[label])

    products = prepare_inner_products(measures, representations, names, tile, without, places)
    deque(starmap(partial(_value_products, finish), products), maxlen=0)  # no name holds states while others are made
    for label, undefined in [(label, why) for label, why in without.items() if label not in matrices]:
        finish(label, None, _make_empty_matrix(len(names)), undefined)
    rows = [x for x in representations if isinstance(x, Tensor)]
    given = _PairByPair(names=names, tile=tile, labels=labels, wanted=wanted, work=work, batch=batch, show=show)
    for group in group_by_preparation(measures):
        _compare_states(finish, group, rows, given)  # whose states are let go before the next are prepared
    for label in measures:
        lack(label, without[label])
    return {label: matrices[label] for label in measures}


def _make_empty_matrix(count: int) -> Matrix:
    """The matrix of a measure that no representation could be prepared for."""
    return torch.full((count, count), torch.nan, dtype=torch.float64)


# takes a measure's values, what was prepared for them (None: nothing could be), and the cells without a value
Finish = Callable[[str, Prepared | None, Matrix, Undefined], None]


def _value_products(finish: Finish, label: str, prepared: PreparedProducts) -> None:
    """Computes the values of a measure that is an inner product."""
    measure, states, undefined = prepared.measure, prepared.states, dict(prepared.undefined)
    given = prepared.norms, states[measure.row], states[measure.column], prepared.names, undefined
    with attribute_warnings([label]):
        values = compute_defined_values(measure, prepared.cross, *given)
    finish(label, prepared, clamp_to_bounds(measure, values), undefined)


@dataclass(frozen=True, kw_only=True)
class _PairByPair:
    """How the pairs of a batch are compared one by one, whatever the measure; as in `compute_all_pairs`."""

    names: Sequence[str]
    tile: int
    labels: Tensor | None
    wanted: Wanted | None
    work: PairWork | None
    batch: int
    show: Callable[[str, Callable[[], np.ndarray], int], None]

    def take_turn(self, label: str) -> PairTurn:
        """The pairs of a measure in this batch."""
        known = None if self.work is None else self.work.known.get(label)
        return PairTurn(batch=self.batch, known=known, work=self.work, show=partial(self.show, label))


def _compare_states(finish: Finish, group: Mapping[str, Pairwise], rows: Sequence[Tensor], given: _PairByPair) -> None:
    """Prepares every representation once for a group of measures that share this, and compares by each of them."""
    kept, failed = _prepare_states(group, rows, given)
    count = len(given.names)
    states, lacking = [open_state(state) for state in kept], list_undefined_cells(failed, failed, count)
    shared = {"names": given.names, "rows": len(rows[0]), "tile": given.tile}
    left = _drop_failed(given.wanted, lacking, count)
    for label, measure in group.items():
        undefined = dict(lacking)
        if len(failed) == count:
            finish(label, None, _make_empty_matrix(count), undefined)
            continue
        prepared = PreparedStates(measure=measure, states=states, left=left, **shared)
        values, prepared = _compare_prepared_states(label, prepared, kept, undefined, given.take_turn(label))
        finish(label, prepared, clamp_to_bounds(measure, values), undefined)
    if given.work is not None:
        given.work.drop_inputs()


def _compare_prepared_states(
    label: str, prepared: PreparedStates, kept: Sequence[Any], undefined: Undefined, turn: PairTurn
) -> tuple[Matrix, PreparedStates]:
    """Compares all wanted pairs; gives the values, and what is prepared with the details of slow pairs. kept: the
    states as other processes read them."""
    measure, states, names, left = prepared.measure, prepared.states, prepared.names, prepared.left
    if measure.slow is None:
        with attribute_warnings([label]):
            return compute_pair_values(measure, states, states, names, left, undefined, turn), prepared
    values, details = compute_slow_pairs(label, measure, kept, names, left, undefined, turn)
    return values, replace(prepared, details=details)


def _prepare_states(
    group: Mapping[str, Pairwise], rows: Sequence[Tensor], given: _PairByPair
) -> tuple[list[Any], dict[int, Degenerate]]:
    """Prepares every representation, as the measures of a group all do, and keeps it where other processes are to read
    it. Returns the states, and why some could not be prepared."""
    some, work = next(iter(group.values())), given.work
    filed = work is not None and any(measure.slow is not None for measure in group.values())

    def prepare(a: int) -> Any:
        state = some.prepare_named(rows[a], given.names[a], given.labels)
        return work.keep(state) if work is not None and filed else state

    with attribute_warnings(group):
        places = range(len(given.names))
        shown = places if work is None else work.progress(places, label=", ".join(group), unit="layers")
        states, failed = make_with_stand_ins(prepare, shown)
    for measure in group.values() if 0 not in failed else ():
        check_states(measure, rows[0], states[0], given.labels)
    return states, failed


def _drop_failed(wanted: Wanted | None, lacking: Undefined, count: int) -> Wanted | None:
    """The wanted pairs whose both sides could be prepared; None: all."""
    if not lacking:
        return wanted
    return mask(torch.ones(count, count), lacking).isfinite() & (True if wanted is None else wanted)


def group_by_preparation(measures: Mapping[str, Measure]) -> list[dict[str, Pairwise]]:
    """The other measures, grouped by what they prepare."""
    groups: dict[Any, dict[str, Pairwise]] = {}
    for label, measure in measures.items():
        if isinstance(measure, Pairwise):
            prepare: Any = measure.prepare
            if isinstance(prepare, partial):
                prepare = (prepare.func, prepare.args, tuple(sorted(prepare.keywords.items())))
            groups.setdefault((prepare, measure.card.labelled), {})[label] = measure
    return list(groups.values())
