"""`repsim run`: everything is checked first, then Hydra starts the jobs; each records how it ended."""

import json
import logging
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from repsim_cli.base import signals
from repsim_cli.base.errors import BadInput, RepsimError, RunFailed, panic
from repsim_cli.base.files import explained
from repsim_cli.base.plain import csv_bytes
from repsim_cli.base.workers import followed_joblib
from repsim_cli.cli.plan import plan_lines
from repsim_cli.cli.show import summary
from repsim_cli.cli.terminal import QUIET, Bar, Lines, check_torch, complain, log, say, terminal_log
from repsim_cli.config.words import PRINTING, UNASKED, as_hydra_takes, split, typed, unasked, with_models
from repsim_cli.runs import cache, folders, reader, results

COMMAND = "REPSIM_COMMAND"  # the command line, for manifests
STATUS_FILE = "REPSIM_STATUS_FILE"  # where the jobs of a command note how they ended


def run(words: list[str]) -> int:
    """Checks everything first, then runs the jobs, whose own statuses make the exit code."""
    rest = [word for word in words if word not in ("-q", "--quiet")]
    if len(rest) < len(words):
        os.environ[QUIET] = "1"
    rest = [part for word in with_models(rest) for part in as_hydra_takes(word)]
    # conf/config.yaml reads it; set but empty means not set
    os.environ["REPSIM_OUTPUTS"] = str(results.outputs_root())
    check_torch()
    from repsim_cli.config.compose import compose, print_as_hydra, repeated, task
    from repsim_cli.config.guard import close_environment
    from repsim_cli.config.run import validate

    close_environment()
    rest, primary = repeated(rest)
    rest = unasked(rest)
    flags, overrides = split(rest)
    asked = Asked(overrides, primary, flags.get("--config-dir"), "--multirun" in flags)
    configs = [] if "--shell-completion" in flags else compose(*asked)
    if flags.keys() & PRINTING:
        return print_as_hydra(rest, primary)
    jobs = [(config, validate(task(config))) for config in configs]
    plans = [
        plan_lines(checked.keys.name, checked.plan(), checked.misfits) for _, checked in jobs if checked.keys.dry_run
    ]
    _say_untested(asked)
    if plans:
        for number, plan in enumerate(plans):
            say(*([""] if number else []), *plan)
        return 0
    results.check_root()
    cache.root()
    os.environ[COMMAND] = json.dumps(["repsim", "run", *words])
    return _ran(jobs, asked)


class Asked(NamedTuple):
    """What is composed: words, the primary configuration that they change, the folder of --config-dir, and whether
    the words have several values."""

    words: list[str]
    primary: str
    folder: str | None
    sweep: bool


def _ran(jobs: list[tuple[Any, Any]], asked: Asked) -> int:
    """Runs the jobs; the exit code."""
    from hydra.types import RunMode

    from repsim_cli.config.compose import run_alone, run_sweep

    config, checked = jobs[0]
    sweep = asked.sweep or config.hydra.mode == RunMode.MULTIRUN
    with _statuses() as ended:
        try:
            with signals.interruptible():
                if sweep:
                    _check_sweep_folder(config)
                    followed_joblib()  # its launcher's processes
                    run_sweep(job, *asked[:3])
                else:
                    run_alone(partial(job, checked=checked), config)
        except OSError as error:  # it cannot make the folder of a job
            results.drop_empty(Path(error.filename or results.outputs_root()).parent)
            raise BadInput(explained(error, advice=results.ELSEWHERE)) from None
    if not ended:  # it failed before the first job
        return 1
    statuses = [status for status, _ in ended]
    bad = [status for status in statuses if status != "complete"]
    if len(ended) > 1:
        _sweep_table(Path(ended[0][1]).parent)
        if bad:
            say(f"{len(bad)} of {len(statuses)} jobs did not complete", aside=True)
    if "interrupted" in statuses:
        return 130
    return 2 if set(statuses) == {"refused"} else 1 if bad else 0


@contextmanager
def _statuses() -> Iterator[list[tuple[str, str]]]:
    """A file in which the jobs of the inside note how they ended; afterwards the list holds the notes."""
    root = results.outputs_root()  # on the file system of the runs, which the machines of a cluster share
    scratch = tempfile.TemporaryDirectory()
    file = (root if root.is_dir() else Path(scratch.name)) / f".jobs-{os.getpid()}"
    for left in root.glob(".jobs-*"):
        process = left.name.removeprefix(".jobs-")
        if process.isdigit() and not results.alive(int(process)):
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


def _say_untested(asked: Asked) -> None:
    """Says that the claims of an experiment, or of the run that is repeated, are not tested on other models."""
    from repsim_cli.config.compose import OWN, compose

    experiment = [word for word in asked.words if word.startswith("experiment=")]
    if UNASKED not in asked.words or not (experiment or asked.primary != OWN):
        return
    for config in compose(*asked._replace(words=experiment)):
        if config.claims:
            what = f"the {len(config.claims)} of {config.name} are about its own models and are not tested"
            log.warning("claims: %s; claims=[NAME,...] asks for those that suit yours", what)


def _sweep_table(folder: Path) -> None:
    """Writes the sweep's jobs.json and jobs.csv, and prints their path."""
    jobs = folders.jobs(folder)
    if not jobs:  # all were refused, or they resumed runs of an earlier sweep
        return
    results.write(folder / "jobs.json", results.dumps(jobs).encode())
    results.write(folder / "jobs.csv", csv_bytes([jobs[0], *(job.values() for job in jobs)]))
    if not os.environ.get(QUIET):
        say(f"jobs: {folder}/jobs.csv")


