"""What a measure is: a card of claims, and pure functions of prepared representations."""

import math
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.base import registry
from repsim_cli.base.arrays import convert_to_tensor
from repsim_cli.base.errors import BadInput, Degenerate, RunFailed
from repsim_cli.base.settings import Hardware
from repsim_cli.measures.cards import Card, Invariance, Labels, Moments, Slow
from repsim_cli.measures.centring import compute_rounding_floor, split_rows_for_cache
from repsim_cli.measures.inner import Matrix, Products, compute_inner_products
from repsim_cli.measures.kernels import AnyKernel, Documents, Packed, State, prepare_states
from repsim_cli.measures.room import check_room

PACKED, WHOLE = 5.0, 3.0  # (n, n) matrices of float64 that a direct call of such kernels holds at a time
LARGEST = 1e60  # absolute value where scale counts: sums of fourth powers of larger ones overflow


class MeasureWarning(UserWarning):
    """Input with a value that needs care: dropped neurons, ties, too few rows.

    Issued by `prepare` and `compare` through `warnings.warn`; a run records it with the name of the layer.
    measures: the labels of the measures that it concerns, where the engine knows them.
    """

    measures: tuple[str, ...] = ()


@contextmanager
def attribute_warnings(labels: Iterable[str] = ()) -> Iterator[list[warnings.WarningMessage]]:
    """Adds to each MeasureWarning of its block which measures it concerns, where it names none, and issues all warnings
    again. Yields the list of them, complete at the end of the block."""
    measures = tuple(labels)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MeasureWarning)
        yield caught
    for notice in caught:
        if isinstance(notice.message, MeasureWarning):
            notice.message.measures = notice.message.measures or measures
        warnings.warn(notice.message, notice.category, stacklevel=3)


