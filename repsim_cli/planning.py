"""Dry runs: what does not fit this machine is noted for the plan, where a run is refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from repsim_cli.errors import BadInput

_notes: ContextVar[list[str] | None] = ContextVar("_notes", default=None)


@contextmanager
def planning() -> Iterator[list[str]]:
    """While it is open, published models are known by their shipped shapes, and `unfit` adds to the list it gives."""
    notes: list[str] = []
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


def is_planning() -> bool:
    return _notes.get() is not None


@contextmanager
def noting_under(path: str) -> Iterator[None]:
    """What is noted inside is about keys under this path."""
    notes = _notes.get()
    first = len(notes or ())
    yield
    if notes is not None:
        notes[first:] = [f"{path}.{note}" for note in notes[first:]]


def unfit(problem: str) -> None:
    """Raises BadInput for settings that cannot run on this machine; a dry run notes the problem and continues."""
    notes = _notes.get()
    if notes is None:
        raise BadInput(problem)
    notes.append(problem)


def check_device(key: str, device: str) -> None:
    """Raises BadInput (in a dry run, notes) where torch cannot use the device that the setting `key` names."""
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0][:100]
        unfit(f"{key}: not usable here, got '{device}' ({reason}); use cpu")
