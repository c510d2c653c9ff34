"""Workers that are the tasks of a SLURM job array.

SLURM starts them, starts them anew after a preemption or when a node fails (`--requeue`), and ends them. Its commands
are called directly: units and their results are JSON lines in the shared cache, whereas submitit pickles both, and asks
`sacct`, which a cluster without an accounting database does not have.
"""

import json
import logging
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean
from repsim_cli.base.settings import Hardware
from repsim_cli.base.signals import delay
from repsim_cli.execution.base import Job, Unit
from repsim_cli.execution.lines import Lines
from repsim_cli.execution.pilot import JOB, is_driven, open_worker_files
from repsim_cli.execution.pool import LostWorker, Pool
from repsim_cli.runs.cache import find_cache_folder

log = logging.getLogger("repsim")
SILENT = 300.0  # seconds without a sign of life after which a worker is given up
LONGEST_PAUSE = 0.05  # seconds between two looks at what workers wrote
COMMAND = 60.0  # seconds that a command of SLURM may take
# states after which a task does not run again, by squeue(1)
ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "TIMEOUT"),
}
WAITING = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"}


@dataclass(eq=False)
class Awaited:
    """What a worker is to answer. number: of the order; 0: that it is ready."""

    name: str
    number: int = 0
    answer: Any = None


def run_slurm(*words: str, given: str = "", seconds: float = COMMAND) -> str:
    """Runs a command of SLURM, and returns what it prints. given: its input.
    Raises BadInput with its own message, or where it takes longer than `seconds`.

    It runs in a session of its own: an interrupt in the terminal ends the driver, which then ends its workers.
    """
    try:
        done = subprocess.run(
            words, input=given, capture_output=True, text=True, timeout=seconds, start_new_session=True, check=False
        )
    except FileNotFoundError:
        raise BadInput(
            f"hardware.executor: slurm needs the command {words[0]}, which is not here; run on a machine of the cluster"
        ) from None
    except subprocess.TimeoutExpired:
        raise BadInput(f"hardware.executor: SLURM does not answer, got {seconds:.0f} s of {words[0]}") from None
    if done.returncode:
        raise BadInput(" ".join(done.stderr.split()) or f"{words[0]}: exit code {done.returncode}")
    return done.stdout


def list_sbatch_options(hardware: Hardware, threads: int) -> list[str]:
    """The options of sbatch for a worker."""
    gpus = int(hardware.gpus_per_worker or 1) if hardware.device.startswith("cuda") else 0
    return [
        *("--nodes=1", "--ntasks=1", f"--cpus-per-task={threads}"),
        *([f"--gres=gpu:{gpus}"] if gpus else []),
        *([f"--mem={math.ceil(hardware.memory_gb * 1000)}M"] if hardware.memory_gb else []),
        *([f"--partition={hardware.partition}"] if hardware.partition else []),
        *([f"--account={hardware.account}"] if hardware.account else []),
        *([f"--time={hardware.timeout_min}"] if hardware.timeout_min else []),
    ]


def explain_refusal(reason: str, partition: str | None, partitions: Iterable[str]) -> BadInput:
    """Explains why SLURM does not take the job array, by what sbatch says."""
    if partition and "partition" in reason.lower() and partition not in (known := list(partitions)):
        return BadInput(f"hardware.partition: unknown to SLURM, got '{partition}'; {did_you_mean(partition, known)}")
    said = reason.replace("sbatch: error: ", "")
    return BadInput(
        f"hardware.executor: SLURM refuses the workers, got '{said}'; change hardware.partition, account, "
        "timeout_min, threads, memory_gb or gpus_per_worker"
    )


def _list_partitions() -> list[str]:
    """Lists the partitions that SLURM has; none where it does not answer."""
    if shutil.which("sinfo") is None:
        return []
    with suppress(BadInput):
        return run_slurm("sinfo", "--noheader", "--format=%R").split()
    return []


def parse_task_states(listed: str) -> dict[str, tuple[str, str]]:
    """State and reason of each task, of lines TASK|STATE|REASON.

    >>> parse_task_states("7_0|RUNNING|None")
    {'7_0': ('RUNNING', 'None')}
    """
    rows = [line.split("|", 2) for line in listed.splitlines() if line.count("|") >= 2]
    return {task: (state, reason) for task, state, reason in rows}


