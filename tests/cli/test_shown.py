"""Commands that read runs: show, list, plot and diff."""

import json
import shutil

import numpy as np
import pytest
from helpers.recorded import recorded
from helpers.small_run import TWO_MODELS

from repsim_cli.config.presets import GROUPS
from repsim_cli.runs import reader


def local(label, folder):
    return f"+model.{label}={{kind: transformers, path: {folder}}}"


def test_a_run_is_not_compared_with_itself(repsim, newest, tmp_path):
    words = ["run", "-q", "model=[tiny_a]", "measure=[cka]", "extract.sequences=16", "extract.layers=[0]", "name=one"]
    assert repsim(*words)[0] == 0
    first = newest()
    code, out, err = repsim("diff", "latest", "one")
    assert (code, out) == (2, "")
    assert err == f"error: RUN: two different runs are needed, got {first} twice; see repsim list run\n"
    assert repsim(*words)[0] == 0
    code, _, err = repsim("diff", "latest", "one")
    assert code == 2
    assert f"got {newest()} twice; the run of this name before it is {first}" in err
    assert repsim("diff", "latest", str(first))[0] == 0


@pytest.mark.slow
@pytest.mark.drawn
def test_show_list_and_plot(repsim, newest, tiny_folder):
    assert repsim("run", "-q", *TWO_MODELS, "model=[]", local("a", tiny_folder("gpt2")), "name=mine")[0] == 0
    for name in ("latest", "mine", str(newest())):
        code, out, _ = repsim("show", name)
        assert code == 0
        assert out.startswith("mine: complete,")
        assert "a x a" in out
    code, out, _ = repsim("list", "run")
    assert code == 0
    assert "complete" in out
    assert str(newest()) in out
    before = {f.name: f.read_bytes() for f in (newest() / "figures").iterdir()}
    for file in (newest() / "figures").iterdir():
        file.unlink()
    code, out, _ = repsim("plot", "mine")
    assert code == 0
    assert len(out.splitlines()) == len(before)
    assert before == {f.name: f.read_bytes() for f in (newest() / "figures").iterdir()}
    for group in GROUPS:
        code, out, _ = repsim("list", group)
        assert code == 0
        assert all(line.split(None, 1)[1] for line in out.splitlines())


def test_a_damaged_run_is_not_shown(repsim, newest, finished, tmp_path):
    shutil.copytree(finished("model=[tiny_a]", "measure=[cka]", "extract.sequences=10"), tmp_path / "outputs" / "run")
    array = next((newest() / "arrays").iterdir())
    array.write_bytes(b"")
    for command in ("show", "plot"):
        code, out, err = repsim(command, "latest")
        assert (code, out) == (2, "")
        assert f"{array.name}: not as the run left it, got another or no file; run it again" in err


def test_damaged_manifests_hide_no_other_run(repsim, newest, tmp_path):
    assert repsim("run", "-q", *TWO_MODELS)[0] == 0
    good = newest()
    damaged = tmp_path / "outputs" / "2026-01-01" / "damaged"
    damaged.mkdir(parents=True)
    (damaged / "manifest.json").write_text("{")
    code, out, err = repsim("show", "latest")
    assert code == 0
    assert str(good) in out
    assert "damaged/manifest.json: cannot be read" in err


def test_compare(repsim, newest, tmp_path):
    assert repsim("run", "-q", *TWO_MODELS, "name=one")[0] == 0
    one = newest()
    assert repsim("run", "-q", *TWO_MODELS, "name=two", "seed=1", "model=[tiny_b,tiny_a,tiny_a_step100]")[0] == 0
    code, out, _ = repsim("diff", "one", "two", "--output", tmp_path / "cmp")
    assert code == 0
    assert "not compared: cka_unbiased: tiny_a x tiny_a_step100 only in" in out
    record = json.loads((tmp_path / "cmp" / "comparison.json").read_text())
    assert [(d["rows"], d["columns"]) for d in record["differences"]] == [
        ("tiny_a", "tiny_a"),
        ("tiny_a", "tiny_b"),
        ("tiny_b", "tiny_b"),
    ]

    def matrix(folder, rows, columns):
        for m in recorded(folder)["measures"][0]["matrices"]:
            if (m["rows"]["model"], m["columns"]["model"]) == (rows, columns):
                return reader.read_array(folder, m["values"])
        raise KeyError((rows, columns))

    expected = matrix(newest(), "tiny_b", "tiny_a").T - matrix(one, "tiny_a", "tiny_b")
    assert record["differences"][1]["largest"] == pytest.approx(np.abs(expected).max())
    assert record["differences"][1]["mean"] == pytest.approx(np.abs(expected).mean())
    assert len(list((tmp_path / "cmp").glob("*.png"))) == 3
    code, out, _ = repsim("diff", "one", "one")
    assert all("largest         0" in line for line in out.splitlines()[1:])
    assert repsim("run", "-q", *TWO_MODELS, "name=three", "measure=[cka]")[0] == 0
    code, _, err = repsim("diff", "one", "three")
    assert code == 2
    assert "RUN: the runs share no measure and pair of models" in err
