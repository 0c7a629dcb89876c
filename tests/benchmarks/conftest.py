from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

LOCK = Path(tempfile.gettempdir()) / "thinwire-lab-tests.lock"


@pytest.fixture(autouse=True, scope="module")
def one_lab_at_a_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """Only one lab can be up on a machine, and two processes may run tests at once."""
    if "Lab" in vars(request.module) or "lab_tools" in Path(str(request.module.__file__)).read_text():
        with FileLock(LOCK):
            yield
    else:
        yield
