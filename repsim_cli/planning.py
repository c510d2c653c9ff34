"""What a configuration is checked for: a run is refused for what does not fit this machine, a dry run only says it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from repsim_cli.errors import BadInput


class _Check(NamedTuple):
    misfits: list[str]
    dry: bool


_check: ContextVar[_Check | None] = ContextVar("_check", default=None)


@contextmanager
def checking(*, dry: bool) -> Iterator[list[str]]:
    """While it is open, `unfit` adds to the list that it gives. dry: published models are known by shipped shapes."""
    check = _Check([], dry)
    token = _check.set(check)
    try:
        yield check.misfits
    finally:
        _check.reset(token)


@contextmanager
def noting_under(path: str) -> Iterator[None]:
    """What is noted inside is about keys under this path."""
    check = _check.get()
    first = len(check.misfits) if check else 0
    yield
    if check:
        check.misfits[first:] = [f"{path}.{misfit}" for misfit in check.misfits[first:]]


def is_dry() -> bool:
    check = _check.get()
    return check is not None and check.dry


def unfit(problem: str) -> None:
    """Notes that settings cannot run on this machine; raises BadInput where nothing is being checked."""
    check = _check.get()
    if check is None:
        raise BadInput(problem)
    check.misfits.append(problem)


def check_device(key: str, device: str) -> None:
    """`unfit` where torch cannot use the device that the setting `key` names."""
    import torch

    try:
        torch.zeros(1, device=device).item()  # of the device meta there are no values
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0][:100]
        unfit(f"{key}: not usable here, got '{device}' ({reason}); use cpu")
