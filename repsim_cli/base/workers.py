"""Worker processes. They end with this process, however it ends, and leave the signals of a terminal to it."""

import contextlib
import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from multiprocessing.connection import wait
from typing import Any

PR_SET_PDEATHSIG = 1
LOOK_EVERY = 0.5  # seconds, on systems that do not report the death of a parent
GRACE = 10.0  # seconds, at most, for the jobs of a sweep to record that they were interrupted


def follow(parent: int) -> None:
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


def run_spawned(parent: int, target: str, *arguments: Any) -> None:
    """The main function of a process that `multiprocessing` spawns: runs `module:function`, imported only once the
    parent is followed, since imports may take seconds."""
    follow(parent)
    module, _, name = target.partition(":")
    getattr(importlib.import_module(module), name)(*arguments)


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


@cache
def follow_joblib() -> None:
    """Makes the processes of joblib follow this one; when it aborts, they first get time to record it."""
    import joblib
    from joblib._parallel_backends import LokyBackend
    from joblib.externals.loky.backend.utils import kill_process_tree

    class Followed(LokyBackend):
        def configure(self, *arguments: Any, **settings: Any) -> int:
            with shield_starts():  # loky's resource tracker, which unblocks interrupts
                count = super().configure(*arguments, initializer=follow, initargs=(os.getpid(),), **settings)
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