@dataclass(frozen=True, kw_only=True)
class Measure(ABC):
    """A measure with its settings bound: an `InnerProduct`, a `Pairwise` one, or `OfAttention`.

    name, card, settings: filled in by `measures.get`.
    minimum_rows: where the settings ask for more rows than the card does.
    moments: the same value from second moments, so that rows need not be held.
    slow: pairs take long enough to be solved in several processes.
    squares: how many (n, n) matrices of float64 a prepared state holds, for the estimate of memory.
    aligned(x, y): the map that attains the value, of `alignments.py`; None where there is none.
    apart(documents): the same over pairs of rows of different documents alone; None where it has no such form.
    sees: what the settings make it see although the registered card says that it is invariant to it.
    leaps: a few rows may decide its value (a maximum, the births of a barcode), so that leaving out some says nothing
        of how far it scatters.
    """

    name: str = ""
    card: Card = field(default=None)  # type: ignore[assignment]
    settings: Mapping[str, Any] = field(default_factory=dict)
    minimum_rows: int = 0
    moments: Moments | None = None
    slow: Slow | None = None
    squares: int = 0
    aligned: Callable[[Tensor, Tensor], Any] | None = None
    apart: Callable[[Documents], "Measure"] | None = None
    sees: frozenset[Invariance] = frozenset()
    leaps: bool = False

    def align(self, x: Any, y: Any) -> Any:
        """The map between two representations (n, d_x), (n, d_y) with paired rows that attains the measure's value: a
        `Rotation`, `Directions`, a `Fit` of x from y, a `Matching` of neurons or their `Partners`, a `Coupling`, or
        `Couplings` of rows and neurons.

        Raises BadInput where the measure has none, Degenerate for input that it does not take.
        """
        if self.aligned is None:
            raise BadInput(
                f"{self.name}: it compares what it makes of each side alone, without a map between them, got align; "
                "use procrustes, mean_cca, linear_regression or hard_correlation_match"
            )
        x, y, _ = self.sides(x, y, None)
        return self.aligned(x, y)

    @abstractmethod
    def __call__(self, x: Any, y: Any, labels: Labels = None) -> float:
        """The entry (row x, column y) for two representations (n, d_x), (n, d_y) with paired rows, in float64.

        Of attention: x, y are lists of one array (heads, T, T) per sentence. labels: n class codes, for measures that
        need them.
        """

    def sides(self, x: Any, y: Any, labels: Labels) -> tuple[Tensor, Tensor, Tensor | None]:
        """x, y in float64 and the labels' codes. Raises Degenerate for input that the measure does not take."""
        given = [convert_to_tensor(name, side) for name, side in (("x", x), ("y", y))]
        x, y = given
        if x.ndim != 2 or y.ndim != 2 or len(x) != len(y) or 0 in x.shape + y.shape:
            paired = x.ndim == y.ndim == 2 and len(x) != len(y)
            raise Degenerate(
                f"{self.name}: x and y must be (n, d) with the same n, got {tuple(x.shape)} and {tuple(y.shape)}; "
                f"{'pair the rows' if paired else 'give a row of features for each item'}"
            )
        largest = sys.float_info.max if "isotropic_scaling" in self.card.invariant_to else LARGEST
        in_blocks = [
            (name, side, rows) for name, side in zip("xy", given, strict=True) for rows in split_rows_for_cache(side)
        ]
        for name, side, rows in in_blocks:
            bad = ~(side[rows].double().abs() <= largest)
            if bad.any():
                row, got = rows.start + int(bad.any(1).nonzero()[0]), float(side[rows][bad][0])
                problem = "too large to be squared and summed" if math.isfinite(got) else "not finite"
                raise Degenerate(f"{name}: {problem}, got {got} in row {row}; fix the array")
        codes = None if labels is None else convert_to_tensor("labels", labels)
        self.check(("x", "y"), [side.shape for side in given], codes)
        check_room(self.name, self.squares_at_once, self.slow.side(len(x)) if self.slow else len(x))
        for name, side in (("x", x), ("y", y)):
            if self.card.width_limit and len(side) <= side.shape[1]:
                warnings.warn(
                    f"{name}: {len(side)} rows for {side.shape[1]} features; {self.card.width_limit}",
                    MeasureWarning,
                    stacklevel=3,
                )
        return x.double(), y.double(), codes

    @property
    def rows_needed(self) -> int:
        return max(self.card.minimum_rows, self.minimum_rows)

    @property
    def squares_at_once(self) -> float:
        """The number of (n, n) matrices of float64 that a direct call holds at a time."""
        return float(2 * self.squares + (self.slow.squares if self.slow else 0))

    def check(self, names: Sequence[str], shapes: Sequence[Sequence[int]], labels: Tensor | None) -> None:
        """Raises Degenerate where the shapes (n, d) or the labels are not what the card asks for."""
        if len({n for n, _ in shapes}) > 1:
            listed = ", ".join(f"{name}: {n}" for name, (n, _) in zip(names, shapes, strict=True))
            raise Degenerate(f"{self.name}: different numbers of rows, got {listed}; give all the same rows")
        for name, (n, d) in zip(names, shapes, strict=True):
            if n < self.rows_needed:
                raise Degenerate(
                    f"{name}: {self.name} needs at least {self.rows_needed} rows, got {n}; give it more rows"
                )
            if self.card.refuses_wide and n <= d:
                raise Degenerate(
                    f"{name}: {self.name} needs more rows than features, got {n} rows of {d} features, for which any "
                    "data would score the same; use more rows, or cka_unbiased"
                )
        if self.card.equal_widths and len({d for _, d in shapes}) > 1:
            listed = ", ".join(f"{name}: {d}" for name, (_, d) in zip(names, shapes, strict=True))
            raise Degenerate(f"{self.name}: needs equal widths, got {listed}; use procrustes or cka_unbiased")
        if self.card.labelled and (labels is None or len(labels) != shapes[0][0]):
            got = "" if labels is None else f", got {len(labels)} for {shapes[0][0]} rows"
            raise Degenerate(f"{self.name}: needs one label per row{got}; give labels (repsim measure: --labels L.npy)")


