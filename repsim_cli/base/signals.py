"""Handling of the signals that end a command: Ctrl-C, a request of the scheduler or the system, a closed terminal.

While jobs run, signals raise KeyboardInterrupt, so that each job records its end. Before and after, there is nothing to
record, and Python may be importing or shutting down, where an exception would be lost: the process ends at once.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 130  # the exit code

_interrupted = False  # whether a signal came while jobs ran
_delays = 0  # how many sections are delaying it


def end(number: int, frame: Any) -> None:
    """Ends the process at once, with a message."""
    with contextlib.suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def _interrupt(number: int, frame: Any) -> None:
    global _interrupted
    _interrupted = True
    if not _delays:
        raise KeyboardInterrupt


OURS = (signal.SIG_DFL, signal.default_int_handler, end, _interrupt)


def handle(handler: Callable[[int, Any], None]) -> dict[signal.Signals, Any]:
    """Installs the handler for these signals; returns the previous handlers. Signals that are ignored (nohup, a
    background job) or handled by a scheduler's library are left alone."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    known = {number: signal.getsignal(number) for number in ENDS}
    before = {number: old for number, old in known.items() if old in OURS}
    for number in before:
        signal.signal(number, handler)
    return before


def restore(before: dict[signal.Signals, Any]) -> None:
    for number, old in before.items():
        signal.signal(number, old)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Makes the signals raise KeyboardInterrupt inside the block."""
    global _interrupted
    _interrupted = False
    before = handle(_interrupt)
    try:
        yield
    finally:
        restore(before)


def was_interrupted() -> bool:
    """Says whether jobs were asked to end; the error that follows is due to the interrupt, whatever a library made of
    it."""
    return _interrupted


@contextlib.contextmanager
def delay() -> Iterator[None]:
    """Delays an interrupt inside the block until its end."""
    global _delays
    before, _delays = _interrupted, _delays + 1
    try:
        yield
    finally:
        _delays -= 1
    if _interrupted and not before:
        raise KeyboardInterrupt
