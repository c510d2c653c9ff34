from collections.abc import Iterator

import pytest
from helpers import mutations


@pytest.fixture(scope="module")
def composed_once() -> Iterator[None]:
    """What many refused runs share is composed once."""
    with mutations.composed_once():
        yield
