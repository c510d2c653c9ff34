"""Marks single parameters of a test as `nightly` or `slow`."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest


def _mark(marker: pytest.MarkDecorator, values: Iterable[Any], *costly: Any) -> list[Any]:
    """The parameters of a test, with the marker on those that are `costly`."""
    given = list(values)
    assert all(value in given for value in costly), costly
    return [pytest.param(value, marks=marker) if value in costly else value for value in given]


nightly, slow = partial(_mark, pytest.mark.nightly), partial(_mark, pytest.mark.slow)
