"""repsim: compare the inside of language models. `repsim_cli.grade` grades a measure of one's own."""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`grade`, imported when it is first used, as it needs torch."""
    if name == "grade":
        from repsim_cli.custom import grade

        return grade
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
