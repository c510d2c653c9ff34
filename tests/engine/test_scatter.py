"""How far values of layers lie apart by the documents that were drawn, against draws of documents."""

import numpy as np
import pytest
import torch

from repsim_cli import measures
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.engine.scatter import (
    MOST,
    choose_clusters,
    compute_chosen_shares,
    compute_document_shares,
    compute_influence,
    find_closest_layers,
    measure_scatter,
    read_scatter,
)


def observe(name, layers, documents, models=()):
    found = {}

    def watch(label, measure, prepared, values):
        found.update(measure_scatter(measure, prepared, values, documents, models=models))

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
    assert observe("cka", layers[:1], each)[1] == observe("cka", layers[:2], each)[1] == {}  # no two values
    assert observe("cka", layers, each * 0)[1] == {}  # one document
    assert observe("mutual_knn", layers, each * 0)[1] == {}
    assert observe("cka", layers, each)[1].keys() == {"scatter", "freedom", "documents"}
    assert observe("cka", layers, each, [slice(0, 2), slice(2, 6)])[1].keys() == {
        "scatter",
        "freedom",
        "documents",
        "closest",
    }
    many = [torch.randn(MOST + 1, 2) for _ in range(3)]
    assert observe("cka", many, np.arange(MOST + 1) // 5000)[1] == {}  # no document can stand for all


def test_the_closest_layers_have_an_error_of_their_own():
    """Five giant rows, one of them in the same place of both, bring two layers together."""
    rng, models, each = np.random.default_rng(2), [slice(0, 3), slice(3, 6)], np.arange(60)
    layers = [torch.from_numpy(rng.normal(size=(60, 8))).float() for _ in range(6)]
    layers[1][:5] *= 20
    layers[5][4:9] *= 20
    values, found = observe("cka", layers, each, models)
    assert find_closest_layers(values, models) == [(1, 5)]
    assert found["documents"] == 60
    assert found["closest"] > 3 * found["scatter"]
    assert 2 * found["closest"] > values[1, 5]
    _, of_rows = observe("mutual_knn", layers, each, models)
    assert 0.2 < of_rows["closest"] / of_rows["scatter"] < 5


def test_few_documents_and_few_large_ones_have_few_degrees_of_freedom():
    """Each of three differences has as many as documents but one, fewer where one document has giant rows or most of
    the rows."""
    rng = np.random.default_rng(5)
    layers = [torch.from_numpy(rng.normal(size=(200, 6))).float() for _ in range(4)]
    assert observe("cka", layers, np.arange(200) // 5)[1]["freedom"] > 40
    assert observe("cka", layers, np.arange(200) // 50)[1]["freedom"] == 9
    assert observe("cka", layers, np.maximum(np.arange(200) - 150, 0) // 5)[1]["freedom"] == 1
    giant = [torch.cat([20 * layer[:5], layer[5:]]) for layer in layers]
    assert observe("cka", giant, np.arange(200) // 5)[1]["freedom"] < 5


@pytest.mark.parametrize("name", ["cka", "cka_unbiased", "rsa"])
@pytest.mark.parametrize("of", [1, 5])
def test_some_documents_stand_for_all_of_many_rows(name, of):
    """A fifth of them, of which the root of their squares is known to 0.1 of itself."""
    rng, n = np.random.default_rng(3), 900
    shared = rng.normal(size=(n, 6)) + rng.normal(size=(n // of, 6)).repeat(of, 0)
    layers = [torch.from_numpy(shared @ rng.normal(size=(6, 9)) + rng.normal(size=(n, 9))).float() for _ in range(4)]
    found = {}

    def watch(label, measure, prepared, values):
        for most in (n, 400):
            found[most] = read_scatter(measure_scatter(measure, prepared, values, np.arange(n) // of, most))["scatter"]

    compute_all_pairs({name: measures.get(name)}, layers, observe=watch, tile=64)
    assert found[400] != found[n]
    assert 0.7 < found[400] / found[n] < 1.4


def test_the_chosen_documents_have_their_own_influence():
    rng, n = np.random.default_rng(4), 300
    layers = [torch.from_numpy(rng.normal(size=(n, 5))).float() for _ in range(3)]
    clusters, shares = np.arange(n) // 3, {}

    def watch(label, measure, prepared, values):
        chosen = choose_clusters(clusters, 0.3)
        shares["all"] = compute_document_shares(prepared, clusters)[torch.from_numpy(chosen)]
        shares["some"] = compute_chosen_shares(prepared, clusters, chosen)

    compute_all_pairs({"cka_unbiased": measures.get("cka_unbiased")}, layers, observe=watch, tile=7)
    torch.testing.assert_close(shares["some"], shares["all"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("documents", [None, torch.arange(40) // 4])
def test_the_influence_is_the_same_in_tiles_of_any_size(documents):
    layers, found = [torch.randn(40, 6, generator=torch.Generator().manual_seed(a)) for a in range(3)], []
    for tile in (7, 40):

        def watch(label, measure, prepared, values):
            found.append(compute_influence(prepared, values, np.arange(40) // 3))

        given = {"tile": tile, "documents": documents, "observe": watch}
        compute_all_pairs({"m": measures.get("cka_unbiased")}, layers, **given)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-7)
