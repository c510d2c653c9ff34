"""Generalised Procrustes: rotates many representations of the same rows onto the mean of all."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from repsim_cli.measures.bases import nuclear_norm
from repsim_cli.measures.centring import centre
from repsim_cli.studies.barycentre.columns import GROUPS

MOST = 200  # steps
# shares of the objective: where a step lowers it by no more, it has stopped falling; of errors and chance, which come
# out the same within 1 %
FALLS, ROUGHLY = 1e-6, 1e-4
FEWEST = 4  # documents, below which no error is known
Rows = Float[Tensor, "n d"]


class Common(NamedTuple):
    """Shapes turned onto their mean. objective: the mean squared distance from the mean after each step, descending."""

    turned: list[Rows]
    rotations: list[Float[Tensor, "d d"]]
    mean: Rows
    objective: list[float]

    @property
    def distances(self) -> Float[np.ndarray, " m"]:
        return np.array([float(torch.linalg.matrix_norm(x - self.mean)) for x in self.turned])

    @property
    def apart(self) -> Float[np.ndarray, "m m"]:
        """The distances of the shapes from each other as they are turned; not less than those after the best rotation
        of each pair."""
        found = np.zeros((len(self.turned), len(self.turned)))
        for a, b in itertools.combinations(range(len(found)), 2):
            found[a, b] = found[b, a] = float(torch.linalg.matrix_norm(self.turned[a] - self.turned[b]))
        return found


def convert_to_one_width(rows: Sequence[Float[Tensor, "n _"]]) -> list[Rows]:
    """Brings representations to one width, which changes no distance: more features than rows are rotated into as many
    as there are rows, fewer than the widest has are padded with zeros. Float64."""
    narrow = [x.double() if x.shape[1] <= len(x) else torch.linalg.qr(x.double().T, mode="r").R.T for x in rows]
    width = max(x.shape[1] for x in narrow)
    return [torch.nn.functional.pad(x, (0, width - x.shape[1])) for x in narrow]


def normalise_shapes(rows: Sequence[Rows]) -> list[Rows]:
    """Takes out the mean row and brings each representation to Frobenius norm 1. Raises Degenerate for equal rows."""
    return [centre(x)[0] / len(x) ** 0.5 for x in rows]


def compute_squared_procrustes(shapes: Sequence[Rows]) -> Float[np.ndarray, "m m"]:
    """Computes the squared Procrustes distances of all pairs, in [0, 2]."""
    found = np.zeros((len(shapes), len(shapes)))
    for a, b in itertools.combinations(range(len(shapes)), 2):
        found[a, b] = found[b, a] = 2 - 2 * min(1.0, nuclear_norm(shapes[a].T @ shapes[b]))
    return found


def bound_mean_distance(squared: Float[np.ndarray, "m m"]) -> float:
    """Bounds the mean squared distance from the mean shape from below: as turned, no pair is closer than after the best
    rotation of that pair. squared: the Procrustes distances of all pairs."""
    return float(squared.sum()) / 2 / len(squared) ** 2


def find_common_shape(shapes: Sequence[Rows], first: Sequence[Tensor], falls: float = FALLS) -> Common:
    """Rotates every shape onto the mean of all, which is then taken anew, until their mean squared distance from it
    stops falling (Gower 1975, without scaling). No step raises it; a lower place that another start leads to is not
    ruled out, but none is below `bound_mean_distance`.

    shapes: of one width, Frobenius norm 1. first: the rotations to begin with. falls: the share of itself by which the
        objective falls until then: distances of unrelated rows are within 1e-4 of where more steps lead at 1e-6, within
        2e-3 at 1e-4; rows that are alike take a few steps.

    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]]).double() / 10**0.5
    >>> turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]]).double()
    >>> bool(find_common_shape([x, x @ turn, x], rotate_onto_middle([x, x @ turn, x])).distances.max() < 1e-12)
    True
    """
    rotations, objective = list(first), list[float]()
    while True:
        turned = [x @ turn for x, turn in zip(shapes, rotations, strict=True)]
        mean = torch.stack(turned).mean(0)
        objective.append(float(torch.stack([(x - mean).square().sum() for x in turned]).mean()))
        if len(objective) > MOST or (len(objective) > 1 and objective[-2] - objective[-1] <= falls * objective[-2]):
            return Common(turned, rotations, mean, objective)
        rotations = [find_rotation(x, mean) for x in shapes]


def find_rotation(x: Rows, onto: Rows) -> Float[Tensor, "d d"]:
    """Finds the rotation or reflection that brings x closest to another shape."""
    u, _, vt = torch.linalg.svd(x.T @ onto)
    return u @ vt


def rotate_onto_middle(
    shapes: Sequence[Rows], squared: Float[np.ndarray, "m m"] | None = None
) -> list[Float[Tensor, "d d"]]:
    """Rotates every shape onto the one that is closest to all others: where `find_common_shape` begins. squared: the
    Procrustes distances of all pairs, where these are known."""
    middle = shapes[
        int(np.argmin((compute_squared_procrustes(shapes) if squared is None else squared).sum(0).round(9)))
    ]
    return [find_rotation(x, middle) for x in shapes]


def estimate_distance_errors(
    rows: Sequence[Rows], documents: Int[np.ndarray, " n"], common: Common
) -> Float[np.ndarray, " m"] | None:
    """Estimates the standard error of each distance from leaving out one group of documents at a time, where shapes,
    rotations and mean are made anew; None for fewer than `FEWEST` documents. rows: of one width."""
    _, place = np.unique(documents, return_inverse=True)
    groups = min(GROUPS, place.max() + 1)
    if groups < FEWEST:
        return None
    found = []
    for group in range(groups):
        kept = torch.from_numpy(np.flatnonzero(place % groups != group))
        found.append(find_common_shape(normalise_shapes([x[kept] for x in rows]), common.rotations, ROUGHLY).distances)
    return np.sqrt((groups - 1) * np.var(found, axis=0))


def compute_chance_distances(shapes: Sequence[Rows], seed: int) -> Float[np.ndarray, " m"]:
    """Computes the distances where the rows of every shape are paired at random, once."""
    draw = np.random.default_rng(seed)
    mixed = [x[torch.from_numpy(draw.permutation(len(x)))] for x in shapes]
    return find_common_shape(mixed, rotate_onto_middle(mixed), ROUGHLY).distances
