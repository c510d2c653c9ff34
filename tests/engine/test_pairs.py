"""Slow pairs: the same bits from any number of processes and after a kill, what is known of each pair, and its audit."""

import itertools
import json
import os
import signal
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from helpers.timers import set_timers
from threadpoolctl import threadpool_info

from repsim_cli import cli, measures
from repsim_cli.base.errors import Degenerate, RunFailed
from repsim_cli.base.workers import WorkerProcess
from repsim_cli.engine import processes
from repsim_cli.engine import solved as tables
from repsim_cli.engine.estimates import estimate_all_pairs
from repsim_cli.engine.one_by_one import AUDITED, choose_audited, note_name, solve_plain
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.engine.processes import PairWork
from repsim_cli.measures import gromov, gromov_descents, gromov_search, gromov_spaces
from repsim_cli.runs import folders, reader, results

N = 24


def representations(count=4, n=N):
    """Layers of a smooth map, wider each."""
    draw = torch.Generator().manual_seed(0)
    found = [torch.randn(n, 5, generator=draw)]
    for k in range(1, count):
        found.append(torch.tanh(found[-1] @ torch.randn(4 + k, 5 + k, generator=draw) / 2))
    return found


NAMES = [f"layer {k}" for k in range(4)]
GROMOV = {"gw": measures.get("gromov_wasserstein", audit=0.5)}


@pytest.fixture
def at_once(monkeypatch):
    """Every look at the clock is ten seconds after the last, so that processes start after one pair, for one pair at a
    time."""
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=partial(next, itertools.count(0.0, 10.0))))


def solved_in(folder, count, xs):
    """Values and details of a batch, from work in so many processes."""
    found = {}
    with PairWork(folder=folder, processes=count) as work:
        both = {**GROMOV, "wasserstein": measures.get("wasserstein")}

        def observe(label, measure, prepared, values):
            found[label] = torch.stack([values, *prepared.details.values()]).nan_to_num(-1.0)

        compute_all_pairs({"gw": both["gw"]}, xs, NAMES[: len(xs)], observe=observe, work=work)
        compute_all_pairs(
            {"wasserstein": both["wasserstein"]}, [x[:, :5] for x in xs], NAMES[: len(xs)], observe=observe, work=work
        )
        assert (len(work._pool) > 0) == (count > 1)
        workers = [worker.process for worker in work._pool]
    assert not [worker for worker in workers if worker.is_alive()]
    return found


@pytest.mark.slow
def test_any_number_of_processes_gives_the_same_bits(tmp_path, at_once):
    xs = representations(n=260)[:2]  # enough rows for a sample of them
    one, two = (solved_in(tmp_path / str(count), count, xs) for count in (1, 2))
    assert all(torch.equal(one[label], two[label]) for label in one)
    plain = compute_all_pairs(GROMOV, xs)["gw"]
    assert torch.equal(plain, one["gw"][0])
    assert float(plain[0, 1]) == GROMOV["gw"](*xs[:2])
    assert not (tmp_path / "2" / results.PAIRS / "inputs").exists()


def threads_of(a, b):
    return processes.Solved(max(pool["num_threads"] for pool in threadpool_info()))


@pytest.mark.slow
def test_a_process_computes_on_one_thread_also_in_what_a_pair_is_first_to_load(monkeypatch):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "2")
    worker = WorkerProcess.start()
    ((_, solved),) = processes.spread_pairs(threads_of, [1, 2], [(0, 1)], [worker], 1)  # loads SciPy with its own BLAS
    assert solved.value == 1
    worker.end()


def test_a_process_that_dies_is_an_error():
    worker = WorkerProcess.start()
    worker.process.kill()
    worker.process.join()
    with pytest.raises(
        RunFailed, match=r"hardware.processes: a process ended before its work, got exit code -9 \(.*\); free"
    ):
        list(processes.spread_pairs(solve_plain, [1, 2], [(0, 1)], [worker], 1))
    worker.end()


def test_done_pairs_are_not_solved_again(tmp_path, monkeypatch):
    solved = []

    def counted(*sides, **settings):
        solved.append(sides)
        return gromov.compute_gromov_wasserstein(*sides, start="best", restarts=0, seed=0)

    measure = {"m": measures.Pairwise(**{**vars(GROMOV["gw"]), "compare": counted, "slow": measures.base.Slow()})}

    def interrupted(items, **_):
        for done, item in enumerate(items):
            if done == 5:
                raise KeyboardInterrupt
            yield item

    with PairWork(folder=tmp_path, progress=interrupted) as work, pytest.raises(KeyboardInterrupt):
        compute_all_pairs(measure, representations(), work=work)
    assert len(solved) == 5
    with PairWork(folder=tmp_path) as work:
        found = compute_all_pairs(measure, representations(), work=work)
        assert len(solved) == 10
        # another batch: its own notes, and those before it go
        compute_all_pairs(measure, representations(), work=work, batch=1)
        assert len(solved) == 20
        assert [folder.name for folder in (tmp_path / results.PAIRS).iterdir()] == ["batch-1"]
        # another call has its own, which both find again
        for call, count in (("a", 30), ("a", 30), ("b", 40), ("a", 40)):
            compute_all_pairs(measure, representations(), work=work.reuse(call))
            assert len(solved) == count
    assert torch.equal(found["m"], compute_all_pairs(GROMOV, representations())["gw"])


