"""Entries of finished matrices: absent, damaged, unwritable, wanted by several, many."""

import multiprocessing
import os
import shutil
import time
from dataclasses import replace

import pytest

from repsim_cli.measures import gromov
from repsim_cli.models.precomputed import precomputed
from repsim_cli.runs import cache

pytestmark = pytest.mark.usefixtures("own_cache")


def test_models_that_nothing_stands_for_are_not_cached(compared, own_cache, files, solved):
    """Pairs of the others are."""
    source = precomputed(path=str(files / "b.npz"))
    nameless = [("b", replace(source, identity=lambda: {"source": "somewhere", "weights_hash": None}))]
    for count in (21, 15):
        solved.clear()
        _, run = compared("ab", ["gromov_wasserstein", "cka"], change=nameless)
        assert run.manifest["matrices_cached"] == []
        assert len(solved) == count


def test_without_the_cache_nothing_is_read_or_written(compared, own_cache, solved):
    compared("ab", ["gromov_wasserstein", "cka"], cache=False)
    assert not own_cache.exists()
    compared("ab", ["gromov_wasserstein", "cka"])
    solved.clear()
    assert compared("ab", ["gromov_wasserstein", "cka"], cache=False)[1].manifest["matrices_cached"] == []
    assert len(solved) == 21


@pytest.mark.parametrize("kind", ["matrices", "pairs"])
def test_what_is_damaged_is_computed_again(compared, own_cache, kind, solved):
    names = ["gromov_wasserstein", "svcca"]
    fresh, _ = compared("abc", names)
    place = next(file for file in sorted(own_cache.glob(f"{kind}/*/*")) if not file.name.startswith("entry-"))
    place.write_bytes(place.read_bytes()[:-1] + b"\x7f")
    if kind == "pairs":
        shutil.rmtree(own_cache / "matrices")
    found, run = compared("abc", names)
    assert found == fresh
    assert len(run.manifest["matrices_cached"]) == (1 if kind == "matrices" else 0)
    assert compared("abc", names)[1].manifest["matrices_cached"] == names


def test_a_cache_that_cannot_be_written_is_a_warning(compared, monkeypatch, caplog):
    fresh, _ = compared("ab", ["gromov_wasserstein", "cka"], cache=False)

    def full(self, name, save):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.Entry, "write", full)
    cache.log.propagate = True
    (content, arrays, warned), _ = compared("ab", ["gromov_wasserstein", "cka"])
    assert (content, arrays) == fresh[:2]
    assert all(line.endswith("cannot be written (No space left on device); continuing without it") for line in warned)
    assert sorted(kind for kind in ("matrices", "diagnostics", "pairs") for line in warned if f"/{kind}/" in line) == [
        "diagnostics",
        "matrices",
    ]
    assert len({line for line in caplog.text.splitlines() if "/pairs/" in line}) == 1


def test_a_cache_that_cannot_be_used_is_a_warning(compared, own_cache):
    own_cache.write_text("a file")
    _, run = compared("ab", ["procrustes"])
    assert run.manifest["warnings"]
    assert all("cannot be used" in one for one in run.manifest["warnings"])


def _concurrent(compared, log, labels):
    original = gromov.find_best_gromov

    def slowly(*sides, **settings):
        with log.open("a") as stream:
            stream.write(".")
        time.sleep(0.02)
        return original(*sides, **settings)

    gromov.find_best_gromov = slowly
    compared(labels, ["gromov_wasserstein"])
    os._exit(0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_one_computes_and_the_others_wait(compared, tmp_path):
    context, log = multiprocessing.get_context("fork"), tmp_path / "log"
    workers = [context.Process(target=_concurrent, args=(compared, log, labels)) for labels in ("abc", "abc", "abcd")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    assert len(log.read_text()) == 78  # each pair once


def test_the_cache_command_lists_them(compared, repsim):
    compared("ab", ["procrustes", "cka"])
    code, out, _ = repsim("cache")
    assert code == 0
    assert "  matrices: 2 entries, " in out
    assert "  pairs: 3 entries, " in out


def test_many_entries_need_many_files(monkeypatch):
    set_to = []
    monkeypatch.setattr(cache.resource, "getrlimit", lambda which: (256, 4096))
    monkeypatch.setattr(cache.resource, "setrlimit", lambda which, both: set_to.append(both))
    cache._allow_open(10_000)
    cache._allow_open(1000)
    monkeypatch.setattr(cache.resource, "getrlimit", lambda which: (256, cache.resource.RLIM_INFINITY))
    cache._allow_open(10_000)
    monkeypatch.setattr(cache.resource, "getrlimit", lambda which: (20_000, 20_000))
    cache._allow_open(10_000)
    assert set_to == [(4096, 4096), (1000 + cache.OTHER_FILES, 4096), (10_000 + cache.OTHER_FILES, -1)]
