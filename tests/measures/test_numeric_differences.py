"""Numeric differences: against numpy's spacing of numbers, and at the ends of the range."""

import numpy as np
import pytest
import torch

from repsim_cli import measures
from repsim_cli.base.errors import Degenerate
from repsim_cli.engine.pairs import compute_all_pairs


@pytest.mark.parametrize(("precision", "steps"), [("float16", 3), ("float32", 7)])
def test_numbers_so_many_steps_apart(precision, steps):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(20, 6)) * np.geomspace(1e-3, 1e3, 6)).astype(precision)
    y = x.copy()
    for _ in range(steps):
        y = np.nextafter(y, np.full_like(y, np.inf) * np.sign(y))  # away from zero
    found = measures.get("ulp", precision=precision)(x, y)
    assert steps / 2 <= found <= steps  # the spacing doubles at powers of two
    assert found == steps if (np.frexp(x)[1] == np.frexp(y)[1]).all() else found <= steps


def test_bfloat16_has_seven_digits():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16)
    y = x.clone()
    y[1, 1] = 4.03125  # the next of bfloat16
    assert measures.get("ulp", precision="bfloat16")(x, y) == 1


def test_the_smallest_numbers_count_as_the_smallest_normal_one():
    x, y = np.zeros((2, 2)), np.array([[0.0, 0.0], [0.0, 2.0**-149]])
    assert measures.get("ulp")(x, y) == 1


@pytest.mark.parametrize("size", [1e-170, 1.0, 1e55])
def test_relative_differences_of_small_and_large_rows(size):
    x, y = np.random.default_rng(1).normal(size=(2, 30, 4))
    assert measures.get("relative_l2")(size * x, size * y) == pytest.approx(measures.get("relative_l2")(x, y))
    assert measures.get("sqnr")(size * x, size * y) == pytest.approx(measures.get("sqnr")(x, y))


def test_what_has_no_value_is_refused():
    x = np.arange(6.0).reshape(3, 2)
    with pytest.raises(Degenerate, match="got zeros in all rows of the column; use largest_difference"):
        measures.get("relative_l2")(x, np.zeros((3, 2)))
    with pytest.raises(Degenerate, match="infinitely many decibels, got equal rows; use relative_l2, which is 0"):
        measures.get("sqnr")(x, x)


def test_rows_in_blocks_and_in_half_precision():
    x = torch.from_numpy(np.random.default_rng(2).normal(size=(3000, 3))).half()
    y = x + 0.25
    y[2999, 2] += 8
    found = compute_all_pairs({name: measures.get(name) for name in ("largest_difference", "relative_l2")}, [x, y])
    exact = x.double() - y.double()
    assert float(found["largest_difference"][0, 1]) == float(exact.abs().max())
    assert float(found["relative_l2"][0, 1]) == pytest.approx(float(exact.norm() / y.double().norm()), rel=1e-12)
