"""The memory of this process, and of the machine."""

import contextlib
import ctypes
from functools import cache

import psutil


def trim() -> None:
    """Returns freed memory to the system: glibc keeps pieces of up to 32 MB, of each thread by itself."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


@cache
def count_installed() -> int:
    """Bytes of this machine's memory, for which a plan asks thousands of times."""
    return psutil.virtual_memory().total
