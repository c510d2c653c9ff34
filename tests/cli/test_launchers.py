"""Jobs of sweeps: launchers that start them, here and on a cluster, and jobs that none can start."""

import json
import os

import pytest
from helpers.small_run import TWO_MODELS

from repsim_cli.base.errors import RunFailed
from repsim_cli.config.compose import convert_launcher_errors
from repsim_cli.runs import folders, reader


def texts(folder):
    """Two files, of which the second has fewer tokens than a batch has rows: found when it is read."""
    for name, sentences in (("long", 400), ("short", 2)):
        (folder / f"{name}.txt").write_text("A hacker is a person who enjoys exploring details. " * sentences)
    return f"{folder}/long.txt,{folder}/short.txt"


@pytest.mark.nightly
def test_jobs_of_joblib_solve_pairs_in_processes(repsim, tmp_path):
    """Its workers have set a start method of their own, which the processes of a job do not know."""
    words = ("extract.estimate=full", "extract.rows=60", "extract.sequences=4", "measure=[gromov_wasserstein]")
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hardware.threads=1", "hardware.processes=2")
    code, _, err = repsim("run", "-q", "-m", *launcher, *words, "model=[tiny_a],[tiny_b]")
    assert code == 0, err
    assert {reader.read_manifest(f)["status"] for f in folders.list_run_folders(tmp_path / "outputs")} == {"complete"}


@pytest.mark.nightly
def test_joblib_runs_jobs_side_by_side_on_one_thread_each(tmp_path):
    """Four jobs, two at a time, in processes of their own; one of them fails."""
    import os
    import subprocess
    import sys

    environment = {**os.environ, "REPSIM_OUTPUTS": str(tmp_path), "REPSIM_CACHE": str(tmp_path / "cache")}
    words = ["run", "-m", "-q", *TWO_MODELS, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=0,1"]
    words += ["data=local_text", f"data.path={texts(tmp_path)}"]
    done = subprocess.run(
        [sys.executable, "-m", "repsim_cli.cli", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "2 of 4 jobs did not complete" in done.stderr
    (table,) = tmp_path.rglob("jobs.json")
    jobs = json.loads(table.read_text())
    assert [job["status"] for job in jobs] == ["complete", "complete"]  # the refused ones leave no folder
    for folder in folders.list_run_folders(tmp_path):
        assert reader.read_manifest(folder)["threads"] == 1


def test_the_slurm_launcher_composes():
    from hydra import compose, initialize_config_dir

    from repsim_cli.config.presets import find_conf_folder

    with initialize_config_dir(str(find_conf_folder()), version_base="1.3"):
        config = compose("config", ["hydra/launcher=slurm", "hydra.launcher.partition=gpu"], return_hydra_config=True)
    launcher = config.hydra.launcher
    assert launcher._target_.endswith("SlurmLauncher")
    assert (launcher.timeout_min, launcher.gpus_per_node, launcher.partition) == (240, 1, "gpu")


@pytest.mark.parametrize("launcher", ["slurm", "submitit_slurm"])
def test_a_launcher_that_does_not_start_the_jobs_is_one_line(repsim, tmp_path, monkeypatch, launcher):
    pytest.importorskip("submitit")
    for command in ("sbatch", "srun"):
        (tmp_path / command).write_text("#!/bin/sh\necho 'sbatch: error: Invalid account' >&2\nexit 1\n")
        (tmp_path / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    code, _, err = repsim("run", "-m", f"hydra/launcher={launcher}", *TWO_MODELS, "seed=0,1")
    said = f"hydra/launcher: {launcher} does not start the jobs, got 'Invalid account'; change hydra.launcher.*"
    assert (code, f"error: {said}, or drop it" in err, "Traceback" in err) == (2, True, False)


def test_a_launcher_that_loses_a_job_is_one_line():
    class UncompletedJobError(Exception):
        pass

    said = "hydra/launcher: slurm lost a job, got 'killed'; run the sweep again"
    with pytest.raises(RunFailed, match=said), convert_launcher_errors("slurm"):
        raise UncompletedJobError("killed")
    with pytest.raises(ValueError, match="ours"), convert_launcher_errors("basic"):
        raise ValueError("ours")


def test_a_sweep_whose_jobs_are_all_refused(repsim, tmp_path):
    """Found when the text is read: nothing started, nothing is left, exit code 2."""
    _, short = texts(tmp_path).split(",")
    words = ("data=local_text", f"data.path={short}", "seed=0,1")
    code, out, err = repsim("run", "-m", "-q", *TWO_MODELS, *words)
    assert (code, out) == (2, "")
    assert err.count("the data has fewer rows than one batch") == 2
    assert "2 of 2 jobs did not complete" in err
    assert not list((tmp_path / "outputs").rglob("manifest.json"))
