"""The all-pairs engine: representations, whole or as a stream of batches, x measures -> similarity matrices.

What depends on one representation is done once per representation, and once for all measures that share it.
Measures that are inner products of one matrix per representation share one tiled pass (`measures/inner.py`).
Memory: the representations of one batch, what one measure prepares of them, and one tile of every matrix.
"""

import itertools
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.activations.maps import Maps
from repsim_cli.errors import BadInput, Degenerate
from repsim_cli.measures import Measure
from repsim_cli.measures.base import MeasureWarning, at, inner_values, own_products
from repsim_cli.measures.inner import Inner, Kernel, Products, products, states_of, unchanged
from repsim_cli.measures.inner import State as KernelState
from repsim_cli.measures.moments import varying

Matrix = Float[Tensor, "r r"]
STRIP_ROWS = 1024  # rows of one float32 product of features


@dataclass(frozen=True, kw_only=True)
class SimilarityMatrix:
    """values[a, b]: the entry (row a, column b) of all representations against all, float64.

    se: standard errors of the mean over batches (None for one batch or another estimate). rows: rows used.
    statistics: means over batches of what was observed beside the values.
    """

    values: Matrix
    se: Matrix | None
    estimate: str
    rows: int
    batches: int
    statistics: dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The representations of one batch as one measure sees them, while they are held.

    states: of every representation, or for an inner product by kernel. cross, own: its inner products (else None).
    """

    names: Sequence[str]
    rows: int
    tile: int
    states: Any
    cross: Matrix | None = None
    own: Tensor | None = None


Observe = Callable[[str, Measure, Prepared, Matrix], None]
Statistics = Callable[[int, Measure, Prepared, Matrix], dict[str, Tensor]]


def all_pairs(
    measures: Mapping[str, Measure],
    representations: Sequence[Tensor],
    names: Sequence[str] | None = None,
    *,
    tile: int = 512,
    labels: Tensor | None = None,
    observe: Observe = lambda *_: None,
) -> dict[str, Matrix]:
    """Every measure for all pairs of representations (n, d_r) with paired rows; entry [a, b] as in contract 5.

    labels: a class code per row, for the measures that need them. observe: called once for each measure with what
    was prepared for it. Errors and warnings name the representations.
    """
    names = names or [f"representation {r}" for r in range(len(representations))]
    for measure in measures.values():
        measure.check(names, [x.shape for x in representations], labels)
    found = {}
    for label, measure, prepared in _inner_products(measures, representations, names, tile):
        assert measure.inner is not None
        assert prepared.cross is not None
        assert prepared.own is not None
        states = prepared.states
        with _blamed(measure, prepared.cross, names):
            found[label] = inner_values(
                measure.inner, prepared.cross, prepared.own, states[measure.inner.row], states[measure.inner.column]
            )
        observe(label, measure, prepared, found[label])
    for group in _by_preparation(measures):
        some = next(iter(group.values()))
        states = [some.prepared(x, name, labels) for x, name in zip(representations, names, strict=True)]
        for label, measure in group.items():
            found[label] = pairs(measure, states, states, names)
            prepared = Prepared(names=names, rows=len(representations[0]), tile=tile, states=states)
            observe(label, measure, prepared, found[label])
    return {label: found[label] for label in measures}


def hsic_products(
    measures: Mapping[str, Measure], representations: Sequence[Tensor], names: Sequence[str], *, tile: int
) -> dict[str, Matrix]:
    """HSIC of all pairs, in its own units, so that sums over batches add up."""
    found = {}
    for label, measure, prepared in _inner_products(measures, representations, names, tile):
        measure.check(names, [x.shape for x in representations], None)
        assert measure.inner is not None
        assert measure.inner.terms is not None
        assert prepared.cross is not None
        assert prepared.own is not None
        scale = torch.tensor([s.features.scale**2 for s in prepared.states[measure.inner.row]]).to(prepared.cross)
        hsic = prepared.cross.diagonal_scatter(prepared.own)
        found[label] = hsic * scale[:, None] * scale[None, :] / measure.inner.terms(prepared.rows)
    return found


def _inner_products(
    measures: Mapping[str, Measure], representations: Sequence[Tensor], names: Sequence[str], tile: int
) -> Iterator[tuple[str, Measure, Prepared]]:
    """The measures that are inner products, prepared, all in one pass over tiles."""
    inner = {label: measure.inner for label, measure in measures.items() if measure.inner is not None}
    if not inner:
        return
    wanted = [(one.row, one.column) for one in inner.values()]
    kernels = list(dict.fromkeys(kernel for pair in wanted for kernel in pair))
    made = [at(name, partial(states_of, kernels, x, {})) for x, name in zip(representations, names, strict=True)]
    states = {kernel: [one[kernel] for one in made] for kernel in kernels}
    n, dtype = len(representations[0]), torch.promote_types(representations[0].dtype, torch.float32)
    for (label, one), cross in zip(inner.items(), products(wanted, states, n, tile), strict=True):
        own = own_products(one, cross, n, dtype)
        yield label, measures[label], Prepared(names=names, rows=n, tile=tile, states=states, cross=cross, own=own)


@contextmanager
def _blamed(measure: Measure, cross: Matrix, names: Sequence[str]) -> Iterator[None]:
    """Errors of the normalisation name the representation that has the smallest own product."""
    try:
        yield
    except Degenerate as error:
        raise Degenerate(f"{names[int(cross.diagonal().argmin())]}: {measure.name}: {error}") from None


def _by_preparation(measures: Mapping[str, Measure]) -> list[dict[str, Measure]]:
    """The other measures, grouped by what they prepare."""
    groups: dict[Any, dict[str, Measure]] = {}
    for label, measure in measures.items():
        if measure.inner is None:
            prepare: Any = measure.prepare
            if isinstance(prepare, partial):
                prepare = (prepare.func, prepare.args, tuple(sorted(prepare.keywords.items())))
            groups.setdefault((prepare, measure.card.labelled), {})[label] = measure
    return list(groups.values())


def pairs(measure: Measure, rows: Sequence[Any], columns: Sequence[Any], names: Sequence[str]) -> Matrix:
    """A measure that is no inner product, for all pairs of prepared representations."""
    if measure.compare_all is not None:
        return measure.compare_all(rows, columns)
    compare = measure.compare
    assert compare is not None
    mirrored = measure.card.symmetric and rows is columns
    values = torch.empty(len(rows), len(columns), dtype=torch.float64)
    for a, x in enumerate(rows):
        for b, y in enumerate(columns):
            if mirrored and b < a:
                values[a, b] = values[b, a]
            else:
                values[a, b] = at(f"{names[a]} and {names[b]}", partial(compare, x, y))
    return values


@dataclass
class _Mean:
    """Running mean and standard error of matrices (Welford), one number per pair whatever the batches."""

    mean: Tensor | None = None
    squares: Tensor | None = None

    def add(self, values: Tensor, batches: int) -> None:
        """batches: their number with this one."""
        if self.mean is None or self.squares is None:
            self.mean, self.squares = torch.zeros_like(values), torch.zeros_like(values)
        delta = values - self.mean
        self.mean += delta / batches
        self.squares += delta * (values - self.mean)

    def se(self, batches: int) -> Tensor | None:
        if batches < 2 or self.squares is None:
            return None
        return (self.squares / (batches - 1) / batches).sqrt()


def check_estimate(measure: Measure, estimate: str) -> None:
    """Raises BadInput where the estimate is not defined for the measure."""
    if estimate == "moments" and measure.moments is None:
        raise BadInput(
            f"extract.estimate: {measure.name} is not a function of second moments, got moments; use full or per_batch"
        )
    if estimate == "ratio_of_sums" and (measure.inner is None or measure.inner.terms is None):
        raise BadInput(
            f"extract.estimate: ratio_of_sums sums HSIC, and {measure.name} is not made of HSIC; use per_batch or full"
        )


State = dict[str, Tensor]
Notices = dict[str, str]


@contextmanager
def _noticed(notices: Notices) -> Iterator[None]:
    """Adds the warnings of measures, the first of each kind: numbers may differ between batches."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MeasureWarning)
        yield
    for notice in caught:
        if notice.category is MeasureWarning:
            notices.setdefault(re.sub(r"\d[\d.]* ", "# ", str(notice.message)), str(notice.message))
        else:
            warnings.warn(notice.message, notice.category, stacklevel=2)


