"""Transport: descents below the published starts, blocks of many rows, lower bounds, assignments."""

import itertools

import numpy as np
import ot
import pytest
import torch
from helpers.curved_layers import curve, large
from scipy.optimize import linear_sum_assignment

from repsim_cli import measures
from repsim_cli.measures import (
    assignment,
    gromov,
    gromov_descents,
    gromov_search,
    gromov_spaces,
)

PAIRS = list(itertools.combinations(range(4), 2))


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_start_of_pot_ends_where_pot_does(pair):
    left, right = gromov_spaces.order_pair(*(curve()[side] for side in pair))
    uniform = np.full(60, 1 / 60)
    expected = ot.gromov.gromov_wasserstein2(left.distances, right.distances, uniform, uniform)
    found = gromov_search.find_best_gromov(left, right, start="pot", restarts=0, seed=0)
    assert found.value == pytest.approx(float(expected), rel=1e-9)
    assert found.steps >= 1
    best, identity = (
        gromov_search.find_best_gromov(left, right, start=start, restarts=0, seed=0) for start in ("best", "identity")
    )
    assert best.value <= min(found.value, identity.value)
    assert best.start in gromov_search.name_starts("best", 0)


def test_lowered_below_both_starts_and_below_their_minima():
    """Values fall by 2 % or more on average over pairs; never above with fewer rows than are blocked (see above)."""
    ratios = []
    for seed in range(4):
        sides = [gromov_spaces.prepare_space(torch.from_numpy(x), cost_scale="mean") for x in large(seed)]
        of_two = min(
            gromov.compute_gromov_wasserstein(*sides, start=start, restarts=0, seed=0) for start in ("identity", "pot")
        )
        ratios.append(gromov.compute_gromov_wasserstein(*sides, start="best", restarts=0, seed=0) / of_two)
    assert np.mean(ratios) < 0.98


def test_steps_with_a_diagonal_lower_a_local_minimum():
    """Each of them whole, and below what the descent without a diagonal finds from the same start."""
    left, right = gromov_spaces.order_pair(
        *(gromov_spaces.prepare_space(torch.from_numpy(x), cost_scale="max") for x in large(0, n=120))
    )
    a, b = left.distances, right.distances
    end = gromov_descents.descend(assignment.make_coupling(np.arange(120)), a, b)
    start = gromov_descents.Trial(
        "identity", end.coupling.argmax(1), gromov_descents.compute_gromov_objective(a, b, end.coupling)
    )
    assert gromov_descents.lower_further(start, a, b, {0.0: 1e-6})[0].value == start.value
    lower, steps = gromov_descents.lower_further(start, a, b, gromov_descents.FEW)
    assert steps > 2
    assert lower.value < 0.98 * start.value
    assert lower.value == pytest.approx(np.mean((a - b[np.ix_(lower.matched, lower.matched)]) ** 2), rel=1e-12)


def test_a_change_of_the_diagonal_changes_the_gradient():
    """Descents with one diagonal after the other end where they do if the second computes its gradient anew."""
    a, b = (gromov_spaces.prepare_space(torch.from_numpy(x), cost_scale="mean").distances for x in large(0, n=100))
    start = gromov_descents.Trial(
        "identity", np.arange(100), gromov_descents.compute_assignment_objective(a, b, np.arange(100))
    )
    between, first = gromov_descents.lower_further(start, a, b, {0.1: 1e-12})
    end, second = gromov_descents.lower_further(between, a, b, {0.8: 1e-12})
    assert second > 2
    joint, steps = gromov_descents.lower_further(start, a, b, {0.1: 1e-12, 0.8: 1e-12})
    assert steps == first + second
    np.testing.assert_array_equal(joint.matched, end.matched)


@pytest.mark.parametrize("n", [50, 249, 250, 300])
def test_planted_isometries(n):
    """A rotated, scaled and shifted copy is at distance 0, also with its rows in another order."""
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, 5)) ** 3
    copy = 7 * x @ np.linalg.qr(rng.normal(size=(5, 5)))[0] + 2
    measure = measures.get("gromov_wasserstein")
    for y in (copy, copy[rng.permutation(n)]):
        assert measure(x, y) == pytest.approx(0, abs=1e-12)


