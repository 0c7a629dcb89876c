"""Metrics from rank 0 to a local file and to MLflow, without ever holding up a training step.

`metrics.jsonl` is the queue: one thread appends what `log` was given, another sends what lies behind the offset in
`metrics.sent`. A dead server therefore costs neither memory nor points, and a later `resend` goes on at the offset.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.tracking_store import POINTS_A_CALL, RunHandle, clean_name, connect, one_line, send

if TYPE_CHECKING:
    from mlflow import MlflowClient

METRICS, SENT, RUN = "metrics.jsonl", "metrics.sent", "run.json"
PERIOD = 1.0  # seconds between sends
SYSTEM_PERIOD = 10.0  # seconds between samples of the machine
READ_POINTS = 10 * POINTS_A_CALL
LONGEST_BACK_OFF = 60.0
log = logging.getLogger(__name__)

Point = tuple[str, float, int, int]


@dataclass(frozen=True)
class Unsent:
    """Points that MLflow has not confirmed; `file` holds them."""

    points: int
    file: Path

    def __str__(self) -> str:
        if not self.points:
            return "all metrics are in MLflow"
        return (
            f"{self.points} metric points are not in MLflow; send them with: python -m app.tracking {self.file.parent}"
        )


class MetricFile:
    """Reads `metrics.jsonl` from the offset in `metrics.sent` on.

    A line is `{"step": int, "time": ms, "metrics": {name: number, or "nan", "inf", "-inf"}}`.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self._sent = folder / METRICS, folder / SENT
        state = json.loads(self._sent.read_text()) if self._sent.exists() else {"offset": 0, "diverged": False}
        self.offset = int(state["offset"])
        self.diverged = bool(state["diverged"])

    def read(self, limit: int = READ_POINTS) -> tuple[list[Point], dict[str, str], int]:
        """Finite points after the offset, tags that the others call for, and the offset behind them. At least one line
        if there is one; then no further line once `limit` points are read."""
        points: list[Point] = []
        tags: dict[str, str] = {}
        offset = self.offset
        for line, end in self._lines(offset):
            record = json.loads(line)
            for name, value in record["metrics"].items():
                if not isinstance(value, str):
                    points.append((clean_name(name), float(value), record["time"], record["step"]))
                elif not self.diverged:
                    # MLflow stores Inf as the largest float and NaN as 0 (mlflow/mlflow#22826): a tag says it better.
                    self.diverged = True
                    tags = {"diverged": "true", "diverged_first": f"{name} = {value} at step {record['step']}"}
            offset = end
            if len(points) >= limit:
                break
        return points, tags, offset

    def count(self) -> int:
        """Finite points after the offset."""
        return sum(
            sum(not isinstance(v, str) for v in json.loads(line)["metrics"].values())
            for line, _ in self._lines(self.offset)
        )

    def commit(self, offset: int) -> None:
        """Everything before `offset` is in MLflow."""
        self.offset = offset
        part = self._sent.with_suffix(".part")
        part.write_text(json.dumps({"offset": offset, "diverged": self.diverged}))
        part.replace(self._sent)

    def _lines(self, offset: int) -> Iterator[tuple[bytes, int]]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # being written
                offset += len(line)
                yield line, offset


class Sender:
    """Sends the points of one folder in order, one attempt at a time."""

    def __init__(self, uri: str, run_id: str, folder: Path) -> None:
        self._uri, self._run_id, self.file = uri, run_id, MetricFile(folder)
        self._client: MlflowClient | None = None
        self._calls: deque[tuple[list[Point], dict[str, str]]] = deque()
        self._offset = self.file.offset
        self.sent = 0
        """Points confirmed since this object was made."""

    def step(self) -> bool:
        """Makes one call if there is something to send; False if there was nothing. Raises what MLflow raises."""
        if not self._calls:
            points, tags, self._offset = self.file.read()
            if self._offset == self.file.offset:
                return False
            self._calls.extend((points[i : i + POINTS_A_CALL], {}) for i in range(0, len(points), POINTS_A_CALL))
            if tags:
                self._calls.appendleft(([], tags))
        if self._calls:
            self._client = self._client or connect(self._uri)
            points, tags = self._calls[0]
            send(self._client, self._run_id, points, tags)
            self._calls.popleft()
            self.sent += len(points)
        if not self._calls:
            self.file.commit(self._offset)
        return True


