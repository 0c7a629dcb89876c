"""What the workers tell the driver while they train, and how the driver shows it."""

from __future__ import annotations

import threading
import time
from typing import Any

import ray
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

    def say(self, text: str) -> None:
        self._lines.append(text)

    def update(self, step: int, total: int, metrics: Metrics) -> None:
        self._step, self._total = step, total
        self._metrics |= metrics

    def read(self, seen: int) -> tuple[list[str], int, int, Metrics]:
        """Lines after the first `seen`, then step, total steps and the newest metrics."""
        return self._lines[seen:], self._step, self._total, self._metrics


class BoardView:
    """Shows a board in a background thread: a progress bar on a terminal, else a line every ten seconds."""

    def __init__(self, board: Any, console: Console) -> None:
        self._board, self._console = board, console
        self._seen, self._stop = 0, threading.Event()
        self._last_line = time.monotonic()
        self._bar = Progress(
            TextColumn("[bold]train"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("train", total=None, numbers="starting workers")
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
        while True:
            last = self._stop.is_set()
            try:
                lines, step, total, metrics = ray.get(self._board.read.remote(self._seen), timeout=5)
                self._show(lines, step, total, metrics, last)
            except Exception:  # the board is gone when the cluster is: there is nothing left to show
                if last or not ray.is_initialized():
                    return
            if last:
                return
            self._stop.wait(POLL_S)

    def _show(self, lines: list[str], step: int, total: int, metrics: Metrics, last: bool) -> None:
        self._seen += len(lines)
        for line in lines:
            self._console.print(line, markup=False, highlight=False)
        if not total:
            return
        numbers = progress_text(metrics)
        self._bar.update(self._task, completed=step, total=total, numbers=numbers)
        due = last or time.monotonic() - self._last_line > PLAIN_LINE_S
        if due and not self._console.is_terminal:
            self._console.print(f"step {step:,}/{total:,}  {numbers}", markup=False, highlight=False)
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
