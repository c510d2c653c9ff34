"""The memory of this process."""

import contextlib
import ctypes


def trim() -> None:
    """Returns freed memory to the system: glibc keeps pieces of up to 32 MB, of each thread by itself."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
