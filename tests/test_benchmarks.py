"""Scripts of figures that need a machine of their own: that they run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.nightly
def test_the_script_for_a_gpu_runs_small_on_a_cpu():
    words, given = [sys.executable, ROOT / "benchmarks" / "gpu.py"], {"cwd": ROOT, "capture_output": True, "text": True}
    ended = subprocess.run([*words, "--small", "pairs", "forwards", "blocks", "memory"], **given, check=True)
    assert [line.split(":")[0] for line in ended.stdout.splitlines()[4:6]] == ["| A", "| B"]
    assert "the CPU, small sizes: no figures" in ended.stdout
    ended = subprocess.run([*words, "nothing"], **given, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert ended.returncode == 2
    assert "no such part, got nothing; choose from pairs, forwards" in ended.stderr