@dataclass(frozen=True, kw_only=True)
class InnerProduct(Measure):
    """A measure of inner products of one symmetric (n, n) matrix per representation; the engine does all pairs.

    row, column: the kernels of the row's and the column's representation (see `inner.py`).
    value(products): all pairs (a, b).
    near(products, values): mask of the cells in which the products cancel.
    exact(row state, column state): the value of such a cell.
    """

    row: AnyKernel
    column: AnyKernel
    value: Callable[[Products], Matrix]
    near: Callable[[Products, Matrix], Tensor] | None = None
    exact: Callable[[State, State], float] | None = None

    def __call__(self, x: Any, y: Any, labels: Labels = None) -> float:
        x, y, _ = self.sides(x, y, labels)
        sides = (
            {self.row: {"x": x}, self.column: {"y": y}} if self.row is not self.column else {self.row: {"x": x, "y": y}}
        )
        states = {
            kernel: [
                run_with_label(name, lambda k=kernel, side=side: prepare_states([k], side, {})[k])
                for name, side in of.items()
            ]
            for kernel, of in sides.items()
        }
        cross = compute_inner_products([(self.row, self.column)], states, len(x), Hardware.tile)[0]
        norms = compute_self_products(self, cross, len(x), x.dtype)
        try:
            values = compute_values_from_products(self, cross, norms, states[self.row], states[self.column])
            return float(clamp_to_bounds(self, values)[0, -1])
        except Degenerate as error:
            raise Degenerate(f"{self.name}: {error}") from None

    @property
    def squares_at_once(self) -> float:
        kernels = {self.row, self.column}
        return float(max(PACKED if isinstance(kernel, Packed) else WHOLE * kernel.whole for kernel in kernels))


@dataclass(frozen=True, kw_only=True)
class OfHsic(InnerProduct):
    """An inner product whose estimate over batches may sum HSICs. terms(n): the divisor that makes a product one."""

    terms: Callable[[int], float]


def restrict_to_other_documents(measure: Measure, documents: Documents | None) -> Measure:
    """Restricts a measure to pairs of rows of different documents, where it has such a form; None: all pairs count."""
    if documents is None or measure.apart is None:
        return measure
    return replace(measure.apart(documents), name=measure.name, card=measure.card, settings=measure.settings)


def permute_rows(state: Any, order: Tensor) -> Any:
    """Takes the rows of a state that consists of them in another order."""
    return state[order]


def has_rows(state: Any, rows: int) -> bool:
    """Tells whether a state is a tensor of this number of rows."""
    return isinstance(state, Tensor) and state.ndim > 0 and len(state) == rows


@dataclass(frozen=True, kw_only=True)
class Pairwise(Measure):
    """A measure that compares two prepared states.

    prepare(x): everything that depends on one representation (n, d) alone; runs once per representation, and once
    for all measures that share the function. A labelled measure's takes (x, labels).
    compare(a, b): the entry (row a, column b) from two prepared states.
    compare_all(states, states) -> (a, b): all pairs at once, where the mathematics allows.
    permute(state, order): the state of x[order], without preparing it anew; by default the state's own rows.
        A measure whose state is not a tensor of rows and that has none is not drawn for the level of chance.
    overlap(state): lists of rows, one column per row, where the value is the share of them that two states have in
        common.
    of_rows(states, states) -> (a, b, n): what every row gives, where the value is the mean over rows and what a row
        gives depends on its own nearest rows alone; so that some rows are enough (`engine/sampled.py`).
    cubes: the operations of a pair in d^3 of float32, for the estimate of time; None where no features are multiplied.
    work: the operations of a layer and of a pair, by the number of rows, for the estimate of time, where most are not
        of features.
    copies, maps: how many copies of the rows in their own precision, and (d, d) matrices of float64, a prepared state
        holds, for the estimate of memory; lists of nearest rows (`cubes` is None) are counted too.
    wide_squares: how many (d, d) matrices of float64 a comparison holds at a time.
    """

    prepare: Callable[..., Any]
    compare: Callable[[Any, Any], float]
    compare_all: Callable[[Sequence[Any], Sequence[Any]], Tensor] | None = None
    permute: Callable[[Any, Tensor], Any] = permute_rows
    overlap: Callable[[Any], Int[Tensor, "k n"]] | None = None
    of_rows: Callable[[Sequence[Any], Sequence[Any]], Float[Tensor, "a b n"]] | None = None
    cubes: float | None = 20.0
    work: Callable[[int], tuple[float, float]] | None = None
    copies: float = 1.0
    maps: float = 0.0
    wide_squares: float = 0.0

    def __call__(self, x: Any, y: Any, labels: Labels = None) -> float:
        x, y, codes = self.sides(x, y, labels)
        states = self.prepare_named(x, "x", codes), self.prepare_named(y, "y", codes)
        value = registry.measures.call(self.name, lambda: self.compare(*states), RunFailed)
        return float(clamp_to_bounds(self, torch.tensor(value, dtype=torch.float64)))

    def prepare_named(self, x: Tensor, what: str, labels: Tensor | None = None) -> Any:
        """`prepare`, whose errors name x by `what`."""
        x = x.clone() if is_added(self) else x  # code from outside may change its argument, which others read too
        step = partial(self.prepare, x, labels) if self.card.labelled else partial(self.prepare, x)
        return run_with_label(what, lambda: registry.measures.call(self.name, step, RunFailed))


