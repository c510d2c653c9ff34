"""Solved pairs, and maps on the way, in the cache: nothing is computed twice, whatever a run broke off."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.nights import nightly
from helpers.timers import replace_clock, set_timers

from repsim_cli import measures
from repsim_cli.engine import matrices
from repsim_cli.measures import gromov
from repsim_cli.measures.base import MeasureWarning, Pairwise
from repsim_cli.report.record import record
from repsim_cli.runs import results, so_far

pytestmark = pytest.mark.usefixtures("own_cache")


def pairwise(name):
    bound = measures.get(name)
    assert isinstance(bound, Pairwise)
    return bound


@pytest.mark.parametrize("estimate", nightly(["full", "per_batch"], "full"))
def test_one_more_model_solves_the_new_pairs_only(compared, solved, estimate):
    compared("abc", ["gromov_wasserstein"], estimate=estimate)
    batches = 1 if estimate == "full" else 4
    assert len(solved) == batches * 45
    solved.clear()
    compared("abcd", ["gromov_wasserstein"], estimate=estimate)
    assert len(solved) == batches * (9 * 3 + 6)
    solved.clear()
    # a part of the models, in the same order: their matrix is another one, its pairs are there
    compared("abd", ["gromov_wasserstein"], estimate=estimate)
    assert not solved
    # the two sides of a pair the other way round are another pair
    compared("ba", ["gromov_wasserstein"], estimate=estimate)
    assert len(solved) == batches * 9


def test_pairs_of_a_measure_in_this_process(compared, monkeypatch):
    """Those that are compared one by one too."""
    calls = []
    bound = pairwise("procrustes")
    counting = replace(bound, compare=lambda a, b: calls.append(1) or bound.compare(a, b))
    compared("ab", {"procrustes": counting})
    assert len(calls) == 21
    compared("abc", {"procrustes": counting})
    assert len(calls) == 45


@pytest.mark.slow
def test_audits_are_of_the_runs_own_pairs(compared, monkeypatch):
    """Pairs to audit are drawn among all of a run, so that one more model changes them."""
    checked = []
    original = gromov.solve_by_pot
    monkeypatch.setattr(gromov, "solve_by_pot", lambda a, b: checked.append(1) or original(a, b))
    bound = {"gw": measures.get("gromov_wasserstein", audit=1.0)}
    fresh, _ = compared("abc", bound, cache=False)
    assert len(checked) == 36
    compared("ab", bound)
    assert len(checked) == 36 + 15
    found, _ = compared("abc", bound)
    assert found == fresh
    assert len(checked) == 36 + 36


@pytest.mark.slow
def test_a_killed_run_leaves_its_pairs_to_others(compared, solved, monkeypatch):
    """Killed among the pairs; the next run is another one."""
    set_timers(monkeypatch, due=True)
    process = os.fork()
    if not process:
        original = gromov.find_best_gromov

        def until(*sides, **settings):
            if len(solved) == 10:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*sides, **settings)

        monkeypatch.setattr(gromov, "find_best_gromov", until)
        try:
            compared("abc", ["gromov_wasserstein"])
        finally:
            os._exit(1)
    _, status = os.waitpid(process, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    found, _ = compared("abcd", ["gromov_wasserstein"])
    assert len(solved) == 78 - 10
    assert found == compared("abcd", ["gromov_wasserstein"], cache=False)[0]


def test_an_interrupted_run_leaves_its_pairs_to_others(compared, solved, monkeypatch):
    original = gromov.find_best_gromov

    def until(*sides, **settings):
        if len(solved) == 10:
            raise KeyboardInterrupt
        return original(*sides, **settings)

    monkeypatch.setattr(gromov, "find_best_gromov", until)
    with pytest.raises(KeyboardInterrupt):
        compared("abc", ["gromov_wasserstein"])
    monkeypatch.setattr(gromov, "find_best_gromov", original)
    solved.clear()
    compared("abc", ["gromov_wasserstein"])
    assert len(solved) == 45 - 10


def test_warnings_are_of_the_measure_that_gave_them(compared):
    """`c` has a dead neuron, which mean_cca drops and cka does not."""
    _, run = compared("ac", ["cka", "pillai_trace", "svcca"])
    (told,) = run.manifest["warnings"]
    assert "dead neurons were dropped, got 1 of 6" in told
    assert compared("ac", ["cka"])[1].manifest["warnings"] == []
    for name in ("pillai_trace", "svcca"):
        _, run = compared("ac", [name])
        assert run.manifest["matrices_cached"] == [name]
        assert run.manifest["warnings"] == [told.replace("pillai_trace, svcca", name)]


def test_pairs_that_are_warned_of_are_warned_of_again(compared):
    bound = pairwise("procrustes")

    def compare(a, b):
        import warnings

        warnings.warn("mind this pair", MeasureWarning, stacklevel=2)
        return bound.compare(a, b)

    warning = {"procrustes": replace(bound, compare=compare)}
    compared("ab", warning)
    fresh, run = compared("abc", warning, cache=False)
    assert all("mind this pair" in one for one in run.manifest["warnings"])
    assert run.manifest["warnings"]
    assert compared("abc", warning)[0] == fresh


def test_a_state_that_lacks_a_measure_is_begun_again(compared, monkeypatch, tmp_path):
    """The matrix of one measure was in the cache when the run broke off, and is gone when it is resumed."""
    fresh, _ = compared("ab", ["cka", "procrustes"], estimate="per_batch", cache=False)
    set_timers(monkeypatch, due=True)
    saved = {}
    original = matrices.resume

    def keeping(file, of, always=False):
        state, save = original(file, of, always)
        return state, lambda one: saved.update(file=file, state=dict(one)) or save(one)

    monkeypatch.setattr(matrices, "resume", keeping)
    compared("ab", ["procrustes"], estimate="per_batch", cache=False)
    monkeypatch.setattr(matrices, "resume", lambda file, of, always=False: (saved["state"], lambda state: None))
    assert compared("ab", ["cka", "procrustes"], estimate="per_batch", cache=False)[0] == fresh


def test_a_state_of_other_models_is_not_taken(tmp_path, monkeypatch):
    """A run may have several passes, and any of them may have been cut off."""
    set_timers(monkeypatch, due=True)
    state, save = matrices.resume(tmp_path / "state", "a")
    assert state is None
    save({"cka.mean": torch.ones(2, 2)})
    assert matrices.resume(tmp_path / "state", "b")[0] is None
    assert [*(matrices.resume(tmp_path / "state", "a")[0] or {})] == ["cka.mean"]


def test_a_run_shows_its_maps_and_ends_with_the_same_bits(compared, monkeypatch):
    """A slow, a pairwise and a fast measure: every map is part of the results, the last one is all of them, the page
    has them while the run computes, and nothing is left when it ends."""
    names = {"gromov_wasserstein": measures.get("gromov_wasserstein", audit=0.0)}
    names |= {name: measures.get(name) for name in ("procrustes", "cka")}
    seen, pages = [], []
    set_timers(monkeypatch, due=False)
    fresh, _ = compared("ab", names, cache=False, rows=24)
    set_timers(monkeypatch, due=True)
    write = so_far.Writer._write

    def watched(self):
        write(self)
        seen.append({given.measured.label: given for given in so_far.read(self.folder)})
        if len(seen) % 10 == 0:
            pages.append(record(self.folder))

    monkeypatch.setattr(so_far.Writer, "_write", watched)
    again, run = compared("ab", names, cache=False, rows=24)
    assert again == fresh
    assert not (run.folder / results.SO_FAR).exists()
    whole = {m["label"]: {x["values"]: np.load(run.folder / x["values"]) for x in m["matrices"]} for m in again[0]["measures"]}  # fmt: skip
    for label in names:
        given = seen[-1][label]
        assert given.state == "all cells"
        for mine, final in zip(so_far.split_into_pairs(given)[1].values(), whole[label].values(), strict=True):
            np.testing.assert_array_equal(mine, final)
        for values in (maps[label].values for maps in seen if label in maps):
            there = np.isfinite(values)
            np.testing.assert_array_equal(values[there], given.values[there])
    solved = [
        int(np.isfinite(maps["gromov_wasserstein"].values).sum()) for maps in seen if "gromov_wasserstein" in maps
    ]
    assert solved == sorted(solved)
    assert {1, 3, 5, 7} <= set(solved)  # a layer and itself; then a pair, which stands both ways
    assert pages[0]["so_far"].keys() <= set(names)
    assert {m["label"] for m in pages[-1]["measures"]} == set(names)


@pytest.mark.slow
def test_the_time_that_is_left_counts_all_batches(compared):
    asked = []

    def progress(items, *, label, unit, later=0):
        if unit == "pairs":
            asked.append((len(items), later))
        return iter(items)

    bound = {"gw": measures.get("gromov_wasserstein", audit=0.0)}
    compared("ab", bound, estimate="per_batch", progress=progress)
    assert asked == [(21, 63), (21, 42), (21, 21), (21, 0)]
    asked.clear()
    compared("abc", bound, estimate="per_batch", progress=progress)
    assert asked == [(24, 72), (24, 48), (24, 24), (24, 0)]


def test_lines_of_progress_count_what_comes_later(capsys, monkeypatch):
    from repsim_cli.cli import terminal

    monkeypatch.delenv(terminal.QUIET, raising=False)
    clock = iter(range(0, 1000, 10))
    replace_clock(monkeypatch, terminal, monotonic=lambda: float(next(clock)))
    list(terminal.Bar()([1, 2], label="pairs of gw", unit="pairs", later=2))
    assert capsys.readouterr().err.splitlines() == [
        "pairs of gw: 1/4 pairs, 0.10/s, 30 s left",
        "pairs of gw: 2/4 pairs, 0.10/s, 20 s left",
    ]
