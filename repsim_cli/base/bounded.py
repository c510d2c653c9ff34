"""Bounds in time and memory for what a file of somebody else has computed here."""

import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS, BYTES = 10.0, 1 << 28
PAGES = Path("/proc/self/statm")


def _late(number: int, frame: Any) -> None:
    raise TimeoutError(f"it took more than {SECONDS:g} s")


@contextmanager
def bounded() -> Iterator[None]:
    """Raises TimeoutError or MemoryError where what is computed inside takes longer than `SECONDS`, in the main thread,
    or holds more than `BYTES`, on Linux."""
    before, timed = resource.getrlimit(resource.RLIMIT_AS), threading.current_thread() is threading.main_thread()
    if PAGES.is_file():
        most = int(PAGES.read_text().split()[0]) * resource.getpagesize() + BYTES
        limits = [limit for limit in (most, *before) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_AS, (min(limits), before[1]))
    handler = signal.signal(signal.SIGALRM, _late) if timed else None
    left = signal.setitimer(signal.ITIMER_REAL, SECONDS)[0] if timed else 0.0
    try:
        yield
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_REAL, left)
            signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)
