"""Workers that the driver starts itself, and to which it gives their units one by one."""

import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from repsim_cli.base.errors import BadInput
from repsim_cli.execution.base import REFUSED, Executor, Job, Record, Unit, record_refusal
from repsim_cli.execution.worker import Worker

STARTS = 3  # of a worker that ends before it is ready


class LostWorker(Exception):
    """A worker ended before its answer. The message says what is known of why."""


def count_fitting(cpus: float, room: float, threads: int, memory: float, gpus: float = 0.0, share: float = 0.0) -> int:
    """Counts the workers that fit on a machine with these CPUs, bytes of `room` and GPUs.

    threads, memory: of each worker, in bytes. share: of a GPU for each (`compute_gpu_share`)."""
    most = int(min(cpus // threads, room // max(memory, 1.0)))
    return min(most, int(gpus) * int(1 / share) if share <= 1 else int(gpus // share)) if share else most


def compute_gpu_share(memory: float, gpu: float) -> float:
    """Computes the share of a GPU of `gpu` bytes for a worker of `memory` bytes: 1 / N where N of them fit, in Ray's
    steps of 0.0001.

    >>> compute_gpu_share(20e9, 85e9), compute_gpu_share(25e9, 85e9), compute_gpu_share(60e9, 85e9)
    (0.25, 0.3333, 1.0)
    """
    return int(1e4 / max(gpu // max(memory, 1.0), 1)) / 1e4


class Pool(Executor):
    """`count` workers with `slots` units each at a time; those that end are replaced.

    patience: seconds for a first worker to be ready. grace: seconds, after that, for the others; later ones are used
        when they come.
    """

    patience, grace = 300.0, 30.0

    def __init__(self, count: int, slots: int = 1):
        self.count, self.slots = count, slots
        self._free: dict[str, int] = {}  # slots of the workers that are ready
        self._asked: dict[Any, tuple[str, int | None]] = {}  # by future: the worker and the unit; None: to be ready
        self._group: dict[str, str] = {}
        self._ends: Counter[str] = Counter()
        self._held: dict[str, tuple[float, float]] = {}  # by host: its first and its last answer

    @abstractmethod
    def open(self, job: Job) -> None:
        """Connects to the engine. Raises BadInput."""

    @abstractmethod
    def begin(self, name: str, job: Job) -> Any:
        """Starts a worker; the future of its `prepare_worker`."""

    @abstractmethod
    def call(self, name: str, unit: Unit) -> Any:
        """The future of a record."""

    @abstractmethod
    def wait(self, futures: Sequence[Any], timeout: float) -> list[Any]:
        """Waits until some are done, for at most `timeout` seconds. Returns those that are done."""

    @abstractmethod
    def results(self, futures: Sequence[Any]) -> list[Any]:
        """Gives what futures that are done answer, in order; LostWorker in place of an answer that is lost."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Ends a worker, if it has not ended."""

    def start(self, job: Job) -> None:
        self._job = job
        self.open(job)
        for number in range(self.count):
            self._begin(f"worker-{number}")
        end = time.monotonic() + self.patience
        while len(self._free) < self.count and time.monotonic() < end:
            for _, record in self.take_ended(1.0):
                raise BadInput(str(record.error))
            if self._free:
                end = min(end, time.monotonic() + self.grace)
        if not self._free:
            raise BadInput(f"hardware.executor: no worker was ready in {self.patience:.0f} s, got {self.about()}")

    def about(self) -> str:
        """Says what the engine has, for errors."""
        return f"{self.count} asked for"

    def room(self, avoid: Collection[str] = ()) -> int:
        others = [slots for name, slots in self._free.items() if name not in avoid]
        return sum(others or self._free.values())

    def submit(self, number: int, unit: Unit, avoid: Collection[str]) -> None:
        free = [name for name, slots in self._free.items() if slots]
        name = min(free, key=lambda name: (name in avoid, self._group.get(name) != unit.group))
        self._free[name] -= 1
        self._group[name] = unit.group
        self._asked[self.call(name, unit)] = name, number

    def take_ended(self, timeout: float) -> list[tuple[int, Record]]:
        done = self.wait(list(self._asked), timeout)
        ends: list[tuple[int, Record]] = []
        lost: dict[str, str] = {}
        for future, answer in zip(done, self.results(done), strict=True):
            name, number = self._asked.pop(future)
            if isinstance(answer, LostWorker):
                lost[name] = str(answer)
                if number is not None:
                    ends.append((number, Record(status="lost", error=str(answer), worker=name)))
            elif number is None and answer["error"]:
                ends.append((REFUSED, record_refusal(answer["error"], name)))
            elif number is None:
                self._free[name], self._ends[name] = self.slots, 0
                self._see(answer["host"])
            else:
                record = Record(**answer)
                self._see(record.host)
                if name in self._free:
                    self._free[name] += 1
                ends.append((number, record))
        for name, why in lost.items():
            ends += self._replace(name, why)
        return ends

    def _see(self, host: str) -> None:
        now = time.monotonic()
        self._held[host] = self._held.get(host, (now, now))[0], now

    def _begin(self, name: str) -> None:
        self._asked[self.begin(name, self._job)] = name, None

    def _replace(self, name: str, why: str) -> list[tuple[int, Record]]:
        """Starts a worker anew, unless it has ended too often before it was ready."""
        units = [number for of, number in self._asked.values() if of == name and number is not None]
        self._asked = {future: of for future, of in self._asked.items() if of[0] != name}
        self._free.pop(name, None)
        self._ends[name] += 1
        self.drop(name)
        ends = [(number, Record(status="lost", error=why, worker=name)) for number in units]
        if self._ends[name] <= STARTS:
            self._begin(name)
        elif not self._free and not self._asked:
            ends.append(
                (REFUSED, record_refusal(f"hardware.executor: workers end before they are ready, got {why}", name))
            )
        return ends

    def nodes(self) -> dict[str, float]:
        return {host: last - first for host, (first, last) in self._held.items()}


class Held:
    """A worker in a process of an engine. Its answers are plain, so that no process unpickles an unknown class."""

    def __init__(self, name: str):
        self.name = name
        self.worker: Worker | None = None

    def prepare_worker(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """The host, or why this process cannot take part."""
        try:
            self.worker = Worker(Job(**job), self.name)
        except BadInput as error:
            return {"error": str(error)}
        return {"error": None, "host": self.worker.host}

    def run(self, unit: Mapping[str, Any]) -> dict[str, Any]:
        assert self.worker is not None
        return asdict(self.worker.run(Unit(**unit)))
