"""Linear CKA, biased and unbiased: normalised inner products of centred or U-centred Gram matrices.

Unbiased HSIC as a plain inner product: the U-centred Gram matrix (Szekely and Rizzo 2014) of features with zero
column means is K_ij - r_i/(n-2) - r_j/(n-2) + t/((n-1)(n-2)) off the diagonal and 0 on it, with r_i = -|x_i|^2
the row sums of K without its diagonal, and t their sum. It is a product of features with two extra columns, so
it costs no more than K, and the three-term formula's cancellation never happens.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from repsim_cli.errors import Degenerate
from repsim_cli.measures.base import Card, GramForm, Invariance, Measure, centred, rounding_floor
from repsim_cli.registry import measures


class GramFactors(NamedTuple):
    """left @ right.T is the (n, n) Gram matrix, up to scale^2; its diagonal counts as 0 if `hollow`."""

    left: Float[Tensor, "n k"]
    right: Float[Tensor, "n k"]
    scale: float
    hollow: bool


def centred_gram(x: Float[Tensor, "n d"]) -> GramFactors:
    x, scale = centred(x)
    return GramFactors(x, x, scale, hollow=False)


def u_centred_gram(x: Float[Tensor, "n d"]) -> GramFactors:
    x, scale = centred(x)
    n = len(x)
    row_sums = -x.double().square().sum(1)
    total = row_sums.sum() / ((n - 1) * (n - 2))
    ones = torch.ones_like(row_sums)
    left = torch.cat([x, torch.stack([ones, row_sums], 1).to(x.dtype)], 1)
    right = torch.cat([x, torch.stack([total - row_sums / (n - 2), -ones / (n - 2)], 1).to(x.dtype)], 1)
    return GramFactors(left, right, scale, hollow=True)


def tile(state: GramFactors, rows: slice, columns: slice) -> Tensor:
    block = state.left[rows] @ state.right[columns].T
    if state.hollow and rows == columns:
        block.diagonal().zero_()
    return block


def normalise(
    products: Float[Tensor, "a b"], rows: Float[Tensor, " a"], columns: Float[Tensor, " b"]
) -> Float[Tensor, "a b"]:
    """Inner products over the root of the self-products of both sides."""
    for self_products in (rows, columns):
        if not bool((self_products > 0).all()):
            raise Degenerate(
                f"self-similarity is not positive, got {float(self_products.min()):.3g}; "
                "use more rows or drop this layer"
            )
    return products / rows.sqrt()[:, None] / columns.sqrt()[None, :]


def compare(a: GramFactors, b: GramFactors) -> float:
    everything = slice(0, len(a.left))
    k, l = (tile(state, everything, everything).double() for state in (a, b))  # noqa: E741
    products = torch.stack([(k * l).sum(), (k * k).sum(), (l * l).sum()])
    products[1:][products[1:] < rounding_floor(len(k), a.left.dtype)] = 0
    return float(normalise(products[0].view(1, 1), products[1:2], products[2:3]))


def _cka(prepare: Callable[[Tensor], GramFactors], terms: Callable[[int], float]) -> Measure:
    form = GramForm(tile=tile, scale=lambda state: state.scale**2, terms=terms, normalise=normalise)
    return Measure(prepare=prepare, compare=compare, gram=form)


_INVARIANCES: frozenset[Invariance] = frozenset(
    {"permutation_of_neurons", "orthogonal", "isotropic_scaling", "translation"}
)


@measures.register(
    "cka",
    Card(
        label="CKA (biased)",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=_INVARIANCES,
        minimum_rows=2,
        cost="n^2 d once per layer, n^2/2 per pair",
        source="Kornblith et al. 2019, eq. 3 with a linear kernel; HSIC of Gretton et al. 2005",
        width_limit="biased CKA is inflated when there are not many more rows than features; "
        "use cka_unbiased or more rows",
        note="1: equal up to rotation, scale and offset. Biased upwards, the more the fewer the rows.",
    ),
)
def cka() -> Measure:
    """Linear CKA with biased HSIC: <K, L> / (|K| |L|) of centred Gram matrices, in [0, 1].

    Two points of three rows: x = (0, 1, 0), y = (0, 0, 2) give centred Grams whose cosine is 1/4.

    >>> from repsim_cli import measures
    >>> round(measures.get("cka")([[0.], [1.], [0.]], [[0.], [0.], [2.]]), 12)
    0.25
    """
    return _cka(centred_gram, terms=lambda n: (n - 1) ** 2)


@measures.register(
    "cka_unbiased",
    Card(
        label="CKA (unbiased)",
        larger_is_closer=True,
        bounds=(None, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=_INVARIANCES,
        minimum_rows=4,
        cost="n^2 d once per layer, n^2/2 per pair",
        source="Song et al. 2012, eq. 5 (HSIC1), in the normalisation of Kornblith et al. 2019, eq. 3",
        note="1: equal up to rotation, scale and offset; 0 on average for unrelated layers; may be negative.",
    ),
)
def cka_unbiased() -> Measure:
    """Linear CKA with unbiased HSIC (HSIC1): at most 1, 0 in the mean under independence, never clamped.

    The HSICs are unbiased; their ratio has a bias of order 1/n. Needs at least 4 rows.

    >>> from repsim_cli import measures
    >>> x = [[0., 0.], [1., 0.], [0., 2.], [3., 1.]]
    >>> round(measures.get("cka_unbiased")(x, x), 12)
    1.0
    """
    return _cka(u_centred_gram, terms=lambda n: n * (n - 3))
