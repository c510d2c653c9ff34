"""Mutual information of the leading principal components of two representations, in nats.

The mutual information of two layers of one network is infinite: one is a function of the other, without noise. What a
sample can tell is that of a few components, which is at most the former (data processing), and only up to a ceiling
that the estimator sets. Values compare layers under one set of rows and settings, and are not a property of the
networks.
"""

import math
from functools import partial
from typing import Annotated, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from repsim_cli.base.registry import measures
from repsim_cli.base.settings import Positive, Seed, Several, Small
from repsim_cli.measures.base import Measure, Pairwise
from repsim_cli.measures.bases import thin_svd
from repsim_cli.measures.cards import Card, Slow
from repsim_cli.measures.rank import compute_rank_tolerance, find_stored_precision, mark_single_precision
from repsim_cli.measures.rdm import SHAPE

Few = Annotated[int, Field(ge=1, le=5)]  # of 5 the critic has 441 weights, which Newton's method solves for

TIED = 1e-6  # of unit variance: distances that differ by less do so by the rounding of float32 alone
ALIKE = 1e-2  # variances that differ by a smaller share have no directions of their own
TURNED = 1 / 8  # of the bound on how far rounding moves a distance; 0.05 to 0.16 were seen, and more ties what differs
LONGEST = 3.0  # root mean square of a row's components, beyond which the critic sees a shorter row
CONVERGED = 1e-14  # of the squared Newton decrement; the next step would square it
STEPS = 200
PENALTIES = (1.0, 10.0, 100.0, 1000.0)  # on the squared weights, over twice the rows
BLOCK = 1 << 22  # distances held at a time
PROJECTED = "Of a few components alone: what the others share is not seen. "


class Components(NamedTuple):
    """The leading principal components, of variance 1; fewer where x has fewer.

    tied: distances that differ by less may do so by the rounding of x alone.
    """

    values: Float[Tensor, "n c"]
    tied: float


def keep_principal_components(x: Float[Tensor, "n d"], *, dims: int) -> Components:
    """Directions within the rounding of whole rows, which a rotation in their precision leaves, do not count."""
    basis, rounding = thin_svd(x), find_stored_precision(mark_single_precision(x))
    size = float(torch.linalg.vector_norm(basis.s))
    s = basis.s[basis.s > compute_rank_tolerance(x.shape[1], rounding) * size]
    kept = s[:dims]
    # rounding turns the last component towards the next, by more the less they differ
    left_out = s[dims] / kept[-1] if len(s) > dims else 0.0
    turned = 1 / max(1 - float(left_out) ** 2, ALIKE)
    values = math.sqrt(len(x)) * basis.u[:, : len(kept)].cpu()
    return Components(values, max(TIED, TURNED * rounding * size / float(kept[-1]) * turned))


def permute(state: Components, order: Tensor) -> Components:
    return state._replace(values=state.values[order])


def compute_row_distances(some: Float[Tensor, "b c"], rows: Float[Tensor, "n c"]) -> Float[Tensor, "b n"]:
    return torch.cdist(some, rows, compute_mode="donot_use_mm_for_euclid_dist")