def test_blocks_with_both_sides_exchanged_repeated_or_in_another_order():
    x, y = large(1)
    measure = measures.get("gromov_wasserstein")
    value = measure(x, y)
    assert measure(y, x) == value
    assert measure(x, y) == value
    order = np.random.default_rng(0).permutation(len(x))
    assert measure(x[order], y[order]) == pytest.approx(value, rel=0.01)


def test_blocks_are_of_close_rows():
    """Pairs against a search through all; blocks of two, of four and so on against means over their rows; the same for
    rows in another order."""
    x = large(2, n=251)[0]
    state = gromov_spaces.prepare_space(torch.from_numpy(x), cost_scale="max", blocks=True)
    distances = state.distances / state.distances.mean()
    free = np.where(np.eye(251, dtype=bool), np.inf, distances)
    pairs = []
    while np.isfinite(free).any():
        pairs.append(sorted(np.unravel_index(free.argmin(), free.shape)))
        free[pairs[-1]] = np.inf
        free[:, pairs[-1]] = np.inf
    assert sorted(map(tuple, gromov_spaces.pair_closest_rows(distances))) == sorted(map(tuple, pairs))
    order = torch.from_numpy(np.random.default_rng(0).permutation(251))
    for each in (state, gromov_spaces.permute(state, order)):
        scaled = each.distances / each.distances.mean()
        coarsest, middle = gromov_spaces.list_block_levels(each)
        members = [np.concatenate(middle.halves[block]) for block in coarsest.halves]
        assert [len(level.halves) for level in (coarsest, middle)] == [62, 125]
        assert len(set(np.concatenate(members))) == 248
        for i, j in ((0, 1), (5, 40), (61, 3)):
            mean = scaled[np.ix_(members[i], members[j])].mean()
            assert coarsest.distances[i, j] == pytest.approx(mean, rel=1e-6)
        assert not coarsest.distances.diagonal().any()


def test_coordinates_are_those_of_the_rows():
    """Classical scaling of distances in three dimensions gives the principal axes."""
    x = np.random.default_rng(0).normal(size=(40, 3)) * [3, 2, 1]
    x -= x.mean(0)
    distances = np.linalg.norm(x[:, None] - x[None], axis=2)
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    np.testing.assert_allclose(np.abs(gromov_spaces.compute_principal_coordinates(distances)), np.abs(u * s), atol=1e-8)