def estimate_all_pairs(
    measures: Mapping[str, Measure],
    batches: Callable[[int], Iterable[Sequence[Tensor]]],
    *,
    names: Sequence[str],
    estimate: str,
    tile: int = 512,
    labels: Callable[[int], Tensor | None] = lambda batch: None,
    statistics: Statistics = lambda *_: {},
    each: Callable[[int, Mapping[str, Matrix]], None] = lambda batch, values: None,
    state: State | None = None,
    save: Callable[[State], None] = lambda state: None,
) -> tuple[dict[str, SimilarityMatrix], list[str]]:
    """Every measure for all pairs, from a stream of batches; each batch holds R tensors (n, d_r), paired rows.
    Beside the matrices, the warnings of the measures.

    batches(k): the stream from batch k on. full: one batch. per_batch: mean of the batches' values, with its
    standard error. ratio_of_sums: HSIC of each batch (biased: / (n-1)^2, unbiased: / (n (n-3))), summed, and
    normalised at the end. labels(batch): a class code per row, for measures that need them. statistics(batch,
    measure, what was prepared, values): more to be averaged over batches. each(batch, values): sees every batch.
    save(state) is called after each batch; the work goes on from a `state` that was saved, with the same bits.
    """
    for measure in measures.values():
        check_estimate(measure, estimate)
    means: dict[Any, _Mean] = {}
    seen = rows = 0
    notices: Notices = {}
    if state is not None:
        stored = [key.removesuffix(".mean") for key in state if key.endswith(".mean")]
        means = {tuple(key.split("\t")): _Mean(state[f"{key}.mean"], state[f"{key}.squares"]) for key in stored}
        seen, rows = (int(count) for count in state["seen"])
        notices = json.loads(bytes(state["notices"].tolist()))
    summed = estimate == "ratio_of_sums"
    for batch in batches(seen):
        with _noticed(notices):
            if summed:
                found = {(label,): hsic for label, hsic in hsic_products(measures, batch, names, tile=tile).items()}
            else:
                found = _observed(measures, batch, names, tile, labels(seen), partial(statistics, seen))
        rows, seen = rows + len(batch[0]), seen + 1
        for key, value in found.items():
            means.setdefault(key, _Mean()).add(value.cpu(), seen)
        each(seen - 1, {label: found[label,] for label in measures})
        save(_state(means, seen, rows, notices))
    if not rows:
        raise BadInput("extract: no batch could be filled, got too few rows; lower batch_rows or add data")
    matrices = {}
    for label, measure in measures.items():
        mean = means[label,]
        assert mean.mean is not None
        matrices[label] = SimilarityMatrix(
            values=of_sums(measure, mean.mean, names) if summed else mean.mean,
            se=None if summed else mean.se(seen),
            estimate=estimate,
            rows=rows,
            batches=seen,
            statistics={
                key[1]: m.mean for key, m in means.items() if key[0] == label and key[1:] and m.mean is not None
            },
        )
    return matrices, list(notices.values())