def _check_sweep_folder(config: Any) -> None:
    """Raises BadInput where a sweep would write, and replace what has the names of its files, among other files."""
    from omegaconf import OmegaConf

    given: Any = OmegaConf.to_container(config.hydra.sweep)
    if "oc.env" in given["dir"]:  # the package's own, with the time in it
        return
    place = Path(config.hydra.sweep.dir)
    if place.is_dir() and any(place.iterdir()) and not folders.jobs(place):
        raise BadInput(f"hydra.sweep.dir: other files are in it, got '{place}'; name a new folder")


def job(config: Any, checked: Any = None) -> None:
    """One job: validate unless done, run, record. Never raises, so that no job of a sweep stops another."""
    from hydra.core.hydra_config import HydraConfig

    status, folder = "failed", Path(HydraConfig.get().runtime.output_dir)
    try:
        with signals.interruptible():
            status = _job(config, checked, folder)
    except KeyboardInterrupt:
        status = "interrupted"
    except RepsimError as error:
        complain(error, _job_name())
        status = "refused" if isinstance(error, BadInput) else "failed"
    except OSError as error:
        complain(RunFailed(explained(error)), _job_name())
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


def _job_name() -> str:
    """The prefix of a job's messages in a sweep."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    hydra = HydraConfig.get()
    if hydra.mode != RunMode.MULTIRUN:
        return ""
    overrides = ", ".join(typed(hydra.overrides.task))
    return f"job {hydra.job.num} ({overrides[:120]}): "


def _job(config: Any, checked: Any, folder: Path) -> str:
    """Runs a job in its folder, or in that of the run that it resumes; returns how it ended."""
    from repsim_cli import report
    from repsim_cli.config.run import validate
    from repsim_cli.execution.perform import perform

    checked = checked or validate(config)
    current, handler = None, logging.NullHandler()
    status, problem = "failed", "unknown"
    try:
        with signals.delayed():  # once its folder is there, the run's end is recorded
            current = _open(checked, folder)
        if current is None:
            return "complete"
        current.progress = Bar()
        handler = _log_file(current.folder)
        _write_config(current, checked)
        perform(checked, current)
        status, problem = "complete", None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or signals.interrupted():
            status, problem = "interrupted", "interrupted by the user"
            raise KeyboardInterrupt from error
        if isinstance(error, RepsimError):
            problem = str(error)
            resumed = current is not None and current.manifest["resumed"]
            status = "refused" if isinstance(error, BadInput) and not resumed else "failed"
            raise
        if isinstance(error, OSError):
            problem = explained(error)
            raise
        if failed := panic(error):
            problem = str(failed)
            raise failed from error
        if current is None:
            raise
        problem = f"{type(error).__name__}: {error}"
        log.debug("traceback", exc_info=True)
        log.error("internal error: %s; please report it with %s/repsim.log", problem, current.folder)
    finally:
        log.removeHandler(handler)
        with suppress(OSError):  # the last lines of a log on a full disk
            handler.close()
        if current is not None:
            with signals.delayed():
                if status == "refused":
                    current.discard()
                else:
                    _finish(current, status, problem)
    if status == "complete" and current is not None:
        report.save([current.folder], current.folder / report.FILE)
        if not os.environ.get(QUIET):
            say(*summary(current.folder))
    return status


def _open(checked: Any, folder: Path) -> results.Run | None:
    """A new run, or the run to resume; None where it is complete."""
    try:
        return _opened(checked, folder)
    except OSError as error:
        results.drop_empty(folder)
        raise BadInput(explained(error)) from error


def _opened(checked: Any, folder: Path) -> results.Run | None:
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    keys = checked.keys
    if keys.resume is not None:
        config = keys.model_dump()
        if keys.resume == "latest":
            target, complete = folders.unfinished(config)
        else:
            target = folders.find(keys.resume)
            complete = reader.read_manifest(target)["status"] == "complete"
            different = results.differences(reader.what(config), reader.read_config(target))
            if different:
                raise BadInput(
                    f"resume: {target} has another configuration, got {'; '.join(different)}; start a new run"
                )
        if target is not None:
            results.drop_empty(folder)
            if complete:
                say(f"{target}: already complete, nothing is left to do")
                return None
            say(f"resuming {target}", aside=True)
            return results.reopen(target)
        if HydraConfig.get().mode != RunMode.MULTIRUN:
            raise BadInput("resume: no unfinished run of this configuration, got latest; start it without resume")
    return results.create(
        folder,
        name=keys.name,
        study=keys.study,
        seed=keys.seed,
        command=json.loads(os.environ.get(COMMAND, "[]")),
        overrides=typed(HydraConfig.get().overrides.task),
    )


def _write_config(current: results.Run, checked: Any) -> None:
    """Raises BadInput: a run without its configuration has not started."""
    try:
        current.write_text("config.yaml", checked.yaml())
    except OSError as error:
        raise BadInput(explained(error, advice=results.ELSEWHERE)) from error


def _finish(current: results.Run, status: str, problem: str | None) -> None:
    """Records the end. Raises RunFailed where this fails for a complete run; any other run has an error already."""
    try:
        current.finish(status, problem)
    except (RepsimError, OSError) as error:
        current.lock.release()
        if status == "complete":
            raise RunFailed(f"{current.folder}: complete, but this cannot be recorded: {error}") from error


def _log_file(folder: Path) -> logging.Handler:
    """Logs everything to repsim.log; in a process of a launcher, warnings and errors to the terminal as well."""
    try:
        handler = logging.FileHandler(folder / "repsim.log")
    except OSError as error:
        raise BadInput(explained(error, advice=results.ELSEWHERE)) from error
    handler.setFormatter(Lines("%(asctime)s %(levelname)s %(message)s"))
    handler.handleError = lambda record: None  # a full disk stops the run at its next file, not at its log
    if not log.handlers:
        terminal_log()
    log.addHandler(handler)
    return handler