def test_the_rows_own_pairing_is_not_lost_in_blocks():
    """Unrelated noise in each row is far from any structure of blocks: only the pairing of the rows knows it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 200))
    best = gromov_search.find_best_gromov(
        *(
            gromov_spaces.prepare_space(torch.from_numpy(y), cost_scale="mean")
            for y in (x, x + 0.3 * rng.normal(size=x.shape))
        ),
        start="best",
        restarts=0,
        seed=0,
    )
    assert best.start == "identity"
    assert (best.coupling.argmax(1) == np.arange(400)).all()


@pytest.mark.parametrize("scale", [1e-50, 1e50])
def test_blocks_beyond_float32(scale):
    x, y = large(2)
    raw = measures.get("gromov_wasserstein", cost_scale="none", audit=0.0)
    expected = raw(x, 3 * y)
    assert raw(scale * x, 3 * scale * y) / scale**2 == pytest.approx(expected, rel=1e-3)


def test_blocks_of_equal_rows():
    x = np.zeros((260, 3))
    x[0] = 1.0
    y = large(3, n=260)[1]
    a, b = (gromov_spaces.prepare_space(torch.from_numpy(side), cost_scale="mean") for side in (x, y))
    assert gromov.compute_gromov_wasserstein(
        a, b, start="best", restarts=0, seed=0
    ) <= gromov.compute_gromov_wasserstein(a, b, start="pot", restarts=0, seed=0) * (1 + 1e-9)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_lower_bounds_are_below(pair):
    left, right = gromov_spaces.order_pair(*(curve()[side] for side in pair))
    second, third = gromov.lower_bounds(left, right)
    assert 0 < second <= third <= gromov_search.find_best_gromov(left, right, start="best", restarts=5, seed=0).value


@pytest.mark.parametrize("scale", [1.0, 1e50])
def test_the_third_lower_bound_of_many_rows_is_rounded(scale):
    x, y = (gromov_spaces.prepare_space(scale * torch.from_numpy(x), cost_scale="none", bounds=True) for x in large(0))
    rows = [np.sort(side.distances, axis=1) / scale for side in (x, y)]
    matched = linear_sum_assignment(-rows[0] @ rows[1].T)[1]
    second, third = gromov.lower_bounds(x, y)
    assert second <= third
    assert third / scale**2 == pytest.approx(np.mean((rows[0] - rows[1][matched]) ** 2), rel=1e-5)


def test_no_bound_is_above_the_value():
    """Rows moved by less than float32 resolves."""
    x = torch.from_numpy(large(0)[0])
    sides = [gromov_spaces.prepare_space(side, cost_scale="mean", bounds=True) for side in (x, x + 1e-8 * x.flip(0))]
    solved = gromov.solve_gromov_pair(*sides, start="best", restarts=0, seed=0, bounds=True)
    assert 0 < solved.value < 1e-14
    assert max(solved.details[-2:]) <= solved.value


def test_lower_bounds_by_hand():
    """Distances 0, 1 and 0, 3: in order (0, 0, 1, 1) against (0, 0, 3, 3), each row (0, 1) against (0, 3)."""
    found = gromov.lower_bounds(
        *(
            gromov_spaces.prepare_space(torch.tensor([[0.0], [far]]), cost_scale="none", bounds=True)
            for far in (1.0, 3.0)
        )
    )
    assert found == pytest.approx((2.0, 2.0))


def test_a_step_that_is_not_whole():
    """Costs for which the objective is convex: the general descent takes over from the assignments."""
    rng = np.random.default_rng(0)
    a, b = (np.eye(20) * 5 - side @ side.T for side in rng.normal(size=(2, 20, 3)))
    a = -a
    start = assignment.make_coupling(rng.permutation(20))
    end = gromov_descents.descend(start, a, b)
    assert assignment.read_matching(end.coupling) is None
    np.testing.assert_allclose([end.coupling.sum(0), end.coupling.sum(1)], 1 / 20, atol=1e-12)
    # how far the best coupling for the gradient is below the coupling's own cost: 0 at a minimum
    gaps = []
    for coupling in (start, end.coupling):
        gradient = -4 * a @ coupling @ b
        gaps.append(np.sum(gradient * (coupling - assignment.find_cheapest_coupling(gradient))))
    assert 0 <= gaps[1] < 0.01 * gaps[0]
    assert gromov_descents.compute_gromov_objective(a, b, end.coupling) < gromov_descents.compute_gromov_objective(
        a, b, start
    )


def costs(kind, n):
    rng = np.random.default_rng(n)
    return {
        "drawn": rng.normal(size=(n, n)),
        "rank one": -np.outer(rng.random(n), rng.random(n)),
        "tied": rng.integers(0, 3, size=(n, n)).astype(float),
        "constant": np.ones((n, n)),
        "offset": 1e6 + rng.normal(size=(n, n)),
        "above float32": 1e39 * rng.normal(size=(n, n)),
        "below float32": 1e-41 * rng.normal(size=(n, n)),
        "one row": rng.normal(size=(n, n)) * np.r_[1e4, np.ones(n - 1)][:, None],
    }[kind]


@pytest.mark.parametrize("fast", [True, False], ids=["numba", "POT"])
@pytest.mark.parametrize(
    "kind", ["drawn", "rank one", "tied", "constant", "offset", "above float32", "below float32", "one row"]
)
def test_assignments_are_the_cheapest(kind, fast, monkeypatch):
    if not fast:
        monkeypatch.setattr(assignment, "load_compiled", lambda: None)
    for n in (1, 2, 7, 80):
        if n == 1 and kind == "one row":
            continue
        cost = costs(kind, n)
        rows, columns = linear_sum_assignment(cost)
        last, prices = None, None
        for _ in range(2):  # the second time from what is known
            last, prices = assignment.assign(cost, last, prices)
            assert sorted(last) == list(range(n))
            assert cost[rows, last].sum() == pytest.approx(cost[rows, columns].sum(), rel=1e-12, abs=1e-10)


def test_prices_prove_the_assignment():
    """No cell is cheaper than its row's own, column prices taken off."""
    cost = costs("drawn", 50)
    matched, prices = assignment.assign(cost)
    reduced = cost - prices
    assert (reduced[np.arange(50), matched] - reduced.min(1)).max() < 1e-12
