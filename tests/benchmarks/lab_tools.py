"""What the tests of the lab share."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from benchmarks.lab import Lab, links
from benchmarks.lab.lab import ROOT
from pipelines.errors import UserError

COMMAND = [sys.executable, "-m", "benchmarks.lab"]


def _why_not() -> str:
    """Why this machine cannot have a lab; empty if it can."""
    try:
        links.check_machine()
    except UserError as error:
        return str(error)
    allowed = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return allowed.stderr.strip()


needs_lab = pytest.mark.skipif(bool(_why_not()), reason=_why_not())


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m benchmarks.lab ARGUMENTS`"""
    return subprocess.run([*COMMAND, *arguments], cwd=ROOT, text=True, capture_output=True, timeout=120)


def wait_until(happened: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end, f"not in a minute: {what}"
        time.sleep(0.05)


READY = "print('ready', flush=True)\n"
SLEEP = f"import time\n{READY}time.sleep(1000)"


def python_in(lab: Lab, host: int, code: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python program in a host, when it has printed its first line."""
    process = lab.popen(host, [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process
