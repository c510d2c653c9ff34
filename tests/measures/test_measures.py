"""Every measure against golden values, the slow reference, and the claims of its own card, both ways."""

import json
from functools import cache
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
from helpers.drawn_rows import draw
from hypothesis import example, given, reject
from hypothesis import strategies as st

from repsim_cli import measures
from repsim_cli.base.errors import BadInput, Degenerate
from repsim_cli.engine.estimates import estimate_all_pairs
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.measures.base import MeasureWarning, clamp_to_bounds

pytestmark = pytest.mark.filterwarnings("ignore:.*no complex of 12 landmarks")  # as there are with few rows
GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = measures.available()


ENTRIES = json.loads((GOLDEN / "values.json").read_text())


def golden():
    """The values of full estimates by this package's conventions."""
    for entry in ENTRIES:
        name = entry["measure"]
        if name in NAMES and entry["case"] not in ("c8", "c10", "c11") and "chunk" not in entry["settings"]:
            if "expect" not in entry:
                settings = reference.CONVENTIONS.get(name, lambda entry: {})(entry["settings"])
                if settings is not None:
                    yield pytest.param(entry, settings, id=f"{name}-{entry['case']}-{settings}")


@pytest.mark.parametrize(("entry", "settings"), list(golden()))
@pytest.mark.filterwarnings("ignore::repsim_cli.measures.base.MeasureWarning")
def test_golden(entry, settings):
    case = np.load(GOLDEN / "inputs" / f"{entry['case']}.npz")
    x, y = case["x"], case["y"]
    measure = measures.get(entry["measure"], **settings)
    found = [measure(x, y), measure(y, x)]
    expected = entry["value"]
    directions = [expected["x_to_y"], expected["y_to_x"]] if isinstance(expected, dict) else [expected, expected]
    if entry["compare"] == "tie_sensitive":
        lowest, highest = (end * 2 if len(end) == 1 else end for end in entry["tie_range"])
        for value, low, high in zip(found, lowest, highest, strict=True):
            assert low - 1e-9 <= value <= high + 1e-9
    elif entry["compare"] == "at_most":
        assert all(value <= bound + entry["atol"] for value, bound in zip(found, directions, strict=True))
    else:
        assert found == pytest.approx(directions, abs=entry["atol"])


@pytest.mark.parametrize(
    "entry",
    [e for e in ENTRIES if "expect" in e and e["measure"] in NAMES],
    ids=lambda entry: f"{entry['measure']}-{entry['case']}",
)
def test_golden_refusals(entry):
    """A number that means nothing is an error or a warning (which is an error in these tests)."""
    case = np.load(GOLDEN / "inputs" / f"{entry['case']}.npz")
    rows = slice(3) if "first 3 rows" in str(entry["settings"]) else slice(None)
    with pytest.raises((Degenerate, MeasureWarning)):
        measures.get(entry["measure"])(case["x"][rows], case["y"][rows])


def test_golden_all_pairs_of_layers():
    """c11: the matrix of four layers of one model against four of another."""
    case = np.load(GOLDEN / "inputs" / "c11.npz")
    layers = [torch.from_numpy(case[f"{side}_{i}"]) for side in "xy" for i in range(4)]
    seen = set()
    for entry in ENTRIES:
        if entry["case"] == "c11" and entry["measure"] in NAMES:
            name = entry["measure"]
            values = compute_all_pairs({name: measures.get(name)}, layers, tile=20)[name][:4, 4:]
            np.testing.assert_allclose(values, entry["value"], atol=entry["atol"])
            seen.add(name)
    assert seen == {"cka", "cka_unbiased"}


@pytest.mark.parametrize("chunk", [32, 64])
@pytest.mark.parametrize("estimate", ["mean_of_ratios", "ratio_of_means"])
def test_golden_estimates_over_batches(chunk, estimate):
    case = np.load(GOLDEN / "inputs" / "c9.npz")
    entry = next(e for e in ENTRIES if e["settings"].get("chunk") == chunk and e["settings"]["estimate"] == estimate)
    x, y = (torch.from_numpy(case[side]) for side in "xy")
    batches = [(x[i : i + chunk], y[i : i + chunk]) for i in range(0, len(x), chunk)]
    kind = {"mean_of_ratios": "per_batch", "ratio_of_means": "ratio_of_sums"}[estimate]
    matrices, _ = estimate_all_pairs(
        {"m": measures.get("cka_unbiased")}, lambda seen: batches[seen:], names="xy", estimate=kind
    )
    assert float(matrices["m"].values[0, 1]) == pytest.approx(entry["value"], abs=entry["atol"])


