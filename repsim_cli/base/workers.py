"""Worker processes. They end with this process, however it ends, and leave the signals of a terminal to it."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from repsim_cli.base import garbage

PR_SET_PDEATHSIG = 1
LOOK_EVERY = 0.5  # seconds, on systems that do not report the death of a parent
GRACE = 10.0  # seconds, at most, for processes that end; jobs of a sweep record that they were interrupted


def end_with_parent(parent: int) -> None:
    """Makes this process end with the process `parent` that started it: by the kernel on Linux, elsewhere by a thread
    that checks."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_look, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # the parent has already ended
        os._exit(1)


def _look(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY)
    os._exit(1)


def use_spawn() -> Any:
    """multiprocessing's way to spawn processes. A worker of joblib has set `loky` as its start method, a name that new
    processes are told and do not know."""
    if multiprocessing.get_start_method(allow_none=True) == "loky":
        multiprocessing.set_start_method("spawn", force=True)
    return multiprocessing.get_context("spawn")


@contextlib.contextmanager
def shield_starts() -> Iterator[None]:
    """Processes that are started inside do not receive a terminal's interrupts; this process does, and ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ProcessEnded(Exception):
    """A worker process ended before its answer. The message is its exit code."""


@dataclass(frozen=True, eq=False)
class WorkerProcess:
    """A process that answers calls one after the other.

    Not loky's, which joblib brings: with one process it ends all of its pool, and it starts four times as slowly
    (`python benchmarks/engines.py starts`).
    """

    process: Any
    connection: Connection

    @classmethod
    def start(cls) -> "WorkerProcess":
        context = use_spawn()
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(os.getpid(), theirs), daemon=True)
        resource_tracker.ensure_running()  # the first start of a process would start it, and it unblocks interrupts
        with shield_starts():
            process.start()
        theirs.close()
        return cls(process, ours)

    def fileno(self) -> int:
        return self.connection.fileno()

    def ask(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Sends a call of a function that pickles by name. Where the process has ended, `answer` says so."""
        with contextlib.suppress(OSError):
            self.connection.send((function, arguments))

    def answer(self) -> Any:
        """Waits for what the oldest call without an answer returns. Raises ProcessEnded."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join(GRACE)
            code = self.process.exitcode
        raise ProcessEnded(f"exit code {code}" + " (killed, or out of memory)" * (code == -signal.SIGKILL))

    def end(self) -> None:
        """Kills the process, if it has not ended."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def wait_for(workers: Sequence[WorkerProcess], timeout: float | None = None) -> list[WorkerProcess]:
    """Waits until some have an answer, or have ended, and lists them; after at most `timeout` seconds none."""
    return wait(workers, timeout)  # type: ignore[return-value, arg-type]


def serve(parent: int, connection: Connection) -> None:
    """Answers calls, in a worker process. It imports what it is asked for only once it follows its parent, since
    imports may take seconds."""
    end_with_parent(parent)
    garbage.pause()  # until it has imported what the first call needs
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            function, arguments = connection.recv()
            connection.send(function(*arguments))
            garbage.resume()


@cache
def follow_joblib() -> None:
    """Makes the processes of joblib follow this one; when it aborts, they first get time to record it."""
    import joblib
    from joblib._parallel_backends import LokyBackend
    from joblib.externals.loky.backend.utils import kill_process_tree

    class Followed(LokyBackend):
        def configure(self, *arguments: Any, **settings: Any) -> int:
            with shield_starts():  # loky's resource tracker, which unblocks interrupts
                count = super().configure(*arguments, initializer=end_with_parent, initargs=(os.getpid(),), **settings)
            with shield_starts():
                self._workers.submit(int)  # type: ignore[union-attr]  # this starts all of them
            return count

        def abort_everything(self, ensure_ready: bool = True) -> None:
            processes = multiprocessing.active_children()
            self._workers._processes.clear()  # type: ignore[union-attr]  # else loky kills all once the first has ended
            for process in processes:
                process.terminate()
            end = time.monotonic() + GRACE
            left = [process.sentinel for process in processes]
            while left and (ended := wait(left, max(0.0, end - time.monotonic()))):
                left = [sentinel for sentinel in left if sentinel not in ended]
            for process in processes:
                if process.sentinel in left:
                    kill_process_tree(process)
            super().abort_everything(ensure_ready)

    joblib.register_parallel_backend("loky", Followed)