Passes = Callable[[Sequence[int]], Iterable[Sequence[Tensor]]]


def moment_pairs(
    measures: Mapping[str, Measure], passes: Passes, *, names: Sequence[str], widths: Sequence[int], side: int
) -> tuple[dict[str, SimilarityMatrix], list[str]]:
    """Every measure for all pairs from the second moments of all rows, and the measures' warnings.

    passes(layers): a fresh stream of paired rows (n, d) of these layers. Layers are taken in blocks of at most `side`
    features (or one layer): one pass over the rows per pair of blocks, so that memory does not depend on their number.
    """
    for measure in measures.values():
        check_estimate(measure, "moments")
    blocks = blocks_of(widths, side)
    forms = {label: measure.moments for label, measure in measures.items() if measure.moments is not None}
    values = {label: torch.empty(len(names), len(names), dtype=torch.float64) for label in measures}
    found: dict[int, _Layer] = {}
    notices: Notices = {}
    states: dict[tuple[Any, int], Any] = {}

    def compare(a: int, b: int, covariance: Tensor) -> None:
        covariance = covariance[found[a].alive][:, found[b].alive]
        for label, form in forms.items():
            both = partial(form.compare, states[form.prepare, a], states[form.prepare, b], covariance)
            values[label][a, b], values[label][b, a] = at(f"{names[a]} and {names[b]}", both)

    rows = 0
    for block in blocks:
        whole, own = _own_moments(passes(block))
        rows = own[0].rows
        cells = _cells(whole, own, own)
        with _noticed(notices):
            for i, a in enumerate(block):
                alive = at(names[a], partial(varying, own[i].low, own[i].high))
                found[a] = own[i]._replace(alive=alive)
                for measure in measures.values():
                    measure.check([names[a]], [(rows, int(alive.sum()))], None)
                for prepare in {form.prepare for form in forms.values()}:
                    prepared = partial(prepare, cells[i, i][alive][:, alive], rows)
                    states[prepare, a] = at(names[a], prepared)
                for j, b in enumerate(block[: i + 1]):
                    compare(b, a, cells[j, i])
        del whole, cells
    for left, right in itertools.combinations(blocks, 2):
        means = [torch.cat([found[a].mean for a in block]) for block in (left, right)]
        whole = _cross_moments(passes([*left, *right]), len(left), *means)
        with _noticed(notices):
            for (i, j), cell in _cells(whole, [found[a] for a in left], [found[b] for b in right]).items():
                compare(left[i], right[j], cell)
    return {
        label: SimilarityMatrix(values=one, se=None, estimate="moments", rows=rows, batches=1, statistics={})
        for label, one in values.items()
    }, list(notices.values())


