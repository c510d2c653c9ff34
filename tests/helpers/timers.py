"""Timers as a test wants them, in place of the clock's."""

import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from repsim_cli.base.timer import Timer


def set_timers(monkeypatch: pytest.MonkeyPatch, due: bool) -> None:
    """Every timer is due whenever it is asked, or none ever is."""
    monkeypatch.setattr(Timer, "is_due", lambda timer: due)


def replace_clock(monkeypatch: pytest.MonkeyPatch, module: ModuleType, **functions: Callable[..., Any]) -> None:
    """Gives this module alone a clock with other functions, as threads of other tests may still sleep by the real one."""
    monkeypatch.setattr(module, "time", SimpleNamespace(**(vars(time) | functions)))