LABELS = np.arange(40) % 4
IMBALANCE = "information_imbalance"  # the least place is the first, of n
# fewer rows for what takes several solvers per pair
SEARCHED = ("gromov_wasserstein", "augmented_gromov_wasserstein", "coot")
ROWS = {"gromov_wasserstein_entropic": 8, "coot": 16, "augmented_gromov_wasserstein": 16}


@cache  # types of what it makes are checked, which takes longer than a value
def small(name: str) -> measures.Measure:
    """The measure with settings for few rows."""
    return measures.get(name, **reference.SETTINGS.get(name, {}))


def value(name: str, x: np.ndarray, y: np.ndarray) -> float:
    """The measure, with labels where it needs them."""
    return small(name)(x, y, **({"labels": LABELS[: len(x)]} if measures.card(name).labelled else {}))


@cache
def drawn_value(name: str, seed: int) -> float:
    return value(name, *draw(seed))


def narrower(name: str, x: np.ndarray, width: int) -> np.ndarray:
    """Fewer features, where the measure compares unequal widths."""
    return np.tanh(x) if measures.card(name).equal_widths else np.tanh(x[:, :width])


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 10**6))
@example(seed=5872)  # few features of one side, which have nothing in common
@example(seed=11770)  # a value that rounds to a power of two
def test_equals_the_reference(name, seed):
    x, y = draw(seed, n=ROWS.get(name, 40))
    y = narrower(name, y, 5)
    labels = (LABELS[: len(x)],) if measures.card(name).labelled else ()
    for a, b in ((x, y), (y, x)):
        slow = getattr(reference, name)(a, b, *labels)
        if np.isnan(slow):
            with pytest.raises(Degenerate):
                value(name, a, b)
            continue
        found = value(name, a, b)
        if name in SEARCHED:  # of couplings that more starts lead to
            assert -1e-9 <= found <= slow + 1e-9
        else:
            assert found == pytest.approx(slow, abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 10**6))
def test_identity_symmetry_and_bounds(name, seed):
    card = measures.card(name)
    x, y = draw(seed, n=ROWS.get(name, 40))
    best = card.bounds[1] if card.larger_is_closer else card.bounds[0]
    try:
        own = None if best is None else value(name, x, x)
        found, back = value(name, x, y), value(name, y, x)
    except Degenerate:  # few draws have no value
        reject()
    if best is not None:
        assert own == pytest.approx(2 / len(x) if name == IMBALANCE else best, abs=1e-9)
    if card.symmetric:
        assert found == pytest.approx(back, rel=1e-11, abs=1e-12)
    low, high = card.bounds
    assert low is None or found >= low
    assert high is None or found <= high


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [n for n in NAMES if not measures.card(n).infinite_to_itself])
def test_rounding_leaves_no_value_beyond_its_bounds(name, dtype):
    """Copies of one representation in other coordinates, so that values are at their bounds but for rounding."""
    for seed in range(2):
        x, _ = draw(seed, n=ROWS.get(name, 40))
        mixed = x @ np.random.default_rng(seed).normal(size=(7, 7))
        values = pairs_of(name, [torch.from_numpy(side).to(dtype) for side in (x, mixed, 3.3 * x + 1)])
        low, high = measures.card(name).bounds
        assert low is None or float(values.min()) >= low
        assert high is None or float(values.max()) <= high


