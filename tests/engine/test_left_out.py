"""How far values scatter by documents, from leaving out groups of them, against draws of documents."""

import numpy as np
import torch

import repsim_cli
from repsim_cli import measures
from repsim_cli.engine.left_out import (
    FEWEST,
    GROUPS,
    SMALL,
    Asked,
    divide_documents,
    list_spread_pairs,
    measure_left_out,
)
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.engine.scatter import MOST, SCATTER
from repsim_cli.runs import reader

NAMES = ("procrustes", "mean_cca", "linear_regression", "relative_l2", "ridge")


def observe(layers, documents, names=NAMES, closest=None, **given):
    chosen = {name: measures.get(name) for name in names}
    asked = Asked(list_spread_pairs(len(layers)), closest or {})
    found = measure_left_out(chosen, layers, np.asarray(documents), asked, **given)
    return {label: float(scatter) for (label, what), scatter in found.items() if what == SCATTER}


def test_it_is_the_spread_over_draws():
    """Pairs of layers share as much; over 40 draws a standard deviation is known to 0.11 of itself."""
    rng, of = np.random.default_rng(1), np.repeat(np.arange(30), 6)
    maps, values, found = [rng.normal(size=(6, 8)) for _ in range(8)], [], []
    names = NAMES[:4]
    chosen = {name: measures.get(name) for name in names}
    for _ in range(40):
        shared = rng.normal(size=(len(of), 6)) + rng.normal(size=(30, 6))[of]
        layers = [torch.from_numpy(shared @ each + 3 * rng.normal(size=(len(of), 8))).float() for each in maps]
        of_all = compute_all_pairs(chosen, layers)
        values.append([[float(of_all[name][i, i + 1]) for i in range(0, 8, 2)] for name in names])
        scatter = observe(layers, of, names)
        found.append([scatter[name] for name in names])
    apart = np.subtract(*np.array(values).T[[[0, 0, 1], [1, 2, 3]]]).std(-1, ddof=1) / np.sqrt(2)
    ratio = np.mean(found, 0) / apart.mean(0)
    assert ratio.min() > 0.75, ratio
    assert ratio.max() < 1.5, ratio


def test_what_has_none():
    layers, each = [torch.randn(40, 4, generator=torch.Generator().manual_seed(a)) for a in range(6)], np.arange(40)
    assert observe(layers, each).keys() == {*NAMES}
    assert not observe(layers, each % (FEWEST - 1))  # few documents
    assert not observe(layers, np.r_[np.zeros(37), 1, 2, 3])  # one holds nearly all rows, three share a group
    assert not observe(layers[:2], each)  # one value
    assert observe([torch.randn(40, 37) for _ in range(6)], each, ["linear_regression", "procrustes"]).keys() == {
        "procrustes"
    }  # R^2 of 36 rows of 37 features is 1
    many = [torch.randn(MOST + 1, 2) for _ in range(4)]
    assert not observe(many, np.arange(MOST + 1) // 5000, ["euclidean"])  # no document can stand for all
    alone = [layer if a else layer * 0 for a, layer in enumerate(layers)]  # the first one is constant
    assert observe(alone, each, ["procrustes"])["procrustes"] > 0


def test_some_documents_stand_for_all_of_many_rows():
    """Errors of four times as many rows are half as large; over ten groups each is known to about a fifth of itself."""
    draw = torch.Generator().manual_seed(0)
    ratios = []
    for _ in range(8):
        layers = [torch.randn(4 * MOST, 2, generator=draw) for _ in range(4)]
        few = observe([layer[:MOST] for layer in layers], np.arange(MOST), ["procrustes"])
        ratios.append(observe(layers, np.arange(4 * MOST), ["procrustes"])["procrustes"] / few["procrustes"])
    assert 0.35 < np.median(ratios) < 0.7, ratios


def test_few_large_layers_are_computed_as_often_as_the_map_at_most(monkeypatch):
    computed = []
    monkeypatch.setattr(
        "repsim_cli.engine.left_out.compute_all_pairs",
        lambda measures, layers, *_, **given: (
            computed.append(len(layers)) or compute_all_pairs(measures, layers, *_, **given)
        ),
    )
    layers, each = [torch.randn(64, SMALL // 64 + 1) for _ in range(9)], np.arange(64)
    assert observe(layers, each, ["euclidean"])
    assert computed == [4] * 6  # of 36 pairs six, six times
    computed.clear()
    assert not observe(layers[:7], each, ["euclidean"])
    assert observe([layer[:, :8] for layer in layers[:4]], each, ["euclidean"])
    assert computed == [4] * GROUPS


def test_documents_stay_whole_and_neighbours_together():
    documents = np.repeat(np.arange(23), np.random.default_rng(0).integers(1, 9, 23))
    groups = divide_documents(documents, GROUPS)
    assert np.unique(np.diff(groups)).tolist() == [0, 1]
    assert groups.max() == GROUPS - 1
    assert all(len(np.unique(groups[documents == document])) == 1 for document in range(23))
    assert np.ptp(np.bincount(groups)) <= 8


def test_a_run_concludes_by_it_but_for_measures_of_single_rows():
    rng = np.random.default_rng(0)
    stream = rng.normal(size=(3, 90, 6))
    models = {
        model: {f"{i}": each + (1.5 - 0.6 * i) * rng.normal(size=(90, 6)) for i, each in enumerate(stream)}
        for model in "ab"
    }
    names = ["procrustes", "largest_difference", "cka"]
    found = repsim_cli.compare(models, measures=names, settings={"extract.estimate": "full", "cache": False})
    scatter = {each.name: (each.chance or {}).get("scatter") for each in reader.read_results(found.folder).measures}
    assert scatter.pop("largest_difference") is None
    assert all(scatter.values()), scatter
    without = {"extract.estimate": "full", "cache": False, "significance.chance": False}
    found = repsim_cli.compare(models, measures=names[:1], settings=without)
    (measured,) = reader.read_results(found.folder).measures
    assert "scatter" not in (measured.chance or {})


def test_the_closest_layers_have_an_error_of_their_own():
    """Two unrelated layers that one document makes alike."""
    rng, of = np.random.default_rng(0), np.repeat(np.arange(20), 5)
    layers = [rng.normal(size=(100, 6)) for _ in range(8)]
    giant = rng.normal(size=(5, 6))
    for place in (2, 5):
        layers[place][:5] = 30 * giant
    asked = Asked(list_spread_pairs(8), {"procrustes": [(2, 5)]})
    found = measure_left_out(
        {"procrustes": measures.get("procrustes")}, [torch.from_numpy(each) for each in layers], of, asked
    )
    assert found["procrustes", "closest"] > 2 * found["procrustes", SCATTER]


def test_a_plan_names_the_measures_and_what_it_takes(repsim):
    words = "run", "model=[tiny_a,tiny_b]", "measure=[cka,procrustes]", "extract.estimate=full", "dry_run=true"
    planned = [repsim(*words, *more)[1] for more in ((), ("significance.chance=false",))]
    assert "errors, from leaving out groups of documents: procrustes\n" in planned[0]
    assert [text.count("    errors: ") for text in planned] == [2, 0]  # operations and time


def test_a_plan_of_parallel_texts_has_the_time_of_errors(repsim):
    words = "run", "-q", "experiment=tiny/parallel", "measure=[procrustes]", "dry_run=true"
    assert repsim(*words)[1].count("    errors: ") == 2  # operations and time
