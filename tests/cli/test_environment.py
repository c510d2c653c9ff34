"""What stands in the environment of a command: folders, variables that torch, threads and figures read."""

import os
import shutil
import subprocess
import sys

import pytest
from helpers.nights import nightly

from repsim_cli.cli import doctor
from repsim_cli.runs import folders


@pytest.mark.parametrize("place", ["/dev/null/outputs", "a-file"])
def test_an_output_folder_that_cannot_be_written(repsim, tmp_path, monkeypatch, place):
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("REPSIM_OUTPUTS", str(tmp_path / place))
    code, out, err = repsim("run", "model=[tiny_a]")
    assert (code, out) == (2, "")
    reason = "Not a directory" if place.startswith("/dev") else "File exists"
    assert f"cannot be used, got '{reason}'; set REPSIM_OUTPUTS to a folder that can be written" in err
    assert len(err.strip().splitlines()) == 1
    code, out, err = repsim("compare", "tiny_a", "tiny_b", "--quiet")
    assert (code, out, err.count("\n"), reason in err) == (2, "", 1, True)


def test_an_empty_outputs_variable_counts_as_unset(repsim, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REPSIM_OUTPUTS", "")
    assert repsim("run", "-q", "model=[tiny_a]", "extract.sequences=10", "measure=[cka]")[0] == 0
    assert len(folders.list_run_folders(tmp_path / "outputs")) == 1


TORCHLESS = [("run", "model=[tiny_a]"), ("measure", "cka", "x.npy", "y.npy"), ("doctor",)]


@pytest.mark.parametrize("words", nightly(TORCHLESS, *TORCHLESS[1:]))
def test_an_environment_with_which_torch_does_not_start(tmp_path, words):
    environment = {**os.environ, "TORCH_LOGS": "nonsense", "REPSIM_OUTPUTS": str(tmp_path / "outputs")}
    command = [sys.executable, "-m", "repsim_cli", *words]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    error = "error: TORCH_LOGS: torch does not start with it, got 'nonsense'; unset it\n"
    assert (found.returncode, found.stdout, found.stderr) == (2, "", error)
    assert not (tmp_path / "outputs").exists()


AT_START = """
import os, sys
sys.argv = ["repsim", "--version"]
from repsim_cli.__main__ import main
try:
    main()
except SystemExit:
    assert "torch" not in sys.modules
    print(os.environ["OMP_WAIT_POLICY"])
"""


@pytest.mark.parametrize("given", [None, "active"])
def test_threads_that_wait_sleep_unless_the_user_says_otherwise(monkeypatch, given):
    """Set before torch is imported, which reads it once."""
    if given:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    else:
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    found = subprocess.run([sys.executable, "-c", AT_START], capture_output=True, text=True, check=True)
    assert found.stdout.split()[-1] == (given or "passive")


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("PASSIVE", "threads that wait sleep (OMP_WAIT_POLICY=passive)"),
        ("active", "threads that wait spin (OMP_WAIT_POLICY: active) and slow other processes down; set it to passive"),
    ],
)  # fmt: skip
def test_the_doctor_says_how_threads_wait(monkeypatch, policy, said):
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    assert said in doctor.describe_devices()


@pytest.mark.slow
def test_an_environment_with_another_backend_of_figures(tmp_path, finished):
    shutil.copytree(finished("model=[tiny_a]", "measure=[cka]", "extract.sequences=10"), tmp_path / "run")
    environment = {**os.environ, "MPLBACKEND": "nonsense"}
    command = [sys.executable, "-m", "repsim_cli", "plot", str(tmp_path / "run")]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
