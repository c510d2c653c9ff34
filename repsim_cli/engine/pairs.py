"""All pairs of representations of one batch.

What depends on one representation is done once per representation, and once for all measures that share it.
Measures that are inner products of one matrix per representation share one tiled pass (`measures/inner.py`).
Memory: the representations of one batch, what one measure prepares of them, and one tile of every matrix.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import starmap
from typing import Any

import torch
from torch import Tensor

from repsim_cli.base.errors import BadInput, Degenerate
from repsim_cli.engine.claimed import check_states, check_symmetry
from repsim_cli.engine.expected import RowPlaces, compute_products_and_means
from repsim_cli.engine.one_by_one import compute_pair_values, compute_slow_pairs, convert_to_numpy
from repsim_cli.engine.processes import PairTurn, PairWork, open_state, show_nothing
from repsim_cli.engine.undefined import (
    Cell,
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
from repsim_cli.measures import InnerProduct, Measure, OfHsic, Pairwise
from repsim_cli.measures.base import (
    attribute_warnings,
    clamp_to_bounds,
    compute_self_products,
    restrict_to_other_documents,
    run_with_label,
)
from repsim_cli.measures.features import PreparedFeatures
from repsim_cli.measures.inner import Tiles, compute_products_from_tiles
from repsim_cli.measures.kernels import AnyKernel, Documents, Kernel, Packed, State, prepare_states, prepare_together


@dataclass(frozen=True, kw_only=True)
class SimilarityMatrix:
    """values[a, b]: the entry (row a, column b) of all representations against all, float64.

    se: standard errors of the mean over batches (None for one batch or another estimate). rows: rows used.
    statistics: means over batches of what was observed beside the values. notices: the measure's warnings.
    undefined: by cell, why it has no value; values are NaN there.
    """

    values: Matrix
    se: Matrix | None
    estimate: str
    rows: int
    batches: int
    statistics: dict[str, Tensor]
    notices: Sequence[str] = ()
    undefined: Mapping[Cell, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Grams:
    """A representation of which only the tiles of its matrices are left, and the scales that were divided out; NaN of a
    constant one."""

    rows: int
    tiles: Mapping[Kernel, Tiles]
    scales: Mapping[Kernel, float]

    def __len__(self) -> int:
        return self.rows

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows, and 0, since the number of features is not known any more."""
        return self.rows, 0

    def state(self, kernel: Kernel) -> State:
        if math.isnan(self.scales[kernel]):
            raise Degenerate("all rows are equal, got a constant representation; drop this layer or change the data")
        return State(PreparedFeatures(torch.empty(self.rows, 0), self.scales[kernel]))


Batch = Sequence[Tensor] | Sequence[Grams]


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """The representations of one batch as one measure sees them, while they are held.

    details: further numbers of every pair, of a slow measure. documents: of the rows, where pairs of rows of one
    document are left out.
    """

    names: Sequence[str]
    rows: int
    tile: int
    details: Mapping[str, Matrix] = field(default_factory=dict)
    documents: Documents | None = None


@dataclass(frozen=True, kw_only=True)
class PreparedProducts(_Prepared):
    """For an inner product. states: of every representation, by kernel. cross: all inner products; norms: squared.
    undefined: the cells of representations that could not be prepared, for which others stand in. expected: the mean
    inner products over random pairings, where they were asked for."""

    measure: InnerProduct
    states: Mapping[AnyKernel, Sequence[State]]
    cross: Matrix
    norms: Tensor
    undefined: Undefined
    expected: Matrix | None = None


@dataclass(frozen=True, kw_only=True)
class PreparedStates(_Prepared):
    """For a pairwise measure. states: of every representation. left: which pairs are compared; None: all."""

    measure: Pairwise
    states: Sequence[Any]
    left: Wanted | None = None


Prepared = PreparedProducts | PreparedStates