def test_errors_name_the_pair(tmp_path):
    def broken(text):
        def compare(a, b):
            if len(a.rows[0]) != len(b.rows[0]):
                raise text
            return 0.0

        return {"m": measures.Pairwise(**{**vars(GROMOV["gw"]), "compare": compare, "slow": measures.base.Slow()})}

    with pytest.raises(Degenerate, match="layer 0 and layer 1: no value"):
        compute_all_pairs(broken(Degenerate("no value")), representations(), NAMES)
    with pytest.raises(RuntimeError, match="layer 0 and layer 1: Traceback"):
        compute_all_pairs(broken(ValueError("a bug")), representations(), NAMES)
    nan = measures.Pairwise(**{**vars(GROMOV["gw"]), "compare": lambda a, b: np.nan, "slow": measures.base.Slow()})
    with pytest.raises(RunFailed, match="layer 0 and layer 0: gromov_wasserstein is not finite, got nan; please rep"):
        compute_all_pairs({"m": nan}, representations(), NAMES)
    uneven = [x[: N - k] for k, x in enumerate(representations(2))]
    with pytest.raises(Degenerate, match=r"gromov_wasserstein: different numbers of rows, got layer 0: 24, layer 1: 2"):
        compute_all_pairs(GROMOV, uneven, NAMES[:2])


def test_what_is_known_of_a_pair(tmp_path):
    xs = representations()
    with PairWork(folder=tmp_path) as work:
        matrices, _ = estimate_all_pairs(GROMOV, lambda seen: [xs][seen:], names=NAMES, estimate="full", work=work)
    matrix = matrices["gw"]
    known = matrix.statistics
    assert {*GROMOV["gw"].slow.details} <= set(known)
    won = sum(known[name] for name in GROMOV["gw"].slow.details if name.startswith("won_"))
    assert torch.equal(won, torch.ones(4, 4))
    assert (known["steps"] >= 1).all()
    assert (known["second_bound"] <= known["third_bound"] + 1e-15).all()
    assert (known["third_bound"] <= matrix.values + 1e-15).all()


def test_details_are_means_over_batches(tmp_path):
    batches = [representations(), [x.flip(1) + torch.arange(N)[:, None] / N for x in representations()]]
    with PairWork(folder=tmp_path) as work:
        matrices, _ = estimate_all_pairs(
            GROMOV, lambda seen: batches[seen:], names=NAMES, estimate="per_batch", work=work
        )
    single = [
        estimate_all_pairs(GROMOV, lambda seen, b=b: [b][seen:], names=NAMES, estimate="full")[0]["gw"] for b in batches
    ]
    for key in GROMOV["gw"].slow.details:
        mean = sum(one.statistics[key] for one in single) / 2
        torch.testing.assert_close(matrices["gw"].statistics[key], mean)
    # of the first batch alone
    drawn = ~matrices["gw"].statistics["audit_reference"].isnan()
    assert drawn.sum() == 3
    assert torch.equal(matrices["gw"].statistics["audit_value"][drawn], single[0].values[drawn])


def audit(folder, measure):
    """The table's rows, how many of them are wrong, and the warning."""
    with PairWork(folder=folder) as work:
        xs = representations()
        matrix = estimate_all_pairs({"gw": measure}, lambda seen: [xs][seen:], names=NAMES, estimate="full", work=work)[
            0
        ]["gw"]
    numbers = {key: value.numpy() for key, value in matrix.statistics.items()}
    return tables.record_audited("gw", measure.slow.audit, NAMES, numbers)


@pytest.mark.parametrize("start", ["pot", "best"])
def test_the_audit_finds_a_wrong_solver(tmp_path, start, monkeypatch):
    measure = measures.get("gromov_wasserstein", start=start, audit=1.0)
    rows, broken, warning = audit(tmp_path / "right", measure)
    assert len(rows) == 6
    assert broken == 0
    assert warning is None
    assert {row[-1] for row in rows} == {"no"}
    worst = max(row[5] for row in rows)
    assert worst <= 1e-9
    if start == "pot":
        assert min(row[5] for row in rows) >= -1e-9
    # a descent that ends at the reverse of its start, which nothing lowers, and no other start
    none = gromov_descents.Trial("profiles", np.arange(1), np.inf)
    monkeypatch.setattr(gromov_search, "search_few_rows", lambda *_: (none, 0))
    monkeypatch.setattr(gromov_search, "lower_further", lambda trial, *_: (trial, 0))
    monkeypatch.setattr(gromov_search, "descend", lambda coupling, *_: gromov_descents.Optimum(coupling[:, ::-1], 1))
    rows, broken, warning = audit(tmp_path / "wrong", measure)
    assert broken > 0
    claim = {"pot": "within 1e-9 of", "best": "at most 5 % above"}[start]
    assert f"of 6 audited pairs are not {claim} what POT finds, e.g. layer" in warning


