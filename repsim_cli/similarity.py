"""The all-pairs engine: representations, whole or as a stream of batches, x measures -> similarity matrices.

What depends on one representation is done once per representation, and once for all measures that share it.
Measures that are inner products of one matrix per representation share one tiled pass (`measures/inner.py`).
Memory: the representations of one batch, what one measure prepares of them, and one tile of every matrix.
"""

import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.errors import BadInput, Degenerate
from repsim_cli.measures import Measure
from repsim_cli.measures.base import MeasureWarning, at, inner_values, rounding_floor
from repsim_cli.measures.inner import Products, products, states_of

Matrix = Float[Tensor, "r r"]


@dataclass(frozen=True, kw_only=True)
class SimilarityMatrix:
    """values[a, b]: the entry (row a, column b) of all representations against all, float64.

    se: standard errors of the mean over batches (None for one batch or another estimate). rows: rows used.
    """

    values: Matrix
    se: Matrix | None
    estimate: str
    rows: int
    batches: int


def all_pairs(
    measures: Mapping[str, Measure],
    representations: Sequence[Tensor],
    names: Sequence[str] | None = None,
    *,
    tile: int = 512,
    labels: Tensor | None = None,
) -> dict[str, Matrix]:
    """Every measure for all pairs of representations (n, d_r) with paired rows; entry [a, b] as in contract 5.

    labels: a class code per row, for the measures that need them. Errors and warnings name the representations.
    """
    names = names or [f"representation {r}" for r in range(len(representations))]
    for measure in measures.values():
        measure.check(names, [x.shape for x in representations], labels)
    found = _inner(measures, representations, names, tile, _value)
    for group in _by_preparation(measures):
        some = next(iter(group.values()))
        states = [some.prepared(x, name, labels) for x, name in zip(representations, names, strict=True)]
        found |= {label: _pairs(measure, states, names) for label, measure in group.items()}
    return {label: found[label] for label in measures}


def hsic_products(
    measures: Mapping[str, Measure], representations: Sequence[Tensor], names: Sequence[str], *, tile: int
) -> dict[str, Matrix]:
    """HSIC of all pairs, in its own units, so that sums over batches add up."""
    for measure in measures.values():
        measure.check(names, [x.shape for x in representations], None)
    return _inner(measures, representations, names, tile, _hsic)


Finish = Callable[..., Matrix]


def _inner(
    measures: Mapping[str, Measure], representations: Sequence[Tensor], names: Sequence[str], tile: int, finish: Finish
) -> dict[str, Matrix]:
    """The measures that are inner products, all in one pass over tiles."""
    mine = {label: measure for label, measure in measures.items() if measure.inner is not None}
    if not mine:
        return {}
    wanted = [(m.inner.row, m.inner.column) for m in mine.values() if m.inner is not None]
    kernels = list(dict.fromkeys(kernel for pair in wanted for kernel in pair))
    made = [at(name, partial(states_of, kernels, x, {})) for x, name in zip(representations, names, strict=True)]
    states = {kernel: [one[kernel] for one in made] for kernel in kernels}
    n = len(representations[0])
    crosses = products(wanted, states, n, tile)
    dtype = torch.promote_types(representations[0].dtype, torch.float32)
    return {
        label: finish(measure, cross, states, n, dtype, names)
        for (label, measure), cross in zip(mine.items(), crosses, strict=True)
    }


def _value(measure: Measure, cross: Matrix, states: Any, n: int, dtype: torch.dtype, names: Sequence[str]) -> Matrix:
    assert measure.inner is not None
    with _blamed(measure, cross, names):
        return inner_values(measure.inner, cross, states, n, dtype)


def _hsic(measure: Measure, cross: Matrix, states: Any, n: int, dtype: torch.dtype, names: Sequence[str]) -> Matrix:
    assert measure.inner is not None
    assert measure.inner.terms is not None
    own = cross.diagonal()
    own[own < rounding_floor(n, dtype)] = 0
    scale = torch.tensor([state.features.scale**2 for state in states[measure.inner.row]]).to(cross)
    return cross * scale[:, None] * scale[None, :] / measure.inner.terms(n)


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


