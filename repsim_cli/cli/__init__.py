"""The command line: the only package that prints or exits, and that imports Hydra."""

import contextlib
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import make_dataclass

from repsim_cli.base import signals
from repsim_cli.base.documents import find_unwritable_text
from repsim_cli.base.environment import COMMAND
from repsim_cli.base.errors import BadInput, RepsimError, convert_panic
from repsim_cli.base.files import explain
from repsim_cli.cli.commands import build_parser
from repsim_cli.cli.terminal import complain, log, say, show_log_on_terminal

RESUMED = {"run": "resume=latest", "compare": "--set resume=latest"}  # how a command goes on after an interrupt


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits: 0 all complete, 1 a job failed, 2 bad input, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    os.environ["RUST_BACKTRACE"] = "0"  # of libraries that give up; what they say becomes an error
    os.environ["MPLBACKEND"] = "agg"  # figures only go to files, whatever a shell or a notebook has set
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns of a home that cannot be written
    terminal = show_log_on_terminal()
    before = signals.handle(signals.end)
    try:
        _check(words)
        os.environ[COMMAND] = json.dumps(["repsim", *words])
        if words[:1] == ["run"] and not {"-h", "--help"} & set(words):
            from repsim_cli.cli.run import run

            code = run(words[1:])
        else:
            parsed = build_parser().parse_words(words or ["--help"])
            code = parsed.command(parsed)
    except RepsimError as error:
        complain(error)
        code = 2 if isinstance(error, BadInput) else 1
    except KeyboardInterrupt:
        resumed = RESUMED.get(next(iter(words), ""))
        hint = f"; the same command with {resumed} resumes it" if resumed else ""
        with contextlib.suppress(OSError):  # the terminal may be gone
            say(f"interrupted{hint}", aside=True)
        # `python -m` ends by SIGINT after all where it came inside code that is made from text, as of a dataclass, and
        # no other code was made from text since
        make_dataclass("Made", [])
        code = signals.INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        complain(BadInput(explain(error)))
        code = 2
    except BaseException as error:
        if (failed := convert_panic(error)) is None:
            raise
        complain(failed)
        code = 1
    finally:
        os.environ.pop(COMMAND, None)
        signals.restore(before)
        log.removeHandler(terminal)
    sys.exit(code)


def _check(words: Sequence[str]) -> None:
    """Raises BadInput where the command cannot be started: its words, or the place where it is."""
    if (text := find_unwritable_text(list(words))) is not None:
        raise BadInput(f"repsim: not text in UTF-8, got {os.fsencode(text)!r}; give the file another name")
    try:
        os.getcwd()
    except FileNotFoundError:
        raise BadInput("repsim: the working directory was removed; cd to another") from None
