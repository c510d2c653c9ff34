"""Gromov-Wasserstein of rows whose distances are not held: planted answers, and the search with all distances."""

import numpy as np
import pytest
import torch

from repsim_cli import measures
from repsim_cli.base.settings import Hardware
from repsim_cli.engine.cost import estimate_pairs_cost
from repsim_cli.measures import gromov, gromov_clouds, transport
from repsim_cli.measures.base import MeasureWarning
from repsim_cli.measures.gromov_spaces import prepare_space

HELD = 300
pytestmark = pytest.mark.filterwarnings("ignore:.*more than held_rows:UserWarning")


def sides(n=700, d=12, noise=0.3):
    draw = torch.Generator().manual_seed(n)
    x = torch.randn(n, d, generator=draw, dtype=torch.float64) * torch.arange(1, d + 1) ** -0.5
    y = torch.tanh(x @ torch.randn(d, d, generator=draw, dtype=torch.float64))
    return x, y + noise * torch.randn(n, d, generator=draw, dtype=torch.float64)


def rotated(x, noise=0.0):
    draw = torch.Generator().manual_seed(1)
    rotation = torch.linalg.qr(torch.randn(x.shape[1], x.shape[1], generator=draw, dtype=torch.float64))[0]
    return 3 * x @ rotation + 5 + noise * torch.randn(x.shape, generator=draw, dtype=torch.float64)


def shuffled(x):
    return x[torch.randperm(len(x), generator=torch.Generator().manual_seed(2))]


def by_blocks(x, y, **settings):
    return measures.get("gromov_wasserstein", held_rows=HELD, **settings)(x, y)


@pytest.mark.parametrize(
    ("n", "scale"), [(301, "mean"), (301, "max"), (301, "none"), pytest.param(1000, "mean", marks=pytest.mark.slow)]
)
def test_close_to_the_search_with_all_distances(n, scale):
    """The ratio is of numbers above 0.01 of the mean squared distance; the least that is found differs by a start."""
    x, y = sides(n)
    found, whole = by_blocks(x, y, cost_scale=scale), measures.get("gromov_wasserstein", cost_scale=scale)(x, y)
    assert 0.97 * whole <= found <= 1.05 * whole
    assert by_blocks(y, x, cost_scale=scale) == found


@pytest.mark.slow
def test_a_rotated_copy_is_at_0_and_noise_is_ordered():
    x, _ = sides(600)
    assert by_blocks(x, x) == 0
    assert by_blocks(x, rotated(x)) < 1e-8
    values = [by_blocks(x, shuffled(rotated(x, noise))) for noise in (0.0, 0.3, 1.0, 3.0)]
    assert values[0] < 2e-3
    assert values == sorted(values)


@pytest.mark.slow
def test_a_rotated_copy_of_ten_thousand_rows():
    x, _ = sides(10_000)
    values = [measures.get("gromov_wasserstein", held_rows=9999)(x, rotated(x, noise)) for noise in (0.0, 0.3, 1.0)]
    assert values[0] < 1e-8
    assert values == sorted(values)


@pytest.mark.slow
def test_third_moments_say_which_rows_are_the_same():
    """A skewed cloud and its shuffled copy, of more rows than a group has, with other signs of its axes."""
    x = np.random.default_rng(0).gamma(1.0, size=(3000, 5)).astype("f4") * np.arange(1, 6, dtype="f4")
    order = np.random.default_rng(1).permutation(len(x))
    x -= x.mean(0)
    matched = gromov_clouds.match_along_axes([x, x[order] * np.array([1, -1, -1, 1, -1], "f4")])
    assert (order[matched] == np.arange(len(x))).all()


@pytest.mark.slow
def test_shuffled_rows_of_layers_that_hardly_differ_end_where_their_own_pairing_does():
    """More rows than a group has, and a planted pairing that blocks alone do not find."""
    x, _ = sides(3000)
    y = rotated(torch.nn.functional.gelu(x), noise=0.1)
    paired, found = (by_blocks(x, other) for other in (y, shuffled(y)))
    assert found <= 1.01 * paired


