"""All pairs of representations of one batch.

What depends on one representation is done once per representation, and once for all measures that share it.
Measures that are inner products of one matrix per representation share one tiled pass (`measures/inner.py`).
Memory: the representations of one batch, what one measure prepares of them, and one tile of every matrix.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import xxhash
from jaxtyping import Bool, Float
from torch import Tensor

from repsim_cli.errors import BadInput, Degenerate
from repsim_cli.measures import InnerProduct, Measure, OfHsic, Pairwise
from repsim_cli.measures.base import Slow, Solved, at, inner_values, issued_by, self_products, within
from repsim_cli.measures.inner import (
    AnyKernel,
    Features,
    Kernel,
    Packed,
    State,
    Tiles,
    products,
    products_of_tiles,
    states_of,
)
from repsim_cli.plain import slug
from repsim_cli.similarity.known import AUDIT, VALUES, Cell, KnownPairs
from repsim_cli.similarity.processes import Turn, Work, hidden, opened, solve_all

Matrix = Float[Tensor, "r r"]
Wanted = Bool[Tensor, "r r"]


@dataclass(frozen=True, kw_only=True)
class SimilarityMatrix:
    """values[a, b]: the entry (row a, column b) of all representations against all, float64.

    se: standard errors of the mean over batches (None for one batch or another estimate). rows: rows used.
    statistics: means over batches of what was observed beside the values. notices: the measure's warnings.
    """

    values: Matrix
    se: Matrix | None
    estimate: str
    rows: int
    batches: int
    statistics: dict[str, Tensor]
    notices: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Grams:
    """A representation of which only the tiles of its matrices are left, and the scales that were divided out."""

    rows: int
    tiles: Mapping[Kernel, Tiles]
    scales: Mapping[Kernel, float]

    def __len__(self) -> int:
        return self.rows

    @property
    def shape(self) -> tuple[int, int]:
        """Of the rows; the number of features is not known any more."""
        return self.rows, 0

    def state(self, kernel: Kernel) -> State:
        return State(Features(torch.empty(self.rows, 0), self.scales[kernel]))


Batch = Sequence[Tensor] | Sequence[Grams]


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """The representations of one batch as one measure sees them, while they are held.

    details: further numbers of every pair, of a slow measure.
    """

    names: Sequence[str]
    rows: int
    tile: int
    details: Mapping[str, Matrix] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PreparedProducts(_Prepared):
    """For an inner product. states: of every representation, by kernel. cross: all inner products; norms: squared."""

    measure: InnerProduct
    states: Mapping[AnyKernel, Sequence[State]]
    cross: Matrix
    norms: Tensor


@dataclass(frozen=True, kw_only=True)
class PreparedStates(_Prepared):
    """For a pairwise measure. states: of every representation."""

    measure: Pairwise
    states: Sequence[Any]


Prepared = PreparedProducts | PreparedStates


Observe = Callable[[str, Measure, Prepared, Matrix], None]
Statistics = Callable[[int, Measure, Prepared, Matrix], dict[str, Tensor]]


def all_pairs(
    measures: Mapping[str, Measure],
    representations: Batch,
    names: Sequence[str] | None = None,
    *,
    tile: int = 512,
    labels: Tensor | None = None,
    observe: Observe = lambda *_: None,
    wanted: Wanted | None = None,
    work: Work | None = None,
    batch: int = 0,
) -> dict[str, Matrix]:
    """Every measure for all pairs of representations (n, d_r) with paired rows; entry [a, b] as in contract 5.

    representations: of measures that are made of HSIC, their `Grams` will do.

    labels: a class code per row, for the measures that need them. observe: called once for each measure with its
    prepared states and values. wanted: symmetric; measures that are computed pair by pair skip all other pairs, which
    are NaN. Errors and warnings name the representations. work: where the pairs of slow measures are solved and noted,
    under the number of the batch; by default in this process.
    """
    names = names or [f"representation {r}" for r in range(len(representations))]
    show = work.show if work is not None and batch == 0 else hidden
    for measure in measures.values():
        measure.check(names, [x.shape for x in representations], labels)
    matrices = {}
    for label, prepared in _inner_products(measures, representations, names, tile):
        measure, states = prepared.measure, prepared.states
        with blamed(measure, prepared.cross, names), issued_by([label]):
            values = inner_values(measure, prepared.cross, prepared.norms, states[measure.row], states[measure.column])
        matrices[label] = within(measure.card, values)
        show(label, partial(array, matrices[label]), 0)
        observe(label, measure, prepared, matrices[label])
    rows = [x for x in representations if isinstance(x, Tensor)]
    for group in by_preparation(measures):
        some = next(iter(group.values()))
        made = (some.prepared(x, name, labels) for x, name in zip(rows, names, strict=True))
        filed = work is not None and any(measure.slow is not None for measure in group.values())
        with issued_by(group):
            kept = [work.keep(state) if work is not None and filed else state for state in made]
        states = [opened(state) for state in kept]
        for label, measure in group.items():
            n = len(representations[0])
            prepared = PreparedStates(measure=measure, names=names, rows=n, tile=tile, states=states)
            if measure.slow is None:
                known = None if work is None else work.known.get(label)
                with issued_by([label]):
                    values = pairs(measure, states, states, names, wanted, known, batch, partial(show, label))
            else:
                values, details = slow_pairs(measure, measure.slow, kept, prepared, wanted, work, batch, label)
                prepared = replace(prepared, details=details)
            matrices[label] = within(measure.card, values)
            show(label, partial(array, matrices[label]), 0)
            observe(label, measure, prepared, matrices[label])
        if work is not None:
            work.drop_inputs()
    return {label: matrices[label] for label in measures}


def hsic_products(
    measures: Mapping[str, Measure], representations: Batch, names: Sequence[str], *, tile: int
) -> dict[str, Matrix]:
    """HSIC of all pairs, not normalised, so that sums over batches add up."""
    sums = {}
    for label, prepared in _inner_products(measures, representations, names, tile):
        measure = prepared.measure
        measure.check(names, [x.shape for x in representations], None)
        scale = torch.tensor([s.features.scale**2 for s in prepared.states[measure.row]]).to(prepared.cross)
        hsic = prepared.cross.diagonal_scatter(prepared.norms)
        sums[label] = hsic * scale[:, None] * scale[None, :] / of_hsic(measure).terms(prepared.rows)
    return sums


def of_hsic(measure: Measure) -> OfHsic:
    """The measure; raises BadInput where it is not made of HSIC."""
    if not isinstance(measure, OfHsic):
        raise BadInput(
            f"extract.estimate: ratio_of_sums sums HSIC, and {measure.name} is not made of HSIC; use per_batch or full"
        )
    return measure


def _inner_products(
    measures: Mapping[str, Measure], representations: Batch, names: Sequence[str], tile: int
) -> Iterator[tuple[str, PreparedProducts]]:
    """The measures that are inner products, prepared; all of them in a single pass over tiles."""
    inner = {label: measure for label, measure in measures.items() if isinstance(measure, InnerProduct)}
    if not inner:
        return
    wanted = [(measure.row, measure.column) for measure in inner.values()]
    kernels = list(dict.fromkeys(kernel for pair in wanted for kernel in pair))
    sharing: dict[Any, list[str]] = {}  # the measures that are made of the same features
    for label, measure in inner.items():
        for feature in {_made_of(measure.row), _made_of(measure.column)}:
            sharing.setdefault(feature, []).append(label)
    states: dict[AnyKernel, list[State]] = {kernel: [] for kernel in kernels}
    n, dtype = len(representations[0]), torch.float32
    grams = [x for x in representations if isinstance(x, Grams)]
    for x, name in zip(representations, names, strict=True):
        features: dict[Any, Any] = {}
        for kernel in kernels:
            if isinstance(x, Grams):
                assert isinstance(kernel, Kernel)
                states[kernel].append(x.state(kernel))
                continue
            dtype = torch.promote_types(x.dtype, torch.float32)
            with issued_by(sharing[_made_of(kernel)]):
                states[kernel].append(at(name, partial(states_of, [kernel], x, features))[kernel])
    if grams:
        made: dict[AnyKernel, Matrix] = {}
        for kernel in grams[0].tiles:
            made[kernel] = products_of_tiles([x.tiles[kernel] for x in grams], n, tile)
        crosses = [made[measure.row] for measure in inner.values()]
    else:
        crosses = products(wanted, states, n, tile)
    for (label, measure), cross in zip(inner.items(), crosses, strict=True):
        norms = self_products(measure, cross, n, dtype)
        given = {"names": names, "rows": n, "tile": tile}
        yield label, PreparedProducts(measure=measure, states=states, cross=cross, norms=norms, **given)


@contextmanager
def blamed(measure: Measure, cross: Matrix, names: Sequence[str]) -> Iterator[None]:
    """Errors of the normalisation name the representation of the smallest norm."""
    try:
        yield
    except Degenerate as error:
        raise Degenerate(f"{names[int(cross.diagonal().argmin())]}: {measure.name}: {error}") from None


def _made_of(kernel: AnyKernel) -> Any:
    """The function of a representation that kernels may share."""
    return kernel.cells if isinstance(kernel, Packed) else kernel.features


def by_preparation(measures: Mapping[str, Measure]) -> list[dict[str, Pairwise]]:
    """The other measures, grouped by what they prepare."""
    groups: dict[Any, dict[str, Pairwise]] = {}
    for label, measure in measures.items():
        if isinstance(measure, Pairwise):
            prepare: Any = measure.prepare
            if isinstance(prepare, partial):
                prepare = (prepare.func, prepare.args, tuple(sorted(prepare.keywords.items())))
            groups.setdefault((prepare, measure.card.labelled), {})[label] = measure
    return list(groups.values())


def pairs(
    measure: Pairwise,
    rows: Sequence[Any],
    columns: Sequence[Any],
    names: Sequence[str],
    wanted: Wanted | None = None,
    known: KnownPairs | None = None,
    batch: int = 0,
    show: Callable[[Callable[[], np.ndarray], int], None] = lambda values, done: None,
) -> Matrix:
    """A measure that is not an inner product, for all pairs of prepared representations; NaN where not wanted.

    known: the pairs of the batch in the cache, where they are compared one by one. show: is given the values after each
    row, and 0.
    """
    if measure.compare_all is not None:
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
                continue
            with issued_by() as caught:
                values[a, b] = at(f"{names[a]} and {names[b]}", partial(measure.compare, x, y))
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
    prepared: Prepared,
    wanted: Wanted | None,
    work: Work | None,
    batch: int,
    label: str,
) -> tuple[Matrix, dict[str, Matrix]]:
    """A slow measure for all wanted pairs, and its details; with work the first batch is audited.

    An audit's details are NaN but for the pairs that were drawn: `audit_value`, `audit_reference` and `audit_tied`.
    """
    names, count = prepared.names, len(states)
    cells = [(a, b) for a in range(count) for b in range(count) if a <= b or not measure.card.symmetric]
    cells = [cell for cell in cells if wanted is None or wanted[cell]]
    solve = slow.solve or partial(plain, measure.compare)
    shape = (count, count, 1 + len(slow.details))
    note, known = note_name(label), None if work is None else work.known.get(label)
    noted = np.full(shape, np.nan) if work is None else work.notes(batch, note, shape)
    turn = Turn(VALUES, batch, _later(cells, count, work, known, batch), known)
    show = partial(work.show if work is not None and batch == 0 else hidden, label, lambda: noted[..., 0], 0)
    solve_all(solve, states, cells, noted, name=measure.name, names=names, work=work, turn=turn, show=show)
    numbers = np.array(noted)
    if measure.card.symmetric:
        below = np.tril_indices(count, -1)
        numbers[below] = numbers.swapaxes(0, 1)[below]
    value, *details = torch.from_numpy(numbers).unbind(2)
    further = dict(zip(slow.details, details, strict=True))
    seed = None if work is None or batch > 0 else work.seed
    if slow.audit is not None and slow.audit.share and work is not None and seed is not None:
        drawn = audited(cells, slow.audit.share, seed)
        checked = work.notes(batch, f"{note}-audit", (count, count, 2))
        audit, turn = f"{measure.name}, audit", Turn(AUDIT, batch, 0, known)
        solve_all(slow.audit.reference, states, drawn, checked, name=audit, names=names, work=work, turn=turn)
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
