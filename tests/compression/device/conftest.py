"""Devices that are processes on the CPU; see tests/cuda_on_cpu."""

from collections.abc import Iterator

import pytest

from tests.compression.device.helpers import OnCpu


@pytest.fixture(scope="session", params=[0, 1], ids=["in order", "shuffled"])
def device(request: pytest.FixtureRequest) -> Iterator[OnCpu]:
    """Blocks and threads in order, and in an order drawn at random."""
    found = OnCpu(request.param)
    yield found
    found.close()
