"""The jobs of `repsim run`: Hydra starts them; each records how it ended."""

import json
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from repsim_cli.base import signals
from repsim_cli.base.errors import BadInput, RepsimError, RunFailed
from repsim_cli.base.files import explain
from repsim_cli.base.plain import encode_csv
from repsim_cli.base.workers import follow_joblib
from repsim_cli.cli.job import RunJob, perform
from repsim_cli.cli.run import RunRequest
from repsim_cli.cli.show import summarise_run
from repsim_cli.cli.terminal import QUIET, Bar, complain, is_quiet, say
from repsim_cli.config.words import restore_words
from repsim_cli.runs import folders, results

STATUS_FILE = "REPSIM_STATUS_FILE"  # where the jobs of a command note how they ended


def run_jobs(jobs: list[tuple[Any, Any]], asked: RunRequest) -> int:
    """Runs the jobs; the exit code."""
    from hydra.types import RunMode

    from repsim_cli.config.compose import run_alone, run_sweep

    config, checked = jobs[0]
    sweep = asked.sweep or config.hydra.mode == RunMode.MULTIRUN
    with _collect_statuses() as ended:
        try:
            with signals.interruptible():
                if sweep:
                    _check_sweep_folder(config)
                    follow_joblib()  # its launcher's processes
                    run_sweep(run_one_job, *asked[:3])
                else:
                    run_alone(partial(run_one_job, checked=checked), config)
        except OSError as error:  # it cannot make the folder of a job
            results.drop_empty(Path(error.filename or results.find_outputs_root()).parent)
            raise BadInput(explain(error, advice=results.ELSEWHERE)) from None
    if not ended:  # it failed before the first job
        return 1
    statuses = [status for status, _ in ended]
    bad = [status for status in statuses if status != "complete"]
    if len(ended) > 1:
        _write_sweep_table(Path(ended[0][1]).parent)
        if bad:
            say(f"{len(bad)} of {len(statuses)} jobs did not complete", aside=True)
    if "interrupted" in statuses:
        return 130
    return 2 if set(statuses) == {"refused"} else 1 if bad else 0


@contextmanager
def _collect_statuses() -> Iterator[list[tuple[str, str]]]:
    """A file in which the jobs of the inside note how they ended; afterwards the list holds the notes."""
    root = results.find_outputs_root()  # on the file system of the runs, which the machines of a cluster share
    scratch = tempfile.TemporaryDirectory()
    file = (root if root.is_dir() else Path(scratch.name)) / f".jobs-{os.getpid()}"
    for left in root.glob(".jobs-*"):
        process = left.name.removeprefix(".jobs-")
        if process.isdigit() and not results.is_process_alive(int(process)):
            left.unlink(missing_ok=True)  # of a command that was killed
    os.environ[STATUS_FILE] = str(file)
    ended: list[tuple[str, str]] = []
    try:
        file.write_text("\n")  # reserves space on the disk, which may be full when the jobs end
        yield ended
    finally:
        lines = file.read_text().split("\n") if file.is_file() else []
        ended += [json.loads(line) for line in lines if line]
        file.unlink(missing_ok=True)
        scratch.cleanup()


def _write_sweep_table(folder: Path) -> None:
    """Writes the sweep's jobs.json and jobs.csv, and prints their path."""
    jobs = folders.list_jobs(folder)
    if not jobs:  # all were refused, or they resumed runs of an earlier sweep
        return
    results.write(folder / "jobs.json", results.dumps(jobs).encode())
    results.write(folder / "jobs.csv", encode_csv([jobs[0], *(job.values() for job in jobs)]))
    if not os.environ.get(QUIET):
        say(f"jobs: {folder}/jobs.csv")


def _check_sweep_folder(config: Any) -> None:
    """Raises BadInput where a sweep would write, and replace what has the names of its files, among other files."""
    from omegaconf import OmegaConf

    given: Any = OmegaConf.to_container(config.hydra.sweep)
    if "oc.env" in given["dir"]:  # the package's own, with the time in it
        return
    place = Path(config.hydra.sweep.dir)
    if place.is_dir() and not folders.list_jobs(place) and not all(map(_is_left_by_kill, place.iterdir())):
        raise BadInput(f"hydra.sweep.dir: other files are in it, got '{place}'; name a new folder")


def _is_left_by_kill(path: Path) -> bool:
    """Tells whether a sweep that was killed before its first job left this: a job's empty folder, or Hydra's file."""
    if path.is_dir():
        return not any(path.iterdir())
    return path.name == "multirun.yaml" and path.is_file() and path.read_bytes().startswith(b"hydra:")


def run_one_job(config: Any, checked: Any = None) -> None:
    """One job: validate unless done, run, record. Never raises, so that no job of a sweep stops another."""
    from hydra.core.hydra_config import HydraConfig

    status, folder = "failed", Path(HydraConfig.get().runtime.output_dir)
    try:
        with signals.interruptible():
            status = _perform_job(config, checked, folder)
    except KeyboardInterrupt:
        status = "interrupted"
    except RepsimError as error:
        complain(error, _say_job_prefix())
        status = "refused" if isinstance(error, BadInput) else "failed"
    except OSError as error:
        complain(RunFailed(explain(error)), _say_job_prefix())
    finally:
        results.drop_empty(folder)  # Hydra made it; it is empty where the run was refused, or resumed another
        note = os.environ.get(STATUS_FILE)
        if note:
            with open(note, "a") as stream:
                stream.write(json.dumps([status, str(folder)]) + "\n")
    if status == "interrupted":
        if multiprocessing.parent_process() is not None:  # of a launcher, which would start its next job
            os._exit(signals.INTERRUPTED)
        raise KeyboardInterrupt


def _say_job_prefix() -> str:
    """The prefix of a job's messages in a sweep."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    hydra = HydraConfig.get()
    if hydra.mode != RunMode.MULTIRUN:
        return ""
    overrides = ", ".join(restore_words(hydra.overrides.task))
    return f"job {hydra.job.num} ({overrides[:120]}): "


def _perform_job(config: Any, checked: Any, folder: Path) -> str:
    """Performs a job in its folder, or in that of the run that it resumes; returns how it ended."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from repsim_cli.config.run import validate

    hydra = HydraConfig.get()
    words, sweep = restore_words(hydra.overrides.task), hydra.mode == RunMode.MULTIRUN
    status, ran = perform(RunJob(checked or validate(config), folder, words, sweep=sweep), lambda _: Bar())
    if ran is not None and not is_quiet():
        say(*summarise_run(ran))
    return status
