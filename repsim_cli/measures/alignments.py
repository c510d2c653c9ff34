"""The map behind a value: the rotation, matching, directions or coupling of two representations that attains it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.measures.bases import Basis, correlate_bases, drop_dead_neurons
from repsim_cli.measures.centring import centre


class Rotation(NamedTuple):
    """x @ left and y @ right, of centred x and y, are as close as a rotation makes them. The narrower side is rotated
    into the space of the wider one, which keeps its features: its factor is the identity."""

    left: Float[Tensor, "d_x d"]
    right: Float[Tensor, "d_y d"]


class Directions(NamedTuple):
    """x @ left and y @ right, of centred x and y, are the canonical variables: columns of norm 1, those of one side at
    right angles to each other, and column i of either side correlated by correlations[i], descending."""

    left: Float[Tensor, "d_x k"]
    right: Float[Tensor, "d_y k"]
    correlations: Float[Tensor, " k"]


class Matching(NamedTuple):
    """Neuron left[i] of x belongs to neuron right[i] of y, both counted from 0."""

    left: Int[Tensor, " m"]
    right: Int[Tensor, " m"]


class Partners(NamedTuple):
    """The best partner of every neuron: of those of x (`of_x.left`) in y (`of_x.right`), and of those of y
    (`of_y.right`) in x (`of_y.left`)."""

    of_x: Matching
    of_y: Matching


class Fit(NamedTuple):
    """y @ weights are the least-squares predictions of x, of centred x and y; of all such weights the smallest."""

    weights: Float[Tensor, "d_y d_x"]


class Coupling(NamedTuple):
    """mass[i, j]: how much of i on the side of x goes to j on the side of y; all of it adds up to 1. of: what i and j
    are, `rows` or `neurons`, those that are not dead."""

    mass: Float[Tensor, "i j"]
    of: str


class Couplings(NamedTuple):
    """Two couplings, which make one objective together."""

    rows: Coupling
    neurons: Coupling


Alignment = Rotation | Directions | Matching | Partners | Fit | Coupling | Couplings
Align = Callable[[Tensor, Tensor], Alignment]


def rotation(x: Float[Tensor, "n d_x"], y: Float[Tensor, "n d_y"]) -> Rotation:
    """The best rotation of the centred sides, by the singular vectors of x'y."""
    a, b = centre(x)[0], centre(y)[0]
    u, _, vt = torch.linalg.svd(a.T @ b, full_matrices=False)
    turn = u @ vt
    if a.shape[1] <= b.shape[1]:
        return Rotation(turn, torch.eye(b.shape[1], dtype=b.dtype))
    return Rotation(torch.eye(a.shape[1], dtype=a.dtype), turn.T)


def make_canonical_aligner(prepare: Callable[[Tensor], Basis]) -> Align:
    """The canonical directions of the bases that `prepare` gives, in terms of the features."""

    def align(x: Tensor, y: Tensor) -> Directions:
        a, b = prepare(x), prepare(y)
        u, correlations, vt = torch.linalg.svd(correlate_bases(a, b).double(), full_matrices=False)
        left, right = (
            torch.linalg.pinv(side.double() - side.double().mean(0)) @ variables
            for side, variables in ((x, a.u.double() @ u), (y, b.u.double() @ vt.T))
        )
        return Directions(left, right, correlations.clamp(max=1))

    return align


def make_correlation_aligner(match: Callable[[Float[np.ndarray, "k l"]], tuple[np.ndarray, np.ndarray]]) -> Align:
    """The neurons that `match` pairs by their correlations, dead ones left out."""

    def align(x: Tensor, y: Tensor) -> Matching:
        correlations, left, right = _correlate_neurons(x, y)
        i, j = match(correlations)
        return Matching(left[torch.from_numpy(i)], right[torch.from_numpy(j)])

    return align


def find_best_partners(x: Float[Tensor, "n d_x"], y: Float[Tensor, "n d_y"]) -> Partners:
    """Finds for each neuron that of the other side with the largest signed correlation; dead neurons are left out."""
    correlations, left, right = _correlate_neurons(x, y)
    of_x, of_y = (torch.from_numpy(correlations.argmax(axis)) for axis in (1, 0))
    return Partners(Matching(left, right[of_x]), Matching(left[of_y], right))


def fit_least_squares(x: Float[Tensor, "n d_x"], y: Float[Tensor, "n d_y"]) -> Fit:
    """Fits x from y by least squares, both centred."""
    a, b = centre(x), centre(y)
    return Fit(torch.linalg.pinv(b[0]) @ a[0] * (a[1] / b[1]))


def _correlate_neurons(x: Tensor, y: Tensor) -> tuple[np.ndarray, Tensor, Tensor]:
    """Computes the correlations of the neurons that vary; also gives the numbers of these neurons on either side."""
    a, b = drop_dead_neurons(x), drop_dead_neurons(y)
    units = [side.values / torch.linalg.vector_norm(side.values, dim=0) for side in (a, b)]
    return (units[0].T @ units[1]).cpu().numpy(), a.kept, b.kept


def match_to_best(correlations: Float[np.ndarray, "k l"]) -> tuple[np.ndarray, np.ndarray]:
    """Matches every neuron of x with the one of y of the largest absolute correlation."""
    return np.arange(len(correlations)), np.abs(correlations).argmax(1)


def match_to_different(products: Float[np.ndarray, "k l"]) -> tuple[np.ndarray, np.ndarray]:
    """Matches every neuron of the narrower side with a different one of the wider side, for the largest sum."""
    return scipy.optimize.linear_sum_assignment(products, maximize=True)


def permutation(x: Float[Tensor, "n d_x"], y: Float[Tensor, "n d_y"]) -> Matching:
    """The neurons whose products have the largest sum, of centred sides of equal norm."""
    i, j = match_to_different((centre(x)[0].T @ centre(y)[0]).double().cpu().numpy())
    return Matching(torch.from_numpy(i), torch.from_numpy(j))


def couple_neurons(x: Float[Tensor, "n d_x"], y: Float[Tensor, "n d_y"]) -> Coupling:
    """The transport between the neurons, each side's of equal mass, with the largest mean correlation."""
    from ot import emd  # slow to import

    correlations, _, _ = _correlate_neurons(x, y)
    return Coupling(torch.from_numpy(np.asarray(emd([], [], 1 - correlations, numItermax=10_000_000))), "neurons")
