"""Numeric differences of paired rows, value by value: what a port, a precision or a kernel changed."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.base.registry import measures
from repsim_cli.measures.base import Measure, Pairwise
from repsim_cli.measures.cards import Card
from repsim_cli.measures.pointwise import check_varying, convert_to_working_dtype

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_BLOCK = 1024  # rows held at a time in float64


def make_measure_of_values(
    value: Callable[[Tensor, Tensor], float],
    prepare: Callable[[Tensor], Tensor] = convert_to_working_dtype,
    *,
    leaps: bool = False,
) -> Measure:
    """Makes the measure of value(x, y) for rows as they are."""
    return Pairwise(prepare=prepare, compare=value, cubes=0.0, copies=0.0, leaps=leaps)


def compute_relative_difference(x: Float[Tensor, "n d"], y: Float[Tensor, "n d"]) -> float:
    """Computes |x - y| / |y| over all cells. Raises Degenerate where y is zero."""
    size = max(float(y.abs().max()), float(x.abs().max()))
    squares = torch.zeros(2, dtype=torch.float64)
    for a, b in zip(x.split(_BLOCK), y.split(_BLOCK), strict=True):
        a, b = a.double() / (size or 1.0), b.double() / (size or 1.0)
        squares += torch.stack([(a - b).square().sum(), b.square().sum()]).cpu()
    if not squares[1]:
        raise Degenerate("nothing to be relative to, got zeros in all rows of the column; use largest_difference")
    return float((squares[0] / squares[1]).sqrt())


def compute_decibels(x: Float[Tensor, "n d"], y: Float[Tensor, "n d"]) -> float:
    """Computes how many decibels the difference lies below `y`. Raises Degenerate where both are equal."""
    share = torch.tensor(compute_relative_difference(x, y), dtype=torch.float64)
    if not share:
        raise Degenerate("infinitely many decibels, got equal rows; use relative_l2, which is 0 there")
    return float(-20 * share.log10())


def find_largest_difference(x: Float[Tensor, "n d"], y: Float[Tensor, "n d"]) -> float:
    return max(float((a.double() - b).abs().max()) for a, b in zip(x.split(_BLOCK), y.split(_BLOCK), strict=True))


def measure_largest_ulps(x: Float[Tensor, "n d"], y: Float[Tensor, "n d"], precision: torch.dtype) -> float:
    """Finds the largest difference of two values in the spacing, at the larger, of the numbers of a precision."""
    numbers, most = torch.finfo(precision), 0.0
    for a, b in zip(x.split(_BLOCK), y.split(_BLOCK), strict=True):
        a, b = a.double(), b.double()
        size = torch.maximum(a.abs(), b.abs()).clamp_min(numbers.smallest_normal)
        # size is m 2^e with m in [0.5, 1), and numbers there are eps 2^(e - 1) apart
        spacing = torch.ldexp(torch.full_like(size, numbers.eps), torch.frexp(size).exponent - 1)
        most = max(most, float(((a - b).abs() / spacing).max()))
    return most


def make_difference_card(
    label: str,
    *,
    source: str,
    note: str,
    larger_is_closer: bool = False,
    symmetric: bool = True,
    is_metric: bool = False,
    infinite_to_itself: bool = False,
) -> Card:
    """Makes the card of a difference of values in the same coordinates."""
    return Card(
        label=label,
        larger_is_closer=larger_is_closer,
        bounds=(None, None) if infinite_to_itself else (0.0, None),
        symmetric=symmetric,
        is_metric=is_metric,
        invariant_to=frozenset(),
        minimum_rows=2,
        cost="n d per pair",
        source=source,
        note=note,
        equal_widths=True,
        takes_constant=not infinite_to_itself,
        infinite_to_itself=infinite_to_itself,
    )


@measures.register(
    "relative_l2",
    make_difference_card(
        "relative L2 difference",
        symmetric=False,
        source="|x - y| / |y|, Frobenius norms; its square is the NMSE",
        note="Row a, column b: the difference over the size of b. 0: equal; 1: as large as b. A large feature decides.",
    ),
)
def relative_l2() -> Measure:
    """Norm of the difference of all values over the norm of y, not centred; equal widths only.

    >>> from repsim_cli import measures
    >>> round(measures.get("relative_l2")([[3., 0.], [0., 4.5]], [[3., 0.], [0., 4.]]), 9)
    0.1
    """
    return make_measure_of_values(compute_relative_difference)


@measures.register(
    "sqnr",
    make_difference_card(
        "signal to difference (dB)",
        larger_is_closer=True,
        symmetric=False,
        infinite_to_itself=True,
        source="20 log10 (|y| / |x - y|), Frobenius norms: the signal-to-quantisation-noise ratio",
        note="Row a, column b: 20 dB where the difference is a tenth of b, 40 dB a hundredth; no value for equal rows.",
    ),
)
def sqnr() -> Measure:
    """Norm of y over the norm of the difference of all values, in decibels, not centred; equal widths only.

    >>> from repsim_cli import measures
    >>> round(measures.get("sqnr")([[3., 0.], [0., 4.5]], [[3., 0.], [0., 4.]]), 9)
    20.0
    """
    return make_measure_of_values(compute_decibels, check_varying)


@measures.register(
    "largest_difference",
    make_difference_card(
        "largest difference of a value",
        is_metric=True,
        source="max |x - y| over all cells",
        note="0: equal, in the same coordinates; a metric. In the units of the activations; grows with the rows.",
    ),
)
def largest_difference() -> Measure:
    """Largest absolute difference over all values of the rows, not centred; equal widths only.

    >>> from repsim_cli import measures
    >>> measures.get("largest_difference")([[3., 0.], [0., 4.5]], [[3., 0.], [0., 4.]])
    0.5
    """
    return make_measure_of_values(find_largest_difference, leaps=True)


@measures.register(
    "ulp",
    make_difference_card(
        "largest difference in ulps",
        source="max |x - y| over the spacing of floating-point numbers at the larger value (Goldberg 1991)",
        note="0: equal; 1: neighbours in the precision. Values below its smallest normal number count as that.",
    ),
)
def ulp(*, precision: Literal["float32", "float16", "bfloat16"] = "float32") -> Measure:
    """Largest difference over all values of the rows, in units in the last place, not centred; equal widths only.

    precision: whose spacing counts.

    Between 4 and 8, numbers of float16 are 2^-8 apart:

    >>> from repsim_cli import measures
    >>> measures.get("ulp", precision="float16")([[3., 0.], [0., 4.5]], [[3., 0.], [0., 4.]])
    128.0
    """
    return make_measure_of_values(lambda x, y: measure_largest_ulps(x, y, PRECISIONS[precision]), leaps=True)
