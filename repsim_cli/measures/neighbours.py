"""Neighbourhood measures: do two representations give a sample the same nearest neighbours?"""

from collections.abc import Sequence

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.measures.base import Card, Measure, centred
from repsim_cli.registry import measures
from repsim_cli.settings import Positive

_BLOCK = 1024  # rows of the similarity matrix held at a time


def nearest(x: Float[Tensor, "n d"], k: int) -> Int[Tensor, "n k"]:
    """Indices, ascending, of the k nearest rows by cosine of centred rows, self excluded by index.

    Equal similarities are taken in index order.
    """
    x = centred(x)[0]
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    # a row at the mean has no direction: similarity 0 to every other row
    x = torch.where(norms > 0, x / norms.clamp_min(torch.finfo(x.dtype).tiny), 0.0)
    blocks = []
    for start in range(0, len(x), _BLOCK):
        similarity = x[start : start + _BLOCK] @ x.T
        similarity.diagonal(start).fill_(-torch.inf)
        threshold = similarity.topk(k, dim=1).values[:, -1:]
        above, ties = similarity > threshold, similarity == threshold
        room = k - above.sum(1, keepdim=True)
        chosen = above | (ties & (ties.cumsum(1) <= room))
        blocks.append(chosen.nonzero()[:, 1].view(-1, k))
    return torch.cat(blocks)


def overlap(a: Int[Tensor, "n k"], b: Int[Tensor, "n k"]) -> float:
    """Mean share of common neighbours, in [0, 1]."""
    return float(overlap_all([a], [b])[0, 0])


def overlap_all(a: Sequence[Tensor], b: Sequence[Tensor]) -> Float[Tensor, "a b"]:
    """All pairs at once: neighbour sets as 0/1 vectors over (row, neighbour), one sparse product."""
    n, k = a[0].shape

    def indicator(states: Sequence[Tensor]) -> scipy.sparse.csr_matrix:
        cells = np.concatenate([(s.cpu() + n * torch.arange(n)[:, None]).flatten().numpy() for s in states])
        ends = np.arange(len(states) + 1) * n * k
        return scipy.sparse.csr_matrix((np.ones(len(cells), np.int64), cells, ends), (len(states), n * n))

    common = indicator(a) @ indicator(b).T
    return torch.from_numpy(common.toarray() / (n * k))


@measures.register(
    "mutual_knn",
    Card(
        label="mutual k-NN",
        larger_is_closer=True,
        bounds=(0.0, 1.0),
        symmetric=True,
        is_metric=False,
        invariant_to=frozenset({"permutation_of_neurons", "orthogonal", "isotropic_scaling", "translation"}),
        minimum_rows=3,
        cost="n^2 d once per layer, n k per pair",
        source="Huh et al. 2024, section 3 and appendix A; cosine on centred rows",
        note="Share of common nearest neighbours; unrelated layers score about k / (n - 1). "
        "Equal rows tie, and ties go by index on both sides: layers that see no context (embed) score high.",
    ),
)
def mutual_knn(*, k: Positive = 10) -> Measure:
    """Mean overlap of the k-nearest-neighbour sets, |A_i & B_i| / k, in [0, 1].

    >>> from repsim_cli import measures
    >>> x = [[0., 0.], [1., 0.], [0., 2.]]
    >>> measures.get("mutual_knn", k=1)(x, [[2. * a, 2. * b] for a, b in x])
    1.0
    """
    return Measure(prepare=lambda x: nearest(x, k), compare=overlap, compare_all=overlap_all, minimum_rows=k + 1)
