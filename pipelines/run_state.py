"""All that a rank holds during a run: model, optimiser, pipeline, loaders, and how far it has come."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchrec.datasets.utils import Batch

from pipelines import checkpoint
from pipelines.bounds import MovingBounds
from pipelines.checkpoint import Position
from pipelines.dataset import Dataset
from pipelines.errors import UserError
from pipelines.job import Hooks, Job
from pipelines.loader import Loader, job_loader
from pipelines.metrics.thin import gather_tables
from pipelines.options import TrainOptions
from pipelines.trainable import build_trainable


@dataclass(frozen=True)
class Segment:
    """Steps `start` to `stop` without a pause, and what comes after them."""

    start: int
    stop: int
    evaluate: bool
    save: bool
    shadow: bool = False
    """A shadow evaluation of the last batch."""
    adapt: bool = False
    """A choice of the hot rows."""


class RunState:
    """Builds everything and restores the newest checkpoint. Called on all ranks at once.

    Raises:
        UserError: what the user gave does not fit together.
    """

    def __init__(self, job: Job, hooks: Hooks, device: torch.device) -> None:
        self.job, self.hooks, self.device = job, hooks, device
        if job.bounds.loop_every % job.train.log_every:
            raise UserError(
                f"{job.bounds.loop_every} cuts a logged point of {job.train.log_every} steps (train.log_every) short",
                where="bounds.loop_every",
                fix="use a multiple of it",
            )
        self.dataset = Dataset(job.dataset_path)
        built = build_trainable(job, self.dataset, device)
        self.hot = built.hot
        self.loader = self._loader(job.data.train_split)
        self.valid = self._loader(job.data.valid_split)
        if not self.loader.steps_per_epoch:
            raise UserError(
                f"{self.loader.rows:,} rows are fewer than one global batch of {self.loader.global_batch:,}",
                where=f"split '{job.data.train_split}'",
                fix="use a smaller train.batch_size or fewer workers",
            )
        self.model, self.optimizer, self.pipeline = built.model, built.optimizer, built.pipeline
        self.groups, self._plan_text = built.groups, built.plan
        self.exchange_stats = built.exchange_stats
        thin = bool(built.exchange_stats)
        self.bounds = MovingBounds(job.bounds, built.model, built.pipeline, built.groups, device, thin)
        self.position = self._restore()
        self.total_steps = self._total_steps()
        self._announce()

    def epoch_batches(self) -> Generator[Batch]:
        """The batches that are left of the current epoch."""
        return self.loader.train_batches(self.position.epoch, self.position.sample)

    def split(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Batches that the loader has split, those anew that it split by an older hot set."""
        return batches if self.hot is None else map(self.hot.splitter.again, batches)

    def segments(self) -> Iterator[Segment]:
        """What is left of the current epoch, cut where an evaluation, a checkpoint or another hot set is due."""
        start = self.position.step
        end = min(start + self.loader.steps_left(self.position.sample), self.total_steps)
        adapt_every = self.job.cache.adapt_every if self.hot else 0
        return cut(start, end, self.total_steps, self.job.train, self.bounds.loop_every, adapt_every)

    def save(self, folder: Path) -> None:
        """Write this rank's part of a checkpoint. Tables and their optimiser are those of a run without hot rows."""
        if self.hot is not None:
            self.hot.write_back()
            self.hot.save(folder)
        state = {"bounds": self.bounds.state()}
        checkpoint.save(folder, self.model, self.optimizer, self.position, self.job, self.dataset, state)

    def exchange_tables(self) -> list[dict[str, Any]]:
        """What the thin exchange did in this process, by table, all ranks together; empty without it."""
        if not self.exchange_stats:
            return []
        return gather_tables(self.exchange_stats)

    def _loader(self, split: str) -> Loader:
        return job_loader(
            self.job,
            self.dataset,
            split,
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            prepare=self.hot.splitter if self.hot else None,
        )

    def _restore(self) -> Position:
        with self.hooks.restore() as folder:
            if folder is None:
                return Position()
            position = checkpoint.load(folder, self.model, self.optimizer, self.job, self.dataset)
            if self.hot is not None:
                self.hot.load(folder)
            if (bounds := checkpoint.read_state(folder).get("bounds")) is not None:
                self.bounds.restore(bounds)
        self.hooks.say(f"resumed at step {position.step:,}, epoch {position.epoch + 1}, row {position.sample:,} of it")
        return position

    def _total_steps(self) -> int:
        here, train = self.position, self.job.train
        epochs_after = train.epochs - here.epoch - 1
        left = self.loader.steps_left(here.sample) + epochs_after * self.loader.steps_per_epoch
        total = here.step + (left if epochs_after >= 0 else 0)
        return min(total, train.max_steps) if train.max_steps else total

    def _announce(self) -> None:
        loader = self.loader
        self.hooks.say(self._plan_text)
        self.hooks.say(
            f"{dist.get_world_size()} ranks, {self.device.type}, {dist.get_backend()}; global batch "
            f"{loader.global_batch:,}; {self.total_steps:,} steps; {loader.rows:,} train rows, of which "
            f"{loader.left_out:,} an epoch fill no batch and are left out; {self.valid.rows:,} rows to evaluate"
        )


def cut(
    start: int, end: int, total: int, options: TrainOptions, shadow_every: int = 0, adapt_every: int = 0
) -> Iterator[Segment]:
    """Cut the steps from `start` to the epoch's `end` where something is due; the last step of all ends with an
    evaluation and a checkpoint."""

    def due(step: int, every: int) -> bool:
        return step == total or (step % every == 0 if every else step == end)

    while start < end:
        all_every = options.eval_every, options.checkpoint_every, shadow_every, adapt_every
        stop = min([end, *(start + every - start % every for every in all_every if every)])
        yield Segment(
            start,
            stop,
            evaluate=due(stop, options.eval_every),
            save=due(stop, options.checkpoint_every),
            shadow=bool(shadow_every) and stop % shadow_every == 0,
            adapt=bool(adapt_every) and stop % adapt_every == 0,
        )
        start = stop
