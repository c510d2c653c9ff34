"""Workers that SLURM starts: what the two sides write to each other, what SLURM is asked, and runs on a real one."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import filelock
import pytest
from engine_units import begin, records, unit, writes
from helpers.ahead import PAIRS, STITCHES, numbers

from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Hardware
from repsim_cli.config.executor import check_executor
from repsim_cli.execution import driver, pilot, slurm
from repsim_cli.execution.lines import Lines
from repsim_cli.execution.records import read_records
from repsim_cli.execution.worker import find_token_file, identify_packages
from repsim_cli.runs import folders
from repsim_cli.runs.cache import find_cache_folder

TWO = Hardware(executor="slurm", processes=2)


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """begun(hardware) -> a context: the driver of a run whose units are those of `engine_units`."""
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return partial(begin, tmp_path)


@pytest.fixture
def cluster():
    if shutil.which("sinfo") is None or subprocess.run(["sinfo"], capture_output=True, check=False).returncode:
        pytest.skip("no SLURM answers; scripts/slurm_trial makes one")


def test_lines_arrive_once_and_whole(tmp_path):
    lines, reader = Lines(tmp_path / "file"), Lines(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        lines.write(a=1)
    lines.path.touch()
    lines.write(a=1)
    with open(lines.path, "a") as stream:
        stream.write('{"a": 2')
    assert reader.new() == [{"a": 1}]
    lines.write()  # a new life of the writer, which was killed amid a line
    lines.write(a=3)
    assert reader.new() == [{"a": 3}]
    assert reader.new() == []


def test_what_sbatch_says_is_told_also_where_no_partition_is_listed(begun, monkeypatch):
    def silent(*words, given=""):
        raise BadInput(f"{words[0]}: error: no controller")

    monkeypatch.setattr(slurm, "run_slurm", silent)
    monkeypatch.setattr(slurm.shutil, "which", lambda name: name)
    message = "hardware.executor: SLURM refuses the workers, got 'no controller'; change"
    with pytest.raises(BadInput, match=message), begun(TWO):
        raise AssertionError


def test_a_pilot_heeds_the_orders_of_its_life_until_its_driver_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path))
    (folder := tmp_path / "run-t").mkdir()
    job = {
        "session": "engine_units:session", "config": {"folder": str(tmp_path)}, "token": "t", "folder": str(tmp_path),
        "environment": {"REPSIM_CACHE": str(tmp_path)}, "threads": 1, "packages": identify_packages(),
    }  # fmt: skip
    (folder / pilot.JOB).write_text(json.dumps(job))
    orders, answers = pilot.open_worker_files(folder, "worker-0")
    for lines in (orders, answers):
        lines.path.touch()
    orders.write(life="before", number=1, unit=vars(writes(1)[0]))
    monkeypatch.chdir(tmp_path)
    with filelock.FileLock(find_token_file("t")):
        assert pilot.is_driven("t")
        work = threading.Thread(target=pilot.perform_orders, args=(folder, "worker-0", 0.1))
        work.start()

        def answer():
            end = time.monotonic() + 60
            while time.monotonic() < end:
                if said := [line for line in answers.new() if line]:
                    return said
                time.sleep(0.01)
            raise AssertionError("no answer")

        (ready,) = answer()
        assert ready["ready"] == {"error": None, "host": os.uname().nodename}
        orders.write(life="another", number=2, unit=vars(unit("write", "a", name="a")))
        orders.write(life=ready["life"], number=3, unit=vars(unit("write", "b", name="b")))
        (done,) = answer()
        assert (done["number"], done["record"]["status"], done["record"]["computed"]) == (3, "done", True)
        assert (tmp_path / "computed").read_text() == "b\n"
        assert work.is_alive()
    work.join(20)
    assert not work.is_alive()
    assert not pilot.is_driven("t")


def test_what_sbatch_is_asked_for():
    plain = ["--nodes=1", "--ntasks=1", "--cpus-per-task=4"]
    assert slurm.list_sbatch_options(TWO, 4) == plain
    full = Hardware(
        device="cuda", gpus_per_worker=2.0, memory_gb=1.5, partition="gpu", account="nlp", timeout_min=90
    )  # fmt: skip
    asked = ["--gres=gpu:2", "--mem=1500M", "--partition=gpu", "--account=nlp", "--time=90"]
    assert slurm.list_sbatch_options(full, 4) == [*plain, *asked]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            "sbatch: error: invalid partition specified: urgnt",
            "hardware.partition: unknown to SLURM, got 'urgnt'; did you mean 'urgent'?",
        ),
        (
            "sbatch: error: Batch job submission failed: Requested node configuration is not available",
            "hardware.executor: SLURM refuses the workers, got 'Batch job submission failed: Requested node "
            "configuration is not available'; change hardware.partition, account, timeout_min, threads, memory_gb or "
            "gpus_per_worker",
        ),
    ],
)
def test_why_slurm_refuses(said, message):
    assert str(slurm.explain_refusal(said, "urgnt", ["trial", "urgent"])) == message


@pytest.mark.parametrize(
    ("hardware", "message"),
    [
        ({}, "hardware.processes: SLURM needs a number of workers; set hardware.processes=8"),
        (
            {"processes": 2, "gpus_per_worker": 0.25},
            "hardware.gpus_per_worker: SLURM gives whole GPUs, got 0.25; set a whole number",
        ),
    ],
)
def test_settings_that_slurm_cannot_meet(monkeypatch, hardware, message):
    with pytest.raises(
        BadInput, match="hardware.executor: slurm needs the command sbatch, which is not here; run on a machine"
    ):
        monkeypatch.setattr("shutil.which", lambda name: None)
        check_executor({"executor": "slurm", **hardware}, True)
    monkeypatch.setattr("shutil.which", lambda name: name)
    with pytest.raises(BadInput, match=message):
        check_executor({"executor": "slurm", **hardware}, True)


def test_commands_that_fail():
    with pytest.raises(
        BadInput, match="slurm needs the command no-such-command, which is not here; run on a machine of"
    ):
        slurm.run_slurm("no-such-command")
    with pytest.raises(BadInput, match="^said why$"):
        slurm.run_slurm("sh", "-c", "echo said why >&2; exit 3")
    with pytest.raises(BadInput, match="hardware.executor: SLURM does not answer, got 0 s of sleep"):
        slurm.run_slurm("sleep", "5", seconds=0.05)


def test_what_cannot_be_cancelled_is_a_warning(monkeypatch, tmp_path, caplog):
    (tmp_path / "scancel").write_text("#!/bin/sh\necho 'scancel: error: no controller' >&2; exit 1\n")
    (tmp_path / "scancel").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    workers = slurm.Slurm(TWO, 1)
    workers._arrays.append("7")
    workers.stop()
    assert caplog.messages == ["SLURM cannot cancel 7: scancel: error: no controller"]


def computed(folder):
    return (folder / "computed").read_text().split("\n")[:-1]


def tasks(driving):
    """The workers that SLURM runs: worker, and its own number of the job."""
    job = slurm._name_job(driving.executor.token)
    listed = slurm.run_slurm("squeue", "--me", "-h", "-r", "-t", "running", f"--name={job}", "--format=%K %A")
    return dict(line.split() for line in listed.splitlines())


def processes(words):
    """Ids of the processes whose command line has these words."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if words in (place / "cmdline").read_bytes().replace(b"\0", b" ").decode():
                found.append(int(place.name))
        except OSError:
            continue
    return found


