"""What the workers tell the driver while they train, and how the driver shows it."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pipelines.job import Metrics

POLL_S = 0.5
PLAIN_LINE_S = 10.0


class Board:
    """Becomes an actor: rank 0 writes to it without waiting, the driver reads it."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._step, self._total = 0, 0
        self._metrics: Metrics = {}
        self._final: Metrics = {}
        self._tables: list[dict[str, Any]] = []
        self._fatal: Exception | None = None
        self._joined: list[tuple[int, str]] = []
        self._timeout: str | None = None

    def join(self, rank: int, node: str) -> None:
        """A rank begins its work on the Ray node of that id."""
        self._joined.append((rank, node))
        self._timeout = None

    def timed_out(self, text: str) -> None:
        """A rank waited too long for the others; those that follow say the same."""
        if self._timeout is None:
            self._timeout = text
            self._lines.append(text)

    def roll(self, seen: int) -> tuple[list[tuple[int, str]], int, str | None]:
        """(rank, node id) of those who joined after the first `seen`, step, what the rank said that timed out."""
        return self._joined[seen:], self._step, self._timeout

    def fail(self, error: Exception) -> None:
        """A failure that no restart would mend; the first one stays."""
        self._fatal = self._fatal or error

    def finish(self, metrics: Metrics) -> None:
        """The metrics that the run ended with."""
        self._final = metrics

    def keep_tables(self, rows: list[dict[str, Any]]) -> None:
        """What the thin exchange did, a dictionary a table."""
        self._tables = rows

    def tables(self) -> list[dict[str, Any]]:
        return self._tables

    def outcome(self) -> tuple[Metrics, Exception | None]:
        return self._final, self._fatal

    def say(self, text: str) -> None:
        self._lines.append(text)

    def update(self, step: int, total: int, metrics: Metrics) -> None:
        self._step, self._total = step, total
        self._metrics |= metrics

    def read(self, seen: int) -> tuple[list[str], int, int, Metrics, bool]:
        """Lines after the first `seen`, step, total steps, the newest metrics, and whether a rank failed for good."""
        return self._lines[seen:], self._step, self._total, self._metrics, self._fatal is not None


def start_board() -> Any:
    """The actor, on this node: a worker's node may be lost, and the board must not go with it."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(Board).remote()


def kept(board: Any) -> dict[str, Any]:
    """What rank 0 gave to `finish` last; empty if nothing, or if the board is gone with its cluster."""
    try:
        return dict(ray.get(board.outcome.remote(), timeout=10)[0])
    except (ray.exceptions.RayError, RuntimeError):
        return {}


class BoardView:
    """Shows a board in a background thread: a progress bar on a terminal, else a line every ten seconds.

    When a rank failed for good it interrupts the main thread, as Ctrl-C would, so that Ray makes no restarts.
    """

    def __init__(self, board: Any, console: Console, label: str = "train") -> None:
        self._board, self._console = board, console
        self._seen, self._stop = 0, threading.Event()
        self._last_line = time.monotonic()
        self._printed = (-1, "")
        self._bar = Progress(
            TextColumn(f"[bold]{label}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(label, total=None, numbers="starting workers")
        self._thread = threading.Thread(target=self._run, daemon=True, name="board-view")

    def __enter__(self) -> BoardView:
        self._bar.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)
        self._bar.stop()

    def _run(self) -> None:
        interrupted = False
        while True:
            last = self._stop.is_set()
            try:
                lines, step, total, metrics, failed = ray.get(self._board.read.remote(self._seen), timeout=5)
            except ray.exceptions.RayError:  # the board is gone with the cluster, or the cluster is busy
                lines, step, total, metrics, failed = [], 0, 0, {}, False
            self._show(lines, step, total, metrics, last)
            if last:
                return
            if failed and not interrupted:
                interrupted = True
                os.kill(os.getpid(), signal.SIGINT)
            self._stop.wait(POLL_S)

    def _show(self, lines: list[str], step: int, total: int, metrics: Metrics, last: bool) -> None:
        self._seen += len(lines)
        for line in lines:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        if not total:
            return
        numbers = progress_text(metrics)
        self._bar.update(self._task, completed=step, total=total, numbers=numbers)
        due = last or time.monotonic() - self._last_line > PLAIN_LINE_S
        if due and not self._console.is_terminal and (step, numbers) != self._printed:
            self._printed = step, numbers
            self._console.print(f"step {step:,}/{total:,}  {numbers}", highlight=False, soft_wrap=True)
            self._last_line = time.monotonic()


def progress_text(metrics: Metrics) -> str:
    """The newest loss, speed and AUC in one short line."""
    parts = []
    if "train/loss" in metrics:
        parts.append(f"loss {metrics['train/loss']:.4f}")
    if "train/samples_per_s" in metrics:
        parts.append(f"{metrics['train/samples_per_s']:,.0f} samples/s")
    if "eval/auc" in metrics:
        parts.append(f"AUC {metrics['eval/auc']:.4f}")
    return "  ".join(parts)
