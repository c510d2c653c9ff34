"""A run that a program starts: its folder, and how it ended."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from repsim_cli import report
from repsim_cli.base.errors import BadInput, RepsimError
from repsim_cli.runs import results
from repsim_cli.runs.results import Run


@contextmanager
def new_run(folder: Path, *, reported: bool = True, **about: Any) -> Iterator[Run]:
    """Creates a run in a new or empty folder, and records how it ended: complete, failed or interrupted.

    reported: whether it gets its page. about: name, study, seed, command and overrides of `results.create`.
    Raises BadInput where the folder is in use.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise BadInput(f"folder: it exists, got '{folder}'; name a new one")
    folder.mkdir(parents=True, exist_ok=True)
    run = results.create(folder, **about)
    try:
        yield run
    except KeyboardInterrupt:
        run.finish("interrupted", "interrupted by the user")
        raise
    except BaseException as error:
        run.finish("failed", str(error) if isinstance(error, RepsimError) else f"{type(error).__name__}: {error}")
        raise
    run.finish("complete")
    if reported:
        report.save([run.folder], run.folder / report.FILE)
