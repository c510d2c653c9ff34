from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield
