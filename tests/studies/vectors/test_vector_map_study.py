"""The study of maps between vectors: its page, its files, what users do and get wrong."""

import errno
import json
import os
import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors
import safetensors.numpy
from helpers.planted_vector_maps import FITTED, HELD, D, planted
from helpers.recorded import recorded

import repsim_cli
from repsim_cli.base import files
from repsim_cli.studies.vectors.fits import KINDS, centre_pair
from repsim_cli.studies.vectors.readers import LabelledRows, has_two_classes, score_largest_class, score_readers
from repsim_cli.studies.vectors.scores import (
    DIRECTION,
    MAIN,
    PROBE,
    VECTOR_MAPS,
)
from repsim_cli.studies.vectors.stored import load_map

PAGE = Path(__file__).parents[3] / "docs" / "how_to" / "keep_vectors.md"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """What the page begins with: rows of the same texts by an old and a new model, and a store of old rows."""
    monkeypatch.chdir(tmp_path)
    x, y, _ = planted(0.3, 0, n=120)
    np.save("old.npy", x.astype(np.float32))
    np.save("new.npy", y.astype(np.float32))
    keys = [f"t{i}" for i in range(50)]
    pq.write_table(pa.table({"id": keys, "vector": list(x[:50].astype(np.float32))}), "store.parquet")
    Path("texts.csv").write_text("\n".join(["text", *(f"some words of text {i} and {i * i}" for i in range(120))]))
    return tmp_path


@pytest.mark.slow
def test_the_page_can_be_followed(repsim, place):
    """Each command that it prints, one after the other."""
    page = PAGE.read_text()
    commands = [
        shlex.split(line.removeprefix("$ repsim "))
        for block in re.findall(r"```console\n(.*?)```", page, re.S)
        for line in block.replace("\\\n", " ").splitlines()
    ]
    assert [command[:2] for command in commands[:2]] == [["map", "fit"], ["map", "apply"]]
    for command in commands:
        code, out, err = repsim(*command)
        assert code == 0, err
        assert out
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    given = {"old": np.load("old.npy"), "new": np.load("new.npy")}
    exec(block, given)
    mapped = pq.read_table("mapped.parquet")
    assert mapped["id"].to_pylist() == [f"t{i}" for i in range(50)]
    fitted = load_map("map.safetensors")
    rows = np.array(mapped["vector"].to_pylist())
    assert rows == pytest.approx(fitted(given["old"][:50]), abs=1e-5)
    assert np.square(rows - given["new"][:50]).mean() < 0.2


def test_a_column_may_be_numbered_and_rows_that_stand_twice_are_said(repsim, tmp_path, monkeypatch, newest):
    """A number is a place, whatever names the first line has, which here is an example: its label is 0."""
    monkeypatch.chdir(tmp_path)
    Path("labelled.tsv").write_text(
        "".join(f"some words of text {i} and {i * i}\t{i % 40}\t{i % 2}\n" for i in range(60))
    )
    fit = ("map", "fit", "tiny_a_step400", "tiny_a", "--data", "labelled.tsv", "--kind", "rotation", "--column")
    for column, copied in (("0", False), ("1", True)):
        code, _, err = repsim(*fit, column)
        assert code == 0, err
        assert ("of 'tiny_a' are copies of other" in err) == copied, err
        held, documents = recorded(newest())["tables"][VECTOR_MAPS]["rows"][-1][7:9]
        assert documents == (8 if copied else 12)
        assert held > 8 if copied else held == 12  # no copy of a held-out text is fitted
    code, _, err = repsim(*fit, "2")
    assert (code, "data: too few different documents, got 2 to fit on" in err) == (2, True), err


