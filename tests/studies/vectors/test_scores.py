"""The nearest rows of a store, in the order of a whole sort."""

import numpy as np
import pytest

from repsim_cli.studies.vectors.scores import find_largest


@pytest.mark.parametrize(("rows", "columns", "count"), [(40, 200, 10), (5, 10, 10), (5, 9, 10), (40, 30, 1)])
@pytest.mark.parametrize("tied", [False, True])
def test_the_largest_are_those_of_a_stable_sort(rows, columns, count, tied):
    """Rows of one document have no neighbour in it: their cosines are minus infinity, as many as it has rows."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 6, (rows, columns)).astype(float) if tied else rng.normal(size=(rows, columns))
    values[0], values[1, :3] = -np.inf, -np.inf
    expected = np.argsort(-values, axis=1, kind="stable")[:, :count]
    assert find_largest(values, count).tolist() == expected.tolist()
