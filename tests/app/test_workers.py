"""What stops a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IN_THE_BACKGROUND = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
from app.workers import stop_signals
try:
    with stop_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
except KeyboardInterrupt:
    print("stopped")
assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
"""


def test_sigterm_stops_what_a_script_began_in_the_background() -> None:
    """A shell makes such a process ignore SIGINT, which stands for SIGTERM here."""
    done = subprocess.run(
        [sys.executable, "-c", IN_THE_BACKGROUND], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr
