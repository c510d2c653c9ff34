"""The errors that a user may see.

Every message is one line: `<key path or object>: <what is wrong>, got <value>; <what to do>`.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class RepsimError(Exception):
    """An error that the user can act on; shown as a single line, never as a traceback."""


class BadInput(RepsimError):
    """The input was bad and nothing started (exit code 2)."""


class Unreachable(BadInput):
    """A model on the hub, which cannot be reached. what: its id, with the revision. reason: why."""

    def __init__(self, message: str, what: str, reason: str):
        super().__init__(message)
        self.what, self.reason = what, reason


class BadConfig(BadInput):
    """All problems of a configuration, each `key.path: what is wrong, got VALUE; what to do`."""

    def __init__(self, problems: list[str]):
        super().__init__("\n".join(problems))
        self.problems = problems


class RunFailed(RepsimError):
    """A run failed after it had started (exit code 1)."""


def convert_panic(error: BaseException) -> RunFailed | None:
    """Converts what a library in Rust raises where it gives up, which is not an Exception, to an error of the project.
    None for anything else.
    """
    if type(error).__name__ != "PanicException":
        return None
    reason = " ".join(str(error).split())[:160]
    return RunFailed(f"a library failed, got '{reason}'; a tokenizer may not suit the text, or be damaged")


@contextmanager
def refuse_panics() -> Iterator[None]:
    """Makes what `convert_panic` knows an exception."""
    try:
        yield
    except BaseException as error:
        if (failed := convert_panic(error)) is None:
            raise
        raise failed from error


class Degenerate(BadInput):
    """A representation for which a measure is undefined (constant, too few rows, not finite)."""
