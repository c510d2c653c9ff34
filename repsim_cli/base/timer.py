"""A timer for what is done now and then beside other work."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Timer:
    """Says when it is time again: `every` seconds after the last time was over, or later where that took long.

    share: of the time that may be spent on it.
    """

    def __init__(self, every: float, share: float = 0.05):
        self.every, self.share = every, share
        self._next = time.monotonic() + every

    def is_due(self) -> bool:
        return time.monotonic() >= self._next

    @contextmanager
    def restart(self) -> Iterator[None]:
        """Starts the timer anew after the block, also where it fails; the block does what it was time for."""
        begin = time.monotonic()
        try:
            yield
        finally:
            end = time.monotonic()
            self._next = end + max(self.every, (end - begin) / self.share)