def blocks_of(widths: Sequence[int], side: int) -> list[list[int]]:
    """Layers in order, as many at a time as have at most `side` features together, or one.

    >>> blocks_of([4, 4, 4, 9, 2], side=8)
    [[0, 1], [2], [3], [4]]
    """
    found: list[list[int]] = []
    for layer, width in enumerate(widths):
        if found and sum(widths[a] for a in found[-1]) + width <= side:
            found[-1].append(layer)
        else:
            found.append([layer])
    return found


class _Layer(NamedTuple):
    """What one pass tells of a layer: its mean in float64, the least and largest value of each neuron, who is alive."""

    rows: int
    mean: Float[Tensor, " d"]
    low: Float[Tensor, " d"]
    high: Float[Tensor, " d"]
    alive: Tensor | None = None


def _own_moments(stream: Iterable[Sequence[Tensor]]) -> tuple[Matrix, list[_Layer]]:
    """x'x of the centred rows of all layers together, and each layer's mean and range.

    Rows are first shifted by the mean of the first batch, so that the final correction cancels no digits.
    """
    whole = shift = total = low = high = None
    rows, widths = 0, []
    for batch in stream:
        widths = [x.shape[1] for x in batch]
        x = torch.cat(list(batch), 1)
        least, most = x.aminmax(dim=0)
        x = x.double()
        if whole is None or shift is None or total is None or low is None or high is None:
            shift, low, high = x.mean(0), least, most
            whole, total = x.new_zeros(x.shape[1], x.shape[1]), x.new_zeros(x.shape[1])
        x -= shift
        whole.addmm_(x.T, x)
        total += x.sum(0)
        low, high = torch.minimum(low, least), torch.maximum(high, most)
        rows += len(x)
    if whole is None or shift is None or total is None or low is None or high is None:
        raise BadInput("extract: no row is left, got none; give more text")
    whole.addr_(total, total, alpha=-1 / rows)
    parts = [part.split(widths) for part in (shift + total / rows, low, high)]
    return whole, [_Layer(rows, *of_layer) for of_layer in zip(*parts, strict=True)]


def _cross_moments(stream: Iterable[Sequence[Tensor]], count: int, left: Tensor, right: Tensor) -> Float[Tensor, "k l"]:
    """x'y of the rows of the first `count` layers and of the others, centred by these means."""
    whole = left.new_zeros(len(left), len(right))
    for batch in stream:
        x, y = (torch.cat(list(side), 1).double() for side in (batch[:count], batch[count:]))
        whole.addmm_((x - left).T, y - right)
    return whole


def _cells(
    whole: Float[Tensor, "k l"], rows: Sequence[_Layer], columns: Sequence[_Layer]
) -> dict[tuple[int, int], Tensor]:
    """The parts of a matrix that belong to each pair of layers, as views."""
    return {
        (i, j): cell
        for i, strip in enumerate(whole.split([len(layer.mean) for layer in rows]))
        for j, cell in enumerate(strip.split([len(layer.mean) for layer in columns], 1))
    }