def test_what_is_no_rounding_is_not_hidden():
    values = torch.tensor([-2e-6, -1e-7, 0.5, 1 + 1e-7, 1 + 2e-6, torch.nan], dtype=torch.float64)
    expected = torch.tensor([-2e-6, 0.0, 0.5, 1.0, 1 + 2e-6, torch.nan], dtype=torch.float64)
    torch.testing.assert_close(clamp_to_bounds(measures.get("cka"), values), expected, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("name", [n for n in NAMES if not measures.card(n).symmetric])
def test_asymmetric_where_claimed(name):
    pairs = [draw(seed) for seed in range(5)]
    assert max(abs(value(name, x, y) - value(name, y, x)) for x, y in pairs) > 1e-6


@pytest.mark.parametrize("name", [n for n in NAMES if measures.card(n).is_metric])
@given(seed=st.integers(0, 10**6))
def test_triangle_inequality_of_metrics(name, seed):
    (x, y), (z, _) = draw(seed), draw(seed + 1)
    assert value(name, x, z) <= value(name, x, y) + value(name, y, z) + 1e-9


def transformed(kind: str, x: np.ndarray, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    d = x.shape[1]
    rotation = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return {
        "permutation_of_neurons": lambda: x[:, rng.permutation(d)],
        "orthogonal": lambda: x @ rotation,
        "isotropic_scaling": lambda: 3.7 * x,
        "scaling_of_neurons": lambda: x * np.where(np.arange(d) == seed % d, 1000, 1),
        "translation": lambda: x + 5 * rng.normal(size=d),
        "invertible_linear": lambda: x @ (rotation * np.geomspace(0.05, 20, d)),
    }[kind]()


@pytest.mark.parametrize(
    "kind",
    [
        "permutation_of_neurons",
        "orthogonal",
        "isotropic_scaling",
        "scaling_of_neurons",
        "translation",
        "invertible_linear",
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_invariant_if_and_only_if_claimed(name, kind):
    claimed = kind in measures.card(name).invariant_to
    changes = (
        abs(value(name, transformed(kind, x, seed), y) - drawn_value(name, seed))
        for seed, (x, y) in enumerate(map(draw, range(5)))
    )
    assert all(change < 1e-8 for change in changes) == claimed
    assert measures.card(name).sees_scale_of_features == ("scaling_of_neurons" not in measures.card(name).invariant_to)


@pytest.mark.parametrize("name", [n for n in NAMES if not measures.card(n).infinite_to_itself])
def test_all_pairs_equal_single_pairs(name):
    """The tiled pass, or compare_all, gives what `compare` gives pair by pair, whatever the tile; slow pairs have none."""
    x, y = draw(0, n=ROWS.get(name, 40))
    sides = [x, y, narrower(name, x, 3), narrower(name, y, 5)]
    single = torch.tensor([[value(name, a, b) for b in sides] for a in sides], dtype=torch.float64)
    for tile in (1, 17, 39, 50) if measures.get(name).slow is None else (17,):
        together = pairs_of(name, [torch.from_numpy(side) for side in sides], tile=tile)
        torch.testing.assert_close(together, single, atol=1e-9, rtol=0)


def pairs_of(name: str, sides: list[torch.Tensor], **settings) -> torch.Tensor:
    labels = torch.arange(len(sides[0])) % 4 if measures.card(name).labelled else None
    return compute_all_pairs({name: small(name)}, sides, labels=labels, **settings)[name]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_language_model_like_input_keeps_its_digits(name, dtype):
    """An offset of 3000 in one feature and a row 50 times the others: within 1e-5 of float64 on the same numbers,
    centred where the measure does not see the offset."""
    rng = np.random.default_rng(0)
    n = 300 if measures.get(name).slow is None else 120
    factors = rng.normal(size=(n, 20))
    sides = []
    for width in (48, 48 if measures.card(name).equal_widths else 32):
        x = factors @ rng.normal(size=(20, width)) + rng.normal(size=(n, width))
        x[7] *= 50
        x[:, 5] += 3000
        sides.append(torch.from_numpy(x).to(dtype))
    exact = [x.double() for x in sides]
    if "translation" in measures.card(name).invariant_to:
        exact = [x - x.mean(0) for x in exact]
    if measures.card(name).infinite_to_itself:
        found, expected = (measures.get(name)(*pair) for pair in (sides, exact))
    else:
        found, expected = (float(pairs_of(name, pair)[0, 1]) for pair in (sides, exact))
    assert found == pytest.approx(expected, abs=1e-5, rel=1e-5)


def test_unbiased_means_zero_under_independence():
    """Averaged over all pairings of the rows, HSIC1 and what is normalised by it are 0, exactly; the biased one is
    not."""
    x, y = draw(3, n=6, d=4)

    def product(a, b):
        return reference.hsic1(a @ a.T, b @ b.T)

    assert reference.permutations_mean(product, x, y) == pytest.approx(0, abs=1e-9)
    x, y = x[:5], y[:5]
    pairings = [y[list(order)] for order in permutations(range(5))]
    means = {name: np.mean([measures.get(name)(x, side) for side in pairings]) for name in ("cka_unbiased", "cka")}
    assert means["cka_unbiased"] == pytest.approx(0, abs=1e-12)
    assert means["cka"] > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_degenerate_input_is_an_error(name):
    measure, card = small(name), measures.card(name)
    x, y = draw(0)
    if card.takes_constant:
        assert value(name, np.full((40, 7), 0.1), y) > 0
        assert value(name, np.full((40, 7), 0.1), np.full((40, 7), 0.1)) == 0
    else:
        with pytest.raises(Degenerate, match=r"x: all rows are equal, got a constant representation; drop this layer"):
            value(name, np.full((40, 7), 0.1), y)
    broken = x.copy()
    broken[3, 2] = np.nan
    with pytest.raises(Degenerate, match=r"y: not finite, got nan in row 3"):
        value(name, x, broken)
    with pytest.raises(Degenerate, match=r"x and y must be \(n, d\) with the same n, got \(40, 7\) and \(39, 7\)"):
        value(name, x, y[1:])
    few = measure.rows_needed - 1
    with pytest.raises(Degenerate, match=rf"x: {name} needs at least {few + 1} rows, got {few}; give it more rows"):
        value(name, x[:few], y[:few])
    if card.equal_widths:
        with pytest.raises(Degenerate, match=rf"{name}: needs equal widths, got x: 7, y: 5; use procrustes"):
            value(name, x, y[:, :5])
    if card.refuses_wide:
        with pytest.raises(Degenerate, match=rf"x: {name} needs more rows than features, got 7 rows of 7 features"):
            value(name, x[:7], y[:7, :3])
    if card.labelled:
        with pytest.raises(Degenerate, match=rf"{name}: needs one label per row; give labels"):
            measure(x, y)


def test_too_many_neighbours():
    x, y = draw(0, n=10)
    with pytest.raises(Degenerate, match="x: mutual_knn needs at least 11 rows, got 10; give it more rows"):
        measures.get("mutual_knn")(x, y)


def test_duplicates_are_neighbours_but_not_self():
    x = np.array([[0.0, 1.0], [0.0, 1.0], [5.0, -1.0], [4.0, -2.0], [-6.0, 0.5]])
    with pytest.warns(MeasureWarning, match="1 of 5 rows have several equally near rows"):
        assert measures.get("mutual_knn", k=1)(x, x) == 1.0


def test_unknown_name_suggests():
    with pytest.raises(BadInput, match=r"unknown measure, got 'cka_unbaised'; did you mean 'cka_unbiased'"):
        measures.get("cka_unbaised")


LOCAL = {"gromov_wasserstein", "augmented_gromov_wasserstein", "coot"}  # optima, which starts by pairs may change


@pytest.mark.parametrize("name", [n for n in NAMES if not measures.card(n).labelled and n not in LOCAL])
def test_depends_on_the_pairing_of_rows_if_claimed(name):
    """A null that pairs rows at random means nothing for a measure that does not see the pairs."""
    x, y = draw(0)
    shuffled = y[np.random.default_rng(0).permutation(len(y))]
    assert (value(name, x, y) == pytest.approx(value(name, x, shuffled), rel=1e-6)) == (not measures.card(name).paired)


def test_few_rows_for_the_features_are_warned_about():
    x, y = (np.random.default_rng(seed).normal(size=(20, width)) for seed, width in ((0, 50), (1, 5)))
    for name in ("cka", "svcca"):
        with pytest.warns(MeasureWarning, match="x: 20 rows for 50 features"):
            value(name, x, y)
