"""What a measure is: a card of claims, and pure functions of what each representation is prepared into."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.errors import Degenerate

Invariance = Literal[
    "permutation_of_neurons",
    "orthogonal",
    "isotropic_scaling",
    "translation",
    "invertible_linear",
]


class MeasureWarning(UserWarning):
    """Input that a measure could handle, but whose result needs care: dropped neurons, ties, too few rows.

    Issued by `prepare` and `compare` through `warnings.warn`; a run records it with the layer's name.
    """


@dataclass(frozen=True, kw_only=True)
class Card:
    """The claims of a measure; tests hold it to them, figures and the report read them.

    bounds: (lowest, highest) possible value, None where unbounded. minimum_rows: fewer rows are refused.
    width_limit: what happens when there are not more rows than features: nothing, or a warning.
    """

    label: str
    larger_is_closer: bool
    bounds: tuple[float | None, float | None]
    symmetric: bool
    is_metric: bool
    invariant_to: frozenset[Invariance]
    minimum_rows: int
    cost: str
    source: str
    reads: Literal["activations"] = "activations"
    width_limit: str | None = None
    note: str = ""

    def record(self) -> dict[str, Any]:
        """The card as plain JSON."""
        return {
            **{k: v for k, v in vars(self).items() if k != "invariant_to"},
            "bounds": list(self.bounds),
            "invariant_to": sorted(self.invariant_to),
        }


@dataclass(frozen=True, kw_only=True)
class GramForm:
    """For measures whose pair value is a normalised inner product of one symmetric (n, n) matrix per
    representation: how to make a tile of that matrix, and its factor to true units.

    tile(state, rows, columns) -> (rows, columns) block. scale(state): the inner product's factor for this side,
    and terms(n) its divisor, which make it an HSIC in its own units, so that sums over batches add up.
    normalise(products, own products of the rows, of the columns) -> values.
    """

    tile: Callable[[Any, slice, slice], Tensor]
    scale: Callable[[Any], float]
    terms: Callable[[int], float]
    normalise: Callable[[Float[Tensor, "a b"], Float[Tensor, " a"], Float[Tensor, " b"]], Tensor]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A measure with its settings bound.

    prepare(x): everything that depends on one representation (n, d) alone; runs once per representation.
    compare(a, b): the entry (row a, column b) from two prepared states.
    compare_all(states, states) -> (a, b): all pairs at once, where the mathematics allows.
    gram: set instead of `compare_all` where the tiled all-pairs engine serves.
    permute(state, order): the state of x[order], without preparing it anew; by default the state's own rows.
    minimum_rows: where the settings ask for more rows than the card does.
    """

    prepare: Callable[[Tensor], Any]
    compare: Callable[[Any, Any], float]
    compare_all: Callable[[Sequence[Any], Sequence[Any]], Tensor] | None = None
    gram: GramForm | None = None
    permute: Callable[[Any, Tensor], Any] = lambda state, order: state[order]
    minimum_rows: int = 0
    name: str = ""
    card: Card = field(default=None)  # type: ignore[assignment]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, x: np.ndarray | Tensor | list, y: np.ndarray | Tensor | list) -> float:
        """Compare two representations (n, d_x) and (n, d_y) with paired rows: the entry (row x, column y)."""
        x, y = (side if isinstance(side, Tensor) else torch.as_tensor(np.asarray(side)) for side in (x, y))
        if x.ndim != 2 or y.ndim != 2 or len(x) != len(y) or 0 in x.shape + y.shape:
            raise Degenerate(
                f"{self.name}: x and y must be (n, d) with the same n, "
                f"got {tuple(x.shape)} and {tuple(y.shape)}; pair the rows"
            )
        for name, side in (("x", x), ("y", y)):
            bad = ~torch.isfinite(side)
            if bad.any():
                row = int(bad.any(1).nonzero()[0])
                raise Degenerate(f"{name}: not finite, got {float(side[bad][0])} in row {row}; mend the array")
        return self.compare(self.prepared(x, "x"), self.prepared(y, "y"))

    @property
    def rows_needed(self) -> int:
        return max(self.card.minimum_rows, self.minimum_rows)

    def prepared(self, x: Tensor, what: str) -> Any:
        """`prepare` of finite rows, with the checks that every measure shares; `what` names x in errors."""
        if len(x) < self.rows_needed:
            raise Degenerate(
                f"{what}: {self.name} needs at least {self.rows_needed} rows, got {len(x)}; give it more rows"
            )
        if not x.is_floating_point():
            x = x.double()
        try:
            return self.prepare(x)
        except Degenerate as error:
            raise Degenerate(f"{what}: {error}") from None


def centred(x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n d"], float]:
    """x with its column means removed and its mean squared row norm scaled to 1, and the scale removed.

    Centring is done in float64, whatever x is, because a large common offset would cancel; the result has
    x's precision (float32 for half-precision input). Raises Degenerate for a constant representation.
    """
    precise = x.double()
    precise = precise - precise.mean(0)
    scale = float(precise.square().sum(1).mean().sqrt())
    # float64 rounding of the mean leaves this much of a constant column
    if scale <= 1e-13 * float(x.double().abs().max()):
        raise Degenerate("all rows are equal, got a constant representation; drop this layer or change the data")
    return (precise / scale).to(x.dtype if x.dtype == torch.float64 else torch.float32), scale


def rounding_floor(n: int, dtype: torch.dtype) -> float:
    """Self-products of (n, n) matrices of `centred` rows below this are rounding and count as 0.

    Rounding leaves eps |x_i|^2 in a cell, and |x_i|^2 is at most n, in one row: eps^2 n^3 in all.
    """
    return 100 * torch.finfo(dtype).eps ** 2 * n**3