def estimate_attention(
    measures: Mapping[str, Measure],
    batches: Callable[[int], Iterable[Maps]],
    layers: Sequence[slice],
    *,
    state: State | None = None,
    save: Callable[[State], None] = lambda state: None,
) -> tuple[dict[str, SimilarityMatrix], list[str]]:
    """Every measure of attention for all pairs of layers, from a stream of batches of sentences; and their warnings.

    batches(k): the stream from batch k on, each with the maps of all heads of all layers. layers: which heads are of
    one layer. What is summed is held once for all measures that share it: a few numbers per pair of heads, however
    long the text. rows: what the measure averages over; statistics: `heads`, the similarity of all heads, where heads
    are matched. state, save: as in `estimate_all_pairs`.
    """
    sums = {label: measure.attention.sums for label, measure in measures.items() if measure.attention is not None}
    kinds = list(dict.fromkeys(sums.values()))
    firsts = [next(label for label, own in sums.items() if own is kind) for kind in kinds]
    totals: list[dict[str, Tensor]] = [{} for _ in kinds]
    seen = 0
    if state is not None:
        seen = int(state["seen"])
        totals = [{k.split("\t")[1]: v for k, v in state.items() if k.startswith(f"{i}\t")} for i in range(len(kinds))]
    for maps in batches(seen):
        for total, kind, first in zip(totals, kinds, firsts, strict=True):
            for key, value in at(first, partial(kind, maps)).items():
                total[key] = total[key] + value.cpu() if key in total else value.cpu()
        seen += 1
        save({"seen": torch.tensor(seen), **{f"{i}\t{k}": v for i, t in enumerate(totals) for k, v in t.items()}})
    matrices, notices = {}, Notices()
    for label, measure in measures.items():
        attention, total = measure.attention, totals[kinds.index(sums[label])]
        assert attention is not None
        with _noticed(notices):
            at(label, partial(measure.check_count, total))
            values = at(label, partial(attention.layers, total, layers))
        matrices[label] = SimilarityMatrix(
            values=values,
            se=None,
            estimate="full",
            rows=int(total["count"]),
            batches=1,
            statistics={
                **({} if attention.heads is None else {"heads": attention.heads(total)}),
                **{key: total[key] for key in ("left_out",) if key in total},
            },
        )
    return matrices, list(notices.values())


@dataclass(frozen=True, kw_only=True)
class Counterparts:
    """values[r]: the entry (row r, column r) alone; se: of the mean over batches, where there are several."""

    values: Float[Tensor, " r"]
    se: Float[Tensor, " r"] | None
    rows: int
    batches: int


def estimate_counterparts(
    measures: Mapping[str, Measure],
    batches: Iterable[tuple[Sequence[Tensor], Sequence[Tensor]]],
    *,
    names: Sequence[tuple[str, str]],
    estimate: str,
    tile: int = 512,
    labels: Callable[[int], Tensor | None] = lambda batch: None,
    kept: dict[Any, Any] | None = None,
) -> tuple[dict[str, Counterparts], list[str]]:
    """Every measure for representation r of one side with representation r of the other, from a stream of batches.

    Estimates, labels and warnings as in `estimate_all_pairs`; names: of both sides of each pair.
    kept: what was prepared of the right side, for further calls with the same one; of a single batch.
    """
    means = {label: _Mean() for label in measures}
    notices: Notices = {}
    seen = rows = 0
    sides: list[dict[Any, Any]] = [({} if kept is None else kept.setdefault(i, {})) for i in range(len(names))]
    for left, right in batches:
        with _noticed(notices):
            made = [
                hsic_products(measures, (x, y), both, tile=tile)
                if estimate == "ratio_of_sums"
                else _pair(measures, (x, y), both, tile, labels(seen), {} if kept is None else side)
                for x, y, both, side in zip(left, right, names, sides, strict=True)
            ]
        rows, seen = rows + len(left[0]), seen + 1
        for label, mean in means.items():
            mean.add(torch.stack([one[label].cpu() for one in made]), seen)
    if not rows:
        raise BadInput("extract: no batch could be filled, got too few rows; lower batch_rows or add data")
    found = {}
    for label, mean in means.items():
        values, se = mean.mean, mean.se(seen)
        assert values is not None
        if estimate == "ratio_of_sums":
            hsic = zip(values, names, strict=True)
            values, se = torch.stack([of_sums(measures[label], x, both)[0, 1] for x, both in hsic]), None
        found[label] = Counterparts(values=values, se=se, rows=rows, batches=seen)
    return found, list(notices.values())