def fill_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.slow
def test_a_map_keeps_its_record_and_is_checked(repsim, place, newest, monkeypatch):
    code, out, err = repsim("map", "fit", "old.npy", "new.npy", "--kind", "ridge,rotation", "--out", "map.safetensors")
    assert code == 0, err
    fitted = load_map("map.safetensors")
    assert {"kind", "from", "to", "counts", "held out", "seed", "sha256", "repsim"} <= {*fitted.record}
    assert (fitted.record["from"]["model"], fitted.record["to"]["model"]) == ("old", "new")
    assert fitted.record["counts"] == {"rows": 96, "documents": 96, "rows held out": 24, "documents held out": 24}
    assert f"recall@10 of new neighbours  {fitted.record['held out'][MAIN]['value']:.3f}" in out
    table = recorded(newest())["tables"][VECTOR_MAPS]
    assert {row[4] for row in table["rows"]} == {"ridge", "rotation", "chance", "as they are", "all rows made anew"}
    again = repsim_cli.fit_map("old.npy", "new.npy", kinds=["ridge"])[0]
    assert repr(again) == f"<repsim map (ridge) from rows of old to rows of new, {D} to {D} numbers>"
    (ridge,) = (load_map(file) for file in (newest() / "maps").glob("ridge*"))
    assert again.record["held out"] == ridge.record["held out"]
    assert np.array_equal(again.weight, ridge.weight)
    with safetensors.safe_open("map.safetensors", framework="numpy") as archive:
        about = archive.metadata()
    safetensors.numpy.save_file({"weight": fitted.weight * 2, "bias": fitted.bias}, "changed.safetensors", about)
    safetensors.numpy.save_file({"rows": np.load("old.npy"), "number": np.arange(3)}, "rows.safetensors")
    safetensors.numpy.save_file({"weight": fitted.weight * np.inf, "bias": fitted.bias}, "infinite.safetensors", about)
    np.save("wide.npy", np.ones((3, 5), np.float32))
    np.save("none.npy", np.ones((0, D), np.float32))
    np.save("objects.npy", np.array([{}, 1]), allow_pickle=True)
    safetensors.numpy.save_file({"rows": np.ones((0, D), np.float32)}, "none-of-it.safetensors")
    table = pq.read_table("store.parquet")
    pq.write_table(table[:0], "none.parquet")
    np.save("nan.npy", np.full((3, D), np.nan, np.float32))
    code, _, err = repsim("map", "apply", "map.safetensors", "rows.safetensors", "mapped.safetensors")
    assert code == 0, err
    mapped = safetensors.numpy.load_file("mapped.safetensors")
    assert mapped["rows"] == pytest.approx(repsim_cli.apply_map("map.safetensors", np.load("old.npy")), abs=1e-6)
    assert mapped["number"].tolist() == [0, 1, 2]
    for words, problem in (
        (("apply", "none.safetensors", "old.npy", "o.npy"), "map: no such file, got 'none.safetensors'"),
        (
            ("apply", "rows.safetensors", "old.npy", "o.npy"),
            "rows.safetensors: not a map of repsim map fit, got number",
        ),
        (("apply", "old.npy", "old.npy", "o.npy"), "old.npy: not a map of repsim map fit"),
        (("apply", "changed.safetensors", "old.npy", "o.npy"), "a map that was changed after it was written"),
        (
            ("apply", "infinite.safetensors", "old.npy", "o.npy"),
            "infinite.safetensors: not a map of repsim map fit, got a",
        ),
        (("apply", "map.safetensors", "wide.npy", "o.npy"), "rows: numbers (n, 16) are mapped, got float32 (3, 5)"),
        *(
            (
                ("apply", "map.safetensors", name, f"o{Path(name).suffix}"),
                f"rows: no row to map, got a file without rows in '{name}'",
            )
            for name in ("none.npy", "none-of-it.safetensors", "none.parquet")
        ),
        (("apply", "map.safetensors", "objects.npy", "o.npy"), "numbers, got 'objects.npy' (Python objects); write it"),
        (("apply", "map.safetensors", "nan.npy", "o.npy"), "rows: numbers must be finite, got others in row 0"),
        (("apply", "map.safetensors", "old.npy", "o.parquet"), "out: a .npy file in a folder that exists is written"),
        (("apply", "map.safetensors", "texts.csv", "o.csv"), "rows: unknown kind of file, got 'texts.csv'"),
        (("apply", "map.safetensors", "gone.npy", "o.npy"), "rows: no such file, got 'gone.npy'"),
        (("apply", "map.safetensors", "old.npy", "new.npy"), "out: the file exists, got 'new.npy'"),
        (("apply", "map.safetensors", "store.parquet", "o.parquet", "--array", "id"), "no such array in"),
        (
            ("apply", "map.safetensors", "changed.safetensors", "o.safetensors", "--array", "bias"),
            "rows: numbers (n, 16)",
        ),
        (("fit", "old.npy", "gone.npy"), "model.gone.path: no such file, got 'gone.npy'"),
        (("fit", "old.npy", "wide.npy"), "rows must be paired"),
        (("fit", "old.npy", "new.npy", "--kind", "rige"), "options.kinds: no such kind of map, got 'rige'"),
        (("fit", "old.npy", "new.npy", "--layers", "rows"), "options.layers: not a pair of layers, got ['rows']"),
        (("fit", "old.npy", "new.npy", "--layers", "rows,row"), "options.layers: not read, got 'row'; did you mean"),
        (
            ("fit", "old.npy", "new.npy", "--set", "options.train_share=0.99"),
            "data: too few different documents, got 119 to fit",
        ),
        (("fit", "old.npy", "new.npy", "--data", "texts.csv"), "data: only models that run take it, got 'texts.csv'"),
        (("fit", "old.npy", "new.npy", "--column", "text"), "--column: only for a table, got 'text' without one"),
        (("fit", "old.npy", "new.npy", "--out", "map.bin"), "map: it is written as .safetensors"),
        (("fit", "old.npy", "new.npy", "--out", "map.safetensors"), "--out: the file exists, got 'map.safetensors'"),
        (("fit", "old.npy", "new.npy", "--set", "extract.estimate=per_batch"), "extract.estimate: maps are fitted on"),
    ):
        code, _, err = repsim("map", *words)
        assert (code, err.count("\n"), "Traceback" in err) == (2, 1, False), (words, err)
        assert problem in err, err
    monkeypatch.setattr(os, "posix_fallocate", fill_disk)
    code, _, err = repsim("map", "apply", "map.safetensors", "old.npy", "o.npy")
    assert (code, err) == (2, f"error: o.npy: cannot be used, got '{os.strerror(errno.ENOSPC)}'; {files.ROOM}\n")
    assert not list(place.glob(".*.partial"))
    code, _, err = repsim("run", "study=vector_map", "model=[tiny_a]", "extract=pooled")
    assert code == 2
    assert "model: two are needed, the old one first, got 1" in err


