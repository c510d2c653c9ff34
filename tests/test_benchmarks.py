"""Scripts of figures that need a machine of their own: that they run."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from repsim_cli import measures

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


def accuracy():
    spec = importlib.util.spec_from_file_location("accuracy", ROOT / "benchmarks" / "accuracy.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


SAMPLE = ["cka", "cka_unbiased", "cka_rbf", "rsa", "rsa_euclidean", "distance_correlation", "procrustes", "euclidean"]


def test_a_sample_of_the_table_of_accuracy_holds():
    """A few times the number that is written there, for processors differ in their last digits."""
    script = accuracy()
    page = script.PAGE.read_text().split(script.BEGIN)[1].split(script.END)[0]
    rows = {cells[1].strip(" `"): cells[2:-1] for cells in (line.split("|") for line in page.splitlines()) if cells[1:]}
    assert set(rows) - {"measure", "---"} >= set(names := measures.available()) - {"gaussian_mutual_information"}
    assert set(SAMPLE) <= set(names)
    assert [kind.strip() for kind in rows["measure"]] == list(script.KINDS)
    for name in SAMPLE:
        for kind, written in zip(script.KINDS, rows[name], strict=True):
            found = script.difference(name, kind, draws=1)
            assert found <= max(5 * float(written), 5e-7), (name, kind)
