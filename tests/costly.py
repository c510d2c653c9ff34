"""Which of a test's parameters wait for the night."""

from collections.abc import Iterable
from typing import Any

import pytest


def at_night(values: Iterable[Any], *costly: Any) -> list[Any]:
    """The parameters, those that are `costly` marked as `nightly`."""
    given = list(values)
    assert set(costly) <= set(given), costly
    return [pytest.param(value, marks=pytest.mark.nightly) if value in costly else value for value in given]
