"""Timers as a test wants them, in place of the clock's."""

import pytest

from repsim_cli.base.timer import Timer


def set_timers(monkeypatch: pytest.MonkeyPatch, due: bool) -> None:
    """Every timer is due whenever it is asked, or none ever is."""
    monkeypatch.setattr(Timer, "is_due", lambda timer: due)