def test_which_pairs_are_audited():
    cells = [(a, b) for a in range(93) for b in range(a, 93)]
    drawn = choose_audited(cells, 0.02, 0)
    assert len(drawn) == AUDITED
    assert all(a != b for a, b in drawn)
    assert drawn == choose_audited(cells, 0.02, 0) != choose_audited(cells, 0.02, 1)
    assert len(choose_audited(cells[:5], 0.02, 0)) == 1
    assert choose_audited(cells[:1], 0.02, 0) == []
    assert measures.get("gromov_wasserstein", start="identity").slow.audit is None


def test_ties_are_seen():
    draw = np.random.default_rng(0)
    classes = np.eye(3)[draw.integers(0, 3, 40)]
    both = [
        gromov_spaces.prepare_space(torch.from_numpy(x), cost_scale="mean")
        for x in (classes, draw.normal(size=(40, 3)))
    ]
    assert [gromov.has_ties(one.distances) for one in both] == [True, False]
    assert gromov.solve_by_pot(*both).details == (1.0,)
    assert gromov.solve_by_pot(both[1], both[1]).details == (0.0,)


SMALL = [
    "run",
    "-q",
    "model=[tiny_a,tiny_b]",
    "measure=[gromov_wasserstein]",
    "extract.estimate=full",
    "extract.rows=96",
]
SMALL += [
    "extract.sequences=4",
    "extract.length=32",
    "extract.layers=[0,2,5]",
    "hardware.threads=1",
    "hardware.processes=2",
]


def numbers(folder):
    files = [folder / "results.json", *sorted((folder / "arrays").iterdir())]
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_killed_run_goes_on(repsim, newest, tmp_path, at_once, monkeypatch):
    """SIGKILL while two processes solve pairs: nothing stays alive, and what it ends with has the bits of a whole run."""
    code, _, err = repsim(*SMALL, "hardware.processes=1")
    assert code == 0, err
    whole = newest()
    monkeypatch.setenv("REPSIM_OUTPUTS", str(tmp_path / "killed" / "outputs"))
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "killed" / "cache"))
    process = os.fork()
    if not process:
        # the run's own process sleeps after each pair, so that it is killed between them
        monkeypatch.setattr("repsim_cli.cli.jobs.Bar", lambda: slowly)
        set_timers(monkeypatch, due=True)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            cli.main(SMALL)
        finally:
            os._exit(1)
    done, children = 0, []
    end = time.monotonic() + 60
    while done < 4 or len(children) < 2:
        assert time.monotonic() < end
        notes = list((tmp_path / "killed").rglob(f"{note_name('gromov_wasserstein')}.npy"))
        done = int((~np.isnan(np.load(notes[0])[..., 0])).sum()) if notes else 0
        children = psutil.Process(process).children(recursive=True)
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    assert not psutil.wait_procs(children, timeout=60)[1]
    (folder,) = folders.list_run_folders(tmp_path / "killed")
    assert reader.read_manifest(folder)["status"] == "killed"
    assert (folder / results.SO_FAR).exists()
    assert done < 21
    monkeypatch.setattr(processes, "time", time)
    code, _, err = repsim(*SMALL, "resume=latest")
    assert code == 0, err
    assert f"resuming {folder}" in err
    assert numbers(folder) == numbers(whole)
    assert not (folder / results.PAIRS).exists()
    assert not (folder / results.SO_FAR).exists()
    found = json.loads((folder / "results.json").read_text())
    (record,) = found["measures"]
    block = next(one for one in record["matrices"] if one["rows"]["model"] != one["columns"]["model"])
    assert {"steps", "won_identity", "won_pot", "second_bound", "third_bound"} <= set(block["details"])
    rows = dict(row[1:] for row in found["tables"][tables.PAIRS_SOLVED]["rows"])
    assert rows["pairs"] == 15
    assert rows["won from identity, pairs"] + rows["won from pot, pairs"] == 15
    assert 0 < rows["gap to the third lower bound, median"] < rows["gap to the second lower bound, median"] < 1
    (one,) = found["tables"][tables.AUDIT]["rows"]
    assert one[5] <= 1e-9


def slowly(items, label, unit, **_):
    for item in items:
        yield item
        if unit == "pairs":
            time.sleep(0.2)


def test_layers_are_shown_while_they_are_prepared(tmp_path):
    """Neighbours of many rows take most of a run, after all rows are read."""
    shown = []

    def progress(items, *, label, unit, later=0):
        shown.append((label, unit, len(items)))
        return iter(items)

    rows = [torch.randn(20, 3) for _ in range(4)]
    bound = {"near": measures.get("mutual_knn", k=2), "nearer": measures.get("mutual_knn", k=1)}
    with PairWork(folder=tmp_path, progress=progress) as work:
        compute_all_pairs(bound, rows, work=work)
    assert shown == [("near", "layers", 4), ("nearer", "layers", 4)]
