"""Workers that are processes of this machine."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from repsim_cli.base.settings import Hardware
from repsim_cli.base.workers import ProcessEnded, WorkerProcess, wait_for
from repsim_cli.execution.base import Job, Unit
from repsim_cli.execution.pool import Held, LostWorker, Pool, count_fitting

_held: Held | None = None  # of a process that works


def _prepare_worker(name: str, job: Mapping[str, Any]) -> dict[str, Any]:
    global _held
    _held = Held(name)
    return _held.prepare_worker(job)


def _run(unit: Mapping[str, Any]) -> dict[str, Any]:
    assert _held is not None
    return _held.run(unit)


class Processes(Pool):
    """A process that has been asked is the future of its answer."""

    def __init__(self, hardware: Hardware, threads: int, memory: float = 0.0):
        super().__init__(
            hardware.processes or count_fitting(hardware.workers, hardware.memory_limit, threads, memory) or 1
        )
        self._workers: dict[str, WorkerProcess] = {}

    def open(self, job: Job) -> None:
        pass

    def begin(self, name: str, job: Job) -> WorkerProcess:
        self._workers[name] = WorkerProcess.start()
        self._workers[name].ask(_prepare_worker, name, asdict(job))
        return self._workers[name]

    def call(self, name: str, unit: Unit) -> WorkerProcess:
        self._workers[name].ask(_run, asdict(unit))
        return self._workers[name]

    def wait(self, futures: Sequence[WorkerProcess], timeout: float) -> list[WorkerProcess]:
        return wait_for(futures, timeout)

    def results(self, futures: Sequence[WorkerProcess]) -> list[Any]:
        return [self._result(future) for future in futures]

    def _result(self, future: WorkerProcess) -> Any:
        try:
            return future.answer()
        except ProcessEnded as error:
            return LostWorker(f"the process ended with {error}")

    def drop(self, name: str) -> None:
        self._workers.pop(name).end()

    def stop(self) -> None:
        for name in list(self._workers):
            self.drop(name)
