"""Bounds in time and memory for what a file of somebody else has computed here."""

import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS, BYTES = 10.0, 1 << 28
PAGES = Path("/proc/self/statm")


@contextmanager
def limit_work(seconds: float = SECONDS) -> Iterator[None]:
    """Ends what is computed inside by TimeoutError or MemoryError: where it takes longer than `seconds`, in the main
    thread, or holds more than `BYTES`, on Linux."""

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"it took more than {seconds:g} s")

    before, timed = resource.getrlimit(resource.RLIMIT_AS), threading.current_thread() is threading.main_thread()
    if PAGES.is_file():
        most = int(PAGES.read_text().split()[0]) * resource.getpagesize() + BYTES
        limits = [limit for limit in (most, *before) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_AS, (min(limits), before[1]))
    handler = signal.signal(signal.SIGALRM, stop) if timed else None
    began, left = time.monotonic(), signal.setitimer(signal.ITIMER_REAL, seconds)[0] if timed else 0.0
    try:
        yield
    except MemoryError:
        raise MemoryError(f"it took more than {BYTES >> 20} MB") from None
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 1e-3) if left else 0.0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        resource.setrlimit(resource.RLIMIT_AS, before)
