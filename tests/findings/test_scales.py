"""Similarity over scale: planted curves and their areas, and a list in place of a number in a run."""

from dataclasses import replace

import numpy as np
import pytest

from repsim_cli.base.errors import BadConfig
from repsim_cli.config.parts import expand_value_lists
from repsim_cli.findings.analysis import Finished, LayerMap, Planned
from repsim_cli.findings.scales import Scales, draw_figures, find_scale_families, is_swept, scales
from repsim_cli.runs import reader
from repsim_cli.runs.content import Measured, Results


def layers_of(k, value, places):
    """Corresponding layers are as alike as the value, others not at all."""
    depth = np.concatenate([np.linspace(0, 1, place.stop - place.start) for place in places.values()])
    card = {"label": "k-NN", "larger_is_closer": True}
    settings = {"k": k, "rows": "centred"}
    measured = Measured(name="mutual_knn", label=f"knn{k}", settings=settings, estimate={}, card=card, matrices=[])
    names = [f"resid_post@{i}" for place in places.values() for i in range(place.stop - place.start)]
    return LayerMap(measured, value * (abs(depth[:, None] - depth) < 0.2), names, [8] * len(depth), places)


def finished(tmp_path, places, values):
    run = Finished(folder=tmp_path, manifest={"facts": {}}, results=Results(study="similarity"))
    run.__dict__["maps"] = {f"knn{k}": layers_of(k, value, places) for k, value in values.items()}
    return run


def test_a_planted_curve_and_its_area(tmp_path):
    """Models of 3 and 5 layers, whose k are given in another order."""
    run = finished(tmp_path, {"a": slice(0, 3), "b": slice(3, 8)}, {100: 0.2, 1: 0.4, 10: 0.8})
    part = scales(run, Scales(), [])
    (row,) = part.tables["similarity over scale"].rows
    assert row[:6] == ["mutual_knn", "k", 1, 100, "a", "b"]
    assert row[6] == pytest.approx((0.4 / 2 + 0.8 + 0.2 / 2) / 2)
    assert row[7:] == [None, pytest.approx(0.4), pytest.approx(0.2)]
    (curve,) = part.curves.values()
    assert (curve.at, list(curve.lines)) == ([1, 10, 100], ["a and b"])
    run.results.curves["knn over k"] = replace(curve, analysis="scales")
    ((name, draw),) = draw_figures(run, True)
    assert name.startswith("over-scale-")
    draw()


def test_one_model_is_read_over_each_layer_and_the_next(tmp_path):
    run = finished(tmp_path, {"a": slice(0, 11)}, {1: 0.4, 2: 0.8, 3: 0.8})
    (row,) = scales(run, Scales(), []).tables["similarity over scale"].rows
    assert row[4:7] == ["a", "a", pytest.approx(0.7)]


def test_two_values_are_no_curve():
    entries = {f"knn{k}": ("mutual_knn", {"k": k, "rows": rows}) for k, rows in ((1, "a"), (2, "a"), (3, "b"))}
    assert find_scale_families(entries) == []
    planned = Planned(study="similarity", models={}, measures={}, groups={}, base=None, settings=entries)
    assert not is_swept(planned)


def test_a_list_in_place_of_a_number():
    assert expand_value_lists({"knn": {"kind": "mutual_knn", "k": [5, 10]}, "cka": {"kind": "cka"}}) == {
        "knn_k5": {"kind": "mutual_knn", "k": 5},
        "knn_k10": {"kind": "mutual_knn", "k": 10},
        "cka": {"kind": "cka"},
    }
    with pytest.raises(BadConfig, match=r"measure.x: several lists, got a, b; give one number a list"):
        expand_value_lists({"x": {"kind": "x", "a": [1], "b": [2]}})
    with pytest.raises(BadConfig, match=r"measure.x.a: an empty list; give numbers, or one"):
        expand_value_lists({"x": {"kind": "x", "a": []}})


@pytest.mark.slow
@pytest.mark.drawn
def test_a_run_over_scales(repsim, newest):
    words = [
        "run", "model=[tiny_a,tiny_b]", "measure=[mutual_knn]", "extract.sequences=12", "extract.length=32",
        "extract.layers=[1,4]", "hardware.threads=1",
    ]  # fmt: skip
    code, _, err = repsim(*words, "measure.mutual_knn.k=[2,5,20]")
    assert code == 0, err
    found = reader.read_results(newest())
    assert [measured.label for measured in found.measures] == [f"mutual_knn_k{k}" for k in (2, 5, 20)]
    (row,) = found.tables["similarity over scale"].rows
    assert row[:6] == ["mutual_knn", "k", 2, 20, "tiny_a", "tiny_b"]
    assert 0 < row[7] < row[6] < 1
    code, _, err = repsim("run", "--from", str(newest()), "dry_run=true")
    assert code == 0, err
    code, _, err = repsim(*words, "measure.mutual_knn.k=[2,0]")
    assert code == 2
    assert "measure.mutual_knn.k: wrong value, got 0" in err