@pytest.mark.slurm
def test_workers_are_killed_in_every_way(cluster, begun, tmp_path):
    three = Hardware(executor="slurm", processes=3)
    deadly = [unit("die", f"deadly {i}", name=f"deadly {i}", times=1) for i in range(2)]
    with begun(three, make=partial(slurm.Slurm, three, 1, look_every=0.5), seconds=0.2) as driving:

        def harm():
            for number, way in enumerate(("requeue", "scancel", "slurmstepd", "requeue", "scancel", "pilot")):
                time.sleep(2)
                running = sorted(tasks(driving).items())
                if not running:
                    continue
                index, job = running[number % len(running)]
                if way == "requeue":
                    slurm.run_slurm("scontrol", "requeue", job)
                elif way == "scancel":
                    slurm.run_slurm("scancel", job)
                elif way == "slurmstepd":
                    for pid in processes(f"slurmstepd: [{job}.batch]"):
                        os.kill(pid, signal.SIGKILL)
                else:
                    for pid in processes(f"pilot {driving.executor.folder} worker-{index}"):
                        os.kill(pid, signal.SIGKILL)

        other = threading.Thread(target=harm)
        other.start()
        driving.perform([*writes(120), *deadly, unit("fail", "twice", name="twice", times=2)], "units")
        other.join()
    lines = records(driving)
    assert [line["status"] for line in lines if line["unit"] == "twice"] == ["failed", "failed", "done"]
    done = [line["unit"] for line in lines if line["status"] == "done"]
    assert len(done) == len(set(done)) == 123
    lost = sum(line["status"] == "lost" for line in lines)
    assert lost >= 4
    assert set(computed(tmp_path)) == {u.name for u in writes(120)}
    assert len(computed(tmp_path)) - 120 <= lost  # nothing but what was in flight
    assert not list(find_cache_folder().glob("run-*"))


