"""Sends the metrics of a run folder to MLflow: what lies in `metrics.jsonl` behind the place noted in `metrics.sent`.

`python -m app.tracking_sender HANDLE` is the process that a `MetricWriter` starts. In the training process, building a
thousand MLflow metrics would hold the interpreter's lock for longer than a training step can spare.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import select
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from app.tracking_store import POINTS_A_CALL, RunHandle, clean_name, connect, one_line, send

if TYPE_CHECKING:
    from mlflow import MlflowClient

METRICS, SENT = "metrics.jsonl", "metrics.sent"
PERIOD = 1.0  # seconds between looks at the file
LONGEST_BACK_OFF = 60.0
READ_POINTS = 10 * POINTS_A_CALL
LAST_LIMIT = 20.0  # seconds to send what is left when the training process dies without a word
log = logging.getLogger(__name__)

Point = tuple[str, float, int, int]


class MetricFile:
    """Reads `metrics.jsonl` from the place in `metrics.sent` on: an offset, and how many points behind it are sent.

    A line is `{"step": int, "time": ms, "metrics": {name: number, or "nan", "inf", "-inf"}}`.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self._sent = folder / METRICS, folder / SENT
        state = (
            json.loads(self._sent.read_text()) if self._sent.exists() else {"offset": 0, "skip": 0, "diverged": False}
        )
        self.offset, self.skip = int(state["offset"]), int(state["skip"])
        self.diverged = bool(state["diverged"])

    def read(self, limit: int = READ_POINTS) -> tuple[list[Point], dict[str, str], int]:
        """Finite points that are not sent, tags that the others call for, and the offset behind them.

        Reads whole lines until it has `limit` points.
        """
        points: list[Point] = []
        tags: dict[str, str] = {}
        offset = self.offset
        for line, end in self._lines(offset):
            record = json.loads(line)
            for name, value in record["metrics"].items():
                if not isinstance(value, str):
                    points.append((clean_name(name), float(value), record["time"], record["step"]))
                elif not (self.diverged or tags):
                    # MLflow stores Inf as the largest float and NaN as 0 (mlflow/mlflow#22826): a tag says it better.
                    tags = {"diverged": "true", "diverged_first": f"{name} = {value} at step {record['step']}"}
            offset = end
            if len(points) >= limit:
                break
        return points[self.skip :], tags, offset

    def count(self) -> int:
        """Finite points that are not sent."""
        values = (v for line, _ in self._lines(self.offset) for v in json.loads(line)["metrics"].values())
        return sum(not isinstance(v, str) for v in values) - self.skip

    def commit(self, offset: int, skip: int, *, diverged: bool) -> None:
        """Everything before `offset`, and `skip` points behind it, is in MLflow."""
        self.offset, self.skip, self.diverged = offset, skip, diverged
        part = self._sent.with_suffix(".part")
        part.write_text(json.dumps({"offset": offset, "skip": skip, "diverged": diverged}))
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
    """Sends the points of one folder in order, one call at a time."""

    def __init__(self, uri: str, run_id: str, folder: Path) -> None:
        self._uri, self._run_id, self.file = uri, run_id, MetricFile(folder)
        self._client: MlflowClient | None = None
        self._calls: deque[tuple[list[Point], dict[str, str]]] = deque()
        self._end = self.file.offset
        self.sent = 0
        """Points confirmed since this object was made."""

    def step(self) -> bool:
        """Makes one call if there is something to send; False if there was nothing. Raises what MLflow raises."""
        if not self._calls:
            points, tags, self._end = self.file.read()
            self._calls.extend((points[i : i + POINTS_A_CALL], {}) for i in range(0, len(points), POINTS_A_CALL))
            if tags:
                self._calls.appendleft(([], tags))
        if self._calls:
            self._client = self._client or connect(self._uri)
            points, tags = self._calls[0]
            send(self._client, self._run_id, points, tags)
            self._calls.popleft()
            self.sent += len(points)
            diverged = self.file.diverged or bool(tags)
            self.file.commit(self.file.offset, self.file.skip + len(points), diverged=diverged)
        elif self._end == self.file.offset:
            return False
        if not self._calls:
            self.file.commit(self._end, 0, diverged=self.file.diverged)
        return True


class Control:
    """What the training process says through the pipe: the seconds left, or its death by closing it."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self.closing, self.deadline = False, math.inf

    def wait(self, seconds: float) -> None:
        """Returns after `seconds`, or when there is news; at once after the closing word."""
        if self.closing or not select.select([self._pipe], [], [], seconds)[0]:
            return
        said = os.read(self._pipe, 64)
        self.closing, self.deadline = True, time.monotonic() + (float(said) if said else LAST_LIMIT)


def send_until_closed(sender: Sender, control: Control) -> None:
    """Sends what comes, retries what fails with growing pauses, and tries once more after the closing word."""
    back_off = PERIOD
    while True:
        last = control.closing
        try:
            while sender.step():
                back_off = PERIOD
                control.wait(0)
                if time.monotonic() > control.deadline:
                    return
            control.wait(PERIOD)
        except Exception as error:  # whatever MLflow raises, the points are in the file
            log.warning("MLflow does not take metrics, kept in %s: %s", sender.file.path, one_line(error))
            control.wait(back_off)
            back_off = min(2 * back_off, LONGEST_BACK_OFF)
        if last:
            return


def main() -> None:
    """Reads the handle from the first argument, and the closing word from standard input."""
    logging.basicConfig(format="%(message)s")
    os.nice(10)  # where cores are short, training goes first
    handle = RunHandle(**json.loads(sys.argv[1]))
    folder = Path(handle.folder)
    lock = FileLock(folder / f"{SENT}.lock")
    with contextlib.suppress(Timeout):  # the sender of a killed worker is still at it
        lock.acquire(timeout=2 * LAST_LIMIT)
    send_until_closed(Sender(handle.uri, handle.run_id, folder), Control(sys.stdin.fileno()))


if __name__ == "__main__":
    main()