def ksg(a: Components, b: Components, *, k: int) -> float:
    """psi(k) + psi(n) - mean of psi(rows nearer in a) + psi(rows nearer in b), each row counted among them.

    Nearer than the kth neighbour by the larger of both distances. Where several rows are equally near in its place, as
    copies are, all rows up to them count, in each of the three; so no value is above psi(n) - psi(k).
    """
    n, total, tie = len(a.values), 0.0, max(a.tied, b.tied)
    for rows in torch.arange(n).split(max(1, BLOCK // n)):
        x, y = (compute_row_distances(side.values[rows], side.values) for side in (a, b))
        joint = torch.maximum(x, y)
        radius = joint.kthvalue(k + 1, dim=1, keepdim=True).values  # the nearest is the row itself
        upto, below = radius + tie, radius - tie
        around = (joint <= upto).sum(1, keepdim=True)
        tied = around - (joint < below).sum(1, keepdim=True) > 1
        near = [(side <= torch.where(tied, upto, below)).sum(1, keepdim=True) for side in (x, y)]
        total += float(sum(map(_digamma, near), -_digamma(torch.where(tied, around, k))).sum())
    return float(_digamma(torch.tensor(n))) - total / n


def _digamma(counts: Tensor) -> Tensor:
    return torch.digamma(counts.double())


@measures.register(
    "mutual_information",
    Card(
        label="mutual information (KSG)",
        larger_is_closer=True,
        bounds=(None, None),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=4,
        cost="n d^2 once per layer, n^2 (dims + k) per pair",
        source="Kraskov et al. 2004, algorithm 1; rows with copies as Gao et al. 2017",
        note="In nats. Unrelated layers score about 0, also slightly below; the ceiling is psi(n) - psi(k), that of a "
        "layer with itself. Biased downwards where layers share much or dims is large. " + PROJECTED,
    ),
)
def mutual_information(*, k: Positive = 5, dims: Small = 3) -> Measure:
    """Mutual information of the leading principal components, from distances to the kth nearest row.

    k: which neighbour; few: less bias and more variance.
    dims: components of each representation, each scaled to variance 1.

    It sees any dependence, linear or not. It is too small, by more the more is shared and the more components there
    are. For three jointly normal components each and 2000 rows that is 0.05 nats of 0.67, 0.3 of 2.5 and 1.4 of 5.9.
    Neighbours are Euclidean in each representation.

    Of a layer with itself: psi(5) - psi(1) = 1 + 1/2 + 1/3 + 1/4.

    >>> from repsim_cli import measures
    >>> x = [[0.], [1.], [3.], [7.], [15.]]
    >>> round(measures.get("mutual_information", k=1)(x, x), 6)
    2.083333
    """
    return Pairwise(
        prepare=partial(keep_principal_components, dims=dims),
        compare=partial(ksg, k=k),
        permute=permute,
        minimum_rows=k + 1,
        slow=Slow(squares=0, products=0.5),
    )


class Batches(NamedTuple):
    """Features of the rows of both sides, in batches of equal size."""

    x: Float[Tensor, "m b f"]
    y: Float[Tensor, "m b g"]


def compute_critic_features(z: Float[Tensor, "n c"]) -> Float[Tensor, "n f"]:
    """1, the components, and their products; those off the diagonal by the root of 2, so that rotations of z rotate
    the features. Rows that are far out are shortened, for a single one would outweigh all others."""
    lengths = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    z = z * (LONGEST * math.sqrt(z.shape[1]) / lengths).clamp(max=1)
    i, j = torch.triu_indices(z.shape[1], z.shape[1])
    return torch.cat([torch.ones_like(z[:, :1]), z, z[:, i] * z[:, j] * (1 + (i != j).double()).sqrt()], 1)


def compute_contrastive_loss(weights: Float[Tensor, "f g"], given: Batches) -> tuple[Float[Tensor, ""], Tensor, Tensor]:
    """Mean cross-entropy of telling each row's partner from the others of its batch, averaged over both directions;
    the probabilities of the partners by rows of x, and by rows of y."""
    scores = given.x @ weights @ given.y.mT
    by_x, by_y = scores.log_softmax(2), scores.log_softmax(1)
    own = by_x.diagonal(dim1=1, dim2=2) + by_y.diagonal(dim1=1, dim2=2)
    return -own.mean() / 2, by_x.exp(), by_y.exp()


def fit_critic(given: Batches, penalty: float) -> Float[Tensor, "f g"]:
    """The weights with the least cross-entropy plus penalty |weights|^2 / 2n: a convex problem, by Newton's method."""
    m, size, wide = given.x.shape
    rows, shape = m * size, (wide, given.y.shape[2])
    products = Batches(*((side[..., :, None] * side[..., None, :]).flatten(2) for side in given))
    weights = given.x.new_zeros(shape)

    def objective(weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loss, by_x, by_y = compute_contrastive_loss(weights, given)
        return loss + penalty * weights.square().sum() / (2 * rows), by_x, by_y

    loss, by_x, by_y = objective(weights)
    for _ in range(STEPS):
        chances = (by_x + by_y) / 2 - torch.eye(size, dtype=weights.dtype)
        slope = (given.x.mT @ chances @ given.y).sum(0) / rows + penalty * weights / rows
        # covariance of the partners' features, for every row, times the products of its own
        of_y, of_x = (
            (chance @ product - (mean[..., :, None] * mean[..., None, :]).flatten(2)).flatten(0, 1)
            for chance, product, mean in (
                (by_x, products.y, by_x @ given.y),
                (by_y.mT, products.x, by_y.mT @ given.x),
            )
        )
        curvature = products.x.flatten(0, 1).T @ of_y + of_x.T @ products.y.flatten(0, 1)
        square = curvature.unflatten(0, (shape[0],) * 2).unflatten(2, (shape[1],) * 2).transpose(1, 2)
        square = square.flatten(2).flatten(0, 1) / (2 * rows)
        square.diagonal().add_(penalty / rows)
        step = torch.cholesky_solve(slope.reshape(-1, 1), torch.linalg.cholesky(square)).reshape(shape)
        decrement, share = float((slope * step).sum()), 1.0
        after = objective(weights - step)
        while float(after[0]) > float(loss) - share * decrement / 4 and decrement > CONVERGED:
            share /= 2
            after = objective(weights - share * step)
        weights, (loss, by_x, by_y) = weights - share * step, after
        if decrement <= CONVERGED:
            break
    return weights


def estimate_infonce_bound(a: Components, b: Components, *, batch: int, seed: int) -> float:
    """The critic is fitted on one half of the rows, and the bound is taken on the other. The penalty is that of the
    lowest cross-entropy on a quarter of the rows for a critic of another quarter."""
    quarter = len(a.values) // 4
    size = min(batch, quarter)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(a.values)))
    x, y = compute_critic_features(a.values), compute_critic_features(b.values)

    def batches(first: int, last: int) -> Batches:
        rows = order[first * quarter : last * quarter]
        return Batches(*(side[rows[: len(rows) // size * size]].unflatten(0, (-1, size)) for side in (x, y)))

    def validate(penalty: float) -> float:
        return float(compute_contrastive_loss(fit_critic(batches(0, 1), penalty), batches(1, 2))[0])

    weights = fit_critic(batches(0, 2), min(PENALTIES, key=validate))
    return math.log(size) - float(compute_contrastive_loss(weights, batches(2, 4))[0])


@measures.register(
    "infonce",
    Card(
        label="mutual information (InfoNCE)",
        larger_is_closer=True,
        bounds=(None, None),
        symmetric=True,
        is_metric=False,
        invariant_to=SHAPE,
        minimum_rows=8,
        cost="n d^2 once per layer, about 30 times n (dims^8 / 16 + batch dims^4 / 2) per pair",
        source="van den Oord et al. 2018; Poole et al. 2019: mean of both directions",
        note="In nats. A lower bound, on rows that the critic was not fitted on, of at most log(batch); unrelated "
        "layers score slightly below 0. " + PROJECTED,
    ),
)
def infonce(*, batch: Several = 128, dims: Few = 3, seed: Seed = 0) -> Measure:
    """A lower bound on the mutual information of the leading principal components.

    batch: rows among which a row's partner is told; a quarter of all rows where these are fewer.
    dims: components of each representation, each scaled to variance 1. The critic has about (dims^2 / 2)^2 weights.
    seed: of the half of the rows that the critic is fitted on, and of the batches.

    The critic scores a pair of rows by products of their components, squares and products of two components, which is
    all that normal variables need; of other dependence it sees a part or nothing. Whatever the critic, the expected
    value is at most the truth, and below log(batch): where it is near, layers are no longer told apart. The critic is
    the optimum of a convex problem, so that only the halves of the rows are drawn. Rows must be independent: those of
    one document on both halves raise the value.

    Of two clusters, which hold log(2) = 0.69 nats:

    >>> from repsim_cli import measures
    >>> x = [[1.], [-1.]] * 500
    >>> round(measures.get("infonce")(x, x), 2)
    0.68
    """
    return Pairwise(
        prepare=partial(keep_principal_components, dims=dims),
        compare=partial(estimate_infonce_bound, batch=batch, seed=seed),
        permute=permute,
        slow=Slow(squares=1, products=0.5),
    )
