"""`repsim measure`: numbers of two files of arrays."""

import json
import time

import numpy as np
import pytest
import reference

from repsim_cli.cli.terminal import QUIET, Bar, heard, name_where_slow, say


def test_measure_command(repsim, tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 5)), rng.normal(size=(30, 4))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    files = (tmp_path / "x.npy", tmp_path / "y.npy")
    code, out, _ = repsim("measure", "cka", *files)
    assert code == 0
    assert float(out) == pytest.approx(reference.cka(x, y), abs=1e-12)
    code, out, _ = repsim("measure", "mutual_knn", *files, "k=5", "--json")
    record = json.loads(out)
    assert record["value"] == pytest.approx(reference.mutual_knn(x, y, 5))
    assert record["settings"] == {"k": 5, "rows": "centred"}
    assert record["card"]["larger_is_closer"]


def test_measure_command_warns_of_too_few_rows(repsim, tmp_path):
    """Noise, 20 rows of 50 features: numbers near 1 come with a warning, a refusal with a measure that is right."""
    rng = np.random.default_rng(0)
    files = (tmp_path / "x.npy", tmp_path / "y.npy")
    for file in files:
        np.save(file, rng.normal(size=(20, 50)))
    code, out, err = repsim("measure", "svcca", *files)
    assert (code, float(out) > 0.9) == (0, True)
    assert "WARNING: svcca: x: 20 rows for 50 features; svcca is inflated when there are not many more rows" in err
    assert "WARNING: svcca: y: 20 rows for 50 features" in err
    code, out, err = repsim("measure", "svcca", *files, "--json")
    assert (len(json.loads(out)["warnings"]), err) == (2, "")
    code, _, err = repsim("measure", "mean_cca", *files)
    assert (code, err.strip().endswith("any data would score the same; use more rows, or cka_unbiased")) == (2, True)
    code, out, err = repsim("measure", "cka_unbiased", *files)
    assert (code, abs(float(out)) < 0.2, err) == (0, True, "")


def test_measure_all_prints_each_result_as_it_comes(repsim, tmp_path, monkeypatch, capsys):
    seen = []

    def names():
        for name in ("cka", "mean_cca", "svcca"):
            yield name
            seen.append(capsys.readouterr())

    monkeypatch.setattr("repsim_cli.measures.names", names)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(20, 50)))
    code, out, _ = repsim("measure", "all", *[tmp_path / "x.npy"] * 2)
    assert code == 0
    assert [len(text.out.splitlines()) for text in seen] == [1, 0, 1]
    assert seen[0].out.startswith("cka ")
    assert seen[0].err.startswith("WARNING: cka: x: 20 rows for 50 features")
    assert out.startswith("not applicable: mean_cca: x: mean_cca needs more rows than features")


@pytest.mark.parametrize(("limit", "quiet", "said"), [(0.01, "", True), (0.01, "1", False), (600.0, "", False)])
def test_a_step_that_takes_long_is_named(limit, quiet, said, monkeypatch, capsys):
    monkeypatch.setenv(QUIET, quiet)
    shown, start = "", time.monotonic()
    with name_where_slow(lambda: "geometry_score", limit):
        while "geometry_score" not in shown and time.monotonic() - start < (60 if said else 0.2):
            time.sleep(0.01)
            shown += capsys.readouterr().err
    assert ("geometry_score: still at work, 1 s after the start" in shown) == said


def test_a_step_of_which_something_is_said_is_not_silent(monkeypatch, capsys):
    monkeypatch.delenv(QUIET, raising=False)
    before = heard.at
    say("a line", aside=True)
    list(Bar()([1], label="models", unit="models"))
    assert heard.at > before
    monkeypatch.setattr(heard, "at", time.perf_counter() + 3600)
    with name_where_slow(lambda: "models", 0.01):
        time.sleep(0.2)
    assert capsys.readouterr().err == "a line\n"


def test_files_without_the_name_of_a_measure(repsim, tmp_path):
    np.save(file := tmp_path / "x.npy", np.eye(9))
    _, out, err = repsim("measure", file, file, "cka")
    assert (out, err) == (
        "",
        f"error: NAME: the name of a measure comes before the files, got the file '{file}'; write repsim measure NAME "
        "X.npy Y.npy, NAME of repsim list measure, or all\n",
    )
