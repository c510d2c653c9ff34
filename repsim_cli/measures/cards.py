"""What a measure says of itself: a card of claims, and how the engine may take it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import Tensor

from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Positive

Labels = Sequence[int] | np.ndarray | Tensor | None  # n class codes
Invariance = Literal[
    "permutation_of_neurons",
    "orthogonal",
    "isotropic_scaling",
    "scaling_of_neurons",
    "translation",
    "invertible_linear",
    "permutation_of_heads",
]
Unit = Literal["sentences", "words", "cells"]
UNDONE: Mapping[str, frozenset[Invariance]] = {  # by `extract.normalise`, but for measures that see no linear map
    "features": frozenset({"orthogonal"}),
    "directions": frozenset({"scaling_of_neurons"}),
    "rows": frozenset({"translation", "scaling_of_neurons", "invertible_linear"}),
}


@dataclass(frozen=True, kw_only=True)
class Card:
    """The claims of a measure; tests verify them, figures and the report display them.

    label: in figures and tables. larger_is_closer: whether a larger value is closer.
    bounds: (lowest, highest) possible value, None where unbounded.
    symmetric: both orders of two representations have one value; maps are mirrored. is_metric: a distance that keeps
        the triangle inequality.
    invariant_to: what changes no value, when it is done to one side.
    minimum_rows: fewer rows are refused. Of attention, rows are the units that it averages over.
    cost: how time grows, in words. source: where it is published. note: a further line of `repsim describe`.
    reads: activations (n, d), outputs, or the attention maps of sentences.
    width_limit: the warning where there are no more rows than features.
    refuses_wide: that is an error.
    equal_widths: representations of different widths are refused.
    labelled: it needs a class code per row.
    paired: it depends on how rows are paired, so that random pairings are a null for it.
    takes_constant: a representation of equal rows has a value; other measures refuse it.
    falls_with_rows: its value at a fixed number k of neighbours falls as rows are added.
    infinite_to_itself: a representation has no value with itself, so that matrices of all layers refuse the measure.
    package: an optional package that it needs, from the extra `topology`.
    """

    label: str
    larger_is_closer: bool
    bounds: tuple[float | None, float | None]
    symmetric: bool
    is_metric: bool
    invariant_to: frozenset[Invariance]
    minimum_rows: Positive
    cost: str
    source: str
    reads: Literal["activations", "outputs", "attention"] = "activations"
    width_limit: str | None = None
    refuses_wide: bool = False
    equal_widths: bool = False
    labelled: bool = False
    paired: bool = True
    takes_constant: bool = False
    falls_with_rows: bool = False
    infinite_to_itself: bool = False
    package: str | None = None
    note: str = ""

    def __post_init__(self) -> None:
        low, high = self.bounds
        if low is not None and high is not None and low >= high:
            raise BadInput(f"bounds: the lowest value is not below the highest, got {self.bounds}; write (LOW, HIGH)")

    @property
    def sees_scale_of_features(self) -> bool:
        """Tells whether a feature of large variance counts for more than the others."""
        return self.reads == "activations" and "scaling_of_neurons" not in self.invariant_to

    def undone(self) -> dict[str, list[str]]:
        """The invariances that the measure loses where rows are normalised, by the value of `extract.normalise`."""
        held = self.invariant_to if self.reads == "activations" else frozenset()
        undone = UNDONE if "invertible_linear" not in held else {"rows": UNDONE["rows"]}
        return {how: sorted(held & lost) for how, lost in undone.items() if held & lost}

    def record(self) -> dict[str, Any]:
        """The card as plain JSON."""
        return {
            **{k: v for k, v in vars(self).items() if k != "invariant_to"},
            "bounds": list(self.bounds),
            "invariant_to": sorted(self.invariant_to),
            "sees_scale_of_features": self.sees_scale_of_features,
        }


Totals = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Moments:
    """A measure computed from second moments alone, whatever the number of rows.

    Covariances are sums over rows of products of centred neurons, in float64.
    prepare(moments.Second): what depends on a single representation; once for all measures that share the function.
    compare(a, b, covariance (d_a, d_b)): the entries (row a, column b) and (row b, column a).
    drops_dead: dead neurons are left out.
    single: whether products of float32 may be summed: of a measure of covariances as they are, which these move by 1e-7
        of |x_i| |y_j|, and up to 1e-5 where few rows hold most of both. Decompositions divide by small eigenvalues, and
        need products of float64.
    """

    prepare: Callable[[Any], Any]
    compare: Callable[[Any, Any, Tensor], tuple[float, float]]
    drops_dead: bool = True
    single: bool = False


class Solved(NamedTuple):
    """The value of a pair. details: further numbers, those of `Slow.details` in order."""

    value: float
    details: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Audit:
    """A check of some pairs of a run, drawn under its seed, by a second solver.

    share: of the pairs, at least one.
    solver: its name.
    reference(a, b): its value, with the detail whether costs are tied, in which case the two may differ.
    agrees(value, reference): whether the value is `claim` the reference.
    takes(state): whether the solver takes states like this one; else no pair is audited.
    """

    share: float
    solver: str
    reference: Callable[[Any, Any], Solved]
    agrees: Callable[[float, float], bool]
    claim: str
    takes: Callable[[Any], bool]


class Beyond(NamedTuple):
    """How a slow measure goes on where there are more than `rows`: with square matrices of `side` rows.

    operations(rows, width): those of preparing a state, and of a pair.
    """

    rows: int
    side: int
    operations: Callable[[int, float], tuple[float, float]]


class Detail(NamedTuple):
    """A number of every pair beside its value; label: in the table of solved pairs.

    kind: a `count`, whether a start `won` (1, else 0), or a lower `bound` on the value.
    """

    kind: Literal["count", "won", "bound"]
    label: str


@dataclass(frozen=True, kw_only=True)
class Slow:
    """For measures whose pairs take a millisecond or more: pairs are solved one by one, in several processes.

    Prepared states are arrays or tensors, or named tuples of them; functions can be pickled by name and issue no
    warnings.
    solve(a, b): the pair with its details; by default `compare` alone.
    details: by their keys in results.json.
    squares: the number of (n, n) matrices of float64 that a pair needs at a time.
    products: the number of products of (n, n) matrices in float32 that take as long as a pair, to estimate the time.
    audit: a second solver that checks some of the pairs.
    beyond: of more rows no matrices of all rows are held; None: they always are.
    """

    solve: Callable[[Any, Any], Solved] | None = None
    details: Mapping[str, Detail] = field(default_factory=dict)
    squares: int = 8
    products: float = 8.0
    audit: Audit | None = None
    beyond: Beyond | None = None

    def side(self, rows: int) -> int:
        """The number of rows of its square matrices, for a representation of `rows`."""
        return rows if self.beyond is None or rows <= self.beyond.rows else self.beyond.side
