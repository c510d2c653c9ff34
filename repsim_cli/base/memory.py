"""The memory of this process, and of the machine."""

import contextlib
import ctypes
from functools import cache

import psutil

KEPT = 1 << 27  # bytes at the end of the heap
ON_HEAP = 1 << 25  # bytes of the largest piece on the heap, the most that glibc comes to by itself
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


def keep_freed() -> None:
    """Lets glibc keep freed memory for what is made next: the system would zero every page of it anew, which takes a
    tenth of the CPU time of a comparison. `trim` returns it all the same."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        change = ctypes.CDLL(None).mallopt
        change(MMAP_THRESHOLD, ON_HEAP)
        change(TRIM_THRESHOLD, KEPT)


def trim() -> None:
    """Returns freed memory to the system: glibc keeps pieces of up to 32 MB, of each thread by itself."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


@cache
def count_installed() -> int:
    """Bytes of this machine's memory, for which a plan asks thousands of times."""
    return psutil.virtual_memory().total