class MetricWriter:
    """Rank 0's metrics. `log` only puts into a queue; two daemon threads write and send.

    Args:
        handle: the run; with an empty `run_id` metrics go to `metrics.jsonl` only.
        system_metrics: also sample CPU, memory, disk, network and GPUs of this host every 10 s as `system/...`, with
            the seconds since the start of the run as step.
    """

    def __init__(self, handle: RunHandle, *, system_metrics: bool = False) -> None:
        self._handle, self._folder = handle, Path(handle.folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        if not (self._folder / RUN).exists():
            (self._folder / RUN).write_text(json.dumps(asdict(handle)))
        _cut_torn_line(self._folder / METRICS)
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._closing, self._deadline = threading.Event(), math.inf
        self._points = MetricFile(self._folder).count()
        self._sender = Sender(handle.uri, handle.run_id, self._folder)
        self._local = self._start(self._write_loop)
        self._remote = self._start(self._send_loop) if handle.run_id else None
        if system_metrics:
            self._start(self._system_loop)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Keeps `{name: value}` of a step. Never waits and never raises; what is no number is left out."""
        values = {}
        for name, value in metrics.items():
            with contextlib.suppress(TypeError, ValueError, RuntimeError):
                values[str(name)] = float(value)
        self._queue.put({"step": int(step), "time": time.time_ns() // 1_000_000, "metrics": values})

    def close(self, timeout: float = 20.0) -> Unsent:
        """Writes and sends what is left within `timeout` seconds, and tells what is not in MLflow."""
        self._deadline = time.monotonic() + timeout
        self._queue.put(None)
        self._local.join(timeout)
        self._closing.set()
        if self._remote:
            self._remote.join(max(0.0, self._deadline - time.monotonic()))
        return Unsent(self._points - self._sender.sent, self._folder / METRICS)

    def _start(self, target: Any) -> threading.Thread:
        thread = threading.Thread(target=target, daemon=True, name=f"thinwire{target.__name__}")
        thread.start()
        return thread

    def _write_loop(self) -> None:
        with (self._folder / METRICS).open("a") as file:
            record = self._queue.get()
            while record is not None:
                self._points += sum(math.isfinite(v) for v in record["metrics"].values())
                try:
                    file.write(json.dumps(_finite(record)) + "\n")
                    if self._queue.empty():
                        file.flush()
                except OSError as error:  # a full disk must not end the training
                    log.warning("a metric is lost: %s: %s", file.name, error)
                record = self._queue.get()

    def _send_loop(self) -> None:
        back_off = PERIOD
        while True:
            last = self._closing.is_set()
            try:
                while self._sender.step() and time.monotonic() < self._deadline:
                    back_off = PERIOD
                if last:
                    return
                self._closing.wait(PERIOD)
            except Exception as error:  # whatever MLflow raises, training goes on
                log.warning("MLflow does not take metrics, kept in %s: %s", self._folder / METRICS, one_line(error))
                if last:
                    return
                self._closing.wait(back_off)
                back_off = min(2 * back_off, LONGEST_BACK_OFF)

    def _system_loop(self) -> None:
        try:
            monitors = _system_monitors()
            while not self._closing.is_set():
                for monitor in monitors:
                    monitor.collect_metrics()
                values = {f"system/{k}": v for m in monitors for k, v in m.aggregate_metrics().items()}
                for monitor in monitors:
                    monitor.clear_metrics()
                self.log(int(time.time() - self._handle.started_ms / 1000), values)
                self._closing.wait(SYSTEM_PERIOD)
        except Exception as error:  # some containers hide these counters
            log.warning("no system metrics: %s", one_line(error))


def _finite(record: dict[str, Any]) -> dict[str, Any]:
    # JSON knows no NaN: a reader in another language would refuse the line.
    values = {k: v if math.isfinite(v) else str(v) for k, v in record["metrics"].items()}
    return {**record, "metrics": values}


def _cut_torn_line(path: Path) -> None:
    """Removes the half line that a killed writer leaves at the end."""
    if not path.exists():
        return
    window = 1 << 16
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        while True:
            start = max(0, size - window)
            file.seek(start)
            cut = file.read().rfind(b"\n")
            if cut >= 0 or start == 0:
                file.truncate(start + cut + 1)
                return
            window *= 2


def _system_monitors() -> list[Any]:
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    monitors: list[Any] = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
    with contextlib.suppress(ImportError, RuntimeError):  # no NVML: no NVIDIA GPU on this host
        monitors.append(GPUMonitor())
    return monitors
