"""Partial soft matching over its mass: planted counterparts, another solver, and the ends of the curve."""

import numpy as np
import pytest
from reference.neurons import partial_soft_matching

from repsim_cli import measures

MASSES = [0.1, 0.25, 0.5, 0.75, 0.9, 1.0]


def value(x, y, mass):
    return measures.get("partial_soft_matching", mass=mass)(x, y)


@pytest.mark.parametrize("widths", [(6, 6), (7, 4), (3, 8)])
def test_any_mass_is_that_of_the_linear_programme(widths):
    draw = np.random.default_rng(0)
    shared = draw.normal(size=(50, 3))
    x, y = (shared @ draw.normal(size=(3, d)) + draw.normal(size=(50, d)) for d in widths)
    for mass in (*MASSES, 0.333):
        assert value(x, y, mass) == pytest.approx(partial_soft_matching(x, y, mass), abs=1e-6)
    assert value(x, y, 1.0) == pytest.approx(measures.get("soft_matching")(x, y), abs=1e-12)


def test_the_curve_falls_where_neurons_have_no_counterpart():
    """24 of 40 neurons are shared, in another order and with other scales and offsets."""
    draw = np.random.default_rng(1)
    shared, x, y = (draw.normal(size=(4000, d)) for d in (24, 16, 16))
    left = np.hstack([shared, x])
    right = np.hstack([y, shared[:, draw.permutation(24)] * draw.uniform(0.5, 9, 24) + 3])
    curve = [value(left, right, mass) for mass in (0.2, 0.6, 0.7, 1.0)]
    assert curve[:2] == pytest.approx([1.0, 1.0], abs=1e-6)
    assert curve[2] == pytest.approx(0.6 / 0.7, abs=0.02)
    assert curve[3] == pytest.approx(0.6, abs=0.03)


def test_the_curve_never_rises():
    draw = np.random.default_rng(2)
    x, y = draw.normal(size=(30, 9)), draw.normal(size=(30, 5))
    assert np.all(np.diff([value(x, y, mass) for mass in MASSES]) <= 1e-9)
