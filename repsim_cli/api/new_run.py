"""A run that a program starts: its folder, and how it ended."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from repsim_cli import report
from repsim_cli.base.environment import read_command
from repsim_cli.base.errors import BadInput, RepsimError, RunFailed, convert_panic
from repsim_cli.base.files import explain
from repsim_cli.config.run import RunConfig
from repsim_cli.execution.perform import perform
from repsim_cli.runs import results
from repsim_cli.runs.results import Progress, Run


@contextmanager
def new_run(folder: Path, *, reported: bool = True, **about: Any) -> Iterator[Run]:
    """Creates a run in a new or empty folder, and records how it ended: complete, failed or interrupted.

    reported: whether it gets its page. about: name, study, seed, command and overrides of `results.create`.
    Raises BadInput where the folder is in use.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise BadInput(f"folder: it exists, got '{folder}'; name a new one")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(explain(error, advice=results.ELSEWHERE)) from error
    run = results.create(folder, **about)
    try:
        yield run
        run.finish("complete")
        if reported:
            report.save([run.folder], run.folder / report.FILE)
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        _record(run, status, error)
        if failed := RunFailed(explain(error)) if isinstance(error, OSError) else convert_panic(error):
            raise failed from error
        raise


def _record(run: Run, status: str, error: BaseException) -> None:
    """Records how a run ended, unless that is what failed."""
    problem = str(error) if isinstance(error, RepsimError) else f"{type(error).__name__}: {error}"
    with suppress(OSError):
        run.finish(status, "interrupted by the user" if status == "interrupted" else problem)
    run.lock.release()


def perform_in(folder: Path, checked: RunConfig, progress: Progress, *, drawn: bool) -> Path:
    """Runs a configuration in a new folder; returns the folder. drawn: with figures and report.

    Raises BadInput, or RunFailed.
    """
    keys = checked.keys
    about = {"name": keys.name, "study": keys.study, "seed": keys.seed, "command": read_command(), "overrides": []}
    with new_run(folder, reported=drawn, **about) as run:
        run.progress = progress
        run.write_text("config.yaml", checked.yaml())
        perform(checked, run, drawn=drawn)
    return run.folder
