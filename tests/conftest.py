"""Fixtures that every test folder uses."""

import tempfile
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real click-log samples beside the checkout; tests that need them are skipped elsewhere."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no ../shared/data beside this checkout: real data samples are not shipped with the project")
    return path


@pytest.fixture(scope="session")
def compiled() -> None:
    """Compile the exchange and its codec in one test process while others wait: two would do the same work twice."""
    from compression.exchange import warm_up

    with FileLock(Path(tempfile.gettempdir()) / "thinwire-tests-compile.lock"):
        warm_up()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many tests of CUDA kernels ran, so that none is left out unseen."""
    counts = {
        outcome: sum("compression/device/" in getattr(report, "nodeid", "") for report in found)
        for outcome, found in terminalreporter.stats.items()
        if outcome in ("passed", "failed", "skipped", "error")
    }
    if any(counts.values()):
        terminalreporter.write_line("tests of CUDA kernels: " + ", ".join(f"{n} {what}" for what, n in counts.items()))
