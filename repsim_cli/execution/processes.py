"""Workers that are processes of this machine."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from typing import Any

from repsim_cli.base.settings import Hardware
from repsim_cli.base.workers import follow, shield_starts, use_spawn
from repsim_cli.execution.base import Job, Unit
from repsim_cli.execution.pool import Held, LostWorker, Pool, count_fitting

_held: Held | None = None  # of a process that works


def _ready(parent: int, name: str, job: Mapping[str, Any]) -> dict[str, Any]:
    global _held
    follow(parent)
    _held = Held(name)
    return _held.ready(job)


def _run(unit: Mapping[str, Any]) -> dict[str, Any]:
    assert _held is not None
    return _held.run(unit)


class Processes(Pool):
    """A process pool per worker, since all processes of a pool end with one of them."""

    def __init__(self, hardware: Hardware, threads: int, memory: float = 0.0):
        super().__init__(
            hardware.processes or count_fitting(hardware.workers, hardware.memory_limit, threads, memory) or 1
        )
        self._pools: dict[str, ProcessPoolExecutor] = {}

    def open(self, job: Job) -> None:
        pass

    def begin(self, name: str, job: Job) -> Future[Any]:
        self._pools[name] = ProcessPoolExecutor(1, mp_context=use_spawn())
        with shield_starts():
            return self._pools[name].submit(_ready, os.getpid(), name, asdict(job))

    def call(self, name: str, unit: Unit) -> Future[Any]:
        try:
            return self._pools[name].submit(_run, asdict(unit))
        except BrokenProcessPool as error:  # it ended while it had nothing to do
            future = Future()
            future.set_exception(error)
            return future

    def wait(self, futures: Sequence[Future[Any]], timeout: float) -> list[Future[Any]]:
        return list(wait(futures, timeout, FIRST_COMPLETED).done)

    def results(self, futures: Sequence[Future[Any]]) -> list[Any]:
        return [self._result(future) for future in futures]

    def _result(self, future: Future[Any]) -> Any:
        try:
            return future.result()
        except BrokenProcessPool:
            return LostWorker("the process ended (killed, or out of memory)")

    def drop(self, name: str) -> None:
        pool = self._pools.pop(name)
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(wait=True, cancel_futures=True)

    def stop(self) -> None:
        for name in list(self._pools):
            self.drop(name)