def _pair(
    measures: Mapping[str, Measure],
    pair: tuple[Tensor, Tensor],
    names: tuple[str, str],
    tile: int,
    labels: Tensor | None,
    kept: dict[Any, Any],
) -> dict[str, Tensor]:
    """Every measure of one representation with another: what is no inner product is compared once, one way."""
    narrow = max(x.shape[1] for x in pair) < len(pair[0])
    found, inner = {}, {}
    for label, measure in measures.items():
        if measure.inner is not None and narrow and _plain(measure.inner):
            found[label] = _of_features(measure, pair, names, kept)
        elif measure.inner is not None:
            inner[label] = measure
    found |= {label: values[0, 1] for label, values in all_pairs(inner, pair, names, tile=tile).items()}
    for group in _by_preparation(measures):
        some = next(iter(group.values()))
        for measure in group.values():
            measure.check(names, [x.shape for x in pair], labels)
        x, y = (some.prepared(side, name, labels) for side, name in zip(pair, names, strict=True))
        for label, measure in group.items():
            assert measure.compare is not None
            value = at(f"{names[0]} and {names[1]}", partial(measure.compare, x, y))
            found[label] = torch.tensor(float(value), dtype=torch.float64)
    return found


def _plain(inner: Inner) -> bool:
    """Whether the measure's one matrix is the Gram matrix of its features as it is."""
    return inner.row is inner.column and isinstance(inner.row, Kernel) and inner.row.cells is unchanged


def _of_features(
    measure: Measure, pair: tuple[Tensor, Tensor], names: tuple[str, str], kept: dict[Any, Any]
) -> Float[Tensor, ""]:
    """<XX', YY'> = |X'Y|^2: with fewer features than rows no (n, n) tile is made. Sums in float64, strip by strip.

    kept: the prepared y and |Y'Y|^2, by kernel.
    """
    measure.check(names, [x.shape for x in pair], None)
    inner = measure.inner
    assert inner is not None

    def state_of(x: Tensor, name: str) -> KernelState:
        return at(name, partial(states_of, [inner.row], x, {}))[inner.row]

    def product(left: KernelState, right: KernelState) -> Tensor:
        parts = zip(left.features.values.split(STRIP_ROWS), right.features.values.split(STRIP_ROWS), strict=True)
        total = sum((a.mT @ b).double() for a, b in parts)
        assert isinstance(total, Tensor)
        return total.square().sum().cpu()

    if inner.row not in kept:
        other = state_of(pair[1], names[1])
        kept[inner.row] = other, product(other, other)
    own, (other, yy) = state_of(pair[0], names[0]), kept[inner.row]
    xy = product(own, other)
    cross = torch.stack([product(own, own), xy, xy, yy]).reshape(2, 2)
    states = [own, other]
    norms = own_products(inner, cross, len(pair[0]), torch.promote_types(pair[0].dtype, torch.float32))
    with _blamed(measure, cross, names):
        return inner_values(inner, cross, norms, states, states)[0, 1]


Key = tuple[str] | tuple[str, str]  # (label,) of values, (label, statistic)


def _observed(
    measures: Mapping[str, Measure],
    batch: Sequence[Tensor],
    names: Sequence[str],
    tile: int,
    labels: Tensor | None,
    statistics: Callable[[Measure, Prepared, Matrix], dict[str, Tensor]],
) -> dict[Key, Tensor]:
    """The values of one batch, and what is observed beside them."""
    found: dict[Key, Tensor] = {}

    def observe(label: str, measure: Measure, prepared: Prepared, values: Matrix) -> None:
        found.update({(label, key): value for key, value in statistics(measure, prepared, values).items()})

    values = all_pairs(measures, batch, names, tile=tile, labels=labels, observe=observe)
    return {**{(label,): value for label, value in values.items()}, **found}


def of_sums(measure: Measure, hsic: Matrix, names: Sequence[str]) -> Matrix:
    """The measure from HSICs that were summed over batches."""
    assert measure.inner is not None
    own = hsic.diagonal()
    with _blamed(measure, hsic, names):
        return measure.inner.value(Products(hsic, own, own, (), ()))


def _state(means: Mapping[Any, _Mean], seen: int, rows: int, notices: Notices) -> State:
    state: State = {
        "seen": torch.tensor([seen, rows]),
        "notices": torch.tensor(list(json.dumps(notices).encode()), dtype=torch.uint8),
    }
    for parts, mean in means.items():
        key = "\t".join(parts)
        assert mean.mean is not None
        assert mean.squares is not None
        state |= {f"{key}.mean": mean.mean, f"{key}.squares": mean.squares}
    return state
