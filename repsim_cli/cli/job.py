"""A job of a command: its run is made or resumed, performed, and its end recorded. Of `run` and `compare`."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from repsim_cli.base import memory, signals
from repsim_cli.base.environment import read_command
from repsim_cli.base.errors import BadInput, RepsimError, RunFailed, convert_panic
from repsim_cli.base.files import explain
from repsim_cli.cli.plan import plan_lines
from repsim_cli.cli.terminal import SILENT, LogLines, is_quiet, log, name_where_slow, say, show_log_on_terminal
from repsim_cli.config.run import RunConfig, RunKeys
from repsim_cli.runs import folders, reader, results

LARGE = 5_000_000  # bytes of results whose page takes more than seconds


class RunJob(NamedTuple):
    """A job to perform.

    checked: its configuration. folder: of its run, where it starts one. words: those that were changed. sweep:
    whether it is one of a sweep: with resume=latest, such a job starts a run where there is none to resume."""

    checked: Any
    folder: Path
    words: Sequence[str]
    sweep: bool = False


def perform(job: RunJob, watch: Callable[[Path], results.Progress]) -> tuple[str, Path | None]:
    """Performs a job in its folder, or in that of the run that it resumes.

    watch: gives the progress of the run in a folder. Returns how it ended, and the folder of a run that this completed,
    with its page. Raises KeyboardInterrupt, RepsimError or OSError once the end is recorded.
    """
    from repsim_cli import report
    from repsim_cli.execution.perform import perform

    memory.keep_freed()
    current, handler = None, logging.NullHandler()
    status, problem = "failed", "unknown"
    try:
        with signals.delay():  # once its folder is there, the run's end is recorded
            current = _open(job)
        if current is None:
            return "complete", None
        current.progress = watch(current.folder)
        handler = _log_file(current.folder)
        _write_config(current, job.checked)
        with name_where_slow(lambda run=current: run.doing, SILENT):
            perform(job.checked, current)
        status, problem = "complete", None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or signals.was_interrupted():
            status, problem = "interrupted", "interrupted by the user"
            raise KeyboardInterrupt from error
        if isinstance(error, RepsimError):
            problem = str(error)
            resumed = current is not None and current.manifest["resumed"]
            status = "refused" if isinstance(error, BadInput) and not resumed else "failed"
            raise
        if isinstance(error, OSError):
            problem = explain(error)
            raise
        if failed := convert_panic(error):
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
            with signals.delay():
                if status == "refused":
                    current.discard()
                else:
                    _finish(current, status, problem)
    if status != "complete" or current is None:
        return status, None
    found = current.folder / "results.json"
    if found.is_file() and found.stat().st_size > LARGE and not is_quiet():
        say("report ...", aside=True)
    report.save([current.folder], current.folder / report.FILE)
    return status, current.folder


def _open(job: RunJob) -> results.Run | None:
    """A new run, or the run to resume; None where it is complete."""
    try:
        return _open_run(job)
    except OSError as error:
        results.drop_empty(job.folder)
        raise BadInput(explain(error)) from error


def find_resumed(keys: RunKeys, *, sweep: bool) -> tuple[Path | None, bool]:
    """Finds the run that is resumed, and whether it is complete; None where a job of a sweep starts one. Raises
    BadInput where there is none, or another configuration made it."""
    config = keys.model_dump()
    if keys.resume != "latest":
        target = folders.find(str(keys.resume), key="resume")
        different = results.list_config_differences(reader.drop_irrelevant_keys(config), reader.read_config(target))
        if different:
            raise BadInput(f"resume: {target} has another configuration, got {'; '.join(different)}; start a new run")
        return target, reader.read_manifest(target)["status"] == "complete"
    target, complete = folders.find_unfinished(config)
    if target is None and not sweep:
        raise BadInput("resume: no unfinished run of this configuration, got latest; start it without resume")
    return target, complete


def plan_job(checked: RunConfig, *, sweep: bool = False) -> list[str]:
    """Plans a job, line by line. Raises BadInput where there is no run that it could resume."""
    if checked.keys.resume is not None:
        find_resumed(checked.keys, sweep=sweep)
    return plan_lines(checked.keys.name, checked.plan(), checked.misfits)


def _open_run(job: RunJob) -> results.Run | None:
    keys = job.checked.keys
    if keys.resume is not None:
        target, complete = find_resumed(keys, sweep=job.sweep)
        if target is not None:
            results.drop_empty(job.folder)
            if complete:
                say(f"{target}: already complete, nothing is left to do")
                return None
            say(f"resuming {target}", aside=True)
            return results.reopen(target)
    return results.create(
        job.folder,
        name=keys.name,
        study=keys.study,
        seed=keys.seed,
        command=read_command(),
        overrides=[word for word in job.words if not word.startswith("resume=")],  # it is of no run before
    )


def _write_config(current: results.Run, checked: Any) -> None:
    """Raises BadInput: a run without its configuration has not started."""
    try:
        current.write_text("config.yaml", checked.yaml())
    except OSError as error:
        raise BadInput(explain(error, advice=results.ELSEWHERE)) from error


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
        raise BadInput(explain(error, advice=results.ELSEWHERE)) from error
    handler.setFormatter(LogLines("%(asctime)s %(levelname)s %(message)s"))
    handler.handleError = lambda record: None  # a full disk stops the run at its next file, not at its log
    if not log.handlers:
        show_log_on_terminal()
    log.addHandler(handler)
    return handler
