"""Passes that stop before each part of a model, so that all of them go through a part while its weights are there."""

from collections.abc import Callable
from threading import Semaphore, Thread
from typing import Any

from repsim_cli.studies.verify.reference import Gate

START = ":start"


class _Ended(BaseException):
    """Raised in a pass that is not wanted any more."""


class Pass:
    """A function that runs a model, in a thread of its own: the state of a forward pass is that of its calls. Only one
    of the threads is ever at work.

    at: the key of the call before which it waits; None: it has ended. result: what the function returned.
    """

    def __init__(self, run: Callable[[Gate], Any]):
        self.at: str | None = START
        self.result: Any = None
        self._error: BaseException | None = None
        self._stop = False
        self._go, self._stopped = Semaphore(0), Semaphore(0)
        self._thread = Thread(target=self._work, args=(run,), daemon=True)
        self._thread.start()

    @property
    def part(self) -> str:
        """The key of the unit in front of which it waits; empty at the end."""
        return (self.at or "").partition(" (call")[0]

    def step(self) -> None:
        """Goes on to the next call, or to the end. Raises what the function raises."""
        self._go.release()
        self._stopped.acquire()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Ends it where it is."""
        if self.at is not None:
            self._stop = True
            self._go.release()
        self._thread.join()

    def _work(self, run: Callable[[Gate], Any]) -> None:
        try:
            self._wait()
            self.result = run(self._gate)
        except _Ended:
            pass
        except BaseException as error:
            self._error = error
        self.at = None
        self._stopped.release()

    def _gate(self, key: str) -> None:
        self.at = key
        self._stopped.release()
        self._wait()

    def _wait(self) -> None:
        if not self._stop:  # a model that catches the end comes here again
            self._go.acquire()
        if self._stop:
            raise _Ended
