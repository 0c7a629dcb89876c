"""A Ray Train worker: the loop of `pipelines.train` with Ray's checkpoints, MLflow metrics and the progress board."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch

from app.storage import upload
from app.tracking import MetricWriter, RunHandle
from pipelines.errors import UserError
from pipelines.job import DivergedError, Job, Metrics
from pipelines.train import train


@dataclass(frozen=True)
class WorkerSettings:
    """What the driver hands to each worker."""

    job: Job
    run: RunHandle
    board: Any
    run_folder: str
    """Path or URI of the run in the storage."""
    system_metrics: bool
    threads: int


def work(settings: WorkerSettings) -> None:
    """Entry point of a worker."""
    device = begin(settings.threads)
    hooks = RayHooks(settings)
    try:
        metrics = train(settings.job, hooks, device)
    except (UserError, DivergedError) as error:
        # A restart would fail in the same way; the driver ends the run when it sees this.
        ray.get(settings.board.fail.remote(error))
        raise
    finally:
        hooks.close()
    hooks.finish(metrics)


def begin(threads: int) -> torch.device:
    """This worker's device, ready for use."""
    torch.set_num_threads(threads)
    device = ray.train.torch.get_device()
    if device.type == "cuda":
        # Before the first collective: a communicator made on the wrong device hangs (ray-project/ray#42751).
        torch.cuda.set_device(device)
    return device


def open_writer(run: RunHandle, *, system_metrics: bool) -> MetricWriter:
    """In the run's folder, or in one of this host's where that folder is not to be had."""
    try:
        return MetricWriter(run, system_metrics=system_metrics)
    except OSError:
        # With a URI as storage the run's local folder is the driver's.
        elsewhere = replace(run, folder=tempfile.mkdtemp(prefix="thinwire-run-"))
        return MetricWriter(elsewhere, system_metrics=system_metrics)


class RayHooks:
    """`pipelines.job.Hooks` on Ray Train. Only rank 0 logs and speaks; all ranks save."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._first = ray.train.get_context().get_world_rank() == 0
        self._writer = open_writer(settings.run, system_metrics=settings.system_metrics) if self._first else None

    def say(self, text: str) -> None:
        if self._first:
            self._settings.board.say.remote(text)

    def log(self, step: int, total_steps: int, metrics: Metrics) -> None:
        if self._writer is not None:
            self._writer.log(step, metrics)
            self._settings.board.update.remote(step, total_steps, metrics)

    def save(self, step: int, metrics: Metrics, write: Callable[[Path], None]) -> None:
        folder = Path(tempfile.mkdtemp(prefix="thinwire-checkpoint-"))
        write(folder)
        ray.train.report(
            metrics | {"step": step},
            checkpoint=ray.train.Checkpoint.from_directory(folder),
            checkpoint_dir_name=f"checkpoint_{step:09d}",
            delete_local_checkpoint_after_upload=True,
            checkpoint_upload_fn=lambda checkpoint, name: upload(
                Path(checkpoint.path), self._settings.run_folder, name
            ),
        )

    def tables(self, rows: list[dict[str, Any]]) -> None:
        if self._first and rows:
            self._settings.board.keep_tables.remote(rows)

    @contextmanager
    def restore(self) -> Iterator[Path | None]:
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is None:
            yield None
            return
        with checkpoint.as_directory() as folder:
            yield Path(folder)

    def finish(self, metrics: Metrics) -> None:
        if self._first:
            ray.get(self._settings.board.finish.remote(metrics))

    def close(self) -> None:
        if self._writer is not None:
            unsent = self._writer.close()
            if unsent.points:
                self.say(str(unsent))
