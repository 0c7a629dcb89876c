"""What Ray Train and MLflow add to a training step: `thinwire train` next to the same loop under torchrun.

    python -m benchmarks.ray_overhead --json overhead.json

Both runs are alive at once, on the same data, model and seed, and take turns: while one steps for some seconds, all
processes of the other are stopped (SIGSTOP), Ray's own included. So both meet the same drift of a busy machine. Step
times come from windows of ten steps that lie wholly inside a turn; the overhead is the median over pairs of turns of
the ratio. The losses of both must agree to the last bit, or they did not do the same work.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import psutil

from pipelines.synthetic import SynthOptions, write_synthetic

TARGET = 1.03
SETTLE_S = 0.5
"""Left out at the beginning of a turn: a step was stopped in its middle, and caches are cold."""
WARM_UP_WINDOWS = 5
START_LIMIT_S = 180


@dataclass
class Contender:
    """A training that can be stopped and continued."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    output: Path
    turns: list[float] = field(default_factory=list)
    """Median step time of each turn in ms."""

    def points(self) -> list[dict[str, Any]]:
        """Logged windows: `time` in s, `step_ms`, `loss`, `step`."""
        found = []
        for line in self.log.read_text().splitlines() if self.log.exists() else []:
            with contextlib.suppress(json.JSONDecodeError):  # the last line may be half written
                point = json.loads(line)
                metrics = point.get("metrics", point)
                if "time/step_ms" in metrics:
                    window = {"time": point["time"] / 1000, "step": point["step"]}
                    found.append(window | {"step_ms": metrics["time/step_ms"], "loss": metrics["train/loss"]})
        return found

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the process and all below it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            for process in (*root.children(recursive=True), root):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def warm_up(self) -> None:
        end = time.monotonic() + START_LIMIT_S
        while len(self.points()) < WARM_UP_WINDOWS:
            if self.process.poll() is not None or time.monotonic() > end:
                raise click.ClickException(f"{self.name} does not train:\n{self.output.read_text()[-2000:]}")
            time.sleep(0.2)

    def take_turn(self, seconds: float, log_every: int) -> None:
        self.signal_all(signal.SIGCONT)
        start = time.time()
        time.sleep(seconds)
        end = time.time()
        self.signal_all(signal.SIGSTOP)
        inside = [
            p["step_ms"]
            for p in self.points()
            if p["time"] - log_every * p["step_ms"] / 1000 > start + SETTLE_S and p["time"] < end
        ]
        if not inside:
            raise click.ClickException(f"no window of {log_every} steps fits into a turn: give longer --seconds")
        self.turns.append(statistics.median(inside))


@contextlib.contextmanager
def contender(name: str, command: list[str], folder: Path, log: Path) -> Iterator[Contender]:
    """Start a training, warmed up and stopped; end it with the block."""
    with (folder / f"{name}.txt").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=folder, stdout=output, stderr=output, start_new_session=True
        )
    started = Contender(name, process, log, folder / f"{name}.txt")
    try:
        started.warm_up()
        started.signal_all(signal.SIGSTOP)
        yield started
    finally:
        # Killed from below upwards while stopped, so that nothing restarts what was ended.
        started.signal_all(signal.SIGKILL)
        process.wait()


def measure(turns: int, seconds: float, workers: int, batch: int, log_every: int) -> dict[str, Any]:
    """Alternate the two; `rows` a record a contender, `bars` the ratio next to its target."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_synthetic(folder / "data", SynthOptions(rows=1_000_000))
        common = ["--data", str(folder / "data"), "--set", f"train.batch_size={batch}", "--set", "train.epochs=1000"]
        common += ["--set", f"train.log_every={log_every}"]
        torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
        torchrun += ["-m", "benchmarks.torchrun_train", "--out", str(folder / "plain"), *common]
        ray = ["app.cli", "train", "--name", "ray", "--set", f"cluster.workers={workers}", *common]
        with (
            contender("torchrun", torchrun, folder, folder / "plain" / "log.jsonl") as plain,
            contender("ray", ray, folder, folder / "runs" / "ray" / "metrics.jsonl") as under_ray,
        ):
            for _ in range(turns):
                plain.take_turn(seconds, log_every)
                under_ray.take_turn(seconds, log_every)
            compared = check_same_work(plain, under_ray)
    return summary(plain, under_ray, compared)


def check_same_work(a: Contender, b: Contender) -> int:
    """The number of steps whose loss both logged.

    Raises:
        ClickException: a loss differs, or there is none to compare.
    """
    losses = {p["step"]: p["loss"] for p in a.points()}
    pairs = [(losses[p["step"]], p["loss"]) for p in b.points() if p["step"] in losses]
    if not pairs or any(x != y for x, y in pairs):
        raise click.ClickException("the losses differ: the two did not do the same work")
    return len(pairs)


def summary(plain: Contender, under_ray: Contender, compared: int) -> dict[str, Any]:
    ratios = [ray / base for base, ray in zip(plain.turns, under_ray.turns, strict=True)]
    low, ratio, high = statistics.quantiles(ratios, n=4)
    rows: list[dict[str, Any]] = [
        {"contender": c.name, "step_ms": statistics.median(c.turns), "turns_ms": [round(t, 2) for t in c.turns]}
        for c in (plain, under_ray)
    ]
    rows.append({"contender": "ratio", "quartiles": [low, ratio, high], "equal_losses": compared})
    bar = {"name": "step under Ray over torchrun", "value": ratio, "target": TARGET, "unit": "x", "ok": ratio <= TARGET}
    return {"rows": rows, "bars": [bar]}


@click.command(help=__doc__)
@click.option("--turns", default=20, show_default=True, help="Turns of each.")
@click.option("--seconds", default=4.0, show_default=True, help="Length of a turn.")
@click.option("--workers", default=2, show_default=True)
@click.option("--batch", default=1024, show_default=True, help="Rows a rank and step.")
@click.option("--log-every", default=10, show_default=True, help="Steps a window.")
@click.option("--json", "json_file", type=click.Path(path_type=Path))
def main(turns: int, seconds: float, workers: int, batch: int, log_every: int, json_file: Path | None) -> None:
    result = measure(turns, seconds, workers, batch, log_every)
    click.echo(json.dumps(result, indent=1))
    if json_file:
        json_file.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
