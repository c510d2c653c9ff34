"""The cache: keys, checksums, eviction, sharing; and that no model runs twice on the same data."""

import json
import multiprocessing
import os
import time

import numpy as np
import pytest

from repsim_cli import cache, results
from repsim_cli.errors import BadInput


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def filled(key: str, size: int = 1000) -> None:
    with cache.using("work", [key]) as entries:
        entries[key].write("part", lambda path: path.write_bytes(os.urandom(size)) and None)
        entries[key].finish(note="done")


def test_an_entry_is_found_again():
    filled("k1")
    with cache.using("work", ["k1"]) as entries:
        assert entries["k1"].complete
        assert entries["k1"].meta["note"] == "done"
        assert len(entries["k1"].files["part"].read_bytes()) == 1000


def test_an_unfinished_entry_keeps_its_parts():
    with cache.using("work", ["k1"]) as entries:
        entries["k1"].write("a", lambda path: path.write_text("x") and None)
    with cache.using("work", ["k1"]) as entries:
        assert not entries["k1"].complete
        assert list(entries["k1"].files) == ["a"]


def test_a_damaged_part_is_dropped_with_a_warning(caplog):
    filled("k1")
    with cache.using("work", ["k1"]) as entries:
        entries["k1"].files["part"].write_bytes(b"other")
    with caplog.at_level("WARNING", "repsim"):
        cache.log.propagate = True
        with cache.using("work", ["k1"]) as entries:
            assert not entries["k1"].complete
            assert not entries["k1"].files
    assert "is damaged, it is dropped and computed again" in caplog.text


def test_the_least_recently_used_goes_first():
    for number, key in enumerate(("old", "newer", "newest")):
        filled(key)
        os.utime(cache.root() / "work" / key / "entry.json", (number, number))
    with cache.using("work", ["old"]):
        pass  # used now
    assert cache.trim(2500) == (1, pytest.approx(2000, abs=400))
    assert sorted(f.name for f in cache._sizes()) == ["newest", "old"]


def test_what_a_process_reads_is_never_removed():
    filled("k1")
    with cache.using("work", ["k1"]) as entries:
        assert cache.trim(0)[0] == 0
        assert entries["k1"].files["part"].is_file()
    assert cache.trim(0) == (1, 0)


def test_a_dead_reader_does_not_count():
    filled("k1")
    mark = cache.root() / "work" / f"k1.using-{cache.socket.gethostname()}-999999999"
    mark.touch()
    assert cache.trim(0) == (1, 0)
    assert not mark.exists()


def _compute(root, log, key):
    os.environ["REPSIM_CACHE"] = str(root)
    with cache.using("work", [key]) as entries:
        if not entries[key].complete:
            with open(log, "a") as stream:
                stream.write("computed\n")
            time.sleep(0.3)
            entries[key].write("part", lambda path: path.write_text("x") and None)
            entries[key].finish()


def test_one_process_computes_while_others_wait(tmp_path, own_cache):
    context = multiprocessing.get_context("spawn")
    log = tmp_path / "log"
    workers = [context.Process(target=_compute, args=(own_cache, log, "k1")) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert log.read_text() == "computed\n"


@pytest.mark.parametrize(("text", "size"), [("20GB", 2 * 10**10), ("500 mb", 5 * 10**8), ("7", 7), ("1e3 kb", 10**6)])
def test_sizes(text, size):
    assert cache.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "20 XB", "-3GB", "1..2"])
def test_bad_sizes(text):
    with pytest.raises(BadInput, match="size: (not a size|negative), got .*; e.g. 20GB"):
        cache.parse_size(text)


SMALL = ("model=[tiny_a]", "extract.length=32", "extract.sequences=24", "extract.batch_rows=64")


def models_run(folder):
    return results.read_manifest(folder)["models_run"]


def arrays(folder):
    return {file.name: file.read_bytes() for file in (folder / "arrays").iterdir()}


def test_a_second_measure_runs_no_model(repsim, newest):
    assert repsim("run", "-q", *SMALL, "measure=[cka]")[0] == 0
    assert models_run(newest()) == ["tiny_a"]
    first = arrays(newest())
    assert repsim("run", "-q", *SMALL, "measure=[cka,procrustes]")[0] == 0
    assert models_run(newest()) == []
    assert {name: arrays(newest())[name] for name in first} == first


def test_a_sweep_over_measures_extracts_once(repsim, tmp_path):
    assert repsim("run", "-m", "-q", *SMALL, "measure=[cka],[procrustes],[cka_unbiased]")[0] == 0
    runs = results.runs(tmp_path / "outputs")
    assert [models_run(folder) for folder in runs] == [["tiny_a"], [], []]


@pytest.mark.parametrize(
    ("words", "again"),
    [
        (["seed=1"], True),
        (["extract.hook_points=[mlp_out]"], True),
        (["extract.padding=keep"], True),
        (["hardware.dtype=bfloat16"], True),
        (["hardware.tile=16"], False),
        (["extract.batch_rows=32"], False),
        (["extract.estimate=full", "extract.rows=100"], False),
        (["cache=false"], True),
    ],
)
def test_what_makes_a_new_entry(repsim, newest, words, again):
    assert repsim("run", "-q", *SMALL, "measure=[cka]")[0] == 0
    assert repsim("run", "-q", *SMALL, "measure=[cka]", *words)[0] == 0
    assert bool(models_run(newest())) == again


def test_the_same_weights_elsewhere_are_the_same_model(repsim, newest, tmp_path):
    from repsim_cli.models.transformers import SHIPPED

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
    code, _, err = repsim("run", *SMALL, "measure=[cka]")
    assert code == 0
    assert "WARNING: cache: " in err
    assert "is damaged, it is dropped and computed again" in err
    assert arrays(newest()) == first


def test_too_large_for_the_limit_is_streamed(repsim, newest, own_cache):
    cache.set_limit(1000)
    assert repsim("run", "-q", *SMALL, "measure=[cka]")[0] == 0
    assert not list(own_cache.rglob("entry.json"))


def test_a_full_disk_is_a_warning(repsim, newest, monkeypatch):
    first_run = ("run", *SMALL, "measure=[cka]")
    assert repsim(*first_run, "cache=false")[0] == 0
    expected = arrays(newest())

    def full(self, name, save):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.Entry, "write", full)
    code, _, err = repsim(*first_run)
    assert code == 0
    assert err.count("cannot be written (No space left on device); going on without it") == 1
    assert arrays(newest()) == expected


def test_a_cache_folder_that_cannot_be_used_is_a_warning(repsim, newest, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "file" / "cache"))
    code, out, _ = repsim("run", *SMALL, "measure=[cka]")
    assert code == 0
    assert "warning: cache: " in out
    assert "cannot be used (Not a directory); going on without it" in out


def test_the_cache_command(repsim, own_cache):
    assert repsim("run", "-q", *SMALL, "measure=[cka]")[0] == 0
    code, out, _ = repsim("cache", "--limit", "5GB")
    assert code == 0
    assert f"{own_cache}: limit 5 GB" in out
    assert "activations: 1 entries" in out
    code, out, _ = repsim("cache", "--clear")
    assert "removed 1 entries, 0.000 GB left" in out
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
        values.append(results.read_array(newest(), matrix["values"]))
    assert 0 < np.abs(values[0] - values[1]).max() < 0.02
