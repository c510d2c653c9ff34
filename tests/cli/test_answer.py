"""The screen that a comparison of two models ends with: one sentence, chance, which layers, warnings beside numbers."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from repsim_cli.api.entries import label_entries
from repsim_cli.base.errors import BadInput
from repsim_cli.cli.answer import is_about_measure, say_closest_layers, wrap_sentence
from repsim_cli.cli.plan import _say_memory_room, plan_in_short
from repsim_cli.findings.answering import Sides
from repsim_cli.findings.sentences import find_least_lead
from repsim_cli.runs.content import Measured


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Two models of three layers, the deeper the more alike, one of five, and one that shares nothing."""
    folder, draw = tmp_path_factory.mktemp("stored"), np.random.default_rng(0)
    layers = {f"resid_post@{i}": draw.normal(size=(120, 5)) for i in range(3)}
    noise = {name: draw.normal(size=(120, 5)) for name in layers}
    near = {name: x + scale * noise[name] for (name, x), scale in zip(layers.items(), (3, 1, 0.2), strict=True)}
    five = {f"resid_post@{i}": layers[f"resid_post@{place}"] for i, place in enumerate((0, 0, 1, 2, 2))}
    other = {name: draw.normal(size=(120, 5)) for name in layers}
    for name, arrays in {"one/final": layers, "two/final": near, "five": five, "other": other}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


def test_the_same_layer_comes_first(repsim, newest, stored):
    code, out, err = repsim("compare", stored / "one/final.npz", stored / "two/final.npz", "--measure", "cka_unbiased")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[1].startswith("  one and two are more alike with depth: CKA (unbiased) 0.")
    assert " in block 0 and 0.9" in lines[1]
    assert "; chance at most " in " ".join(lines[1:3])
    assert any(line.startswith("    same layer (resid_post by block): 0 0.") for line in lines)
    assert "    best match: the same layer for 3 of 3" in lines
    assert any(line.startswith("    closest: block 2 of one and block 2 of two, 0.9") for line in lines)
    assert any(line.startswith("    furthest: block ") for line in lines)
    assert "see repsim show" not in out
    assert err.startswith("plan: 6 layers, 120 rows at most, roughly ")


def test_models_of_another_depth_are_a_path(repsim, newest, stored):
    names = ("--names", "base, deep")
    code, out, err = repsim(
        "compare", stored / "one/final.npz", stored / "five.npz", *names, "--measure", "cka,procrustes"
    )
    assert code == 0, err
    told = " ".join(out.split())
    assert (
        "base and deep are about as alike at every depth: best matches, CKA (biased) 1.00 at every layer of base;"
        in told
    )
    assert "agrees: best matches, " in told
    assert "(smaller is closer); chance at least " in told
    table = out[out.index("    best matches:") :].splitlines()[1:5]
    assert [line.split("  ")[3].strip() for line in table] == ["base", "block 0", "block 1", "block 2"]
    assert [line.split()[2:4] for line in table[1:]] == [["block", "0"], ["block", "2"], ["block", "3"]]
    code, _, err = repsim("export", newest(), "--csv", "--latex")
    assert code == 0, err
    rows = list(csv.DictReader((newest() / "export" / "answering.csv").read_text().splitlines()))
    assert [(row["layer"], row["closest_layer"]) for row in rows[:3]] == [
        ("resid_post@0", "resid_post@0"),
        ("resid_post@1", "resid_post@2"),
        ("resid_post@2", "resid_post@3"),
    ]
    assert len(rows) == 2 * (3 + 5)
    assert "cka & base & 1 & deep & 2 & 1.000 & " in (newest() / "export" / "answering.tex").read_text()


def test_nothing_beyond_chance_is_said(repsim, stored):
    code, out, err = repsim("compare", stored / "five.npz", stored / "other.npz", "--measure", "cka_unbiased")
    assert code == 0, err
    assert "five and other have nothing in common beyond chance: best matches, CKA" in " ".join(out.split())