@pytest.mark.slurm
def test_the_driver_is_killed(cluster, begun, tmp_path):
    """Its workers finish their unit and end; the next driver computes the rest."""
    script = (
        "import sys; from pathlib import Path; from engine_units import begin, writes; from repsim_cli.base.settings import "
        "Hardware\nwith begin(Path(sys.argv[1]), Hardware(executor='slurm', processes=2), seconds=0.3) as driving:\n"
        "    driving.perform(writes(40), 'units')"
    )
    first = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    while not (tmp_path / "computed").is_file() or len(computed(tmp_path)) < 6:
        assert first.poll() is None
        time.sleep(0.05)
    first.kill()
    first.wait()
    shutil.rmtree(tmp_path / "outputs")
    with begun(TWO, seconds=0.3) as driving:
        driving.perform(writes(40), "units")
    assert sorted(computed(tmp_path)) == sorted(u.name for u in writes(40))  # each once
    assert sum(not line["computed"] for line in records(driving)) >= 6
    end = time.monotonic() + 120
    while slurm.run_slurm("squeue", "--me", "--noheader").strip():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.slurm
def test_workers_that_cannot_take_part(cluster, begun, monkeypatch):
    message = "the worker on .* cannot take part: model.a.path: no such folder"
    with pytest.raises(BadInput, match=message), begun(TWO, session="refuse"):
        raise AssertionError
    with monkeypatch.context() as patch:
        patch.setattr(driver, "identify_packages", lambda: {"torch": "1.0"})
        message = "the worker on .* cannot take part: torch differs, got .*, the run has 1.0; install the same"
        with pytest.raises(BadInput, match=message), begun(TWO):
            raise AssertionError
    many = Hardware(executor="slurm", processes=2, memory_gb=1e6)
    with pytest.raises(BadInput, match="SLURM refuses the workers, got '.*[Mm]emory"), begun(many):
        raise AssertionError
    unknown = Hardware(executor="slurm", processes=2, partition="urgnt")
    message = "hardware.partition: unknown to SLURM, got 'urgnt'; did you mean 'urgent'"
    with pytest.raises(BadInput, match=message), begun(unknown):
        raise AssertionError
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    message = "workers end before they are ready, got SLURM's task .* not found"
    with pytest.raises(BadInput, match=message), begun(TWO, make=partial(slurm.Slurm, TWO, 1, look_every=0.5)):
        raise AssertionError


@pytest.mark.slurm
@pytest.mark.parametrize("words", [PAIRS, STITCHES])
def test_one_and_two_workers_give_the_bits_of_the_run_alone(cluster, repsim, tmp_path, monkeypatch, words):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    assert repsim("run", *words, "name=alone")[0] == 0
    for workers in ("1", "2"):
        monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / f"cache-{workers}"))
        asked = ("hardware.executor=slurm", f"hardware.processes={workers}", f"name=with-{workers}")
        assert repsim("run", *words, *asked)[0] == 0
        folder = folders.find(f"with-{workers}")
        assert numbers(folder) == numbers(folders.find("alone"))
        lines = read_records(folder)
        assert lines
        assert all(line["computed"] for line in lines)
