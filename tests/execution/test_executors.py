"""Units of work on workers: what is retried, recorded and refused, the same for every engine."""

import os
import re
import subprocess
import sys
import threading
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace

import filelock
import psutil
import pytest
from engine_units import begin, records, unit, writes

from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.base.settings import Hardware
from repsim_cli.config.executor import check_executor
from repsim_cli.execution import driver, pool, ray_cluster, worker

TOKEN = "0123456789abcdef" * 4
ALONE = Hardware(executor="processes", processes=1)


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """begun(hardware) -> a context: the driver of a run whose units are those of `engine_units`."""
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    return partial(begin, tmp_path)


@pytest.fixture
def cluster(monkeypatch):
    """A Ray cluster of three nodes with a CPU each, on this machine."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 100 * 10**6}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(**node)
    yield cluster
    cluster.shutdown()


def test_units_run_once_on_several_workers_and_are_recorded(begun, tmp_path):
    with begun() as first:
        first.perform(writes(20), "writes")
        first.perform([*writes(20), unit("wait", "a pause", seconds=0.1)], "writes again")
    assert sorted((tmp_path / "computed").read_text().split("\n")[:-1]) == sorted(u.name for u in writes(20))
    lines = records(first)
    assert len(lines) == 41
    assert [line["computed"] for line in lines[:20]] == [True] * 20
    assert sum(line["computed"] for line in lines) == 21
    assert {line["worker"] for line in lines} == {"worker-0", "worker-1"}
    assert all(line["status"] == "done" and line["host"] and line["kernels"]["cpu"] for line in lines)
    about = first.run.manifest["executor"]
    assert (about["name"], about["units"], about["computed"], about["attempts"], about["workers"]) == (
        "processes", 41, 21, 41, 2,
    )  # fmt: skip
    assert about["cost"] == pytest.approx(2 * about["node_hours"], abs=2e-6)
    assert 0 < about["node_hours"] < 0.1
    assert not list(worker.find_cache_folder().glob("run-*"))


def test_a_unit_that_fails_runs_again_on_another_worker(begun):
    with begun() as driving:
        driving.perform([unit("fail", "twice", name="twice", times=2), *writes(2)], "units")
    tried = [line for line in records(driving) if line["unit"] == "twice"]
    assert [line["status"] for line in tried] == ["failed", "failed", "done"]
    assert [line["attempt"] for line in tried] == [1, 2, 3]
    assert tried[0]["worker"] != tried[1]["worker"]
    log = (driving.run.folder / driver.LOGS / "twice.log").read_text()
    assert "about to fail" in log
    assert "RunFailed: twice: it fails, got attempt 2" in log


def test_show_says_where_units_ran(begun, repsim):
    with begun() as driving:
        driving.perform([unit("fail", "once", name="once", times=1), unit("write", "a value", name="a")], "units")
    driving.run.finish("failed", "it was a test")
    shown = repsim("show", str(driving.run.folder))[1]
    assert re.search(r"\n +once +worker-\d +\S+ +[\d.e-]+ +2 +computed\n", shown)
    assert re.search(r"\n +once: failed on worker-\d at attempt 1, once: it fails, got attempt 1; try again\n", shown)
    assert re.search(r"\n  units took [\d.e-]+ node-hours on \S+, cost [\d.e-]+\n$", shown)


def test_a_unit_that_fails_three_times_stops_the_run_by_name(begun):
    message = "unit 'never': it failed 3 times, got never: it fails, got attempt 3; try again; see .*logs, and resume"
    with begun() as driving, pytest.raises(RunFailed, match=message):
        driving.perform([unit("fail", "never", name="never", times=9)], "units")
    assert driving.run.manifest["executor"]["attempts"] == 3


@pytest.mark.slow
def test_a_unit_whose_worker_is_killed_runs_again(begun, tmp_path):
    with begun() as driving:
        driving.perform([*writes(6), unit("die", "deadly", name="deadly", times=3), *writes(3)], "units")
    assert [line["status"] for line in records(driving) if line["unit"] == "deadly"] == ["lost"] * 3 + ["done"]
    assert "killed, or out of memory" in next(line["error"] for line in records(driving) if line["error"])
    computed = (tmp_path / "computed").read_text().split("\n")[:-1]
    assert len(computed) == len(set(computed)) == 6


@pytest.mark.slow
def test_a_unit_that_kills_every_worker_is_given_up(begun):
    message = "unit 'deadly': it failed 6 times, got the process ended"
    with begun(ALONE) as driving, pytest.raises(RunFailed, match=message):
        driving.perform([unit("die", "deadly", name="deadly", times=99)], "units")


@pytest.mark.slow
def test_two_drivers_compute_a_unit_once(begun, tmp_path):
    def drive():
        with begun(seconds=0.05) as driving:
            driving.perform(writes(8), "units")

    other = threading.Thread(target=drive)
    other.start()
    drive()
    other.join()
    computed = (tmp_path / "computed").read_text().split("\n")[:-1]
    assert sorted(computed) == sorted(u.name for u in writes(8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda job: job | {"packages": {"torch": "1.0"}},
            r"torch differs, got \d.*, the run has 1.0; install the same",
        ),
        (lambda job: job | {"packages": {"its code": "other"}}, "its code differs, got .*, the run has other; install"),
        (
            lambda job: job | {"folder": "/nowhere"},
            "the folder where the run was started is not there .*, got /nowhere; share",
        ),
        (lambda job: job | {"token": "other"}, "another cache than that of the run, got .*cache; set REPSIM_CACHE"),
        (lambda job: job | {"session": "engine_units:refuse"}, "model.a.path: no such folder, got '/models/a'; check"),
    ],
)
def test_a_worker_that_cannot_take_part_says_so_in_a_line(begun, monkeypatch, tmp_path, change, message):
    jobs = []
    monkeypatch.setattr("repsim_cli.execution.processes.Processes.start", lambda self, job: jobs.append(job))
    message = f"hardware.executor: the worker on .* cannot take part: {message}"
    with begun(), pytest.raises(BadInput, match=message):
        worker.Worker(type(jobs[0])(**change(vars(jobs[0]))))


def test_settings_that_cannot_be(repsim, monkeypatch):
    monkeypatch.setattr("repsim_cli.config.executor.find_spec", lambda name: None)
    code, _, err = repsim("run", "hardware=ray")
    assert (code, err) == (
        2,
        "error: hardware.executor: ray needs the package ray, which is not installed; pip install -e '.[ray]'\n",
    )
    code, _, err = repsim("run", "hardware.executor=processes", "cache=false")
    assert code == 2
    assert "hardware.executor: workers leave their results in the cache, got processes with cache=false; drop" in err


def test_a_run_is_planned_where_its_executor_cannot_be_had(repsim, monkeypatch, tmp_path):
    monkeypatch.setattr("repsim_cli.config.executor.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, lacking in (("ray", "the package ray"), ("slurm", "the command sbatch")):
        code, out, err = repsim("run", f"hardware={name}", "hardware.processes=2", "dry_run=true")
        assert (code, err) == (0, "")
        assert f"does not run here\n    hardware.executor: {name} needs {lacking}, which is not " in out


@pytest.mark.slow
def test_workers_that_never_start_stop_the_run(begun):
    message = "hardware.executor: workers end before they are ready, got the process ended"
    with pytest.raises(BadInput, match=message), begun(ALONE, session="end"):
        raise AssertionError


def test_workers_that_take_too_long_stop_the_run(begun, monkeypatch):
    monkeypatch.setattr("repsim_cli.execution.pool.Pool.patience", 0.0)
    with pytest.raises(BadInput, match="hardware.executor: no worker was ready in 0 s, got 1 asked for"), begun(ALONE):
        raise AssertionError


def test_a_worker_that_is_refused_later_stops_the_run(begun):
    message = "the worker on .* cannot take part: model.a.path: no such folder any more"
    with begun(ALONE, session="spoil") as driving, pytest.raises(RunFailed, match=message):
        driving.perform(writes(2), "units")


def test_a_cache_that_cannot_be_made(begun, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "file"))
    with pytest.raises(BadInput, match="REPSIM_CACHE: cannot be written, got .*file .File exists.; set"), begun(ALONE):
        raise AssertionError


def test_no_secret_goes_to_workers():
    given = {"HF_TOKEN": "a secret", "HF_HOME": "/models", "AWS_SECRET_ACCESS_KEY": "another", "PATH": "/bin"}
    assert driver.choose_variables(given) == {"HF_HOME": "/models"}


def test_locks_that_do_not_hold_are_noticed(begun, monkeypatch):
    jobs = []
    monkeypatch.setattr("repsim_cli.execution.processes.Processes.start", lambda self, job: jobs.append(job))
    with begun():
        worker.Worker(jobs[0])
        monkeypatch.setattr(filelock.FileLock, "acquire", lambda *_, **__: None)  # as where a mount ignores them
        with pytest.raises(BadInput, match="locks do not hold between machines in .*, got the lock of the run; mount"):
            worker.Worker(jobs[0])


def test_refused_workers_stop_the_run_before_it_starts(begun):
    message = "the worker on .* cannot take part: model.a.path: no such folder"
    with pytest.raises(BadInput, match=message), begun(session="refuse"):
        raise AssertionError


@pytest.mark.parametrize(
    ("settings", "gigabytes", "gpus"),
    [
        ({"device": "cpu"}, 20, 0.0),
        ({}, 20, 0.25),
        ({}, 25, 0.3333),
        ({}, 60, 1.0),
        ({}, 100, 1.0),  # by block
        ({"gpus_per_worker": 0.5}, 20, 0.5),
        ({"shard": "auto"}, 100, 1.0),
        ({"shard": "auto", "gpus_per_worker": 4.0}, 100, 4.0),
    ],
)
def test_gpus_of_a_worker_by_the_plan(monkeypatch, settings, gigabytes, gpus):
    """The machine has GPUs of 85 GB."""
    gpu = SimpleNamespace(total_memory=85 * 10**9)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: gpu)
    hardware = Hardware(**{"executor": "ray", "device": "cuda", **settings})
    assert ray_cluster.Ray(hardware, 1, gigabytes * 1e9).gpus == gpus


@pytest.mark.parametrize(
    ("hardware", "message"),
    [
        (
            {"partition": "gpu"},
            r"hardware.partition: hardware.executor=none does not read it, got gpu; leave it out, or",
        ),
        (
            {"executor": "processes", "address": "local"},
            r"hardware.address: .*=processes .* set hardware.executor=ray$",
        ),
        ({"executor": "processes", "gpus_per_worker": 0.5}, r"gpus_per_worker: .* set hardware.executor=ray or slurm$"),
        ({"executor": "ray", "timeout_min": 5}, r"hardware.timeout_min: .*=ray .* set hardware.executor=slurm$"),
    ],
)
def test_settings_that_an_executor_does_not_read(hardware, message):
    with pytest.raises(BadInput, match=message):
        check_executor(hardware, True)
    check_executor({"executor": "none", "address": "auto", "partition": None}, True)


@pytest.mark.parametrize(
    ("gpus", "share", "count"),
    [(0.0, 0.0, 8), (4.0, 1.0, 4), (2.0, 0.3333, 6), (4.0, 2.0, 2), (0.0, 0.5, 0), (8.0, 0.25, 8)],
)
def test_workers_that_fit_a_machine(gpus, share, count):
    """The machine has 16 CPUs and 100 GB, each worker 2 threads and 12 GB."""
    assert pool.count_fitting(16.0, 100e9, 2, 12e9, gpus, share) == count


@pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra `ray`")
@pytest.mark.ray
def test_ray(cluster, begun, tmp_path):
    """Three nodes: workers and a node are killed, and units still run once each."""
    ray = Hardware(executor="ray", address=cluster.address, processes=3)
    with begun(ray, seconds=0.1) as driving:
        other = threading.Timer(1.0, lambda: cluster.remove_node(next(iter(cluster.worker_nodes))))
        other.start()
        deadly = [unit("die", f"deadly {i}", name=f"deadly {i}", times=1) for i in range(2)]
        driving.perform([*writes(12), *deadly, unit("fail", "twice", name="twice", times=2), *writes(60)], "units")
        other.join()
    lines = records(driving)
    ends = {
        name: [line["status"] for line in lines if line["unit"] == name] for name in ("twice", "deadly 0", "deadly 1")
    }
    # each of them may also be lost with the node, at the moment in which it fails too
    *before, last = ends.pop("twice")
    assert (last, len(before) >= 2, before.count("failed") <= 2) == ("done", True, True)
    assert {*before} <= {"failed", "lost"}
    for end in ends.values():
        assert (end[0], set(end[1:-1]) <= {"lost"}, end[-1]) == ("lost", True, "done")
    done = [line["unit"] for line in lines if line["status"] == "done"]
    assert len(set(done)) == 63
    computed = (tmp_path / "computed").read_text().split("\n")[:-1]
    twice = len(computed) - len(set(computed))
    assert twice <= sum(line["status"] == "lost" for line in lines)  # nothing but what was in flight
    strange = "import ray; ray.init(address=%r, log_to_driver=False); print(ray.get(ray.remote(lambda: 7).remote()))"
    for given in ({}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN[::-1]}):
        others = {key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH")}
        environment = {**others, "HOME": str(tmp_path), **given}
        words = [sys.executable, "-c", strange % cluster.address]
        refused = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert (refused.returncode, refused.stdout) == (1, ""), given


@pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra `ray`")
@pytest.mark.ray
def test_actors_that_cannot_take_part(begun, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    ray = Hardware(executor="ray", address="local", processes=1)
    refused = "hardware.executor: the worker on .* cannot take part: "
    with pytest.raises(BadInput, match=f"{refused}model.a.path: no such folder"), begun(ray, session="refuse"):
        raise AssertionError
    monkeypatch.setattr(driver, "identify_packages", lambda: {"torch": "1.0"})
    with pytest.raises(BadInput, match=f"{refused}torch differs, got .*, the run has 1.0; install"), begun(ray):
        raise AssertionError


def test_a_token_of_ones_own_is_readable_to_no_other(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    ray_cluster._write_own_token()
    file = tmp_path / ".ray" / "auth_token"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    first = file.read_text()
    ray_cluster._write_own_token()
    assert file.read_text() == first
    assert len(first) == 64


@pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra `ray`")
@pytest.mark.ray
def test_no_ray_cluster(begun):
    if any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"])):
        pytest.skip("a Ray cluster runs on this machine")
    message = r"hardware.address: no Ray cluster, got 'auto' \(.*\); start one with a token \(.*\), or set local"
    with pytest.raises(BadInput, match=message), begun(Hardware(executor="ray")):
        raise AssertionError


@pytest.mark.parametrize("address", ["no-such-host.invalid:6379", "127.0.0.1:99999"])
def test_a_port_where_no_ray_cluster_answers(begun, address):
    message = rf"hardware.address: no Ray cluster, got '{address}' \(.*\); start one with a token \(.*\), or set local"
    with pytest.raises(BadInput, match=message), begun(Hardware(executor="ray", address=address)):
        raise AssertionError
