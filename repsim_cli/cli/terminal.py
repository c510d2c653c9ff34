"""Terminal output that the commands share: the log, errors and progress."""

import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from repsim_cli.base.errors import BadConfig, BadInput, RepsimError
from repsim_cli.base.plain import escape, say_duration

log = logging.getLogger("repsim")
QUIET = "REPSIM_QUIET"
SLOW = 5.0  # seconds after which a step of unknown length is named
SILENT = 30.0  # seconds without a word after which a run says what it does
heard = SimpleNamespace(at=0.0)  # when something was said last, or an item of a bar was done


def say(*lines: str, aside: bool = False) -> None:
    """Prints lines on standard output, or aside, on standard error; nothing in their labels steers the terminal."""
    for line in lines:
        print(escape(line), file=sys.stderr if aside else sys.stdout, flush=True)
    heard.at = time.perf_counter()


def say_aside(*lines: str) -> None:
    """Prints lines on standard error, above a bar that is shown there."""
    if not sys.stderr.isatty():
        say(*lines, aside=True)
        return
    from tqdm import tqdm

    for line in lines:
        tqdm.write(escape(line), file=sys.stderr)


@contextmanager
def name_where_slow(step: Callable[[], str], seconds: float = SLOW) -> Iterator[None]:
    """Says aside which step is at work where nothing was said for so long, and again where nothing was for twice as
    long, unless quiet."""
    start, ended = time.perf_counter(), threading.Event()

    def watch() -> None:
        limit = seconds
        while not ended.wait(max(start, heard.at) + limit - time.perf_counter()):
            now = time.perf_counter()
            if now >= max(start, heard.at) + limit:
                say_aside(f"{step()}: still at work, {say_duration(now - start)} after the start")
                limit *= 2

    if not is_quiet():
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


class LogLines(logging.Formatter):
    """A line per message of the log, as `say` prints it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escape(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join(map(escape, super().formatException(ei).split("\n")))


def show_log_on_terminal() -> logging.Handler:
    """Shows warnings and errors of the log on the terminal."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLines("%(levelname)s: %(message)s"))
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: record.levelno >= logging.ERROR or not is_quiet())
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(handler)
    return handler


def check_torch() -> None:
    """Raises BadInput where torch does not start with this environment."""
    try:
        importlib.import_module("torch")
    except ValueError as error:
        if not (given := os.environ.get("TORCH_LOGS")):
            raise
        raise BadInput(f"TORCH_LOGS: torch does not start with it, got '{given}'; unset it") from error


def is_quiet() -> bool:
    """Says whether only errors are shown beside what a command answers."""
    return bool(os.environ.get(QUIET))


def complain(error: RepsimError, job: str = "") -> None:
    lines = error.problems if isinstance(error, BadConfig) else [" ".join(str(error).split("\n"))]
    say(*(f"error: {job}{line}" for line in lines), aside=True)


class Bar:
    """Progress: a bar on a terminal, plain lines elsewhere, nothing when quiet.

    later: how many items come in later calls; the time that is left includes them.
    """

    def __call__(self, items: Iterable[Any], *, label: str, unit: str, later: int = 0) -> Iterator[Any]:
        sized: Any = items if hasattr(items, "__len__") else list(items)
        if is_quiet():
            return iter(sized)
        if sys.stderr.isatty():
            from tqdm import tqdm

            shown = tqdm(sized, total=len(sized) + later, desc=escape(label), unit=f" {unit}", leave=False, delay=1)
            return self._hear(shown)
        return self._lines(sized, label, unit, later)

    def _hear(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            yield item
            heard.at = time.perf_counter()

    def _lines(self, items: Any, label: str, unit: str, later: int) -> Iterator[Any]:
        start, total = time.monotonic(), len(items) + later
        shown = start
        for done, item in enumerate(items, 1):
            yield item
            now = time.monotonic()
            # at least every tenth of the work, but no more than one line in two seconds
            if (now - shown >= 2 and done * 10 // total > (done - 1) * 10 // total) or now - shown >= 30:
                rate = done / (now - start)
                left = (total - done) / rate
                say(f"{label}: {done}/{total} {unit}, {rate:.2f}/s, {left:.0f} s left", aside=True)
                shown = now
