"""Fixtures of the codec's tests."""

import pytest

from compression import Codec


@pytest.fixture(scope="session", autouse=True)
def _compiled(compiled: None) -> None:
    """Each of these tests needs it."""


@pytest.fixture(scope="session")
def codec() -> Codec:
    """One for all tests, so that each finds the buffers that others left."""
    return Codec()
