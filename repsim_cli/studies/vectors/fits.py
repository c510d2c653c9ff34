"""Maps from the rows of one model to those of another: y is predicted as x @ weight + bias, whatever the kind."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

# over the summed variance of the rows: what a ridge map may be held back by
PENALTIES = 10.0 ** np.arange(-8, 1.5, 0.5)
NOTHING = 1e-10  # of the largest singular value, below which a direction of the rows is rounding

Rows = Float[np.ndarray, "n d"]
From = Float[np.ndarray, "n d_x"]
To = Float[np.ndarray, "n d_y"]


class MapFit(NamedTuple):
    """facts: what was chosen, such as a penalty."""

    weight: Float[np.ndarray, "d_x d_y"]
    bias: Float[np.ndarray, " d_y"]
    facts: dict[str, float]

    def __call__(self, x: From) -> To:
        return x @ self.weight + self.bias


class Centred(NamedTuple):
    """Rows without their means, and the singular vectors of x as far as they are not rounding."""

    x: From
    y: To
    x_mean: Float[np.ndarray, " d_x"]
    y_mean: Float[np.ndarray, " d_y"]
    u: Float[np.ndarray, "n r"]
    s: Float[np.ndarray, " r"]
    v: Float[np.ndarray, "d_x r"]

    def fit(self, weight: np.ndarray, **facts: float) -> MapFit:
        return MapFit(weight, self.y_mean - self.x_mean @ weight, facts)


def centre_pair(x: From, y: To) -> Centred:
    x, y = x.astype(np.float64), y.astype(np.float64)
    x_mean, y_mean = x.mean(0), y.mean(0)
    u, s, vt = np.linalg.svd(x - x_mean, full_matrices=False)
    kept = s > NOTHING * s.max(initial=0.0)
    return Centred(x - x_mean, y - y_mean, x_mean, y_mean, u[:, kept], s[kept], vt[kept].T)


def rotation(given: Centred, rank: int) -> MapFit:
    """Orthogonal Procrustes with one scale: distances keep their ratios. Between different widths the narrower side is
    laid into the wider one."""
    left, s, right = np.linalg.svd(given.x.T @ given.y, full_matrices=False)
    scale = float(s.sum() / max(np.square(given.s).sum(), np.finfo(float).tiny))
    return given.fit(scale * left @ right, scale=scale)


def affine(given: Centred, rank: int) -> MapFit:
    """Least squares with an intercept, of all best ones the smallest."""
    return given.fit((given.v / given.s) @ (given.u.T @ given.y))


def ridge(given: Centred, rank: int) -> MapFit:
    """Fits the same with the penalty that predicts each fitted row best from the others, in closed form."""
    total, n = np.square(given.s).sum(), len(given.x)
    of_y = given.u.T @ given.y
    errors = []
    for penalty in PENALTIES:
        shrunk = given.s**2 / (given.s**2 + penalty * total)
        leverage = np.square(given.u) @ shrunk + 1 / n
        left_out = (given.y - given.u @ (shrunk[:, None] * of_y)) / np.maximum(1 - leverage, NOTHING)[:, None]
        errors.append(np.square(left_out).sum())
    penalty = float(PENALTIES[int(np.argmin(errors))])
    return given.fit((given.v * (given.s / (given.s**2 + penalty * total))) @ of_y, penalty=penalty)


def low_rank(given: Centred, rank: int) -> MapFit:
    """Cuts the ridge map to the directions of y in which its predictions vary most (reduced-rank regression)."""
    whole = ridge(given, rank)
    _, _, right = np.linalg.svd(given.x @ whole.weight, full_matrices=False)
    kept = right[:rank]
    return given.fit(whole.weight @ kept.T @ kept, **whole.facts, rank=float(len(kept)))


KINDS: dict[str, Callable[[Centred, int], MapFit]] = {
    "rotation": rotation,
    "affine": affine,
    "ridge": ridge,
    "low_rank": low_rank,
}
