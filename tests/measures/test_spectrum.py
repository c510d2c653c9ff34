"""Heat traces: moments against eigenvalues, and the estimate for many rows."""

import numpy as np
import pytest
import torch

from repsim_cli import measures
from repsim_cli.measures import spectrum
from repsim_cli.measures.base import MeasureWarning

EXACT = {"k": 5, "exact_rows": 1000, "signs": 1}


def draw(n=150, seed=0):
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_moments_give_the_heat_trace_of_the_eigenvalues():
    x = draw()
    eigenvalues = 1 + np.linalg.eigvalsh(spectrum.shift_laplacian(x, 5).toarray())
    expected = np.exp(-np.outer(np.geomspace(0.1, 10, 256), eigenvalues)).mean(1)
    np.testing.assert_allclose(spectrum.heat_trace(x, **EXACT), expected, atol=1e-13)


def test_random_signs_are_right_on_average():
    x = draw()
    exact = spectrum.heat_trace(x, **EXACT)
    errors = [
        float((spectrum.heat_trace(x, k=5, exact_rows=1, signs=signs) - exact).abs().max()) for signs in (100, 40_000)
    ]
    assert 1e-4 < errors[0] < 1e-2
    assert errors[1] < errors[0] / 5


def test_the_same_signs_for_all():
    """The estimate of a layer against itself, in another order of its neurons, is 0."""
    x = draw()
    measure = measures.get("msid", exact_rows=1, signs=20)
    assert measure(x, x[:, [1, 0, 2, 5, 4, 3]]) == 0
    assert measure(x, draw(seed=1)) > 0


def test_equal_rows_tie_by_index():
    x = draw(6).repeat(8, 1)
    with pytest.warns(MeasureWarning, match="48 of 48 rows have several equally near rows for the last of 5 places"):
        near = spectrum.find_k_nearest_rows(x, 5)
    assert near[0].tolist() == [6, 12, 18, 24, 30]
    assert near[13].tolist() == [1, 7, 19, 25, 31]
