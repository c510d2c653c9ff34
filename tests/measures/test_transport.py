"""Transport: objectives at given couplings, local minima from given starts, and what makes them trustworthy."""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import ot
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from repsim_cli import measures
from repsim_cli.base.errors import Degenerate
from repsim_cli.measures import (
    assignment,
    gromov,
    gromov_descents,
    gromov_entropic,
    gromov_search,
    gromov_spaces,
    transport,
)

GOLDEN = Path(__file__).parents[1] / "golden"
FAMILY = ("gromov_wasserstein", "coot", "augmented_gromov_wasserstein")
ENTRIES = [e for e in json.loads((GOLDEN / "values.json").read_text()) if e["measure"] in FAMILY]
SCALES = {"Euclidean distances divided by their maximum": "max", "raw Euclidean distances": "none"}


def spaces(entry):
    case = np.load(GOLDEN / "inputs" / f"{entry['case']}.npz")
    scale = SCALES[entry["settings"].get("distance", "raw Euclidean distances")]
    return case, *(gromov_spaces.prepare_space(torch.from_numpy(case[side]), cost_scale=scale) for side in "xy")


def named(entry):
    return f"{entry['measure']}-{entry['case']}-{entry['value']:.4g}"


@pytest.mark.parametrize("entry", [e for e in ENTRIES if "evaluate_at" in e["settings"]], ids=named)
def test_objective_at_a_coupling(entry):
    _, a, b = spaces(entry)
    n, widths = len(a.rows), (a.rows.shape[1], b.rows.shape[1])
    samples = np.eye(n) / n if "identity" in entry["settings"]["evaluate_at"] else np.full((n, n), 1 / n**2)
    features = np.full(widths, 1 / np.prod(widths))
    found = {
        "gromov_wasserstein": lambda: gromov_descents.compute_gromov_objective(a.distances, b.distances, samples),
        "coot": lambda: transport.compute_coot_objective(a.rows, b.rows, samples, features),
        "augmented_gromov_wasserstein": lambda: transport.add_objectives(
            a, b, samples, features, entry["settings"]["alpha"]
        ),
    }[entry["measure"]]()
    assert found == pytest.approx(entry["value"], abs=entry["atol"])


@pytest.mark.parametrize("entry", [e for e in ENTRIES if "20 starts" in e["settings"].get("init", "")], ids=named)
def test_best_of_the_published_starts(entry):
    """The best local minimum from the same 22 starts is not above the published one."""
    case, a, b = spaces(entry)
    n = len(a.rows)
    identity, uniform = np.eye(n) / n, np.full((n, n), 1 / n**2)
    starts = [identity, uniform, *((identity[order] + uniform) / 2 for order in case["perm"])]
    if entry["measure"] == "gromov_wasserstein":
        found = [
            gromov_descents.compute_gromov_objective(
                a.distances, b.distances, gromov_descents.descend(start, a.distances, b.distances).coupling
            )
            for start in starts
        ]
    else:
        found = [transport.alternate(a, b, start, entry["settings"]["alpha"]).value for start in starts]
        assert found[0] == pytest.approx(entry["from_identity"], abs=1e-6)
    assert min(found) <= entry["value"] + entry["atol"]


def draw(n=30, d=5):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d))
    return x, np.tanh(x @ rng.normal(size=(d, d))) + 0.3 * rng.normal(size=(n, d))


@pytest.mark.parametrize("name", FAMILY)
def test_more_starts_are_never_worse(name):
    """Further starts lower little of `best`, much of `pot`."""
    x, y = np.random.default_rng(6).normal(size=(2, 30, 5))
    more = "restarts" if name == "gromov_wasserstein" else "starts"
    other = {"start": "pot"} if name == "gromov_wasserstein" else {}
    values = [measures.get(name, **{more: count}, **other)(x, y) for count in (1, 2, 10)]
    assert values == sorted(values, reverse=True)
    assert values[-1] < values[0]


@pytest.mark.parametrize("name", [*FAMILY, "wasserstein"])
def test_the_order_of_the_rows_is_found(name):
    """Rows need no pairing: shuffled rows are at distance 0, where enough starts are tried."""
    x, _ = draw(n=12)
    shuffled = x[np.random.default_rng(1).permutation(12)]
    settings = {"wasserstein": {}, "gromov_wasserstein": {"restarts": 28}}.get(name, {"starts": 30})
    assert measures.get(name, **settings)(x, shuffled) == pytest.approx(0, abs=1e-12)


def test_couplings_have_uniform_weights():
    x, y = draw()
    a, b = (gromov_spaces.prepare_space(torch.from_numpy(side), cost_scale="mean").distances for side in (x, y))
    for coupling in (
        assignment.find_exact_coupling(-np.abs(a - b) - 1.0),
        gromov_descents.descend(np.full((30, 30), 1 / 900), a, b).coupling,
        gromov_entropic.sinkhorn(a, 0.01, np.zeros(30))[0],
    ):
        assert coupling.min() >= 0
        np.testing.assert_allclose([coupling.sum(0), coupling.sum(1)], 1 / 30, atol=1e-9)


