"""Information imbalance where the answer is known: nested coordinates, ties, documents, random pairings."""

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

from repsim_cli import measures
from repsim_cli.base.errors import Degenerate
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.measures.base import MeasureWarning, restrict_to_other_documents

IMBALANCE = measures.get("information_imbalance")


def test_one_that_has_all_of_the_other_is_seen():
    """Glielmo et al. 2022, figure 1: what lacks a coordinate says less of the whole than the whole says of it."""
    whole = np.random.default_rng(0).normal(size=(1000, 3)) * [1.0, 1.0, 0.5]
    part = whole[:, :2]
    assert IMBALANCE(part, whole) < 0.05 < 0.1 < IMBALANCE(whole, part)


def test_independent_rows_are_at_one():
    draws = [np.random.default_rng([seed, 3]).normal(size=(2, 300, 4)) for seed in range(20)]
    values = [IMBALANCE(*sides) for sides in draws]
    assert np.mean(values) == pytest.approx(1, abs=3 * 2 / np.sqrt(12 * 300 * 20))


def test_equal_rows_share_their_places():
    x = np.array([[0.0], [0.0], [0.0], [4.0], [9.0]])
    with pytest.warns(MeasureWarning, match="4 of 5 rows have several equally near rows for the last of 1 places"):
        found = IMBALANCE(x, x)
    # the equal rows' nearest share places 1 and 2, those of 4 are three at 4, that of 9 is 4
    assert found == pytest.approx(2 / 5 * np.mean([1.5, 1.5, 1.5, 2, 1]))


def by_hand(x, y, documents):
    places = []
    for i in range(len(x)):
        others = np.flatnonzero(documents != documents[i])
        of_x, of_y = (np.linalg.norm(z[others] - z[i], axis=1) for z in (x, y))
        places.append(rankdata(of_x)[of_y.argmin()] / (len(others) + 1))
    return 2 * np.mean(places)


def test_rows_of_the_same_document_have_no_place():
    rng = np.random.default_rng(1)
    documents = rng.permutation(np.repeat(np.arange(6), [1, 5, 2, 8, 3, 4]))
    x, y = rng.normal(size=(2, len(documents), 3)) + rng.normal(size=(2, 6, 3))[:, documents]
    apart = restrict_to_other_documents(IMBALANCE, torch.from_numpy(documents))
    assert apart(x, y) == pytest.approx(by_hand(x, y, documents), abs=1e-12)
    order = rng.permutation(len(documents))
    states = [apart.prepare(torch.from_numpy(side)) for side in (x, y)]
    moved = apart.compare(states[0], apart.permute(states[1], torch.from_numpy(order)))
    assert moved == pytest.approx(by_hand(x, y[order], documents), abs=1e-12)
    pairs = np.repeat([0, 1], 2)  # two rows of other documents are enough
    apart = restrict_to_other_documents(IMBALANCE, torch.from_numpy(pairs))
    assert apart(x[:4], y[:4]) == pytest.approx(by_hand(x[:4], y[:4], pairs), abs=1e-12)
    with pytest.raises(Degenerate, match="x: 2 rows of other documents are needed, got 1; give more documents"):
        restrict_to_other_documents(IMBALANCE, torch.tensor([0, 0, 0, 1]))(x[:4], y[:4])


def test_a_pairing_moves_places_and_neighbours_alike():
    x, y = np.random.default_rng(2).normal(size=(2, 30, 4))
    order = torch.from_numpy(np.random.default_rng(3).permutation(30))
    state = IMBALANCE.permute(IMBALANCE.prepare(torch.from_numpy(y)), order)
    expected = IMBALANCE(x, y[order.numpy()])
    assert IMBALANCE.compare(IMBALANCE.prepare(torch.from_numpy(x)), state) == pytest.approx(expected, abs=1e-12)


def test_rows_that_a_large_feature_hides_keep_their_places():
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(2, 200, 5))
    far = np.where(rng.random(200) < 0.5, 1e6, -1e6)[:, None]
    given = [torch.from_numpy(np.hstack([side, far])) for side in (x, y)]
    sides = far[:, 0] > 0
    expected = []
    for i in range(200):
        others = [j for j in np.flatnonzero(sides == sides[i]) if j != i]
        of_x, of_y = (np.linalg.norm(z[others] - z[i], axis=1) for z in (x, y))
        expected.append(rankdata(of_x)[of_y.argmin()])
    found = float(compute_all_pairs({"m": IMBALANCE}, given)["m"][0, 1])
    assert found == pytest.approx(2 * np.mean(expected) / 200, abs=1e-3)


def test_the_numbers_of_dadapy():
    """Version 0.3.4, of these rows: what x says of y, and y of x."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(200, 5))
    y = np.hstack([x[:, :3], rng.normal(size=(200, 2))])
    assert (IMBALANCE(y, x), IMBALANCE(x, y)) == (pytest.approx(0.33535, abs=1e-9), pytest.approx(0.3197, abs=1e-9))


def test_a_plan_counts_all_pairs_of_rows():
    small, large = (np.array(IMBALANCE.work(rows)) for rows in (500, 1000))
    assert (large / small).tolist() == [4, 4]
