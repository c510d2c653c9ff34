"""Marks single parameters of a test as `nightly`."""

from collections.abc import Iterable
from typing import Any

import pytest


def nightly(values: Iterable[Any], *costly: Any) -> list[Any]:
    """The parameters of a test, with the marker `nightly` on those that are `costly`."""
    given = list(values)
    assert set(costly) <= set(given), costly
    return [pytest.param(value, marks=pytest.mark.nightly) if value in costly else value for value in given]