def test_augmented_ends_are_its_two_parts():
    x, y = draw()
    ends = [measures.get("augmented_gromov_wasserstein", alpha=alpha)(x, y) for alpha in (0.0, 1.0)]
    assert ends[0] == pytest.approx(measures.get("coot")(x, y), abs=1e-12)
    plain = [measures.get("gromov_wasserstein", start=start)(x, y) for start in ("identity", "pot")]
    assert ends[1] <= min(plain) + 1e-12


def test_entropic_nears_the_exact_coupling():
    x, y = draw()
    values = [measures.get("gromov_wasserstein_entropic", epsilon=epsilon)(x, y) for epsilon in (5.0, 0.5, 0.1)]
    assert values == sorted(values, reverse=True)


def test_scale_of_the_costs():
    x, y = draw()
    by_mean, by_max, raw = (
        measures.get("gromov_wasserstein", cost_scale=scale, start="identity")(x, 3 * y)
        for scale in ("mean", "max", "none")
    )
    assert by_mean == pytest.approx(measures.get("gromov_wasserstein", start="identity")(x, y), rel=1e-9)
    assert by_max == pytest.approx(
        measures.get("gromov_wasserstein", cost_scale="max", start="identity")(x, y), rel=1e-9
    )
    assert raw > 2 * measures.get("gromov_wasserstein", cost_scale="none", start="identity")(x, y)


@pytest.mark.parametrize("scale", ["mean", "max", "none"])
def test_against_equal_rows(scale):
    """Their distances are 0, so that every coupling costs the mean squared distance of the other side."""
    x, y = np.full((20, 3), 0.1), draw(n=20)[1]
    distances = gromov_spaces.prepare_space(torch.from_numpy(y), cost_scale=scale).distances
    expected = np.mean(distances**2)
    for name in ("gromov_wasserstein", "gromov_wasserstein_entropic"):
        measure = measures.get(name, cost_scale=scale)
        assert [measure(x, y), measure(y, x)] == pytest.approx([expected] * 2, rel=1e-9)
        assert measure(x, x + 5) == 0
    for start in ("pot", "identity"):
        assert measures.get("gromov_wasserstein", cost_scale=scale, start=start)(x, y) == pytest.approx(expected)
    whole = measures.get("augmented_gromov_wasserstein", cost_scale=scale, alpha=0.25)(x, y)
    assert whole == pytest.approx(0.25 * expected + 0.75 * np.mean((y - 0.1) ** 2))


def test_distances_from_equal_rows():
    """One point: every row of the other side is matched to it."""
    x, y = np.full((20, 5), 0.1), draw(n=20)[1]
    expected = np.linalg.norm(y - 0.1, axis=1).mean()
    for name in ("wasserstein", "euclidean"):
        assert measures.get(name)(x, y) == pytest.approx(expected, rel=1e-12)
    assert measures.get("coot")(x, y) == pytest.approx(np.mean((y - 0.1) ** 2))


def test_permuted_state_is_that_of_permuted_rows():
    x, _ = draw()
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    measure = measures.get("gromov_wasserstein")
    moved = measure.permute(measure.prepare(torch.from_numpy(x)), order)
    anew = measure.prepare(torch.from_numpy(x)[order])
    np.testing.assert_allclose(moved.distances, anew.distances, atol=1e-12)
    np.testing.assert_array_equal(moved.rows, anew.rows)


@pytest.mark.filterwarnings("ignore:numItermax:UserWarning")
def test_unfinished_solvers_are_errors():
    x, y = draw()
    with pytest.raises(Degenerate, match=r"transport: no optimal coupling, got 'numItermax.*' for 30 x 30 rows; use f"):
        assignment.find_cheapest_coupling(x @ y.T, pivots=1)
    measure = measures.get("gromov_wasserstein_entropic")
    a, b = (measure.prepare(torch.from_numpy(side)) for side in (x, y))
    with pytest.raises(Degenerate, match=r"transport: the entropic coupling did not converge, got epsilon 0.5; raise"):
        gromov_entropic.blur(a, b, 0.5, steps=1)


def curve(n=60, layers=4):
    """Layers of a smooth map, and one of an unrelated one: near and far representations."""
    rng = np.random.default_rng(1)
    found = [rng.normal(size=(n, 6))]
    for _ in range(layers - 2):
        found.append(np.tanh(found[-1] @ rng.normal(size=(6, 6))))
    return [
        gromov_spaces.prepare_space(torch.from_numpy(x), cost_scale="mean", bounds=True)
        for x in (*found, rng.normal(size=(n, 9)))
    ]


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