def test_models_have_the_names_and_texts_the_column_that_are_given(repsim, place):
    Path("said.csv").write_text(Path("texts.csv").read_text().replace("text\n", "said\n", 1))
    words = ("--data", "said.csv", "--column", "said", "--names", "before,after", "--kind", "ridge")
    code, out, err = repsim(
        "map",
        "fit",
        "tiny_a_step400",
        "tiny_a",
        *words,
        "--layers",
        "resid_post@3,resid_post@5",
        "--out",
        "one.safetensors",
    )
    assert code == 0, err
    record = load_map("one.safetensors").record
    assert [(record[side]["model"], record[side]["layer"]) for side in ("from", "to")] == [
        ("before", "resid_post@3"),
        ("after", "resid_post@5"),
    ]
    assert record["counts"]["documents"] + record["counts"]["documents held out"] == 120
    (written,) = [line.split(": ")[1] for line in out.splitlines() if line.startswith("  written: ")]
    assert written == "one.safetensors"
    (run,) = [line.split(": ")[1] for line in out.splitlines() if line.startswith("  run: ")]
    assert f"  {next((Path(run) / 'maps').iterdir())}" in out.splitlines()
    assert out.count("  warning: ") == out.count("rows that follow each other are alike (before") == 1  # they count up


@pytest.mark.slow
@pytest.mark.drawn
def test_models_are_mapped_too(repsim, newest):
    """Two steps of a training, at two layers: the map is better than vectors as they are, and the figure is drawn."""
    small = ("extract.sequences=100", "extract.length=32", "extract.layers=[4,5]", "options.kinds=[ridge]")
    code, out, err = repsim("run", "experiment=tiny/vector_map", *small, "hardware.threads=1")
    assert code == 0, err
    found = recorded(newest())
    for layer in ("resid_post@4", "resid_post@5"):
        name = f"tiny_a_step400 {layer} to tiny_a {layer}"
        assert f"{name}: mapped by ridge they find 0." in out
        rows = {
            (row[4], row[5]): row[10]
            for row in found["tables"][VECTOR_MAPS]["rows"]
            if row[1] == layer and row[9] == MAIN
        }
        assert rows["all rows made anew", 0] == 1.0
        assert rows["chance", 0] == pytest.approx(10 / 19)
        assert rows["ridge", 80] > rows["as they are", 0]
    record = json.loads(json.dumps(load_map(next((newest() / "maps").iterdir())).record))
    assert record["from"]["weights_hash"]
    assert record["data"]["hash"]
    assert len(list((newest() / "figures").glob("maps-*.png"))) == 2


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_probes_and_directions_are_carried_over_by_the_true_rotation(noise):
    """Probes are as right as they were where nothing is lost; not without the map."""
    x, y, _ = planted(noise, 3)
    classes = (x[:, 0] + 0.5 * x[:, 1] > 0).astype(int) * 4 + 3  # codes of any kind
    half, documents = (slice(FITTED), slice(FITTED, None)), np.arange(HELD)
    fit = KINDS["rotation"](centre_pair(x[half[0]], y[half[0]]), D)
    on = {side: LabelledRows(rows[half[1]], classes[half[1]]) for side, rows in (("old", x), ("new", y))}

    def found(rows, side):
        return score_readers(LabelledRows(rows, classes[half[0]]), on[side], documents)

    before, after = found(x[half[0]], "old"), found(fit(x[half[0]]), "new")
    anew, unmapped = found(y[half[0]], "new"), found(x[half[0]], "new")
    for name in (PROBE, DIRECTION):
        assert before[name].value > 0.85
        assert after[name].value == pytest.approx((anew if noise else before)[name].value, abs=0.05 if noise else 0.01)
        assert unmapped[name].value < before[name].value - 0.2
        assert after[name].low < after[name].value < after[name].high
    three = np.arange(len(x)) % 3
    assert set(score_readers(LabelledRows(x, three), LabelledRows(x, three), np.arange(len(x)))) == {PROBE}


