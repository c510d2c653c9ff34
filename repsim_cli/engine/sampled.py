"""Finds the neighbours of a sample of rows among all, which pass as a stream: a value with the error of the sample.

Where a measure is a mean over rows of what the nearest rows of each say, the mean over a random sample of rows is
unbiased for it, and costs the sample times all rows in place of their square. Nothing is approximated: the nearest rows
of a sampled row are exact, in float64.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from repsim_cli.activations.row_batches import take_rows
from repsim_cli.base.errors import BadInput, Degenerate
from repsim_cli.engine.chance import DRAWN, KNOWN, ORDERS, PAIRINGS, SQUARE
from repsim_cli.engine.estimates import Notices, check_estimate, file_warnings
from repsim_cli.engine.prepared import SimilarityMatrix
from repsim_cli.measures import Measure, Pairwise
from repsim_cli.measures.base import clamp_to_bounds, run_with_label
from repsim_cli.measures.kernels import Documents
from repsim_cli.measures.near_rows import find_ordered
from repsim_cli.measures.nearest import NearestRows, count_neighbours, count_rounded, warn_of_rounding, warn_of_ties

CELLS = 1 << 23  # cosines in float64 held at a time
TOGETHER = 2048  # rows that sampled rows are compared with at a time, at least

Stream = Callable[[], Iterable[Sequence[Tensor]]]


class QueryRows(NamedTuple):
    """Which rows are asked for their nearest ones. rows: their numbers, ascending. total: of all rows. documents: of
    all rows, where neighbours are of other documents."""

    rows: Int[Tensor, " m"]
    total: int
    documents: Documents | None = None


def compute_sampled(
    measures: Mapping[str, Measure],
    stream: Stream,
    asked: QueryRows,
    *,
    names: Sequence[str],
    seed: int,
    unrelated: bool = True,
) -> dict[str, SimilarityMatrix]:
    """Computes every measure for all pairs: the mean over the sampled rows, with its standard error.

    stream(): a fresh stream of paired rows (n, d) of all layers; it is read twice, for means and for neighbours.
    The error is that of the sample, for the value of all rows: 0 where all are sampled.
    unrelated: whether the level of chance is wanted: what the lists give beside lists of other rows at random.
    """
    ks = {label: count_neighbours(measure.settings["k"], asked.total) for label, measure in measures.items()}
    layers = _read_sampled_layers(stream(), asked.rows)
    found = _find_nearest_in_stream(layers, stream(), asked, max(ks.values()))
    notices: Notices = {}
    matrices = {}
    for label, measure in measures.items():
        k, of_rows = ks[label], _find_row_function(measure)
        with file_warnings(notices, [label]):
            for name, layer, near in zip(names, layers, found, strict=True):
                run_with_label(name, partial(_warn, near.values, k, layer.rows))
        tables = [_build_neighbour_table(near, k) for near in found]
        values, se = _average_sampled_rows(of_rows, tables, asked.total)
        generator = torch.Generator().manual_seed(seed)
        levels = [
            of_rows(tables, [_draw_neighbours(asked, k, generator)]).mean((1, 2)).cpu()
            for _ in range(ORDERS * unrelated)
        ]
        matrices[label] = SimilarityMatrix(
            values=clamp_to_bounds(measure, values.cpu()),
            se=se.cpu(),
            estimate="sampled",
            rows=len(asked.rows),
            batches=1,
            statistics=_summarise_chance_draws(torch.stack(levels), len(names)) if levels else {},
            notices=notices.get(label, []),
        )
    return matrices


def _find_row_function(measure: Measure) -> Callable[[Sequence[NearestRows], Sequence[NearestRows]], Tensor]:
    check_estimate(measure, "sampled")
    assert isinstance(measure, Pairwise)
    assert measure.of_rows is not None
    return measure.of_rows


class _SampledLayer(NamedTuple):
    """The mean of all rows, in float64, and the sampled rows."""

    mean: Float[Tensor, " d"]
    rows: Float[Tensor, "m d"]

    def units(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        """Rows relative to the mean, of norm 1; a row at the mean stays 0."""
        x = x.double() - self.mean
        return x / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)


class _Near(NamedTuple):
    """The nearest rows of every sampled row so far, nearest first. values: the cosine less 1."""

    values: Float[Tensor, "m near"]
    rows: Int[Tensor, "m near"]


def _read_sampled_layers(stream: Iterable[Sequence[Tensor]], sampled: Int[Tensor, " m"]) -> list[_SampledLayer]:
    """Reads of each layer the mean of all rows and the sampled rows. Raises BadInput where there is no row.

    sampled: their numbers in the stream, ascending.
    """
    totals, taken, count = [], [], 0
    for batch in stream:
        taken.append(take_rows(batch, count, sampled))
        sums = [x.sum(0, dtype=torch.float64) for x in batch]
        totals = [a + b for a, b in zip(totals, sums, strict=True)] if totals else sums
        count += len(batch[0])
    if not count:
        raise BadInput("extract: no row is left; give more text")
    rows = [torch.cat(parts) for parts in zip(*taken, strict=True)]
    return [_SampledLayer(total / count, x) for total, x in zip(totals, rows, strict=True)]


def _find_nearest_in_stream(
    layers: Sequence[_SampledLayer], stream: Iterable[Sequence[Tensor]], asked: QueryRows, k: int
) -> list[_Near]:
    """Finds the k + 1 nearest rows of every sampled row in every layer, or all where there are fewer. Raises Degenerate
    where the largest document leaves fewer than k other rows."""
    largest = 1 if asked.documents is None else int(asked.documents.bincount().max())
    if (left := asked.total - largest) < k:
        raise Degenerate(
            f"{k} rows beside those of a row's own document are needed, got {left}; give more, or a smaller k"
        )
    units = [layer.units(layer.rows) for layer in layers]
    device, kept = units[0].device, min(k + 1, left)
    rows, m = asked.rows.to(device), len(asked.rows)
    found = [
        _Near(torch.empty(m, 0, dtype=torch.float64, device=device), torch.empty(m, 0, dtype=torch.long, device=device))
        for _ in layers
    ]
    start = 0
    for batch in _join_batches(stream):
        numbers = torch.arange(start, start + len(batch[0]), device=device)
        away = _find_left_out(asked, rows, numbers)
        for a, (layer, x) in enumerate(zip(layers, batch, strict=True)):
            found[a] = _merge_nearest(found[a], units[a], layer.units(x), numbers, away, kept)
        start += len(numbers)
    return found


def _join_batches(stream: Iterable[Sequence[Tensor]]) -> Iterator[Sequence[Tensor]]:
    """Joins batches of few rows."""
    held: list[Sequence[Tensor]] = []
    for batch in stream:
        held.append(batch)
        if sum(len(parts[0]) for parts in held) >= TOGETHER:
            yield [torch.cat(parts) for parts in zip(*held, strict=True)]
            held = []
    if held:
        yield [torch.cat(parts) for parts in zip(*held, strict=True)]


def _find_left_out(asked: QueryRows, rows: Int[Tensor, " m"], numbers: Int[Tensor, " b"]) -> Bool[Tensor, "m b"]:
    if asked.documents is None:
        return rows[:, None] == numbers
    documents = asked.documents.to(rows.device)
    return documents[rows, None] == documents[numbers]


def _merge_nearest(
    found: _Near,
    units: Float[Tensor, "m d"],
    others: Float[Tensor, "b d"],
    numbers: Int[Tensor, " b"],
    away: Bool[Tensor, "m b"],
    kept: int,
) -> _Near:
    """Keeps the nearest of those that were found and the others, which follow them in the order of rows."""
    parts = []
    for some in torch.arange(len(units), device=units.device).split(max(1, CELLS // len(others))):
        near = torch.cat([found.values[some], units[some] @ others.T - 1], 1)
        rows = torch.cat([found.rows[some], numbers.expand(len(some), -1)], 1)
        out = torch.nn.functional.pad(away[some], (found.rows.shape[1], 0))
        best, where = find_ordered(near, out, min(kept, near.shape[1] - 1) - 1, near.new_ones(len(some)))
        parts.append((best, rows.gather(1, where)))
    return _Near(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _warn(near: Float[Tensor, "m near"], k: int, x: Float[Tensor, "m d"]) -> None:
    """Warns where many sampled rows have several candidates for the k-th place."""
    if near.shape[1] > k:
        tied = int((near[:, k - 1] == near[:, k]).sum())
        warn_of_ties(tied, len(near), k)
        warn_of_rounding(count_rounded(near[:, : k + 1], k, x) - tied, len(near), k)


def _build_neighbour_table(near: _Near, k: int) -> NearestRows:
    """Builds the table of the k nearest rows of each sampled row; which of these are near each other is not known."""
    lists = near.rows[:, :k].T.contiguous()
    similarities = (1 + near.values[:, :k].T).contiguous()
    return NearestRows(lists, similarities, torch.zeros_like(lists, dtype=torch.bool), near.values.new_empty(0, 0))


def _average_sampled_rows(
    of_rows: Callable[[Sequence[NearestRows], Sequence[NearestRows]], Tensor], tables: Sequence[NearestRows], total: int
) -> tuple[Tensor, Tensor]:
    """The mean over sampled rows of all pairs, and its standard error, without replacement."""
    values, squares = [], []
    for table in tables:
        (of_each,) = of_rows([table], tables)
        values.append(of_each.mean(1))
        squares.append(of_each.var(1))
    m = tables[0].lists.shape[1]
    return torch.stack(values), (torch.stack(squares) * ((1 - m / total) / m)).clamp_min(0).sqrt()


def _draw_neighbours(asked: QueryRows, k: int, generator: torch.Generator) -> NearestRows:
    """Lists of k different other rows at random, as every row has where rows are paired at random."""
    device = asked.rows.device
    lists = torch.full((k, len(asked.rows)), -1)
    while len(bad := _mark_refused(asked, lists).nonzero()):
        lists[bad[:, 0], bad[:, 1]] = torch.randint(asked.total, (len(bad),), generator=generator)
    return NearestRows(
        lists.to(device),
        torch.zeros(lists.shape, dtype=torch.float64, device=device),
        torch.zeros(lists.shape, dtype=torch.bool, device=device),
        torch.empty(0, 0, dtype=torch.float64, device=device),
    )


def _mark_refused(asked: QueryRows, lists: Int[Tensor, "k m"]) -> Bool[Tensor, "k m"]:
    """Marks the places that hold no row, the row itself, one of its document, or one that an earlier place holds."""
    order = lists.sort(dim=0, stable=True)
    again = torch.nn.functional.pad(order.values.diff(dim=0) == 0, (0, 0, 1, 0))
    refused = torch.zeros_like(again).scatter_(0, order.indices, again) | (lists < 0) | (lists == asked.rows.cpu())
    if asked.documents is not None:
        documents = asked.documents.cpu()
        refused |= documents[lists.clamp_min(0)] == documents[asked.rows.cpu()]
    return refused


def _summarise_chance_draws(levels: Float[Tensor, "o r"], layers: int) -> dict[str, Tensor]:
    """The statistics of `chance.py`: one level for all cells, from the draws of `levels`."""
    every = torch.ones(layers, layers, dtype=torch.float64)
    of_draws = levels.mean(1).cpu()
    return {
        DRAWN: float(of_draws.mean()) * every,
        SQUARE: float(of_draws.square().mean()) * every,
        PAIRINGS: torch.tensor(float(len(levels))),
        KNOWN: torch.tensor(1.0),
    }
