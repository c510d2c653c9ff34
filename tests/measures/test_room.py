"""Direct calls hold no more than a run does, and refuse rows whose distances do not fit."""

from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from repsim_cli import measures
from repsim_cli.base.errors import BadInput
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.measures import base

TILED = ("cka", "cka_unbiased", "cka_angular", "ensd", "distance_correlation", "gulp", "cka_rbf", "stress")


def sides(n, d=4):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d))
    return x, np.tanh(x) + rng.normal(size=(n, d))


@pytest.mark.parametrize("name", TILED)
def test_a_direct_call_uses_the_tiles_of_a_run(name, monkeypatch):
    """The same bits as a run on float64 rows, from tiles no larger."""
    x, y = sides(1100)
    asked = []
    original = base.compute_inner_products
    monkeypatch.setattr(base, "compute_inner_products", lambda *given: asked.append(given[3]) or original(*given))
    measure = measures.get(name)
    expected = compute_all_pairs({name: measure}, [torch.from_numpy(side) for side in (x, y)])[name]
    assert measure(x, y) == float(expected[0, 1])
    assert asked == [512]


def available(monkeypatch, size):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=size))


@pytest.mark.parametrize("name", ["rsa", "stress", "cka_rbf", "wasserstein", "riemannian", "gromov_wasserstein"])
def test_distances_that_do_not_fit_are_refused(name, monkeypatch):
    x, y = sides(300)
    available(monkeypatch, 1e6)
    expected = rf"^{name}: the distances between all rows need about 0\.\d\d GB, got 300 rows and 0\.00 GB available; "
    with pytest.raises(BadInput, match=expected + r"give at most \d+ rows$") as refused:
        measures.get(name)(x, y)
    fits = int(str(refused.value).split()[-2])
    assert 50 < fits < 300
    measures.get(name)(x[:fits], y[:fits])
    with pytest.raises(BadInput, match="give at most"):
        measures.get(name)(x[: fits + 1], y[: fits + 1])


@pytest.mark.parametrize("name", ["cka", "distance_correlation", "procrustes", "mutual_knn", "mutual_information"])
def test_others_need_no_room_for_distances(name, monkeypatch):
    available(monkeypatch, 1e3)
    measures.get(name)(*sides(60))


def test_a_bad_entry_far_down_is_named():
    x, y = sides(40_000)
    y[39_999, 1] = np.inf
    with pytest.raises(base.Degenerate, match="y: not finite, got inf in row 39999; fix the array"):
        measures.get("cka")(x, y)
