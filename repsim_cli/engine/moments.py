"""All pairs from the second moments of all rows, in memory that does not depend on the rows.

There is a product of features per pair of layers. As many as fit into memory are summed in one pass over the rows.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from repsim_cli.activations.rows import AT_ONCE
from repsim_cli.base.errors import BadInput, Degenerate
from repsim_cli.base.memory import trim
from repsim_cli.engine.estimates import Notices, check_estimate, file_warnings, join_warnings
from repsim_cli.engine.prepared import SimilarityMatrix
from repsim_cli.engine.undefined import Cell, Reasons
from repsim_cli.measures import Measure, rank
from repsim_cli.measures.base import attribute_warnings, clamp_to_bounds, run_with_label
from repsim_cli.measures.moments import Second

BYTES = 8  # of a number in float64
SUMMED = 1024  # rows whose products are summed in float32, before the sum is added in float64
PART = 1024  # features of them that are centred at a time
Passes = Callable[[Sequence[int]], Iterable[Sequence[Tensor]]]


def compute_pairs_from_moments(
    measures: Mapping[str, Measure],
    passes: Passes,
    *,
    names: Sequence[str],
    widths: Sequence[int],
    room: float,
    keep: Callable[[Any], Any] = lambda state: state,
) -> tuple[dict[str, SimilarityMatrix], list[str]]:
    """Computes every measure for all pairs from the second moments of all rows.

    Returns the matrices by label, and the warnings of the measures. Cells without a value are NaN, and the matrices
    say why.

    passes(layers): a fresh stream of paired rows (n, d) of these layers. There are as few passes over the rows as cross
    products of `room` bytes at a time allow (`plan_passes`), whatever the number of rows.
    keep(state): where the prepared state of a layer stays until all of its pairs are compared.
    """
    for measure in measures.values():
        check_estimate(measure, "moments")
    layers, single = _Layers(measures, names, keep), are_exact_in_single(measures.values())
    notices: Notices = {}
    rows = 0
    for cells in plan_passes(widths, room):
        chosen = sorted({layer for cell in cells for layer in cell})
        covariances, read = _compute_covariances(passes(chosen), chosen, cells, single)
        rows = read[chosen[0]].rows
        trim()  # cross products leave no room for what is kept
        with file_warnings(notices, measures):
            for a, b in cells:  # layers with themselves first
                if a == b:
                    layers.prepare(a, read[a].second(covariances[a, a]))
                    trim()
                layers.compare(a, b, covariances[a, b])
        del covariances
    matrices = {
        label: SimilarityMatrix(
            values=clamp_to_bounds(measures[label], matrix),
            se=None,
            estimate="moments",
            rows=rows,
            batches=1,
            statistics={},
            notices=notices.get(label, []),
            undefined=layers.undefined.cells[label],
        )
        for label, matrix in layers.values.items()
    }
    return matrices, join_warnings(matrices.values())


def are_exact_in_single(measures: Iterable[Measure]) -> bool:
    """Tells whether products of float32 are exact enough for all of these measures."""
    return all(measure.moments is not None and measure.moments.single for measure in measures)


class _Layers:
    """The prepared states of all layers and the values of their pairs, as far as they are known."""

    def __init__(self, measures: Mapping[str, Measure], names: Sequence[str], keep: Callable[[Any], Any]):
        self.measures, self.names, self.keep = measures, names, keep
        self.forms = {label: measure.moments for label, measure in measures.items() if measure.moments is not None}
        empty = torch.full((len(names), len(names)), torch.nan, dtype=torch.float64)
        self.values = {label: empty.clone() for label in measures}
        self.undefined, self.failed = Reasons(list(measures)), dict[tuple[str, int], Degenerate]()
        self.alive: dict[int, Tensor] = {}
        self.states: dict[tuple[Any, int], Any] = {}

    def compare(self, a: int, b: int, covariance: Tensor) -> None:
        names, states, alive = self.names, self.states, self.alive
        for label, form in self.forms.items():
            if error := self.failed.get((label, a)) or self.failed.get((label, b)):
                self.undefined.add(label, {(a, b): error, (b, a): error})
                continue
            cells = covariance
            if form.drops_dead and not (alive[a].all() and alive[b].all()):
                cells = covariance[alive[a]][:, alive[b]]
            sides = (_move(states[form.prepare, side], cells.device) for side in (a, b))
            both = partial(form.compare, *sides, cells)
            values = self.values[label]
            try:
                with attribute_warnings([label]):
                    values[a, b], values[b, a] = run_with_label(f"{names[a]} and {names[b]}", both)
            except Degenerate as error:
                self.undefined.add(label, {(a, b): error, (b, a): error})

    def prepare(self, a: int, x: Second) -> None:
        name, living = self.names[a], x
        if dropping := [label for label, form in self.forms.items() if form.drops_dead]:
            lengths = x.covariance.diagonal().clamp_min(0).sqrt()
            try:
                with attribute_warnings(dropping):
                    alive = self.alive[a] = run_with_label(name, partial(rank.find_varying, lengths, x.sizes, x.eps))
                living = x._replace(covariance=x.covariance[alive][:, alive], sizes=x.sizes[alive])
            except Degenerate as error:
                self.failed.update({(label, a): error for label in dropping})
        for label, form in self.forms.items():
            if (label, a) in self.failed:
                continue
            given = living if form.drops_dead else x
            try:
                self.measures[label].check([name], [(x.rows, len(given.sizes))], None)
                if (form.prepare, a) not in self.states:
                    with attribute_warnings(other for other, its in self.forms.items() if its.prepare == form.prepare):
                        self.states[form.prepare, a] = self.keep(run_with_label(name, partial(form.prepare, given)))
            except Degenerate as error:
                self.failed[label, a] = error


def _move(state: Any, device: torch.device) -> Any:
    """Moves a prepared state to this device: it may have been kept in files."""
    if isinstance(state, Tensor):
        return state.to(device)
    return type(state)(*(_move(part, device) for part in state)) if isinstance(state, tuple) else state


def plan_passes(widths: Sequence[int], room: float) -> list[list[Cell]]:
    """Splits all pairs of layers into lists, one for each pass over the rows.

    The cross products of a list, in float64, take at most `room` bytes or are of a single pair. No other order needs
    fewer passes, but for what a pair leaves unused.

    Layers with themselves come first, then pairs between the same few layers, so that a pass reads few of many layers.

    >>> plan_passes([4, 4, 4], room=512.0)
    [[(0, 0), (1, 1), (2, 2), (0, 1)], [(0, 2), (1, 2)]]
    """
    side = max((room / BYTES) ** 0.5, 1.0)
    block = [int(end / side) for end in itertools.accumulate(widths)]
    pairs = sorted(itertools.combinations(range(len(widths)), 2), key=lambda pair: (block[pair[0]], block[pair[1]]))
    lists: list[list[Cell]] = []
    taken = 0
    for a, b in [*((a, a) for a in range(len(widths))), *pairs]:
        size = BYTES * widths[a] * widths[b]
        if not lists or taken + size > room:
            lists.append([])
            taken = 0
        lists[-1].append((a, b))
        taken += size
    return lists


class _LayerPass(NamedTuple):
    """Of one pass over a layer: its mean in float64, and which neurons hold float32 numbers alone."""

    rows: int
    mean: Float[Tensor, " d"]
    single: Bool[Tensor, " d"]

    def second(self, covariance: Float[Tensor, "d d"]) -> Second:
        sizes = torch.hypot(covariance.diagonal().clamp_min(0).sqrt(), self.rows**0.5 * self.mean)
        return Second(covariance, sizes, self.rows, rank.find_stored_precision(self.single))


def _compute_covariances(
    stream: Iterable[Sequence[Tensor]], chosen: Sequence[int], cells: Sequence[Cell], single_products: bool
) -> tuple[dict[Cell, Tensor], dict[int, _LayerPass]]:
    """x'y of the centred rows of these pairs of layers; and of each layer its mean and the kind of its numbers.

    chosen: the layers of the stream, ascending. single_products: products are of float32. Rows are first shifted by a
    mean of few of them, in float64, so that neither this nor the final correction cancels digits.
    """
    shift = total = None
    strips: list[_Strip] = []
    together: _Together | None = None
    single: list[Tensor] = []
    rows, ends, held = 0, [0], torch.empty(0)
    for batch in stream:
        of_batch = [rank.mark_single_precision(x) for x in batch]
        single = [a & b for a, b in zip(single, of_batch, strict=True)] if single else of_batch
        for part in zip(*(x.split(AT_ONCE) for x in batch), strict=True):
            if shift is None or total is None:
                ends = [0, *itertools.accumulate(y.shape[1] for y in part)]
                held = part[0].new_empty(AT_ONCE, ends[-1], dtype=torch.float64)
            x = held[: len(part[0])]
            for start, y in zip(ends[:-1], part, strict=True):
                x[:, start : start + y.shape[1]] = y
            if shift is None or total is None:
                shift, total = x.mean(0), x.new_zeros(x.shape[1])
                strips = _build_strips(cells, {a: slice(*ends[i : i + 2]) for i, a in enumerate(chosen)}, x)
                together = _Together(strips, x.shape[1], x.device) if single_products else None
            x -= shift
            if together is None:
                for strip in strips:
                    strip.sums.addmm_(x[:, strip.rows].T, x[:, strip.columns])
            else:
                x = together.add(x)
            total += x.sum(0, dtype=torch.float64)
            rows += len(x)
    if shift is None or total is None:
        raise BadInput("extract: no row is left; give more text")
    if together is not None:
        together.sum()
    products: dict[Cell, Tensor] = {}
    for strip in strips:
        strip.sums.addr_(total[strip.rows], total[strip.columns], alpha=-1 / rows)
        products |= dict(zip(strip.cells, strip.sums.split(strip.widths, 1), strict=True))
    means = (shift + total / rows).split([stop - start for start, stop in itertools.pairwise(ends)])
    return products, {a: _LayerPass(rows, *each) for a, *each in zip(chosen, means, single, strict=True)}


class _Strip(NamedTuple):
    """Cross products of a layer with layers that are side by side in the rows. rows, columns: their features there."""

    cells: list[Cell]
    widths: list[int]
    rows: slice
    columns: slice
    sums: Float[Tensor, "d e"]


class _Together:
    """Rows of float32 that wait for their products, which are added to the strips in float64."""

    def __init__(self, strips: Sequence[_Strip], features: int, device: torch.device):
        self.strips, self.filled = strips, 0
        self.rows = torch.empty(SUMMED, features, device=device)
        most = max(len(strip.sums) * width for strip in strips for width in strip.widths)
        self.product = torch.empty(most, device=device)

    def add(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Takes rows, no more than SUMMED, and gives them as it holds them: sums of both have one rounding."""
        if self.filled + len(x) > SUMMED:
            self.sum()
        held = self.rows[self.filled : self.filled + len(x)]
        held.copy_(x)
        self.filled += len(x)
        return held

    def sum(self) -> None:
        """Rows are about their own mean in float32, so that its products, of float64, cost the others no digits."""
        x = self.rows[: self.filled]
        mean = torch.empty(x.shape[1], dtype=torch.float64, device=x.device)
        for part, its in zip(x.split(PART, 1), mean.split(PART), strict=True):
            exact = part.double()
            its.copy_(exact.mean(0))
            part.copy_(exact - its)
        for strip in self.strips:
            parts = (each.split(strip.widths, -1) for each in (strip.sums, x[:, strip.columns], mean[strip.columns]))
            for sums, y, mean_of_y in zip(*parts, strict=True):
                product = self.product[: sums.numel()].view(sums.shape)
                sums += torch.mm(x[:, strip.rows].T, y, out=product)
                sums.addr_(mean[strip.rows], mean_of_y, alpha=len(x))
        self.filled = 0


def _build_strips(cells: Sequence[Cell], places: Mapping[int, slice], like: Tensor) -> list[_Strip]:
    strips: list[_Strip] = []
    runs: list[list[Cell]] = []
    for a, b in sorted(cells):
        if runs and runs[-1][-1][0] == a and places[runs[-1][-1][1]].stop == places[b].start:
            runs[-1].append((a, b))
        else:
            runs.append([(a, b)])
    for run in runs:
        rows, columns = places[run[0][0]], slice(places[run[0][1]].start, places[run[-1][1]].stop)
        widths = [places[b].stop - places[b].start for _, b in run]
        sums = like.new_zeros(rows.stop - rows.start, columns.stop - columns.start)
        strips.append(_Strip(run, widths, rows, columns, sums))
    return strips
