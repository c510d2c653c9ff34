"""What `study=layers` promises of intrinsic dimensions: errors that cover, and layers that stand out.

Command: python benchmarks/layers.py [DRAWS]     (60 draws: a minute of CPU time)

Prints, for planes of planted dimension and for documents of several texts that are alike: the mean and the spread of
the estimate over draws, the error of the jackknife over that spread, and the share of draws in which two errors cover
the mean (and the truth, of texts that are independent); then, of 12 layers of one planted dimension, in how many draws
the answer says that some stand out. Where dadapy is installed, its 2NN and Gride on the first draw stand beside ours.
"""

import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from repsim_cli.studies.layers.columns import DIMENSION, DOCUMENTS, STANDING_OUT
from repsim_cli.studies.layers.finding import count_freedom, say_extreme
from repsim_cli.studies.layers.scores import (
    LayerEstimate,
    compare_with_best,
    estimate_intrinsic_dimension,
    find_nearest_distances,
)

K = (1, 4)
LAYERS, WIDTH = 12, 20
OWN = (0.1, 0.5, 2.0)
Rng = np.random.Generator


def plane(rng: Rng, count: int, dim: int) -> np.ndarray:
    """Draws rows on a rotated plane."""
    rotation, _ = np.linalg.qr(rng.normal(size=(WIDTH, dim)))
    return rng.normal(size=(count, dim)) @ rotation.T


def documents(rng: Rng, count: int, each: int, dim: int, noise: float) -> np.ndarray:
    """Draws texts around the place of their document."""
    rotation, _ = np.linalg.qr(rng.normal(size=(WIDTH, dim)))
    centres = np.repeat(rng.normal(size=(count, dim)), each, 0)
    return (centres + noise * rng.normal(size=centres.shape)) @ rotation.T


def estimates(x: np.ndarray, units: np.ndarray) -> list[LayerEstimate]:
    near = find_nearest_distances(torch.from_numpy(x), 40)
    return [estimate_intrinsic_dimension(near, k, units) for k in K]


def covered(name: str, draw: Callable[[Rng], np.ndarray], units: np.ndarray, truth: float | None, draws: int) -> None:
    rng = np.random.default_rng(0)
    found = [estimates(draw(rng), units) for _ in range(draws)]
    for k, of in zip(K, zip(*found, strict=True), strict=True):
        values, errors = np.array([each.value for each in of]), np.array([each.se for each in of])
        mean = np.mean(np.abs(values - values.mean()) < 2 * errors)
        true = "" if truth is None else f", the truth {np.mean(np.abs(values - truth) < 2 * errors):.2f}"
        print(
            f"{name}, k = {k}: {values.mean():.2f}, spread {values.std(ddof=1):.3f}, error over spread "
            f"{errors.mean() / values.std(ddof=1):.2f}, covers the mean {mean:.2f}{true}"
        )


def stand_out(own: float, draws: int) -> float:
    """Counts in how many draws of layers that do not differ some are said to stand out: the same texts, each layer with
    noise of its own."""
    rng, told, count = np.random.default_rng(1), 0, 60
    units = np.repeat(np.arange(count), 5)
    for _ in range(draws):
        base = documents(rng, count, 5, 5, 0.5)
        found = [estimates(base + own * rng.normal(size=base.shape), units)[1] for _ in range(LAYERS)]
        rows = [{"layer": f"resid_post@{i}", DIMENSION: each.value} for i, each in enumerate(found)]
        apart = [{DIMENSION: error} for error in compare_with_best(found, STANDING_OUT[DIMENSION])]
        freedom = count_freedom({DOCUMENTS: count}, DIMENSION)
        told += not say_extreme(rows, apart, DIMENSION, freedom).startswith("no layer")
    return told / draws


def beside_dadapy() -> None:
    try:
        from dadapy import Data  # pyright: ignore[reportMissingImports]
    except ImportError:
        print("dadapy is not installed: nothing to compare with")
        return
    for dim in (2, 5, 10):
        x = plane(np.random.default_rng(0), 1000, dim)
        other = Data(x)
        other.compute_distances(maxk=16)
        gride, _, _ = other.return_id_scaling_gride(range_max=8)
        ours = [each.value for each in estimates(x, np.arange(len(x)))]
        print(f"dimension {dim}, k = 1 and 4: ours {ours[0]:.3f}, {ours[1]:.3f}; dadapy {gride[0]:.3f}, {gride[2]:.3f}")


def main() -> None:
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    for dim in (2, 5, 10):
        covered(f"plane of {dim}, 500 texts", partial(plane, count=500, dim=dim), np.arange(500), dim, draws)
    for count, each, noise in ((60, 5, 0.3), (60, 5, 1.0), (100, 3, 0.5), (30, 10, 0.5)):
        draw = partial(documents, count=count, each=each, dim=6, noise=noise)
        units = np.repeat(np.arange(count), each)
        covered(f"{count} documents of {each} texts, noise {noise}", draw, units, None, draws)
    for own in OWN:
        print(f"layers that do not differ, noise of their own {own}, called so wrongly: {stand_out(own, draws):.3f}")
    beside_dadapy()


if __name__ == "__main__":
    main()
