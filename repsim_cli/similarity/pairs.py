"""All pairs of representations of one batch.

What depends on one representation is done once per representation, and once for all measures that share it.
Measures that are inner products of one matrix per representation share one tiled pass (`measures/inner.py`).
Memory: the representations of one batch, what one measure prepares of them, and one tile of every matrix.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from repsim_cli.errors import Degenerate
from repsim_cli.measures import Measure
from repsim_cli.measures.base import at, inner_values, own_products
from repsim_cli.measures.inner import products, states_of

Matrix = Float[Tensor, "r r"]
Wanted = Bool[Tensor, "r r"]


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
    wanted: Wanted | None = None,
) -> dict[str, Matrix]:
    """Every measure for all pairs of representations (n, d_r) with paired rows; entry [a, b] as in contract 5.

    labels: a class code per row, for the measures that need them. observe: called once for each measure with what
    was prepared for it. wanted: symmetric; of measures that take the pairs one by one, the others are skipped and NaN.
    Errors and warnings name the representations.
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
        with blamed(measure, prepared.cross, names):
            found[label] = inner_values(
                measure.inner, prepared.cross, prepared.own, states[measure.inner.row], states[measure.inner.column]
            )
        observe(label, measure, prepared, found[label])
    for group in by_preparation(measures):
        some = next(iter(group.values()))
        states = [some.prepared(x, name, labels) for x, name in zip(representations, names, strict=True)]
        for label, measure in group.items():
            found[label] = pairs(measure, states, states, names, wanted)
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
def blamed(measure: Measure, cross: Matrix, names: Sequence[str]) -> Iterator[None]:
    """Errors of the normalisation name the representation that has the smallest own product."""
    try:
        yield
    except Degenerate as error:
        raise Degenerate(f"{names[int(cross.diagonal().argmin())]}: {measure.name}: {error}") from None


def by_preparation(measures: Mapping[str, Measure]) -> list[dict[str, Measure]]:
    """The other measures, grouped by what they prepare."""
    groups: dict[Any, dict[str, Measure]] = {}
    for label, measure in measures.items():
        if measure.inner is None:
            prepare: Any = measure.prepare
            if isinstance(prepare, partial):
                prepare = (prepare.func, prepare.args, tuple(sorted(prepare.keywords.items())))
            groups.setdefault((prepare, measure.card.labelled), {})[label] = measure
    return list(groups.values())


def pairs(
    measure: Measure, rows: Sequence[Any], columns: Sequence[Any], names: Sequence[str], wanted: Wanted | None = None
) -> Matrix:
    """A measure that is no inner product, for all pairs of prepared representations, or NaN where none is wanted."""
    if measure.compare_all is not None:
        return measure.compare_all(rows, columns)
    compare = measure.compare
    assert compare is not None
    mirrored = measure.card.symmetric and rows is columns
    values = torch.empty(len(rows), len(columns), dtype=torch.float64)
    for a, x in enumerate(rows):
        for b, y in enumerate(columns):
            if wanted is not None and not wanted[a, b]:
                values[a, b] = torch.nan
            elif mirrored and b < a:
                values[a, b] = values[b, a]
            else:
                values[a, b] = at(f"{names[a]} and {names[b]}", partial(compare, x, y))
    return values