def test_warnings_stand_beside_what_they_are_about(repsim, newest, stored, tmp_path):
    few = {f"h{i}": np.random.default_rng(i).integers(0, 2, size=(20, 2)).astype(float) for i in range(2)}
    np.savez(tmp_path / "few.npz", **few)
    code, out, err = repsim(
        "compare", tmp_path / "few.npz", tmp_path / "few.npz", "--measure", "cka_unbiased,mutual_knn"
    )
    assert code == 0, err
    warnings = json.loads((newest() / "manifest.json").read_text())["warnings"]
    assert all(f"warning: {text}" in out for text in warnings)
    of_neighbours = next(text for text in warnings if "several equally near rows" in text)
    assert of_neighbours.startswith("mutual_knn: ")
    assert out.index("  mutual_knn: mutual k-NN") < out.index(f"    warning: {of_neighbours}")
    assert is_about_measure("extract: x", "cka", ["cka"])
    assert not is_about_measure("cka_unbiased: x", "cka", ["cka", "cka_unbiased"])


@pytest.mark.parametrize("names", ["a", "a,a", "a,b,c", "a,b/c", "a,"])
def test_names_that_cannot_be_labels(repsim, stored, names):
    code, out, err = repsim("compare", stored / "five.npz", stored / "other.npz", "--names", names)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: names: 2 different ones are needed, got '{names}'; write them with")


def test_labels_are_the_last_parts_that_differ():
    assert list(label_entries(["x/a/final", "y/b/final", "c"])) == ["a", "b", "c"]
    assert list(label_entries(["a/m.gguf", "b/m.gguf"])) == ["a", "b"]
    assert list(label_entries(["final", "run/final"])) == ["final", "run"]
    assert list(label_entries([3, 4])) == ["int", "int_2"]
    with pytest.raises(BadInput, match="names: 2 different ones are needed, got 'x'"):
        label_entries(["a", "b"], ["x"])


def test_a_plan_in_a_line():
    assert plan_in_short({}) == "plan: "


def test_a_plan_says_what_takes_the_memory_that_is_not_there():
    memory = {"weights": 1.0, "rows": 9.0, "in all": 10.0, "limit": 12.0}
    assert _say_memory_room(memory, 8.0) == [
        "  memory: 10.0 GB do not fit into the 8.0 GB that are free now; rows take 9.0 GB of them: take fewer rows "
        "(extract.sequences, extract.rows, extract.batch_rows)"
    ]
    assert _say_memory_room({**memory, "limit": 4.0}, 11.0)[0].startswith(
        "  memory: 10.0 GB do not fit into the 4.0 GB that the run may use; rows take"
    )
    assert _say_memory_room({}, 1.0) == []


def test_a_lead_within_the_noise_is_not_told_apart():
    values = np.array([[0.9, 0.89, 0.1], [0.1, 0.5, 0.9]])
    card = {"bounds": (0.0, 1.0), "symmetric": True, "larger_is_closer": True}

    def say(least):
        sides = Sides("a", "b", ["resid_post@0", "resid_post@1"], ["x", "y", "z"], values, None, True)
        return list(say_closest_layers(sides, str, ".2f", least))[2:]

    assert say(0.0) == ["      resid_post@0  x  0.90, 0.01 ahead", "      resid_post@1  z  0.90, 0.4 ahead"]
    measured = Measured(
        name="m", label="m", settings={}, estimate={}, card=card, matrices=[], chance={"scatter": 0.005}
    )
    least = find_least_lead(measured, Sides("a", "b", "xy", "pqr", values, None, True))
    assert least == pytest.approx(0.02, rel=0.2)
    assert say(least)[0].endswith("0.90, within error x and y")
    assert say(least)[1].endswith("0.90, 0.4 ahead")
    unknown = replace(measured, chance={"spread": 0.005})
    assert find_least_lead(unknown, Sides("a", "b", "xy", "pqr", values, None, True)) is None
    assert say(None)[1].endswith("0.90, 0.4 ahead (error not known)")


def test_a_sentence_shows_tabs_and_ends_of_lines_of_labels_as_codes():
    assert wrap_sentence("a\tb and c\nd are alike") == ["  a\\tb and c\\nd are alike"]
