"""Transport: objectives at given couplings, published starts, rows in another order, and what makes them trustworthy."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.curved_layers import curve, large

from repsim_cli import measures
from repsim_cli.base.errors import Degenerate
from repsim_cli.measures import (
    assignment,
    gromov,
    gromov_descents,
    gromov_entropic,
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