def large(seed, n=300, d=6):
    """Two representations of so many rows that blocks are matched first."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return x, np.tanh(x @ rng.normal(size=(d, d))) + 0.3 * rng.normal(size=(n, d))


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


def test_rows_that_only_rounding_tells_apart_are_equal():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 6)).astype(np.float32)
    flat = np.full((50, 4), 0.37, np.float32)
    rounded = flat * (1 + 1e-7 * rng.normal(size=flat.shape)).astype(np.float32)
    assert len(np.unique(rounded)) > 1
    x, rounded, wide = (
        gromov_spaces.prepare_space(torch.from_numpy(rows), cost_scale="mean")
        for rows in (x, rounded, rounded.astype(float))
    )
    assert not rounded.distances.any()
    assert gromov.compute_gromov_wasserstein(x, rounded, start="best", restarts=0, seed=0) == pytest.approx(
        float((x.distances**2).mean())
    )
    assert wide.distances.any()  # in float64 the differences are real


def test_without_a_folder_for_what_it_compiles(monkeypatch, caplog):
    class Refusing:
        def find_spec(self, name, path=None, target=None):
            if name.endswith("compiled.augmenting"):
                raise RuntimeError("cannot cache function 'augment': no locator available")

    monkeypatch.delitem(sys.modules, "repsim_cli.measures.compiled.augmenting", raising=False)
    monkeypatch.delattr("repsim_cli.measures.compiled.augmenting", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Refusing(), *sys.meta_path])
    assert assignment.load_compiled.__wrapped__() is None
    assert "no locator available; set NUMBA_CACHE_DIR" in caplog.text


def test_without_numba_the_same_value(monkeypatch):
    left, right = curve()[0], curve()[3]
    fast = gromov.compute_gromov_wasserstein(left, right, start="best", restarts=0, seed=0)
    monkeypatch.setattr(assignment, "load_compiled", lambda: None)
    assert gromov.compute_gromov_wasserstein(left, right, start="best", restarts=0, seed=0) == pytest.approx(
        fast, rel=1e-9
    )


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("n", [2, 3, 30, 124, 249])
def test_few_rows_in_another_order_have_about_the_same_value(name, n):
    """Values agree to 3 %, of 30 rows to 11 %, where the rows of both sides have nothing in common; their own pairing,
    and what it is lowered to, are starts."""
    rng = np.random.default_rng(n)
    x, y = rng.normal(size=(n, 6)), rng.normal(size=(n, 4))
    measure = measures.get(name)
    values = [measure(x[rng.permutation(n)], y[rng.permutation(n)]) for _ in range(3)]
    assert measure(x, y) == measure(y, x)
    assert max(*values, measure(x, y)) <= (1.11 if n == 30 else 1.03) * min(*values, measure(x, y))


@pytest.mark.parametrize("name", FAMILY)
def test_the_rows_own_pairing_is_a_start_of_few_rows(name):
    """Noise in each row, in many dimensions: only the pairing of the rows leads below what all other starts find."""
    case = np.load(GOLDEN / "inputs" / "c2.npz")
    x, y = case["x"], case["y"]
    measure = measures.get(name)
    shuffled = {measure(x, y[np.random.default_rng(seed).permutation(len(y))]) for seed in range(3)}
    assert len(shuffled) == 1
    assert measure(x, y) < 0.95 * min(shuffled)


@pytest.mark.parametrize("n", [20, 60, 140])
def test_restarts_of_few_rows_depend_on_their_order_no_more(n):
    rng = np.random.default_rng(n)
    x, y = rng.normal(size=(n, 6)), rng.normal(size=(n, 4))
    measure = measures.get("gromov_wasserstein", start="pot", restarts=2)
    assert measure(x, y) == measure(x[rng.permutation(n)], y)


@pytest.mark.parametrize("n", [60, 140])
def test_few_rows_are_lowered_below_the_start_of_pot_and_the_pairing(n):
    ratios = []
    for seed in range(3):
        sides = [gromov_spaces.prepare_space(torch.from_numpy(x), cost_scale="mean") for x in large(seed, n)]
        of_two = min(
            gromov.compute_gromov_wasserstein(*sides, start=start, restarts=0, seed=0) for start in ("identity", "pot")
        )
        ratios.append(gromov.compute_gromov_wasserstein(*sides, start="best", restarts=0, seed=0) / of_two)
    assert max(ratios) <= 1 + 1e-9
    assert np.mean(ratios) < 0.97


def test_the_coupling_of_few_rows_is_of_the_rows_as_given():
    x, y = draw(n=40)
    rows = np.random.default_rng(0).permutation(40)
    mass = measures.get("gromov_wasserstein").align(x, y).mass
    a, b = (gromov_spaces.prepare_space(torch.from_numpy(side), cost_scale="mean").distances for side in (x, y))
    assert gromov_descents.compute_gromov_objective(a, b, mass.numpy()) == pytest.approx(
        measures.get("gromov_wasserstein")(x, y), rel=1e-9
    )
    neighbour = measures.get("gromov_wasserstein").align(x[rows], 3 * x).mass
    assert (neighbour.numpy().argmax(1) == rows).all()
