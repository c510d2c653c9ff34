"""Principal directions are capped as plain numpy caps them, whatever the rotation of the features."""

import numpy as np
import pytest
import torch

from repsim_cli import measures
from repsim_cli.activations.principal import SAMPLE, SHARE, RowSample, cap_directions
from repsim_cli.activations.readings import Layer
from repsim_cli.activations.remedies import Remedies
from repsim_cli.activations.rows import RowBlock
from repsim_cli.base.settings import Extract


def rows(n: int, d: int = 40, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) * np.r_[100, 30, 8, np.ones(d - 3)] + rng.normal(size=d)


def by_hand(x: np.ndarray) -> np.ndarray:
    """No variance is above the share of all: the largest are lowered to one value until that holds."""
    mean = x.mean(0)
    values, axes = np.linalg.eigh(np.cov(x.T, bias=True))
    low, high = 0.0, values.max()
    for _ in range(200):
        limit = (low + high) / 2
        low, high = (limit, high) if limit <= SHARE * np.minimum(values, limit).sum() else (low, limit)
    scale = np.sqrt(np.minimum(values, low) / values)
    return mean + (x - mean) @ axes * scale @ axes.T


def treated(x: np.ndarray) -> np.ndarray:
    rows = torch.from_numpy(x).float()
    found = cap_directions(rows)
    assert found is not None
    return found.apply(rows).numpy()


def remedied(x: np.ndarray, normalise: str) -> torch.Tensor:
    """The rows as a run treats them."""
    layer, remedies = Layer("a", "b", x.shape[1]), Remedies(Extract(hook_points=["a"], normalise=normalise), None)
    given = [RowBlock(0, [torch.from_numpy(x).float()])]
    if normalise != "rows":
        remedies.measure(iter(given), [layer])
    return next(iter(remedies.apply(iter(given), [layer]))).rows[0]


@pytest.mark.parametrize("n", [500, 30])
def test_directions_are_capped_as_by_hand(n):
    x = rows(n)
    if n > x.shape[1]:
        assert treated(x) == pytest.approx(by_hand(x), abs=1e-3)
    done = treated(x)
    shares = np.linalg.eigvalsh(np.cov(done.T))
    assert shares.max() <= (SHARE + 1e-5) * shares.sum()
    assert done.mean(0) == pytest.approx(x.mean(0), abs=1e-4)


def test_a_rotated_layer_is_the_same_to_cka():
    x = rows(400)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(40, 40)))[0]
    done, turned = treated(x), treated(x @ turn)
    assert turned == pytest.approx(done @ turn, abs=2e-3)
    assert measures.get("cka")(torch.from_numpy(done), torch.from_numpy(turned)) == pytest.approx(1, abs=1e-6)


def test_what_is_spread_or_too_narrow_stays():
    rng = np.random.default_rng(0)
    assert cap_directions(torch.from_numpy(rng.normal(size=(300, 40)))) is None  # no direction has 5 %
    assert cap_directions(torch.from_numpy(rows(300)[:, :20])) is None  # 20 directions cannot all be below 5 %
    for seed in range(40):  # 21 rows have 20 directions, 22 have 21
        assert cap_directions(torch.from_numpy(np.random.default_rng(seed).normal(size=(21, 64)))) is None
        found = cap_directions(torch.from_numpy(np.random.default_rng(seed).normal(size=(22, 64))))
        assert found is not None
        assert len(found.factors) < 20
    low = rng.normal(size=(300, 6)) @ rng.normal(size=(6, 40))
    assert cap_directions(torch.from_numpy(low)) is None  # nothing but rounding outside of 6 directions
    assert cap_directions(torch.ones(300, 40)) is None


def test_the_sample_is_spread_over_all_rows():
    for size in (64, 1000, 7000):
        sample, x = RowSample(), torch.arange(7000.0)[:, None]
        for part in x.split(size):
            sample.add([part, -part])
        found = sample.join(0)[:, 0]
        assert SAMPLE / 2 < len(found) <= 2 * SAMPLE + size // sample.stride
        assert len(found.diff().unique()) == 1
        assert torch.equal(sample.join(1), -sample.join(0))


@pytest.mark.parametrize("name", ["cka", "neuronsim", "mean_cca"])
def test_cards_say_what_each_remedy_takes_away(name):
    """A layer and what it is changed to, both treated, are the same unless the card says that the remedy undoes it."""
    rng, card = np.random.default_rng(1), measures.get(name).card
    x = rows(400) @ (np.eye(40) + 0.1 * rng.normal(size=(40, 40)))
    changed = {
        "orthogonal": x @ np.linalg.qr(rng.normal(size=(40, 40)))[0],
        "scaling_of_neurons": x * np.exp(rng.normal(size=40)),
        "translation": x + 300 * rng.normal(size=40),
        "invertible_linear": x @ rng.normal(size=(40, 40)),
    }
    for normalise in ("features", "directions", "rows"):
        for change in card.invariant_to & set(changed):
            both = (remedied(z, normalise) for z in (x, changed[change]))
            same = float(measures.get(name)(*both)) > 0.999
            assert same == (change not in card.undone().get(normalise, [])), (normalise, change)


@pytest.mark.parametrize("shape", [(600, 300), (300, 600), (260, 256)])
@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0])
def test_iterations_find_what_the_whole_decomposition_finds(shape, decay):
    """Equal variances and more features than rows are among the cases."""
    x = np.random.default_rng(3).normal(size=shape) * np.arange(1, shape[1] + 1.0) ** -decay
    few = cap_directions(torch.from_numpy(x))
    whole = cap_directions(torch.from_numpy(x), iterate_from=10**9)
    assert (few is None) == (whole is None) == (decay == 0)
    if few is not None:
        np.testing.assert_allclose(few.factors, whole.factors, rtol=1e-9)
        np.testing.assert_allclose((few.axes @ whole.axes.T).abs(), np.eye(len(few.axes)), atol=1e-6)
