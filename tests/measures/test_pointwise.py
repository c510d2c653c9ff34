"""Distances of paired rows at the ends of the range of numbers."""

import numpy as np
import pytest
import torch

from repsim_cli import measures
from repsim_cli.base.errors import Degenerate
from repsim_cli.engine.pairs import compute_all_pairs

COSINE = measures.get("cosine")


@pytest.mark.parametrize(
    ("dtype", "size"),
    [(np.float32, 1e-22), (np.float32, 1e-38), (np.float32, 1e22), (np.float64, 1e-13), (np.float64, 1e-200)],
)
def test_the_cosine_of_small_and_large_rows(dtype, size):
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(2, 20, 8)).astype(dtype)
    small = x * dtype(size)
    assert COSINE(small, y) == pytest.approx(COSINE(x, y), abs=1e-6)
    matrix = compute_all_pairs({"m": COSINE}, [torch.from_numpy(side) for side in (small, y, small * dtype(2))])["m"]
    assert float(matrix[0, 1]) == pytest.approx(COSINE(x, y), abs=1e-6)
    assert float(matrix[0, 2]) == pytest.approx(0, abs=1e-6)


def test_rows_of_zeros_have_no_direction():
    x = np.eye(4)
    x[2] = 0
    with pytest.raises(Degenerate, match="rows of zeros have no direction, got 1; drop these rows or use euclidean"):
        COSINE(x, np.eye(4))
