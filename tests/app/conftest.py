from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.cli import main
from pipelines.dataset import Dataset
from pipelines.synthetic import SynthOptions, write_synthetic

THINWIRE = [sys.executable, "-m", "app.cli"]


@pytest.fixture(scope="session")
def small_dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """6 tables, 36,000 train and 4,000 valid rows."""
    out = tmp_path_factory.mktemp("data") / "small"
    write_synthetic(out, SynthOptions(rows=40_000, tables=6, dense=4, rows_per_table=[5, 40, 300, 80, 9, 700]))
    return Dataset(out)


class Command:
    """`thinwire ...` as a process of its own, in a folder of its own."""

    def __init__(self, folder: Path, arguments: list[str], env: dict[str, str] | None = None) -> None:
        self._output = folder / "output.txt"
        clean = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [*THINWIRE, *arguments],
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**clean, **(env or {})},
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait(self, timeout: float = 240) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s:\n{self.output}") from None

    def wait_until(self, happened: Callable[[], bool], timeout: float = 300) -> None:
        end = time.monotonic() + timeout
        while not happened():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < end, f"nothing happened in {timeout} s:\n{self.output}"
            time.sleep(0.1)

    def workers(self) -> list[psutil.Process]:
        """The Ray Train workers below this process."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        return [p for p in below if "RayTrainWorker" in _title(p)]

    def kill_all(self) -> None:
        """End what is left of this process and all below it."""
        if self.process.poll() is None:
            below = psutil.Process(self.process.pid).children(recursive=True)
            self.process.send_signal(signal.SIGKILL)
            for process in below:
                if process.is_running():
                    process.kill()
            self.process.wait()


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.fixture
def thinwire(tmp_path: Path, compiled: None):
    """Start `thinwire ARGUMENTS` in `tmp_path`; nothing of it outlives the test."""
    started: list[Command] = []

    def start(*arguments: str, env: dict[str, str] | None = None) -> Command:
        started.append(Command(tmp_path, list(arguments), env))
        return started[-1]

    yield start
    for command in started:
        command.kill_all()


@pytest.fixture
def run(monkeypatch: Any, capsys: Any, tmp_path: Path) -> Any:
    """Run `thinwire ARGUMENTS` in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["thinwire", *arguments])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return call