def read_last_line(file: Path) -> str:
    """Reads the last line of the log of a worker, 300 characters at most; empty where there is none."""
    try:
        lines = file.read_text(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


class Slurm(Pool):
    """A task of a job array per worker. Those that SLURM does not start anew are submitted again, each alone.

    look_every: seconds between two looks at SLURM's queue.
    """

    patience, grace = math.inf, 0.0  # a queue may be long; later workers are used when they come

    def __init__(self, hardware: Hardware, threads: int, memory: float = 0.0, look_every: float = 5.0):
        # not for `memory`, an estimate, but for hardware.memory_gb: SLURM kills what takes more than it asked for
        super().__init__(hardware.processes or 0)
        self.hardware, self.threads, self.look_every = hardware, threads, look_every
        self._tasks: dict[str, str] = {}  # by worker: JOB_INDEX in SLURM's queue
        self._arrays: list[str] = []
        self._lives: dict[str, str] = {}  # of workers that are ready
        self._seen: dict[str, float] = {}
        self._readies: dict[str, dict[str, Any]] = {}  # of lives that nobody has asked for yet
        self._files: dict[str, tuple[Lines, Lines]] = {}
        self._open: list[Awaited] = []
        self._orders, self._looked, self._said = 0, 0.0, ""

    def open(self, job: Job) -> None:
        _tidy()
        self.token, self.folder = job.token, find_cache_folder().resolve() / f"run-{job.token}"
        self.folder.mkdir(mode=0o700)  # orders name what the user works on
        (self.folder / JOB).write_text(json.dumps(asdict(job)))
        for number in range(self.count):
            pair = self._files[f"worker-{number}"] = open_worker_files(self.folder, f"worker-{number}")
            for lines in pair:
                lines.path.touch()
        self._submit([f"worker-{number}" for number in range(self.count)])

    def _submit(self, names: Sequence[str]) -> None:
        numbers = [name.removeprefix("worker-") for name in names]
        command = [sys.executable, "-m", "repsim_cli.execution.pilot", str(self.folder)]
        with delay():  # else an interrupt might leave a job that nobody knows
            try:
                answer = run_slurm(
                    *("sbatch", "--parsable", "--requeue", "--open-mode=append", f"--job-name={_name_job(self.token)}"),
                    f"--array={numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else f"--array={numbers[0]}",
                    f"--output={self.folder}/worker-%a.log",
                    *list_sbatch_options(self.hardware, self.threads),
                    given=f"#!/bin/sh\nexec {shlex.join(command)} worker-$SLURM_ARRAY_TASK_ID\n",
                )
            except BadInput as error:
                raise explain_refusal(str(error), self.hardware.partition, _list_partitions()) from None
            array = answer.strip().partition(";")[0]
            self._arrays.append(array)
            self._tasks |= {name: f"{array}_{number}" for name, number in zip(names, numbers, strict=True)}

    def about(self) -> str:
        return self._said or f"{self.count} asked for"

    def begin(self, name: str, job: Job) -> Awaited:
        if name not in self._tasks:
            self._submit([name])
        return self._await(Awaited(name, answer=self._adopt(name)))

    def _await(self, awaited: Awaited) -> Awaited:
        self._open.append(awaited)
        return awaited

    def _adopt(self, name: str) -> dict[str, Any] | None:
        """Takes a worker's new life as the one that orders go to; what it said of being ready."""
        line = self._readies.pop(name, None)
        if line is None:
            return None
        self._lives[name], self._seen[name] = line["life"], time.monotonic()
        return line["ready"]

    def call(self, name: str, unit: Unit) -> Awaited:
        self._orders += 1
        awaited = self._await(Awaited(name, self._orders))
        self._files[name][0].write(life=self._lives.get(name), number=self._orders, unit=asdict(unit))
        return awaited

    def wait(self, futures: Sequence[Awaited], timeout: float) -> list[Awaited]:
        end, pause = time.monotonic() + timeout, 0.001
        while True:
            for name in self._files:
                self._read(name)
            if time.monotonic() - self._looked > self.look_every:
                self._look()
                self._looked = time.monotonic()
            done = [awaited for awaited in self._open if awaited.answer is not None]
            if done or time.monotonic() >= end:
                return done
            time.sleep(pause)
            pause = min(LONGEST_PAUSE, 1.5 * pause)

    def results(self, futures: Sequence[Awaited]) -> list[Any]:
        self._open = [awaited for awaited in self._open if awaited not in futures]
        return [awaited.answer for awaited in futures]

    def _read(self, name: str) -> None:
        """Takes in what a worker wrote."""
        for line in self._files[name][1].new():
            life = line.get("life")
            if "ready" in line:
                self._readies[name] = line
                waiting = [a for a in self._open if a.name == name and a.number == 0 and a.answer is None]
                if waiting:
                    waiting[0].answer = self._adopt(name)
                else:
                    self._lose(name, "SLURM started it anew")
            elif life == self._lives.get(name):
                self._seen[name] = time.monotonic()
                for awaited in self._open:
                    if awaited.name == name and awaited.number == line.get("number"):
                        awaited.answer = line["record"]

    def _lose(self, name: str, why: str) -> None:
        """Says so of all that the worker was to answer, or of itself. A life that goes on unseen is told to end."""
        if name in self._lives:
            self._files[name][0].write(life=self._lives.pop(name))
        lost = [awaited for awaited in self._open if awaited.name == name and awaited.answer is None]
        if not lost:
            lost = [self._await(Awaited(name))]
            self._asked[lost[0]] = name, None
        for awaited in lost:
            awaited.answer = LostWorker(why)

    def _look(self) -> None:
        """Finds the workers that ended, wait again, or are silent."""
        try:
            options = ("--me", "--noheader", "--array", "--states=all", "--format=%i|%T|%r")
            tasks = parse_task_states(run_slurm("squeue", *options, f"--name={_name_job(self.token)}"))
        except BadInput as error:  # its controller restarts, or is busy
            log.warning("SLURM's queue cannot be read: %s", error)
            return
        for name, task in list(self._tasks.items()):
            state, reason = tasks.get(task, ("gone", ""))
            self._read(name)
            if state == "gone" or state in ENDED:
                del self._tasks[name]
                said = read_last_line(self.folder / f"{name}.log")
                self._lose(name, f"SLURM's task {task} ended ({state})" + (f": {said}" if said else ""))
            elif state in WAITING and name in self._lives:
                self._lose(name, f"SLURM requeued the task {task} ({reason})")
            elif name in self._lives and time.monotonic() - self._seen[name] > SILENT:
                del self._tasks[name]
                _cancel(task)
                self._lose(name, f"no sign of life for {SILENT:.0f} s of SLURM's task {task}")
        self._say(tasks)

    def _say(self, tasks: Mapping[str, tuple[str, str]]) -> None:
        """Logs why there is no worker, when that changes."""
        said = "; ".join(sorted({f"{state} ({reason})" for state, reason in tasks.values()}))
        if not self._lives and said != self._said:
            log.info("no worker runs yet; SLURM: %s", said or "no job")
        self._said = said

    def drop(self, name: str) -> None:
        """`_lose` has ended what there was. A task that SLURM starts anew keeps its place in the queue."""
        self._open = [awaited for awaited in self._open if awaited.name != name]

    def stop(self) -> None:
        if self._arrays:
            _cancel(*self._arrays)
        shutil.rmtree(getattr(self, "folder", ""), ignore_errors=True)


def _name_job(token: str) -> str:
    return f"repsim-{token[:12]}"


def _cancel(*words: str) -> None:
    """Cancels jobs. Never raises: workers also end when the driver's lock is gone."""
    try:
        run_slurm("scancel", *words)
    except BadInput as error:
        log.warning("SLURM cannot cancel %s: %s", " ".join(words), error)


def _tidy() -> None:
    """Cancels what drivers that were killed left in the queue. Their workers end by themselves after their unit."""
    for folder in find_cache_folder().glob("run-*"):
        token = folder.name.removeprefix("run-")
        if not os.access(folder / JOB, os.R_OK) or is_driven(token):  # another user's, or of a driver that works
            continue
        name = f"--name={_name_job(token)}"
        _cancel("--me", "--state=PENDING", name)
        if not run_slurm("squeue", "--me", "--noheader", name).strip():
            shutil.rmtree(folder, ignore_errors=True)
