"""Checks of a configuration: a run is refused if it does not fit this machine, a dry run only reports it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean

KNOWN = ("cpu", "cuda", "cuda:1", "mps")  # devices


class _Check(NamedTuple):
    misfits: list[str]
    dry: bool


_check: ContextVar[_Check | None] = ContextVar("_check", default=None)
# of what is found out about models; None: the cache is not used
_writes: ContextVar[list[Callable[[], object]] | None] = ContextVar("_writes", default=None)


@contextmanager
def use_known(read: bool, *, write: bool = False) -> Iterator[None]:
    """Lets what is known of models be read from the cache inside the block, where `read`, and writes what was found out
    about others at its end, where `write`, unless it raises: what is refused or only planned leaves nothing."""
    writes: list[Callable[[], object]] = []
    token = _writes.set(writes if read else None)
    try:
        yield
        for each in writes if write else ():
            each()
    finally:
        _writes.reset(token)


def may_use_known() -> bool:
    return _writes.get() is not None


def write_once_checked(write: Callable[[], object]) -> None:
    """Writes at the end of `use_known`, where that writes."""
    if (writes := _writes.get()) is not None:
        writes.append(write)


@contextmanager
def collect_unfit(*, dry: bool) -> Iterator[list[str]]:
    """Collects what `note_unfit` says inside the block, in the list that this yields.
    dry: shapes of published models are the shipped ones.
    """
    check = _Check([], dry)
    token = _check.set(check)
    try:
        yield check.misfits
    finally:
        _check.reset(token)


@contextmanager
def note_under(path: str) -> Iterator[None]:
    """Problems noted inside are about keys under this path."""
    check = _check.get()
    first = len(check.misfits) if check else 0
    yield
    if check:
        check.misfits[first:] = [f"{path}.{misfit}" for misfit in check.misfits[first:]]


def is_dry() -> bool:
    check = _check.get()
    return check is not None and check.dry


def note_unfit(problem: str) -> None:
    """Notes that settings cannot run on this machine; raises BadInput outside of `collect_unfit`."""
    check = _check.get()
    if check is None:
        raise BadInput(problem)
    check.misfits.append(problem)


def check_device(key: str, device: str) -> None:
    """Notes, as `note_unfit`, that torch cannot use the device of the setting `key`."""
    import torch

    try:
        torch.device(device)
    except RuntimeError:  # of which torch lists all that it was ever built for
        note_unfit(f"{key}: unknown device, got '{device}'; {did_you_mean(device, KNOWN)}")
        return
    try:
        torch.zeros(1, device=device).item()  # fails on the device meta, which has no values
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0][:100]
        note_unfit(f"{key}: not usable here, got '{device}' ({reason}); use cpu")
