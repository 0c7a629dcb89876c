"""Fixtures of the codec's tests."""

from collections.abc import Iterator

import pytest
import torch

from compression import Codec


@pytest.fixture(scope="session")
def codec() -> Codec:
    """One for all tests, so that each finds the buffers that others left."""
    return Codec()


@pytest.fixture
def flush() -> Iterator[None]:
    """Subnormal numbers count as 0 on this thread for the length of a test, as PyTorch lets users choose."""
    assert torch.set_flush_denormal(True), "this processor cannot flush subnormal numbers"
    yield
    torch.set_flush_denormal(False)
