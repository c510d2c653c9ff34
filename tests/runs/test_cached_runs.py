"""Runs and the cache: no model runs twice on the same data, and what a cache that fails changes."""

import json
import shutil

import numpy as np
import pytest

from repsim_cli.runs import cache, folders, reader


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


SMALL = ("model=[tiny_a]", "extract.length=32", "extract.sequences=24", "extract.batch_rows=64")


def models_run(folder):
    return reader.read_manifest(folder)["models_run"]


def arrays(folder):
    return {file.name: file.read_bytes() for file in (folder / "arrays").iterdir()}


def test_a_second_measure_runs_no_model(repsim, newest):
    assert repsim("run", "-q", *SMALL, "measure=[cka]")[0] == 0
    assert models_run(newest()) == ["tiny_a"]
    first = arrays(newest())
    assert repsim("run", "-q", *SMALL, "measure=[cka,procrustes]")[0] == 0
    assert models_run(newest()) == []
    assert {name: arrays(newest())[name] for name in first} == first


@pytest.mark.slow
def test_a_sweep_over_measures_extracts_once(repsim, tmp_path):
    assert repsim("run", "-m", "-q", *SMALL, "measure=[cka],[procrustes],[cka_unbiased]")[0] == 0
    runs = folders.list_run_folders(tmp_path / "outputs")
    assert [models_run(folder) for folder in runs] == [["tiny_a"], [], []]


@pytest.mark.parametrize(
    ("words", "again"),
    [
        (["seed=1"], True),
        (["extract.hook_points=[mlp_out]"], True),
        pytest.param(["extract.padding=keep"], True, marks=pytest.mark.slow),
        pytest.param(["hardware.dtype=bfloat16"], True, marks=pytest.mark.slow),
        (["hardware.tile=16"], False),
        pytest.param(["extract.batch_rows=32"], False, marks=pytest.mark.slow),
        (["extract.estimate=full", "extract.rows=100"], False),
        (["cache=false"], True),
    ],
)
def test_what_makes_a_new_entry(repsim, newest, words, again):
    assert repsim("run", "-q", *SMALL, "measure=[cka]")[0] == 0
    assert repsim("run", "-q", *SMALL, "measure=[cka]", *words)[0] == 0
    assert bool(models_run(newest())) == again


def test_the_same_weights_elsewhere_are_the_same_model(repsim, newest, tmp_path):
    from repsim_cli.models.checkpoints import SHIPPED

    copy = tmp_path / "copy"
    copy.mkdir()
    for file in (SHIPPED / "tiny_a").iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert repsim("run", "-q", *SMALL, "measure=[cka]")[0] == 0
    assert repsim("run", "-q", *SMALL[1:], "model=[]", f"+model.b={{kind: transformers, path: {copy}}}")[0] == 0
    assert models_run(newest()) == []


def test_a_damaged_entry_is_computed_again(repsim, newest, own_cache):
    assert repsim("run", "-q", *SMALL, "measure=[cka]")[0] == 0
    first = arrays(newest())
    part = next(f for f in own_cache.rglob("*+8-*") if f.is_file())
    part.write_bytes(part.read_bytes()[:-1] + b"\0\0")
    shutil.rmtree(own_cache / "matrices")
    code, _, err = repsim("run", *SMALL, "measure=[cka]")
    assert code == 0
    assert "WARNING: cache: " in err
    assert "is damaged; it is dropped and computed again" in err
    assert arrays(newest()) == first


def test_too_large_for_the_limit_is_streamed(repsim, newest, own_cache):
    cache.write_limit(1000)
    assert repsim("run", "-q", *SMALL, "measure=[cka]")[0] == 0
    assert not list(own_cache.rglob("activations/*/entry-*"))


def test_a_full_disk_is_a_warning(repsim, newest, monkeypatch):
    first_run = ("run", *SMALL, "measure=[cka]")
    assert repsim(*first_run, "cache=false")[0] == 0
    expected = arrays(newest())

    def full(self, name, save):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.Entry, "write", full)
    code, _, err = repsim(*first_run)
    assert code == 0
    for kind in ("activations", "matrices"):
        (line,) = (line for line in err.splitlines() if f"/{kind}/" in line)
        assert line.endswith("cannot be written (No space left on device); continuing without it")
    assert arrays(newest()) == expected


def test_a_cache_folder_that_cannot_be_used_is_a_warning(repsim, newest, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "file" / "cache"))
    code, out, _ = repsim("run", *SMALL, "measure=[cka]")
    assert code == 0
    assert "warning: cache: " in out
    assert "cannot be used (Not a directory); continuing without it" in out


def test_the_cache_command(repsim, own_cache):
    assert repsim("run", "-q", *SMALL, "measure=[cka]")[0] == 0
    code, out, _ = repsim("cache", "--limit", "5GB")
    assert code == 0
    assert f"{own_cache}: limit 5 GB" in out
    assert "activations: 1 entries" in out
    assert "matrices: 1 entries" in out
    assert "diagnostics: 1 entries" in out
    assert "rows: 1 entries" in out
    assert "configs: 1 entries" in out
    assert "tokenizers: 1 entries" in out
    code, out, _ = repsim("cache", "--clear")
    assert "removed 6 entries, 0.000 GB left" in out
    code, out, err = repsim("cache", "--limit", "many")
    assert (code, out) == (2, "")
    assert "size: not a size, got 'many'; e.g. 20GB" in err


def test_a_cache_that_is_a_file(repsim, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "file"))
    for words in (["cache"], ["cache", "--limit", "1GB"], ["cache", "--limit", ""]):
        code, out, err = repsim(*words)
        assert (code, out) == (2, "")
        assert len(err.strip().splitlines()) == 1
        assert ";" in err


def test_bfloat16_forward_is_close_to_float32(repsim, newest):
    values = []
    for dtype in ("float32", "bfloat16"):
        assert repsim("run", "-q", *SMALL, "measure=[cka]", f"hardware.dtype={dtype}")[0] == 0
        matrix = json.loads((newest() / "results.json").read_text())["measures"][0]["matrices"][0]
        values.append(reader.read_array(newest(), matrix["values"]))
    assert 0 < np.abs(values[0] - values[1]).max() < 0.02
