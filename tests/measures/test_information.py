"""Mutual information against closed forms, another implementation, and its own ceilings."""

import numpy as np
import pytest
from scipy.special import digamma
from sklearn.feature_selection import mutual_info_regression

from repsim_cli import measures

KSG, BOUND = measures.get("mutual_information"), measures.get("infonce")


def normal(correlation: float, rows: int = 2000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three pairs of components of this correlation, in a rotation of each side."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 3))
    y = correlation * x + np.sqrt(1 - correlation**2) * draw.normal(size=(rows, 3))
    return x @ np.linalg.qr(draw.normal(size=(3, 3)))[0], y @ np.linalg.qr(draw.normal(size=(3, 3)))[0]


@pytest.mark.parametrize(
    ("correlation", "of_ksg", "of_bound"),
    [(0.0, (-0.02, 0.02), (-0.05, 0.0)), (0.6, (-0.08, 0.02), (-0.13, 0.0)), (0.9, (-0.33, -0.2), (-0.3, 0.0))],
)
def test_normal_variables_have_a_closed_form(correlation, of_ksg, of_bound):
    """-1/2 log det of the correlations; and the error by which each estimate is too small."""
    truth = -1.5 * np.log(1 - correlation**2)
    for measure, (low, high) in ((KSG, of_ksg), (BOUND, of_bound)):
        assert low <= np.mean([measure(*normal(correlation, seed=seed)) for seed in range(2)]) - truth <= high


def test_nearest_rows_are_those_of_scikit_learn():
    """scikit-learn knows a single component on each side, and adds noise of 1e-10."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(300, 1))
    for y in (
        draw.normal(size=(300, 1)),
        x + draw.normal(size=(300, 1)),
        np.sin(3 * x) + 0.1 * draw.normal(size=(300, 1)),
    ):
        for k in (1, 3, 10):
            peer = mutual_info_regression(x, y[:, 0], n_neighbors=k, random_state=0)[0]
            assert max(measures.get("mutual_information", k=k)(x, y), 0) == pytest.approx(peer, abs=1e-6)


def test_dependence_that_is_not_linear_is_seen():
    """A circle whose angle is doubled has no correlation with it; of four petals the critic's products see nothing."""
    angle = np.random.default_rng(1).uniform(0, 2 * np.pi, 2000)
    circle, double, petals = (np.stack([np.cos(m * angle), np.sin(m * angle)], 1) for m in (1, 2, 5))
    assert measures.get("mean_cca")(circle, double) < 0.05
    assert KSG(circle, double) > 2.0
    assert BOUND(circle, double) > 1.0
    assert KSG(circle, petals) > 1.5
    assert BOUND(circle, petals) < 0.05


def test_ceilings():
    x, _ = normal(0.0)
    assert KSG(x, x) == pytest.approx(digamma(2000) - digamma(5))
    assert np.log(128) - 0.5 < BOUND(x, x) < np.log(128)
    assert measures.get("infonce", batch=16)(x, x) < np.log(16)


def test_rows_with_copies_count_as_classes():
    """The mutual information of two codes, of which one is a noisy copy, in nats."""
    draw = np.random.default_rng(0)
    code = draw.integers(0, 4, 2000)
    other = np.where(draw.random(2000) < 0.8, code, draw.integers(0, 4, 2000))
    joint = np.histogram2d(code, other, 4)[0] / 2000
    truth = np.sum(joint * np.log(joint / joint.sum(1, keepdims=True) / joint.sum(0)))
    x, y = np.eye(4)[code], np.eye(4)[other]
    assert KSG(x, y) == pytest.approx(truth, abs=0.01)
    assert truth - 0.05 < BOUND(x, y) < truth + 0.03
    # code against a number: of each class the number has another range, half of which it shares with the next
    number = code[:, None] + 2 * draw.random((2000, 1))
    mixed = np.log(4) - 0.75 * np.log(2)
    assert KSG(x, number) == pytest.approx(mixed, abs=0.05)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["copies", "pairs", "lattice", "normal"])
def test_ties_pass_no_ceiling_and_no_change_of_coordinates(kind, dtype):
    """Rows that repeat, and rows whose distances tie, which rounding would break another way in other coordinates."""
    draw = np.random.default_rng(0)
    x = {
        "copies": lambda: draw.normal(size=(30, 8))[draw.integers(0, 30, 100)],
        "pairs": lambda: np.repeat(draw.normal(size=(50, 8)), 2, 0),
        "lattice": lambda: draw.integers(0, 3, (100, 8)),
        "normal": lambda: draw.normal(size=(100, 8)),
    }[kind]()
    x = x.astype(dtype)
    own, rotation = KSG(x, x), np.linalg.qr(draw.normal(size=(8, 8)))[0].astype(dtype)
    assert own <= digamma(100) - digamma(5) + 1e-12
    for other in (dtype(1.7) * x, x @ rotation):
        assert KSG(x, other) == pytest.approx(own, abs=1e-9)


def test_more_components_than_there_are():
    x, y = normal(0.9)
    assert measures.get("mutual_information", dims=10)(x, y) == KSG(x, y)
    flat = np.concatenate([x, x @ np.ones((3, 2))], 1)
    assert measures.get("mutual_information", dims=5)(flat, y) == pytest.approx(KSG(x, y), abs=0.1)