def test_two_rows_of_each_of_two_classes_are_enough_for_a_probe():
    for fitted, enough in (([3, 3, 5, 5], True), ([3, 3, 3, 5], False), ([3, 3], False)):
        assert has_two_classes(np.array(fitted)) == enough


def test_the_largest_class_is_that_of_the_fitted_rows():
    """Two of five held-out rows have it, though another has more of these; there is no direction between three."""
    held_out, documents = LabelledRows(np.zeros((5, 2)), np.array([4, 4, 7, 7, 7])), np.arange(5)
    for fitted, scores in (([4, 7, 4], {PROBE, DIRECTION}), ([4, 7, 4, 9], {PROBE})):
        found = score_largest_class(np.array(fitted), held_out, documents)
        assert set(found) == scores
        assert all(each.value == 0.4 for each in found.values())


def test_a_run_on_labelled_data_says_what_a_probe_is_worth(repsim, newest):
    code, out, err = repsim(
        "run", "study=vector_map", "model=[tiny_a_step400,tiny_a]", "data=overlap_nli", "data.examples=120",
        "extract=pooled", "extract.layers=[-1]", "extract.length=40", "extract.sequences=120", "options.kinds=[ridge]",
    )  # fmt: skip
    assert code == 0, err
    rows = json.loads((newest() / "results.json").read_text())["tables"][VECTOR_MAPS]["rows"]
    by_map = {row[4]: row[10] for row in rows if row[9] == PROBE}
    assert by_map.keys() == {"ridge", "chance", "all rows made anew", "old rows on old rows", "as they are"}
    said = " ".join(out.split())
    assert "; a probe that is carried over is right for 0." in said
    assert " of new rows (in the old model 0." in said


def test_maps_of_rows_that_depend_on_each_other_are_warned_of(repsim, tmp_path):
    """Unrelated random walks, and documents of neighbouring rows; not independent rows, one side alone, nor documents
    that are given."""
    rng = np.random.default_rng(0)
    alone, (walk, other) = rng.normal(size=(400, D)), rng.normal(size=(2, 400, D)).cumsum(1)
    of = np.repeat(np.arange(40), 10)
    texts, others = rng.normal(size=(2, 40, D))[:, of] + rng.normal(size=(2, 400, D))
    caveat, told = "(see the warnings)", {"documents": of}
    for name, old, new, beside, warned in (
        ("walks", walk, other, {}, True),
        ("texts", texts, others, {}, True),
        ("independent", alone, alone @ rng.normal(size=(D, D)) + rng.normal(size=(400, D)), {}, False),
        ("one", walk, alone, {}, False),
        ("told", texts, others, told, False),
    ):
        files = [tmp_path / f"{name}-{side}.npz" for side in ("old", "new")]
        for file, rows in zip(files, (old, new), strict=True):
            np.savez(file, layer=rows, **beside)
        code, out, err = repsim("map", "fit", *map(str, files), "--kind", "affine")
        assert code == 0, err
        found = " ".join(out.split())
        assert (caveat in found) == ("rows that follow each other are alike" in found) == warned, (name, out)
