"""Some steps of a job as it would train, and what they cost: time, bytes by kind, and what each table sent."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torchrec.datasets.utils import Batch

from pipelines.dataset import Dataset
from pipelines.groups import Groups
from pipelines.job import Job
from pipelines.loader import job_loader
from pipelines.metrics import KINDS
from pipelines.metrics.thin import gather_tables
from pipelines.trainable import Trainable, build_trainable


@dataclass(frozen=True)
class Windows:
    """How long to measure."""

    settle: int
    """Steps before, in which rows begin to move away from their first values."""
    count: int
    steps: int
    """In a window."""


class Steps:
    """A job's model on this rank, its batches ready in memory. All ranks must make it at once.

    Args:
        batches: so many different ones, which come again and again, so that the loader takes no part.
        groups: what to send through; default: groups that count.
    """

    def __init__(self, job: Job, dataset: Dataset, device: torch.device, batches: int, groups: Groups | None = None):
        self.trainable: Trainable = build_trainable(job, dataset, device, groups)
        hot = self.trainable.hot
        self._batches = load(job, dataset, device, batches, None if hot is None else hot.splitter)
        self._feed = self._cycle()
        self.device = device

    def _cycle(self) -> Iterator[Batch]:
        while True:
            yield from self._batches

    def step(self) -> None:
        self.trainable.pipeline.progress(self._feed)

    def window(self, steps: int) -> float:
        """Milliseconds a step, of the slowest rank."""
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        worst = torch.tensor([time.perf_counter() - start], dtype=torch.float64, device=self.device)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        return 1000 * float(worst) / steps

    def measure(self, windows: Windows) -> dict[str, Any]:
        """The same on all ranks.

        Returns:
            `step_ms` (median of the windows), `windows_ms`, `wire_bytes` by kind (mean over ranks, a step), `tables`
            (as `exchange_report` has them, means over ranks).
        """
        for _ in range(windows.settle):
            self.step()
        self.trainable.groups.wire.take()
        for stats in self.trainable.exchange_stats:
            stats.reset()
        times = [self.window(windows.steps) for _ in range(windows.count)]
        return {
            "step_ms": statistics.median(times),
            "windows_ms": [round(ms, 3) for ms in times],
            "wire_bytes": self._wire(windows.count * windows.steps),
            "tables": self._tables(),
        }

    def _wire(self, steps: int) -> dict[str, float]:
        # The barrier and the all-reduce of a window are not sent through the groups that count.
        wire = self.trainable.groups.wire.take().to(self.device)
        dist.all_reduce(wire)
        return dict(zip(KINDS, (wire / (steps * dist.get_world_size())).tolist(), strict=True))

    def _tables(self) -> list[dict[str, Any]]:
        ranks = dist.get_world_size()
        merged = gather_tables(self.trainable.exchange_stats)
        for row in merged:
            for key, value in row.items():
                if isinstance(value, float) and not key.endswith(("ratio", "share")):
                    row[key] = value / ranks
        return merged


def load(
    job: Job,
    dataset: Dataset,
    device: torch.device,
    count: int,
    prepare: Callable[[Batch], Batch] | None = None,
) -> list[Batch]:
    """This rank's first batches of the first epoch, fewer if an epoch has fewer.

    Args:
        prepare: what each goes through, as in `Loader`.
    """
    loader = job_loader(
        job,
        dataset,
        job.data.train_split,
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        prepare=prepare,
    )
    stream = loader.train_batches(0)
    batches = [batch.to(device) for batch, _ in zip(stream, range(count), strict=False)]
    stream.close()
    return batches
