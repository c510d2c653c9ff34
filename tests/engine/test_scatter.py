"""How far values of layers lie apart by the documents that were drawn, against draws of documents."""

import numpy as np
import pytest
import torch

from repsim_cli import measures
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.engine.scatter import MOST, compute_influence, measure_scatter, read_scatter


def observe(name, layers, documents):
    found = {}

    def watch(label, measure, prepared, values):
        found.update(measure_scatter(measure, prepared, values, documents))

    values = compute_all_pairs({name: measures.get(name)}, layers, observe=watch)[name]
    return values, read_scatter(found)


@pytest.mark.parametrize("name", ["cka_unbiased", "mutual_knn"])
@pytest.mark.parametrize(("rows", "documents", "topic"), [(150, 150, 0.0), (300, 30, 1.0)])
def test_it_is_the_spread_over_draws(name, rows, documents, topic):
    """Pairs of layers share as much; over 40 draws a standard deviation is known to 0.11 of itself."""
    rng, of = np.random.default_rng(1), np.repeat(np.arange(documents), rows // documents)
    maps = [rng.normal(size=(16, 32)) for _ in range(8)]
    values, found = [], []
    for _ in range(40):
        shared = rng.normal(size=(rows, 16)) + topic * rng.normal(size=(documents, 16))[of]
        layers = [torch.from_numpy(shared @ each + 2 * rng.normal(size=(rows, 32))).float() for each in maps]
        of_all, scatter = observe(name, layers, of)
        values.append([float(of_all[i, i + 1]) for i in range(0, 8, 2)])
        found.append(scatter["scatter"])
    apart = np.subtract(*np.array(values).T[[[0, 0, 1], [1, 2, 3]]]).std(1, ddof=1) / np.sqrt(2)
    assert 0.6 <= apart.mean() / np.mean(found) <= 1.4


def test_what_has_none():
    layers = [torch.randn(20, 4) for _ in range(6)]
    each = np.arange(20)
    assert observe("procrustes", layers, each)[1] == {}  # no mean over rows
    assert observe("cka", layers[:2], each)[1] == {}  # one value
    assert observe("cka", layers, each * 0)[1] == {}  # one document
    assert observe("mutual_knn", layers, each * 0)[1] == {}
    assert observe("cka", layers, each)[1].keys() == {"scatter"}
    many = [torch.randn(MOST + 1, 2) for _ in range(3)]
    assert observe("cka", many, np.arange(MOST + 1))[1] == {}  # products of features give these, without any cell


@pytest.mark.parametrize("documents", [None, torch.arange(40) // 4])
def test_the_influence_is_the_same_in_tiles_of_any_size(documents):
    layers, found = [torch.randn(40, 6, generator=torch.Generator().manual_seed(a)) for a in range(3)], []
    for tile in (7, 40):

        def watch(label, measure, prepared, values):
            found.append(compute_influence(prepared, values, np.arange(40) // 3))

        given = {"tile": tile, "documents": documents, "observe": watch}
        compute_all_pairs({"m": measures.get("cka_unbiased")}, layers, **given)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-7)
