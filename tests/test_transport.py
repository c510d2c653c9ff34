"""Transport: objectives at given couplings, local minima from given starts, and what makes them trustworthy."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from repsim_cli import measures
from repsim_cli.errors import Degenerate
from repsim_cli.measures import transport

GOLDEN = Path(__file__).parent / "golden"
FAMILY = ("gromov_wasserstein", "coot", "augmented_gromov_wasserstein")
ENTRIES = [e for e in json.loads((GOLDEN / "values.json").read_text()) if e["measure"] in FAMILY]
SCALES = {"Euclidean distances divided by their maximum": "max", "raw Euclidean distances": "none"}


def spaces(entry):
    case = np.load(GOLDEN / "inputs" / f"{entry['case']}.npz")
    scale = SCALES[entry["settings"].get("distance", "raw Euclidean distances")]
    return case, *(transport.space(torch.from_numpy(case[side]), cost_scale=scale) for side in "xy")


def named(entry):
    return f"{entry['measure']}-{entry['case']}-{entry['value']:.4g}"


@pytest.mark.parametrize("entry", [e for e in ENTRIES if "evaluate_at" in e["settings"]], ids=named)
def test_objective_at_a_coupling(entry):
    _, a, b = spaces(entry)
    n, widths = len(a.rows), (a.rows.shape[1], b.rows.shape[1])
    samples = np.eye(n) / n if "identity" in entry["settings"]["evaluate_at"] else np.full((n, n), 1 / n**2)
    features = np.full(widths, 1 / np.prod(widths))
    found = {
        "gromov_wasserstein": lambda: transport.gromov_objective(a.distances, b.distances, samples),
        "coot": lambda: transport.coot_objective(a.rows, b.rows, samples, features),
        "augmented_gromov_wasserstein": lambda: transport.augmented_objective(
            a, b, samples, features, entry["settings"]["alpha"]
        ),
    }[entry["measure"]]()
    assert found == pytest.approx(entry["value"], abs=entry["atol"])


@pytest.mark.parametrize("entry", [e for e in ENTRIES if "20 starts" in e["settings"].get("init", "")], ids=named)
def test_best_of_the_published_starts(entry):
    """From the same 22 starts the best local minimum is not above the published one."""
    case, a, b = spaces(entry)
    n = len(a.rows)
    identity, uniform = np.eye(n) / n, np.full((n, n), 1 / n**2)
    starts = [identity, uniform, *((identity[order] + uniform) / 2 for order in case["perm"])]
    if entry["measure"] == "gromov_wasserstein":
        found = [
            transport.gromov_objective(a.distances, b.distances, transport.descend(start, a.distances, b.distances))
            for start in starts
        ]
    else:
        found = [transport.alternate(a, b, start, entry["settings"]["alpha"]) for start in starts]
        assert found[0] == pytest.approx(entry["from_identity"], abs=1e-6)
    assert min(found) <= entry["value"] + entry["atol"]


def draw(n=30, d=5):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d))
    return x, np.tanh(x @ rng.normal(size=(d, d))) + 0.3 * rng.normal(size=(n, d))


@pytest.mark.parametrize("name", FAMILY)
def test_more_starts_are_never_worse(name):
    x, y = draw()
    values = [measures.get(name, starts=starts)(x, y) for starts in (1, 2, 10)]
    assert values == sorted(values, reverse=True)
    assert values[-1] < values[0]


@pytest.mark.parametrize("name", [*FAMILY, "wasserstein"])
def test_the_order_of_the_rows_is_found(name):
    """Rows need no pairing: shuffled rows are at distance 0, where enough starts are tried."""
    x, _ = draw(n=12)
    shuffled = x[np.random.default_rng(1).permutation(12)]
    settings = {} if name == "wasserstein" else {"starts": 30}
    assert measures.get(name, **settings)(x, shuffled) == pytest.approx(0, abs=1e-12)


def test_couplings_have_uniform_weights():
    x, y = draw()
    a, b = (transport.space(torch.from_numpy(side), cost_scale="mean").distances for side in (x, y))
    for coupling in (
        transport.plan(-np.abs(a - b) - 1.0),
        transport.descend(np.full((30, 30), 1 / 900), a, b),
        transport.sinkhorn(a, 0.01, np.zeros(30))[0],
    ):
        assert coupling.min() >= 0
        np.testing.assert_allclose([coupling.sum(0), coupling.sum(1)], 1 / 30, atol=1e-9)


def test_augmented_ends_are_its_two_parts():
    x, y = draw()
    ends = [measures.get("augmented_gromov_wasserstein", alpha=alpha)(x, y) for alpha in (0.0, 1.0)]
    assert ends[0] == pytest.approx(measures.get("coot")(x, y), abs=1e-12)
    assert ends[1] <= measures.get("gromov_wasserstein")(x, y) + 1e-12


def test_entropic_nears_the_exact_coupling():
    x, y = draw()
    values = [measures.get("gromov_wasserstein_entropic", epsilon=epsilon)(x, y) for epsilon in (5.0, 0.5, 0.1)]
    assert values == sorted(values, reverse=True)


def test_scale_of_the_costs():
    x, y = draw()
    by_mean, by_max, raw = (
        measures.get("gromov_wasserstein", cost_scale=scale, starts=1)(x, 3 * y) for scale in ("mean", "max", "none")
    )
    assert by_mean == pytest.approx(measures.get("gromov_wasserstein", starts=1)(x, y), rel=1e-9)
    assert by_max == pytest.approx(measures.get("gromov_wasserstein", cost_scale="max", starts=1)(x, y), rel=1e-9)
    assert raw > 2 * measures.get("gromov_wasserstein", cost_scale="none", starts=1)(x, y)


def test_permuted_state_is_that_of_permuted_rows():
    x, _ = draw()
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    measure = measures.get("gromov_wasserstein")
    moved = measure.permute(measure.prepare(torch.from_numpy(x)), order)
    anew = measure.prepare(torch.from_numpy(x)[order])
    np.testing.assert_allclose(moved.distances, anew.distances, atol=1e-12)
    np.testing.assert_array_equal(moved.rows, anew.rows)


@pytest.mark.filterwarnings("ignore:numItermax:UserWarning")
def test_unfinished_solvers_are_errors(monkeypatch):
    x, y = draw()
    monkeypatch.setattr(transport, "_PIVOTS", 1)
    with pytest.raises(Degenerate, match=r"transport: no optimal coupling, got 'numItermax.*' for 30 x 30 rows; use f"):
        measures.get("wasserstein")(x, y)
    monkeypatch.setattr(transport, "_STEPS", 1)
    with pytest.raises(Degenerate, match=r"transport: the entropic coupling did not settle, got epsilon 0.5; raise"):
        measures.get("gromov_wasserstein_entropic")(x, y)