@pytest.mark.parametrize("start", ["best", "pot", "identity"])
def test_the_value_is_the_objective_of_its_coupling_and_never_above_its_starts(start):
    x, y = sides(500)
    a, b = (gromov_clouds.prepare_cloud(side, cost_scale="max") for side in (x, y))
    found = gromov_clouds.find_best_assignment(a, b, start=start, restarts=1, seed=0)
    left, right = (prepare_space(side, cost_scale="max").distances for side in (x, y))
    ordered = (left, right) if gromov.order_pair(a, b)[0] is a else (right, left)
    assert sorted(found.matched) == list(range(500))
    assert found.value == pytest.approx(gromov.compute_gromov_objective(*ordered, found.coupling), rel=1e-5)
    if start != "pot":
        assert found.value <= np.mean((left - right) ** 2) * (1 + 1e-6)
    solved = gromov.solve_gromov_pair(a, b, start=start, restarts=1, seed=0, bounds=True)
    assert solved.value == found.value
    third = gromov.lower_bounds(*(prepare_space(side, cost_scale="max", bounds=True) for side in (x, y)))[1]
    assert 0 < solved.details[-1] <= third * (1 + 1e-5)
    mass = measures.get("gromov_wasserstein", held_rows=HELD, start=start).align(x, y).mass
    assert float(mass.sum()) == pytest.approx(1)


def test_equal_rows_have_distances_0():
    x, _ = sides(400)
    equal = torch.ones(400, 3, dtype=torch.float64)
    assert by_blocks(x, equal) == pytest.approx(measures.get("gromov_wasserstein")(x, equal), rel=1e-5)
    assert by_blocks(equal, equal) == 0


def test_the_state_of_permuted_rows_is_that_of_rows_in_that_order():
    x, _ = sides(400)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    measure = measures.get("gromov_wasserstein", held_rows=HELD)
    permuted, expected = measure.permute(measure.prepare(x), order), measure.prepare(x[order])
    assert np.allclose(permuted.rows, expected.rows, atol=1e-6)
    assert np.allclose(permuted.means, expected.means, atol=1e-6)
    assert permuted.size == pytest.approx(expected.size)


@pytest.mark.filterwarnings("default")
def test_it_is_said():
    with pytest.warns(MeasureWarning, match="^x: 301 rows are more than held_rows: they are matched by blocks"):
        by_blocks(*sides(301))


def test_plans_know_what_is_not_held():
    measure, hardware = measures.get("gromov_wasserstein"), Hardware(threads=1)
    assert measure.slow.side(10_000) == 10_000
    assert measure.slow.side(10_001) == gromov_clouds.BLOCKS
    seconds = [estimate_pairs_cost([measure], [64, 64], 1, n, hardware).seconds for n in (20_000, 200_000)]
    assert seconds[1] < 100 * seconds[0]  # a cube would be 1000
    assert not measure.slow.audit.takes(measures.get("gromov_wasserstein", held_rows=HELD).prepare(sides(301)[0]))


@pytest.mark.parametrize("n", [40, 260, 400])
def test_other_transport_starts_from_what_gromov_wasserstein_finds(n):
    x, y = sides(n)
    y = shuffled(y)
    value = measures.get("gromov_wasserstein")(x, y)
    assert measures.get("augmented_gromov_wasserstein", alpha=1.0)(x, y) <= value
    a, b = (prepare_space(side, cost_scale="none") for side in (x, y))
    rows = gromov.find_best_gromov(*gromov.order_pair(a, b), start="best", restarts=0, seed=0).coupling
    a, b = gromov.order_pair(a, b)
    features = transport.find_exact_coupling(-2 * a.rows.T @ rows @ b.rows)
    assert measures.get("coot")(x, y) <= transport.compute_coot_objective(a.rows, b.rows, rows, features) * (1 + 1e-12)