Observe = Callable[[str, Measure, Prepared, Matrix], None]
Statistics = Callable[[int, Measure, Prepared, Matrix], dict[str, Tensor]]


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
    predicted from it.

    representations: of measures that are made of HSIC, their `Grams` will do.

    labels: a class code per row, for the measures that need them. observe: called once for each measure with its
    prepared states and values. wanted: symmetric; measures that are computed pair by pair skip all other pairs, which
    are NaN. Errors and warnings name the representations. work: where the pairs of slow measures are solved and noted,
    under the number of the batch; by default in this process. lack: is told of cells without a value, which are NaN;
    by default it raises Degenerate. A measure without any value is not observed. places: of the rows, where the means
    of inner products over random pairings are wanted. documents: of the rows, where pairs of rows of one document are
    left out by the measures that have such a form; None: all pairs count.
    """
    names = names or [f"representation {r}" for r in range(len(representations))]
    apart = {label: documents for label, measure in measures.items() if measure.apart is not None}
    measures = {label: restrict_to_other_documents(measure, documents) for label, measure in measures.items()}
    show = work.show if work is not None and batch == 0 else show_nothing
    for measure in measures.values():
        measure.check(names, [x.shape for x in representations], labels)
    count, matrices = len(representations), {}
    without: dict[str, Undefined] = {}

    def finish(label: str, prepared: Prepared | None, values: Matrix, undefined: Undefined) -> None:
        without[label] = undefined
        matrices[label] = mask(values, undefined)
        check_symmetry(measures[label], matrices[label], matrices[label].T)
        show(label, partial(convert_to_numpy, matrices[label]), 0)
        if prepared is not None:
            observe(label, prepared.measure, replace(prepared, documents=apart.get(label)), matrices[label])

    def value_products(label: str, prepared: PreparedProducts) -> None:
        measure, states, undefined = prepared.measure, prepared.states, dict(prepared.undefined)
        given = prepared.norms, states[measure.row], states[measure.column], names, undefined
        with attribute_warnings([label]):
            values = compute_defined_values(measure, prepared.cross, *given)
        finish(label, prepared, clamp_to_bounds(measure, values), undefined)

    def compare_states(group: Mapping[str, Pairwise]) -> None:
        rows = [x for x in representations if isinstance(x, Tensor)]
        kept, failed = _prepare_states(group, rows, names, labels, work)
        states, lacking = [open_state(state) for state in kept], list_undefined_cells(failed, failed, count)
        left = _drop_failed(wanted, lacking, count)
        for label, measure in group.items():
            undefined = dict(lacking)
            if len(failed) == count:
                finish(label, None, torch.full((count, count), torch.nan, dtype=torch.float64), undefined)
                continue
            n = len(representations[0])
            prepared = PreparedStates(measure=measure, names=names, rows=n, tile=tile, states=states, left=left)
            known = None if work is None else work.known.get(label)
            turn = PairTurn(batch=batch, known=known, work=work, show=partial(show, label))
            values, prepared = _compare_prepared_states(label, prepared, kept, undefined, turn)
            finish(label, prepared, clamp_to_bounds(measure, values), undefined)
        if work is not None:
            work.drop_inputs()

    products = _prepare_inner_products(measures, representations, names, tile, without, places)
    deque(starmap(value_products, products), maxlen=0)  # no name holds the states while others are prepared
    unprepared = {label: undefined for label, undefined in without.items() if label not in matrices}
    for label, undefined in unprepared.items():  # no representation could be prepared
        finish(label, None, torch.full((count, count), torch.nan, dtype=torch.float64), undefined)
    for group in group_by_preparation(measures):
        compare_states(group)  # whose states are let go before the next are prepared
    for label in measures:
        lack(label, without[label])
    return {label: matrices[label] for label in measures}


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
    group: Mapping[str, Pairwise],
    rows: Sequence[Tensor],
    names: Sequence[str],
    labels: Tensor | None,
    work: PairWork | None,
) -> tuple[list[Any], dict[int, Degenerate]]:
    """Prepares every representation, as the measures of a group all do, and keeps it where other processes are to read
    it. Returns the states, and why some could not be prepared."""
    some = next(iter(group.values()))
    filed = work is not None and any(measure.slow is not None for measure in group.values())

    def prepare(a: int) -> Any:
        state = some.prepare_named(rows[a], names[a], labels)
        return work.keep(state) if work is not None and filed else state

    with attribute_warnings(group):
        places = range(len(names))
        shown = places if work is None else work.progress(places, label=", ".join(group), unit="layers")
        states, failed = make_with_stand_ins(prepare, shown)
    for measure in group.values() if 0 not in failed else ():
        check_states(measure, rows[0], states[0], labels)
    return states, failed


def _drop_failed(wanted: Wanted | None, lacking: Undefined, count: int) -> Wanted | None:
    """The wanted pairs whose both sides could be prepared; None: all."""
    if not lacking:
        return wanted
    return mask(torch.ones(count, count), lacking).isfinite() & (True if wanted is None else wanted)


def compute_unnormalised_hsic(
    measures: Mapping[str, Measure],
    representations: Batch,
    names: Sequence[str],
    *,
    tile: int,
    lack: Lack = raise_first,
    documents: Documents | None = None,
) -> dict[str, Matrix]:
    """HSIC of all pairs, not normalised: sums over batches add up. lack, documents: as in `compute_all_pairs`."""
    measures = {label: restrict_to_other_documents(measure, documents) for label, measure in measures.items()}
    count, sums = len(representations), {}
    without: dict[str, Undefined] = {}
    for label, prepared in _prepare_inner_products(measures, representations, names, tile, without):
        measure = prepared.measure
        measure.check(names, [x.shape for x in representations], None)
        scale = torch.tensor([s.features.scale**2 for s in prepared.states[measure.row]]).to(prepared.cross)
        hsic = prepared.cross.diagonal_scatter(prepared.norms)
        hsic = hsic * scale[:, None] * scale[None, :] / check_of_hsic(measure).terms(prepared.rows)
        sums[label], without[label] = mask(hsic, prepared.undefined), prepared.undefined
    for label, undefined in without.items():
        sums.setdefault(label, torch.full((count, count), torch.nan, dtype=torch.float64))
        lack(label, undefined)
    return sums


def check_of_hsic(measure: Measure) -> OfHsic:
    """The measure; raises BadInput where it is not made of HSIC."""
    if not isinstance(measure, OfHsic):
        raise BadInput(
            f"extract.estimate: ratio_of_sums sums HSIC, and {measure.name} is not made of HSIC; use per_batch or full"
        )
    return measure


def _prepare_inner_products(
    measures: Mapping[str, Measure],
    representations: Batch,
    names: Sequence[str],
    tile: int,
    without: dict[str, Undefined],
    places: RowPlaces | None = None,
) -> Iterator[tuple[str, PreparedProducts]]:
    """The measures that are inner products, prepared; all of them in a single pass over tiles. without: is given the
    cells of measures that cannot prepare any representation, which are left out."""
    inner = {label: measure for label, measure in measures.items() if isinstance(measure, InnerProduct)}
    kernels = list(dict.fromkeys(kernel for measure in inner.values() for kernel in (measure.row, measure.column)))
    sharing: dict[Any, list[str]] = {}  # the measures that are made of the same features
    for label, measure in inner.items():
        for feature in {_find_maker(measure.row), _find_maker(measure.column)}:
            sharing.setdefault(feature, []).append(label)
    n, count, dtype = len(representations[0]), len(representations), torch.float32
    made: dict[AnyKernel, dict[int, State]] = {kernel: {} for kernel in kernels}
    failed: dict[AnyKernel, dict[int, Degenerate]] = {kernel: {} for kernel in kernels}
    ready = prepare_together(kernels, representations)
    for a, (x, name) in enumerate(zip(representations, names, strict=True)):
        features: dict[Any, Any] = {}
        if isinstance(x, Tensor):
            dtype = torch.promote_types(x.dtype, torch.float32)
        for kernel in kernels:
            if kernel in ready and isinstance(state := ready[kernel][a], State):
                made[kernel][a] = state
                continue
            try:
                with attribute_warnings(sharing[_find_maker(kernel)]):
                    made[kernel][a] = run_with_label(name, partial(_prepare_state, kernel, x, features))
            except Degenerate as error:
                failed[kernel][a] = error
    for label, measure in list(inner.items()):
        if not (made[measure.row] and made[measure.column]):
            without[label] = list_undefined_cells(failed[measure.row], failed[measure.column], count)
            del inner[label]
    stands = {kernel: next(iter(of)) for kernel, of in made.items() if of}
    at_place = {kernel: [a if a in made[kernel] else stand for a in range(count)] for kernel, stand in stands.items()}
    states = {kernel: [made[kernel][a] for a in at] for kernel, at in at_place.items()}
    grams = [x for x in representations if isinstance(x, Grams)]
    wanted, means = [(measure.row, measure.column) for measure in inner.values()], {}
    if grams:
        kernels = [kernel for kernel, _ in wanted if isinstance(kernel, Kernel)]  # all: others cannot be in files
        crosses = [
            compute_products_from_tiles([grams[a].tiles[kernel] for a in at_place[kernel]], n, tile)
            for kernel in kernels
        ]
    else:
        crosses, means = compute_products_and_means(wanted, states, n, tile, places)
    for (label, measure), cross in zip(inner.items(), crosses, strict=True):
        norms = compute_self_products(measure, cross, n, dtype)
        undefined = list_undefined_cells(failed[measure.row], failed[measure.column], count)
        given = {"names": names, "rows": n, "tile": tile, "undefined": undefined}
        given["expected"] = means.get((measure.row, measure.column))
        yield label, PreparedProducts(measure=measure, states=states, cross=cross, norms=norms, **given)


def _prepare_state(kernel: AnyKernel, x: Tensor | Grams, features: dict[Any, Any]) -> State:
    if isinstance(x, Grams):
        assert isinstance(kernel, Kernel)
        return x.state(kernel)
    return prepare_states([kernel], x, features)[kernel]


def _find_maker(kernel: AnyKernel) -> Any:
    """The function of a representation that kernels may share."""
    return kernel.cells if isinstance(kernel, Packed) else kernel.features


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
