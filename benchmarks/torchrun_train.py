"""The training loop without Ray, for comparison and for debugging a rank under a debugger:

torchrun --nproc-per-node 2 -m benchmarks.torchrun_train --data FOLDER --out RUN --set train.batch_size=512
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist

from app.config import load_config
from pipelines.job import Metrics
from pipelines.train import train


class FolderHooks:
    """`pipelines.job.Hooks` on a folder that all ranks share: `log.jsonl` and `checkpoint_STEP`."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._first = dist.get_rank() == 0
        out.mkdir(parents=True, exist_ok=True)

    def say(self, text: str) -> None:
        if self._first:
            print(text, flush=True)

    def log(self, step: int, total_steps: int, metrics: Metrics) -> None:
        if self._first:
            with (self.out / "log.jsonl").open("a") as file:
                now = time.time_ns() // 1_000_000
                file.write(json.dumps({"step": step, "total": total_steps, "time": now, **metrics}) + "\n")

    def save(self, step: int, metrics: Metrics, write: Callable[[Path], None]) -> None:  # noqa: ARG002
        write(self.out / f"checkpoint_{step:09d}")
        dist.barrier()
        if self._first:
            (self.out / "newest").write_text(f"checkpoint_{step:09d}")

    def tables(self, rows: list[dict[str, Any]]) -> None:
        if self._first and rows:
            (self.out / "exchange_tables.json").write_text(json.dumps(rows, indent=1) + "\n")

    @contextmanager
    def restore(self) -> Iterator[Path | None]:
        newest = self.out / "newest"
        yield self.out / newest.read_text() if newest.exists() else None


@click.command()
@click.option("--data", required=True, help="Prepared data set.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the log and checkpoints.")
@click.option("--preset", default=None)
@click.option("--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE")
def main(data: str, out: Path, preset: str | None, assignments: tuple[str, ...]) -> None:
    """Train one rank; torchrun starts the others."""
    config = load_config(preset, None, [*assignments, f"data.path={data}", "data.synthetic=null"])
    on_gpu = config.cluster.device != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.set_num_threads(config.train.threads or config.cluster.cpus_per_worker)
    timeout = timedelta(seconds=config.cluster.collective_timeout_s)
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timeout)
    try:
        metrics = train(config.job(data), FolderHooks(out), device)
    finally:
        dist.destroy_process_group()
    if int(os.environ["RANK"]) == 0:
        print(json.dumps(metrics))


if __name__ == "__main__":
    main()
