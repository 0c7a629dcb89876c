"""Fixtures of the codec's tests."""

import tempfile
from pathlib import Path

import pytest
from filelock import FileLock

from compression import Codec, warm_up


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Compile in one test process while the others wait: two at once would do the same work twice."""
    with FileLock(Path(tempfile.gettempdir()) / "thinwire-tests-compile.lock"):
        warm_up()


@pytest.fixture(scope="session")
def codec() -> Codec:
    """One for all tests, so that each finds the buffers that others left."""
    return Codec()
