"""The all-pairs engine: representations, whole or as a stream of batches, x measures -> similarity matrices.

What depends on one representation is done once per representation. Measures that are normalised inner products
of one matrix per representation go through one tiled pass: a tile of every matrix, all pairs by one product,
summed in float64. Memory: the representations of one batch, and R x tile^2 numbers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.errors import BadInput, Degenerate
from repsim_cli.measures import Measure
from repsim_cli.measures.base import GramForm, rounding_floor

STRIP = 1 << 13
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


def inner_products(form: GramForm, states: Sequence, n: int, tile: int) -> Matrix:
    """<M_a, M_b> for every pair of the form's symmetric (n, n) matrices, in the units of HSIC, float64."""
    count = len(states)
    corner = form.tile(states[0], slice(0, 1), slice(0, 1))
    products = torch.zeros(count, count, dtype=torch.float64, device=corner.device)
    buffer = torch.empty(count, min(tile, n) ** 2, dtype=corner.dtype, device=corner.device)
    for i in range(0, n, tile):
        rows = slice(i, min(i + tile, n))
        for j in range(i, n, tile):
            columns = slice(j, min(j + tile, n))
            cells = (rows.stop - rows.start) * (columns.stop - columns.start)
            block = buffer[:, :cells]
            for r, state in enumerate(states):
                block[r] = form.tile(state, rows, columns).flatten()
            # a tile above the diagonal stands for its mirror image too
            products += (1 if i == j else 2) * _outer(block)
    own = products.diagonal()
    own[own < rounding_floor(n, corner.dtype)] = 0
    scale = torch.tensor([form.scale(s) for s in states], dtype=torch.float64, device=corner.device)
    return products * scale[:, None] * scale[None, :] / form.terms(n)


def _outer(block: Float[Tensor, "r cells"]) -> Matrix:
    """block @ block.T in float64, from float32 sums of at most STRIP terms, which keep their digits."""
    whole = block.shape[1] // STRIP * STRIP
    strips = block[:, :whole].unflatten(1, (-1, STRIP)).transpose(0, 1)
    total = torch.bmm(strips, strips.mT).sum(0, dtype=torch.float64)
    rest = block[:, whole:]
    return total + (rest @ rest.T).double()


def prepare(measure: Measure, representations: Sequence[Tensor], names: Sequence[str]) -> list:
    """One prepared state per representation; errors name the representation."""
    return [measure.prepared(x, name) for x, name in zip(representations, names, strict=True)]


def all_pairs(
    measure: Measure, representations: Sequence[Tensor], names: Sequence[str] | None = None, tile: int = 512
) -> Matrix:
    """The measure for all pairs of representations (n, d_r) with paired rows; entry [a, b] as in contract 5."""
    names = names or [f"representation {r}" for r in range(len(representations))]
    states = prepare(measure, representations, names)
    if measure.gram is not None:
        products = inner_products(measure.gram, states, len(representations[0]), tile)
        return _normalised(measure, products, names)
    if measure.compare_all is not None:
        return measure.compare_all(states, states)
    values = torch.empty(len(states), len(states), dtype=torch.float64)
    for a, x in enumerate(states):
        for b, y in enumerate(states):
            if measure.card.symmetric and b < a:
                values[a, b] = values[b, a]
            else:
                values[a, b] = measure.compare(x, y)
    return values


def _normalised(measure: Measure, products: Matrix, names: Sequence[str]) -> Matrix:
    assert measure.gram is not None
    own = products.diagonal()
    try:
        return measure.gram.normalise(products, own, own)
    except Degenerate as error:
        raise Degenerate(f"{names[int(own.argmin())]}: {measure.name}: {error}") from None


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
    if estimate == "ratio_of_sums" and measure.gram is None:
        raise BadInput(
            f"extract.estimate: ratio_of_sums sums HSIC, and {measure.name} is not made of HSIC; use per_batch or full"
        )


State = dict[str, Tensor]


def estimate_all_pairs(
    measures: Mapping[str, Measure],
    batches: Callable[[int], Iterable[Sequence[Tensor]]],
    *,
    names: Sequence[str],
    estimate: str,
    tile: int = 512,
    state: State | None = None,
    save: Callable[[State], None] = lambda state: None,
) -> dict[str, SimilarityMatrix]:
    """Every measure for all pairs, from a stream of batches; each batch holds R tensors (n, d_r), paired rows.

    batches(k): the stream from batch k on. full: one batch. per_batch: mean of the batches' values, with its
    standard error. ratio_of_sums: HSIC of each batch (biased: / (n-1)^2, unbiased: / (n (n-3))), summed, and
    normalised at the end. save(state) is called after each batch; the work goes on from a `state` that was saved,
    with the same bits.
    """
    for measure in measures.values():
        check_estimate(measure, estimate)
    if state is None:
        means = {label: _Mean() for label in measures}
        seen = rows = 0
    else:
        means = {label: _Mean(state[f"{label}.mean"], state[f"{label}.squares"]) for label in measures}
        seen, rows = (int(count) for count in state["seen"])
    for batch in batches(seen):
        n = len(batch[0])
        rows, seen = rows + n, seen + 1
        for label, measure in measures.items():
            if estimate == "ratio_of_sums":
                assert measure.gram is not None
                values = inner_products(measure.gram, prepare(measure, batch, names), n, tile)
            else:
                values = all_pairs(measure, batch, names, tile)
            means[label].add(values.cpu(), seen)
        save(_state(means, seen, rows))
    if not rows:
        raise BadInput("extract: no batch could be filled, got too few rows; lower batch_rows or add data")
    matrices = {}
    for label, measure in measures.items():
        mean, summed = means[label], estimate == "ratio_of_sums"
        assert mean.mean is not None
        matrices[label] = SimilarityMatrix(
            values=_normalised(measure, mean.mean, names) if summed else mean.mean,
            se=None if summed else mean.se(seen),
            estimate=estimate,
            rows=rows,
            batches=seen,
        )
    return matrices


def _state(means: Mapping[str, _Mean], seen: int, rows: int) -> State:
    state: State = {"seen": torch.tensor([seen, rows])}
    for label, mean in means.items():
        assert mean.mean is not None
        assert mean.squares is not None
        state |= {f"{label}.mean": mean.mean, f"{label}.squares": mean.squares}
    return state
