"""Marks a run KILLED when the driver dies without a word.

The guard is a small process in its own session, outside the driver's process tree, since a stopped Ray job first
terminates and then kills the whole tree. It holds one end of a pipe: the word "done" ends it, the end of the pipe or
of the driver without that word means that nobody else will close the run.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import psutil

from app.tracking_store import RunHandle, module_environment

POLL = 1.0  # seconds between looks at the driver


class RunGuard:
    """Starts the guard of runs. Call `done` once they are closed in the ordinary way, on failure too.

    Its messages go to `guard.log` in the folder of the first.
    """

    def __init__(self, *handles: RunHandle) -> None:
        with (Path(handles[0].folder) / "guard.log").open("a") as messages:
            runs = json.dumps([asdict(handle) for handle in handles])
            self._starter = subprocess.Popen(
                [sys.executable, "-m", "app.run_guard", str(os.getpid()), runs],
                stdin=subprocess.PIPE,
                stdout=messages,
                stderr=messages,
                env=module_environment(),
                start_new_session=True,
            )
        self._starter.wait()  # from here on the guard is an orphan

    def done(self) -> None:
        """The driver has closed the run itself."""
        assert self._starter.stdin is not None
        try:
            self._starter.stdin.write(b"done")
            self._starter.stdin.close()
        except BrokenPipeError:
            pass  # the guard is gone: there is nothing left to tell


def driver_is_done(pid: int, pipe: int) -> bool:
    """Waits for the end of the driver; whether it said so."""
    try:
        driver = psutil.Process(pid)
    except psutil.NoSuchProcess:
        driver = None
    said = b""
    while True:
        readable, _, _ = select.select([pipe], [], [], POLL)
        if readable:
            part = os.read(pipe, 16)
            if not part:
                return said == b"done"
            said += part
        # A child forked by the driver may keep the pipe open after the driver's death.
        elif driver is None or not driver.is_running() or driver.status() == psutil.STATUS_ZOMBIE:
            return said == b"done"


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.fork():
        os._exit(0)  # the orphan is no descendant of the driver any more
    pid, handles = int(sys.argv[1]), [RunHandle(**handle) for handle in json.loads(sys.argv[2])]
    if driver_is_done(pid, sys.stdin.fileno()):
        return
    from app.tracking import finish  # imports MLflow: only when needed

    for handle in handles:
        finish(handle, "KILLED", {"killed": "the driver ended without closing the run"})


if __name__ == "__main__":
    main()
