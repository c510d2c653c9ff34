"""All pairs from the second moments of all rows, by blocks of layers, in memory that does not depend on the rows."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.errors import BadInput
from repsim_cli.measures import Measure
from repsim_cli.measures.base import at
from repsim_cli.measures.moments import varying
from repsim_cli.similarity.estimates import Notices, check_estimate, noticed
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
        with noticed(notices):
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
        with noticed(notices):
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
