"""Memory of the C library: what is freed is used again, and not zeroed anew by the system."""

import ctypes
import subprocess
import sys

import pytest

PAGES = """
import resource
import numpy as np
from repsim_cli.base import memory

memory.keep_freed()
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [np.ones(400_000) for _ in range(30)]
    del pieces
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="of glibc")
def test_freed_memory_is_used_again():
    ended = subprocess.run([sys.executable, "-c", PAGES], capture_output=True, text=True, check=True)
    assert int(ended.stdout) < 1000  # of 23,000 pages
