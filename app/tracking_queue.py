"""Metrics from rank 0 to a local file and to MLflow, without ever holding up a training step.

`metrics.jsonl` is the queue: a thread appends what `log` was given, a process of its own (`tracking_sender`) sends it.
A dead server therefore costs neither memory nor points nor time, and `resend` goes on later where the sender stopped.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.tracking_sender import METRICS, MetricFile
from app.tracking_store import RunHandle, module_environment, one_line

RUN = "run.json"
SYSTEM_PERIOD = 10.0  # seconds between samples of the machine
log = logging.getLogger(__name__)


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


class MetricWriter:
    """Rank 0's metrics. `log` only puts into a queue.

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
        self._closing = threading.Event()
        self._local = self._start(self._write_loop)
        self._sender = _start_sender(handle) if handle.run_id else None
        if system_metrics:
            self._start(self._system_loop)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Keeps `{name: value}` of a step. Never waits and never raises; what is no number is left out."""
        try:
            values = {str(name): float(value) for name, value in metrics.items()}
        except (TypeError, ValueError, RuntimeError):
            values = _numbers(metrics)
        self._queue.put({"step": int(step), "time": time.time_ns() // 1_000_000, "metrics": values})

    def close(self, timeout: float = 20.0) -> Unsent:
        """Writes and sends what is left within `timeout` seconds, and tells what is not in MLflow."""
        end = time.monotonic() + timeout
        self._closing.set()
        self._queue.put(None)
        self._local.join(timeout)
        if self._sender:
            with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
                self._sender.communicate(str(end - time.monotonic()).encode(), max(0.0, end - time.monotonic()))
            self._sender.kill()
            self._sender.wait()
        return Unsent(MetricFile(self._folder).count(), self._folder / METRICS)

    def _start(self, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, daemon=True, name=f"thinwire{target.__name__}")
        thread.start()
        return thread

    def _write_loop(self) -> None:
        with (self._folder / METRICS).open("a") as file:
            record = self._queue.get()
            while record is not None:
                try:
                    file.write(json.dumps(_finite(record)) + "\n")
                    if self._queue.empty():
                        file.flush()
                except OSError as error:  # a full disk must not end the training
                    log.warning("a metric is lost: %s: %s", file.name, error)
                record = self._queue.get()

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


def _start_sender(handle: RunHandle) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "app.tracking_sender", json.dumps(asdict(handle))]
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=module_environment(), start_new_session=True)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    values = {}
    for name, value in metrics.items():
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            values[str(name)] = float(value)
    return values


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
