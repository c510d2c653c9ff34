"""Spectra of neighbourhood graphs: multi-scale intrinsic distance.

The heat trace tr exp(-tL) of a graph is a sum of Chebyshev moments tr T_m(L - I). They decay so fast in m that a few
sparse products give the trace to the last digits, without eigenvalues.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.base.registry import measures
from repsim_cli.base.settings import Medium, Positive
from repsim_cli.measures.base import Measure, Pairwise
from repsim_cli.measures.cards import Card
from repsim_cli.measures.centring import centre
from repsim_cli.measures.inner import Matrix
from repsim_cli.measures.near_rows import list_nearest_rows
from repsim_cli.measures.nearest import count_rounded, warn_of_rounding, warn_of_ties
from repsim_cli.measures.rdm import SHAPE

_TIMES = torch.logspace(-1, 1, 256, dtype=torch.float64)
_WEIGHTS = torch.exp(-2 * (_TIMES + 1 / _TIMES))  # of the times in the distance
_DEGREE = 24  # of the moments: the omitted part of a heat trace is below 1e-14
_COLUMNS = 128  # of the products held at a time


def find_k_nearest_rows(x: Float[Tensor, "n d"], k: int) -> Int[Tensor, "n k"]:
    """The k nearest rows by Euclidean distance, self excluded by index, equal distances in index order."""
    units = centre(x.double())[0]
    lists, tied, close = torch.empty(len(x), k, dtype=torch.int64, device=x.device), 0, 0
    for rows, (best, where) in list_nearest_rows(units, torch.arange(len(x), device=x.device), k):
        tied += int((best[:, k - 1 : k] == best[:, k:]).sum())
        close += count_rounded(best, k, x)
        lists[rows] = where[:, :k]
    warn_of_ties(tied, len(x), k)
    warn_of_rounding(close - tied, len(x), k)
    return lists


def shift_laplacian(x: Float[Tensor, "n d"], k: int) -> scipy.sparse.csr_matrix:
    """L - I = -D^(-1/2) A D^(-1/2), where A links two rows if either is among the k nearest of the other."""
    n = len(x)
    near = find_k_nearest_rows(x, k).cpu().numpy()
    links = scipy.sparse.csr_matrix((np.ones(n * k), near.ravel(), np.arange(0, n * k + 1, k)), (n, n))
    links = links.maximum(links.T)
    roots = scipy.sparse.diags(np.asarray(links.sum(1)).ravel() ** -0.5)
    return (-(roots @ links @ roots)).tocsr()


def draw_trace_probes(n: int, exact_rows: int, count: int) -> Iterator[tuple[float, Float[np.ndarray, "n c"]]]:
    """Weighted blocks of columns V such that tr M is the sum of weight tr(V' M V): exactly, or on average over random
    signs, which are the same for all representations of n rows.
    """
    if n <= exact_rows:
        for start in range(0, n, _COLUMNS):
            yield 1.0, np.eye(n, min(_COLUMNS, n - start), -start)
    else:
        draw = np.random.default_rng(0)
        for start in range(0, count, _COLUMNS):
            yield 1 / count, draw.choice((-1.0, 1.0), (n, min(_COLUMNS, count - start)))


def heat_trace(x: Float[Tensor, "n d"], *, k: int, exact_rows: int, signs: int) -> Float[Tensor, " t"]:
    """tr exp(-tL) / n at 256 times from 0.1 to 10."""
    n = len(x)
    matrix = shift_laplacian(x, k)
    moments = np.zeros(_DEGREE + 1)
    for weight, start in draw_trace_probes(n, exact_rows, signs):
        last, now = start, matrix @ start
        whole, first = float(np.sum(start * start)), float(np.sum(now * start))
        moments[:2] += weight * whole, weight * first
        for m in range(1, _DEGREE // 2 + 1):
            # T_2m = 2 T_m^2 - 1 and T_(2m+1) = 2 T_m T_(m+1) - T_1 save half of the products
            moments[2 * m] += weight * (2 * float(np.sum(now * now)) - whole)
            if 2 * m < _DEGREE:
                last, now = now, 2 * (matrix @ now) - last
                moments[2 * m + 1] += weight * (2 * float(np.sum(last * now)) - first)
    orders = np.arange(_DEGREE + 1)
    # exp(-t (1 + z)) = sum of c_m(t) T_m(z)
    coefficients = (-1.0) ** orders * scipy.special.ive(orders, _TIMES.numpy()[:, None]) * np.where(orders, 2, 1)
    return torch.from_numpy(coefficients @ moments / n)


def compute_heat_trace_distances(a: Sequence[Tensor], b: Sequence[Tensor]) -> Matrix:
    left, right = (torch.stack(list(side)) * _WEIGHTS for side in (a, b))
    return torch.cdist(left, right, p=torch.inf)


@measures.register(
    "msid",
    Card(
        label="MSID",
        larger_is_closer=False,
        bounds=(0.0, None),
        symmetric=True,
        is_metric=True,
        invariant_to=SHAPE,
        minimum_rows=2,
        paired=False,
        cost="n^2 d + 100 n^2 once per layer, up to exact_rows rows",
        source="Tsitsulin et al. 2020: heat traces of k-NN graphs over n, exact; no factor 1e6",
        note="Usually 1e-6 to 1e-4. 0 does not mean equal layers; the rows need no pairing. "
        "Equal rows tie, and ties go by index.",
    ),
)
def msid(*, k: Positive = 5, exact_rows: Medium = 16384, signs: Medium = 1000) -> Measure:
    """Multi-scale intrinsic distance: max over t of exp(-2 (t + 1/t)) |h_x(t) - h_y(t)|, h = tr exp(-tL) / n.

    k: neighbours per row in the graph.
    exact_rows: the most rows whose traces are exact; those of more are estimated from random vectors.
    signs: how many random vectors of signs; the same for all layers.

    L is the normalised Laplacian of the graph of k nearest rows (Euclidean; either way). There are 256 times t from 0.1
    to 10.

    Two separate edges against a path of four: eigenvalues 0, 2, 0, 2 and 0, 1/2, 3/2, 2, so that the traces differ by
    (1 - exp(-t/2)) (1 - exp(-3t/2)) / 4.

    >>> from repsim_cli import measures
    >>> round(measures.get("msid", k=1)([[0.], [1.], [10.], [11.]], [[0.], [1.], [2.5], [4.5]]), 6)
    0.001634
    """
    return Pairwise(
        prepare=partial(heat_trace, k=k, exact_rows=exact_rows, signs=signs),
        compare=lambda a, b: float(compute_heat_trace_distances([a], [b])),
        compare_all=compute_heat_trace_distances,
        permute=lambda state, order: state,
        work=lambda rows: (4000.0 * rows**2 + 4.5 * min(rows, exact_rows) ** 3, 0.0),
        minimum_rows=k + 1,
        copies=0.0,
        leaps=True,
    )
