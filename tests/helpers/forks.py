"""Processes that begin as copies of this one, and so need not import torch and transformers again: two seconds each."""

import faulthandler
import io
import logging
import os
import runpy
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import CompletedProcess

import torch

LONGEST = 600  # seconds until a copy that does not end is ended, and says where it was


def run_in_fork(
    act: Callable[[], object], environment: Mapping[str, str] = os.environ, cwd: Path | None = None
) -> CompletedProcess[str]:
    """How a process ends that does this and nothing else, and what it prints.

    environment: its variables. cwd: its working directory, this one's if None.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with warnings.catch_warnings(action="ignore"):  # Python's of threads, which are idle
            child = os.fork()
        if not child:
            code = 1
            try:
                _begin_anew(out.fileno(), err.fileno(), dict(environment))
                os.chdir(cwd or ".")
                act()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return CompletedProcess([], code, out.read(), err.read())


def _begin_anew(out: int, err: int, environment: dict[str, str]) -> None:
    """Takes from the copy what pytest hears and forbids, and gives it files to print to."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(number, "w", closefd=False)) for number in (1, 2))
    os.environ.clear()
    os.environ.update(environment)
    os.environ.pop("REPSIM_QUIET", None)  # `run -q` in the process of another test has set it
    torch.set_num_threads(1)  # the threads of OpenMP are not copied: a step that is shared with them would wait forever
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    logging.root.handlers.clear()
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):  # as a command of the test has left it, quiet or with other files
            logger.handlers.clear()
            logger.setLevel(logging.NOTSET)
            logger.propagate, logger.disabled = True, False
    warnings.resetwarnings()


def forget_repsim() -> None:
    """Leaves all of repsim to be imported again, in the copy of a process; and Hydra, which knows tables of the registries."""
    # what is imported twice cannot be checked by beartype, which knows the classes of the first
    sys.meta_path[:] = [each for each in sys.meta_path if not type(each).__module__.startswith("jaxtyping")]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("repsim_cli", "hydra", "hydra_plugins")]:
        del sys.modules[name]


def run_repsim_anew(words: list[str]) -> None:
    """Runs a command in the copy of a process as in a new one."""
    forget_repsim()
    sys.argv = ["repsim", *words]
    runpy.run_module("repsim_cli", run_name="__main__")