def _pairs(measure: Measure, states: Sequence[Any], names: Sequence[str]) -> Matrix:
    if measure.compare_all is not None:
        return measure.compare_all(states, states)
    compare = measure.compare
    assert compare is not None
    values = torch.empty(len(states), len(states), dtype=torch.float64)
    for a, x in enumerate(states):
        for b, y in enumerate(states):
            if measure.card.symmetric and b < a:
                values[a, b] = values[b, a]
            else:
                values[a, b] = at(f"{names[a]} and {names[b]}", partial(compare, x, y))
    return values


@dataclass
class _Mean:
    """Running mean and standard error of matrices (Welford), one number per pair whatever the batches."""

    mean: Matrix | None = None
    squares: Matrix | None = None

    def add(self, values: Matrix, batches: int) -> None:
        """batches: their number with this one."""
        if self.mean is None or self.squares is None:
            self.mean, self.squares = torch.zeros_like(values), torch.zeros_like(values)
        delta = values - self.mean
        self.mean += delta / batches
        self.squares += delta * (values - self.mean)

    def se(self, batches: int) -> Matrix | None:
        if batches < 2 or self.squares is None:
            return None
        return (self.squares / (batches - 1) / batches).sqrt()


def check_estimate(measure: Measure, estimate: str) -> None:
    """Raises BadInput where the estimate is not defined for the measure."""
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
    state: State | None = None,
    save: Callable[[State], None] = lambda state: None,
) -> tuple[dict[str, SimilarityMatrix], list[str]]:
    """Every measure for all pairs, from a stream of batches; each batch holds R tensors (n, d_r), paired rows.
    Beside the matrices, the warnings of the measures.

    batches(k): the stream from batch k on. full: one batch. per_batch: mean of the batches' values, with its
    standard error. ratio_of_sums: HSIC of each batch (biased: / (n-1)^2, unbiased: / (n (n-3))), summed, and
    normalised at the end. save(state) is called after each batch; the work goes on from a `state` that was saved,
    with the same bits.
    """
    for measure in measures.values():
        check_estimate(measure, estimate)
    means = {label: _Mean() for label in measures}
    seen = rows = 0
    notices: Notices = {}
    if state is not None:
        means = {label: _Mean(state[f"{label}.mean"], state[f"{label}.squares"]) for label in measures}
        seen, rows = (int(count) for count in state["seen"])
        notices = json.loads(bytes(state["notices"].tolist()))
    summed = estimate == "ratio_of_sums"
    for batch in batches(seen):
        rows, seen = rows + len(batch[0]), seen + 1
        with _noticed(notices):
            pairs = hsic_products if summed else all_pairs
            values = pairs(measures, batch, names, tile=tile)
        for label in measures:
            means[label].add(values[label].cpu(), seen)
        save(_state(means, seen, rows, notices))
    if not rows:
        raise BadInput("extract: no batch could be filled, got too few rows; lower batch_rows or add data")
    matrices = {}
    for label, measure in measures.items():
        mean = means[label]
        assert mean.mean is not None
        matrices[label] = SimilarityMatrix(
            values=_of_sums(measure, mean.mean, names) if summed else mean.mean,
            se=None if summed else mean.se(seen),
            estimate=estimate,
            rows=rows,
            batches=seen,
        )
    return matrices, list(notices.values())


def _of_sums(measure: Measure, hsic: Matrix, names: Sequence[str]) -> Matrix:
    assert measure.inner is not None
    own = hsic.diagonal()
    with _blamed(measure, hsic, names):
        return measure.inner.value(Products(hsic, own, own, (), ()))


def _state(means: Mapping[str, _Mean], seen: int, rows: int, notices: Notices) -> State:
    state: State = {
        "seen": torch.tensor([seen, rows]),
        "notices": torch.tensor(list(json.dumps(notices).encode()), dtype=torch.uint8),
    }
    for label, mean in means.items():
        assert mean.mean is not None
        assert mean.squares is not None
        state |= {f"{label}.mean": mean.mean, f"{label}.squares": mean.squares}
    return state
