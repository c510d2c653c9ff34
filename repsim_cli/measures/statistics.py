"""Descriptive statistics: a number per representation, compared by absolute differences.

The rows need no pairing: permuting them changes nothing. 0 does not mean that two representations are equal.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.base.errors import Degenerate
from repsim_cli.base.registry import measures
from repsim_cli.measures.base import Measure, Pairwise
from repsim_cli.measures.cards import Card, Invariance
from repsim_cli.measures.centring import centre, choose_power_of_two
from repsim_cli.measures.inner import Matrix
from repsim_cli.measures.rdm import SHAPE, compute_distance_blocks

_TEMPERATURE = 2  # of the Gaussian potential, Wang and Isola's t
_ROTATION: frozenset[Invariance] = SHAPE - {"isotropic_scaling", "translation"}
_DIRECTION: frozenset[Invariance] = SHAPE - {"translation"}


def make_statistic_difference(
    statistic: Callable[..., float], work: Callable[[int], tuple[float, float]] | None = None
) -> Measure:
    """|statistic(x) - statistic(y)|. work: as of `Pairwise`."""

    def compare_all(a: Sequence[float], b: Sequence[float]) -> Matrix:
        left, right = (torch.tensor(side, dtype=torch.float64) for side in (a, b))
        return (left[:, None] - right[None]).abs()

    return Pairwise(
        prepare=statistic,
        compare=lambda a, b: abs(a - b),
        compare_all=compare_all,
        permute=lambda state, order: state,
        work=work,
        copies=0.0,
    )


def check_varying(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """x in float64. Raises Degenerate for a constant representation."""
    centre(x)
    return x.double()


def normalise_rows(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """The rows in float64, scaled to norm 1, not centred."""
    x = check_varying(x)
    x = x / choose_power_of_two(x, 1)
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    zero = int((norms == 0).sum())
    if zero:
        raise Degenerate(f"rows of zeros have no direction, got {zero}; drop them")
    return x / norms


def magnitude(x: Float[Tensor, "n d"]) -> float:
    """Norm of the mean row."""
    return float(torch.linalg.vector_norm(check_varying(x).mean(0)))


def concentricity(x: Float[Tensor, "n d"]) -> float:
    """Mean cosine of the rows with the mean row, in [-1, 1]."""
    rows, x = normalise_rows(x), x.double()
    x = x / choose_power_of_two(x)
    mean = x.mean(0)
    norm = torch.linalg.vector_norm(mean)
    if norm <= 1e-13 * float(x.abs().max()):
        raise Degenerate("the mean row is 0 and has no direction, got centred rows; give them as they are")
    return float((rows @ mean).mean() / norm)


def uniformity(x: Float[Tensor, "n d"]) -> float:
    """log of the mean of exp(-2 |u_i - u_j|^2) over i < j, rows u of norm 1; 0 if all rows have the same direction."""
    # an offset does not change distances but costs them digits
    units = normalise_rows(x)
    units, total = units - units.mean(0), 0.0
    for _, block in compute_distance_blocks(units.to(torch.promote_types(x.dtype, torch.float32))):
        total += float(block.mul_(-_TEMPERATURE).exp_().triu_(1).sum(dtype=torch.float64))
    return float(torch.tensor(2 * total / (len(x) * (len(x) - 1)), dtype=torch.float64).log())


def tolerance(x: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> float:
    """Mean cosine of two rows of the same class over all such pairs, in [-1, 1]."""
    _, codes, sizes = labels.to(x.device).unique(return_inverse=True, return_counts=True)
    pairs = float((sizes * (sizes - 1)).sum())
    if not pairs:
        raise Degenerate(f"no two rows have the same label, got {len(sizes)} labels; give classes of several rows")
    rows = normalise_rows(x)
    sums = rows.new_zeros(len(sizes), rows.shape[1]).index_add_(0, codes, rows)
    # |sum of a class|^2 includes the pairs of a row with itself, 1 each
    return (float(sums.square().sum()) - len(x)) / pairs


def participation_ratio(x: Float[Tensor, "n d"]) -> float:
    """(sum l)^2 / sum l^2 of the eigenvalues l of the covariance: a number of dimensions, in [1, min(n - 1, d)].

    >>> round(participation_ratio(torch.tensor([[1., 0.], [-1., 0.], [0., 1.], [0., -1.]])), 12)
    2.0
    """
    x = centre(x.double())[0]
    gram = x @ x.T if len(x) < x.shape[1] else x.T @ x
    return float(len(x) ** 2 / gram.square().sum())


def effective_rank(matrix: Float[Tensor, "n d"]) -> float:
    """exp of the entropy of the singular values over their sum, in [1, min(n, d)] (Roy and Vetterli 2007).

    The matrix is not centred here: centre a representation first. Raises Degenerate for a matrix of zeros.

    >>> round(effective_rank(torch.eye(3)), 12)
    3.0
    """
    values = torch.linalg.svdvals(matrix.double())
    if not values[0] > 0:
        raise Degenerate("a matrix of zeros has no effective rank, got all zeros; drop it")
    return float(torch.special.entr(values / values.sum()).sum().exp())


def proportional_effective_rank(
    matrix: Float[Tensor, "n d"], *, of: Literal["columns", "smaller"] = "columns"
) -> float:
    """Effective rank over the number of columns (Diehl Martinez et al. 2024), or over the smaller side, in (0, 1].

    >>> proportional_effective_rank(torch.tensor([[1., 0.], [0., 0.]]))
    0.5
    """
    return effective_rank(matrix) / (matrix.shape[1] if of == "columns" else min(matrix.shape))


def compute_centred_rank(x: Float[Tensor, "n d"]) -> float:
    return effective_rank(centre(x.double())[0])


def make_statistic_card(label: str, **claims: Any) -> Card:
    """The card of a difference of numbers, which is symmetric and satisfies the triangle inequality."""
    shared: dict[str, Any] = {"larger_is_closer": False, "symmetric": True, "is_metric": True, "paired": False}
    return Card(label=label, minimum_rows=2, **shared, **claims)


@measures.register(
    "magnitude_difference",
    make_statistic_card(
        "magnitude difference",
        bounds=(0.0, None),
        invariant_to=_ROTATION,
        cost="n d once per layer",
        source="Wang et al. 2022; Klabunde et al. 2023 (magnitude: norm of the mean row)",
        note="In the units of the activations. 0 does not mean equal layers.",
    ),
)
def magnitude_difference() -> Measure:
    """|(norm of the mean row of x) - (that of y)|.

    Mean rows (3, 4) and (0, 1): 5 - 1.

    >>> from repsim_cli import measures
    >>> measures.get("magnitude_difference")([[2., 4.], [4., 4.]], [[0., 0.], [0., 2.]])
    4.0
    """
    return make_statistic_difference(magnitude)


@measures.register(
    "concentricity_difference",
    make_statistic_card(
        "concentricity difference",
        bounds=(0.0, 2.0),
        invariant_to=_DIRECTION,
        cost="n d once per layer",
        source="Wang et al. 2022; Klabunde et al. 2023 (concentricity: mean cosine with the mean row)",
        note="0 does not mean equal layers. Rows are not centred: a large offset brings the number to 1.",
    ),
)
def concentricity_difference() -> Measure:
    """|(mean cosine of the rows of x with their mean row) - (that of y)|, in [0, 2].

    Rows at right angles have the cosine 1 / sqrt 2 with their mean, rows in one direction 1.

    >>> from repsim_cli import measures
    >>> round(measures.get("concentricity_difference")([[1., 0.], [0., 1.]], [[1., 0.], [2., 0.]]), 6)
    0.292893
    """
    return make_statistic_difference(concentricity)


@measures.register(
    "uniformity_difference",
    make_statistic_card(
        "uniformity difference",
        bounds=(0.0, 8.0),
        invariant_to=_DIRECTION,
        cost="n^2 d once per layer",
        source="Wang and Isola 2020 (uniformity, t = 2): rows of norm 1, pairs i < j",
        note="0 does not mean equal layers. Rows are not centred: a large offset brings the number to 0.",
    ),
)
def uniformity_difference() -> Measure:
    """|(log mean exp(-2 |u_i - u_j|^2) of x) - (that of y)|, rows u of norm 1, in [0, 8].

    Two rows at right angles have the squared distance 2: log exp(-4). In one direction: log 1.

    >>> from repsim_cli import measures
    >>> round(measures.get("uniformity_difference")([[1., 0.], [0., 5.]], [[1., 0.], [2., 0.]]), 12)
    4.0
    """
    return make_statistic_difference(uniformity, work=lambda rows: (500.0 * rows**2, 0.0))


@measures.register(
    "tolerance_difference",
    make_statistic_card(
        "tolerance difference",
        bounds=(0.0, 2.0),
        invariant_to=_DIRECTION,
        cost="n d once per layer",
        source="Wang and Liu 2021; Klabunde et al. 2023 (tolerance); the mean is over pairs of one class",
        labelled=True,
        note="0 does not mean equal layers. Needs labels. Rows are not centred: a large offset brings the number to 1.",
    ),
)
def tolerance_difference() -> Measure:
    """|(mean cosine of two rows of one class in x) - (that in y)|, in [0, 2].

    The two rows of class 0 are at right angles in x, in one direction in y; class 1 has no pair.

    >>> from repsim_cli import measures
    >>> x, y = [[1., 0.], [0., 5.], [1., 1.]], [[1., 0.], [2., 0.], [1., 1.]]
    >>> round(measures.get("tolerance_difference")(x, y, labels=[0, 0, 1]), 12)
    1.0
    """
    return make_statistic_difference(tolerance)


@measures.register(
    "participation_ratio_difference",
    make_statistic_card(
        "participation ratio difference",
        bounds=(0.0, None),
        invariant_to=SHAPE,
        cost="n d min(n, d) once per layer",
        source="Gao et al. 2017: (sum l)^2 / sum l^2 of the covariance's eigenvalues",
        note="A number of dimensions. 0 does not mean equal layers.",
    ),
)
def participation_ratio_difference() -> Measure:
    """|(participation ratio of x) - (that of y)|: a number of dimensions.

    A square has two equal variances, a line one.

    >>> from repsim_cli import measures
    >>> x, y = [[1., 0.], [-1., 0.], [0., 1.], [0., -1.]], [[1., 0.], [-1., 0.], [2., 0.], [-2., 0.]]
    >>> round(measures.get("participation_ratio_difference")(x, y), 12)
    1.0
    """
    return make_statistic_difference(participation_ratio)


@measures.register(
    "effective_rank_difference",
    make_statistic_card(
        "effective rank difference",
        bounds=(0.0, None),
        invariant_to=SHAPE,
        cost="n d min(n, d) once per layer",
        source="Roy and Vetterli 2007, definition 1, of centred rows",
        note="A number of dimensions; small variances count more than in the participation ratio. "
        "0 does not mean equal layers.",
    ),
)
def effective_rank_difference() -> Measure:
    """|(effective rank of centred x) - (that of y)|: exp of the entropy of the singular values over their sum.

    A square has two equal singular values, a line one.

    >>> from repsim_cli import measures
    >>> x, y = [[1., 0.], [-1., 0.], [0., 1.], [0., -1.]], [[1., 0.], [-1., 0.], [2., 0.], [-2., 0.]]
    >>> round(measures.get("effective_rank_difference")(x, y), 12)
    1.0
    """
    return make_statistic_difference(compute_centred_rank)
