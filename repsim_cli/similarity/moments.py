"""All pairs from the second moments of all rows, by blocks of layers, in memory that does not depend on the rows."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from repsim_cli.errors import BadInput
from repsim_cli.measures import Measure, rank
from repsim_cli.measures.base import at, issued_by, within
from repsim_cli.measures.moments import Second
from repsim_cli.similarity.estimates import Notices, check_estimate, joined, noticed
from repsim_cli.similarity.pairs import Matrix, SimilarityMatrix

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
    layers: dict[int, _Layer] = {}
    alive: dict[int, Tensor] = {}
    notices: Notices = {}
    states: dict[tuple[Any, int], Any] = {}

    def compare(a: int, b: int, covariance: Tensor) -> None:
        for label, form in forms.items():
            cells = covariance[alive[a]][:, alive[b]] if form.drops_dead else covariance
            both = partial(form.compare, states[form.prepare, a], states[form.prepare, b], cells)
            with issued_by([label]):
                values[label][a, b], values[label][b, a] = at(f"{names[a]} and {names[b]}", both)

    def prepare(a: int, x: Second) -> None:
        living = x
        if dropping := [label for label, form in forms.items() if form.drops_dead]:
            lengths = x.covariance.diagonal().clamp_min(0).sqrt()
            with issued_by(dropping):
                alive[a] = at(names[a], partial(rank.varying, lengths, x.sizes, x.eps))
            living = x._replace(covariance=x.covariance[alive[a]][:, alive[a]], sizes=x.sizes[alive[a]])
        for label, form in forms.items():
            given = living if form.drops_dead else x
            measures[label].check([names[a]], [(x.rows, len(given.sizes))], None)
            if (form.prepare, a) not in states:
                with issued_by(other for other, its in forms.items() if its.prepare == form.prepare):
                    states[form.prepare, a] = at(names[a], partial(form.prepare, given))

    rows = 0
    for block in blocks:
        whole, of_block = _layer_moments(passes(block))
        rows = of_block[0].rows
        cells = _cells(whole, of_block, of_block)
        with noticed(notices, measures):
            for i, a in enumerate(block):
                layers[a] = of_block[i]
                prepare(a, of_block[i].second(cells[i, i]))
                for j, b in enumerate(block[: i + 1]):
                    compare(b, a, cells[j, i])
        del whole, cells
    for left, right in itertools.combinations(blocks, 2):
        means = [torch.cat([layers[a].mean for a in block]) for block in (left, right)]
        whole = _cross_moments(passes([*left, *right]), len(left), *means)
        with noticed(notices, measures):
            for (i, j), cell in _cells(whole, [layers[a] for a in left], [layers[b] for b in right]).items():
                compare(left[i], right[j], cell)
    matrices = {
        label: SimilarityMatrix(
            values=within(measures[label].card, matrix),
            se=None,
            estimate="moments",
            rows=rows,
            batches=1,
            statistics={},
            notices=notices.get(label, []),
        )
        for label, matrix in values.items()
    }
    return matrices, joined(matrices.values())


def blocks_of(widths: Sequence[int], side: int) -> list[list[int]]:
    """Layers in order, in blocks of at most `side` features, or of a single layer.

    >>> blocks_of([4, 4, 4, 9, 2], side=8)
    [[0, 1], [2], [3], [4]]
    """
    blocks: list[list[int]] = []
    for layer, width in enumerate(widths):
        if blocks and sum(widths[a] for a in blocks[-1]) + width <= side:
            blocks[-1].append(layer)
        else:
            blocks.append([layer])
    return blocks


class _Layer(NamedTuple):
    """Of one pass over a layer: its mean in float64, and which neurons hold float32 numbers alone."""

    rows: int
    mean: Float[Tensor, " d"]
    single: Bool[Tensor, " d"]

    def second(self, covariance: Float[Tensor, "d d"]) -> Second:
        sizes = torch.hypot(covariance.diagonal().clamp_min(0).sqrt(), self.rows**0.5 * self.mean)
        return Second(covariance, sizes, self.rows, rank.stored(self.single))


def _layer_moments(stream: Iterable[Sequence[Tensor]]) -> tuple[Matrix, list[_Layer]]:
    """x'x of the centred rows of all layers together, and of each its mean and the kind of its numbers.

    Rows are first shifted by the mean of the first batch, so that the final correction cancels no digits.
    """
    whole = shift = total = single = None
    rows, widths = 0, []
    for batch in stream:
        widths = [x.shape[1] for x in batch]
        of_batch = torch.cat([rank.of_single(x) for x in batch])
        x = torch.cat([x.double() for x in batch], 1)
        if whole is None or shift is None or total is None or single is None:
            shift, single = x.mean(0), of_batch
            whole, total = x.new_zeros(x.shape[1], x.shape[1]), x.new_zeros(x.shape[1])
        x -= shift
        whole.addmm_(x.T, x)
        total += x.sum(0)
        single &= of_batch
        rows += len(x)
    if whole is None or shift is None or total is None or single is None:
        raise BadInput("extract: no row is left, got none; give more text")
    whole.addr_(total, total, alpha=-1 / rows)
    parts = [part.split(widths) for part in (shift + total / rows, single)]
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