ROUNDING = 1e-6  # of float32 products: a value may be this far beyond its bounds
FALSE = 1e-4  # further than float32 rounds: what a measure from outside says of its bounds is wrong


def clamp_to_bounds(measure: Measure, values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Values beyond the bounds of the measure's card by rounding, set to the bounds. Values further out stay visible.

    Raises RunFailed for those of a measure that a program or another package has added.
    """
    low, high = measure.card.bounds
    _check_claimed_bounds(measure, values)
    if low is not None:
        values = torch.where((values < low) & (values >= low - ROUNDING), low, values)
    if high is not None:
        values = torch.where((values > high) & (values <= high + ROUNDING), high, values)
    return values


def is_added(measure: Measure) -> bool:
    """Tells whether a program or another package has added the measure."""
    return measure.name in registry.measures.list_added()


def _check_claimed_bounds(measure: Measure, values: Float[Tensor, "..."]) -> None:
    if not is_added(measure):
        return
    for sign, bound in zip((-1, 1), measure.card.bounds, strict=True):
        if bound is not None and (off := values[sign * (values - bound) > FALSE * max(1.0, abs(bound))]).numel():
            raise RunFailed(
                f"{measure.name}: a value beyond its bounds {measure.card.bounds}, got {float(off[0]):.6g}; mend the "
                "measure, or the bounds that it claims"
            )


def run_with_label(what: str, step: Callable[[], Any]) -> Any:
    """The value of the step; its errors and warnings start with `what`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MeasureWarning)
        try:
            value = step()
        except Degenerate as error:
            raise Degenerate(f"{what}: {error}") from None
    for notice in caught:
        text = f"{what}: {notice.message}" if notice.category is MeasureWarning else notice.message
        warnings.warn(text, notice.category, stacklevel=3)
    return value


def compute_self_products(measure: InnerProduct, cross: Matrix, n: int, dtype: torch.dtype) -> Float[Tensor, " r"]:
    """<M_a, M_a>, or 0 where it is within rounding; empty for measures of two kernels."""
    norms = cross.new_empty(0) if measure.row is not measure.column else cross.diagonal().clone()
    norms[norms < compute_rounding_floor(n, dtype)] = 0
    return norms


def compute_values_from_products(
    measure: InnerProduct, cross: Matrix, norms: Float[Tensor, " k"], rows: Sequence[State], columns: Sequence[State]
) -> Matrix:
    """The measure for all pairs from their inner products; cells in which these cancel are computed anew."""
    given = Products(cross, norms, norms, rows, columns)
    values = measure.value(given)
    if measure.near is not None and measure.exact is not None:
        for a, b in measure.near(given, values).nonzero().tolist():
            mirrored = rows is columns and b < a
            values[a, b] = values[b, a] if mirrored else measure.exact(rows[a], columns[b])
    return values


def check_self_products(products: Products) -> None:
    """Raises Degenerate for a representation whose self-product is 0, by which nothing can be normalised."""
    for squares in (products.row_squares, products.column_squares):
        if not bool((squares > 0).all()):
            raise Degenerate(
                f"self-similarity is not positive, got {float(squares.min()):.3g}; use more rows or drop this layer"
            )


def divide_by_norms(products: Products) -> Matrix:
    """Inner products over the norms of both sides."""
    check_self_products(products)
    return products.cross / products.row_squares.sqrt()[:, None] / products.column_squares.sqrt()[None, :]


def is_cosine(measure: Measure) -> bool:
    """Tells whether the value of the measure is a normalised inner product."""
    return isinstance(measure, InnerProduct) and measure.value is divide_by_norms
