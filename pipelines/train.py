"""The training loop of one rank. It knows nothing of Ray: whoever starts the ranks gives it `Hooks`."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torchrec.datasets.utils import Batch

from pipelines.evaluate import evaluate
from pipelines.job import DivergedError, Hooks, Job, Metrics
from pipelines.optim import set_learning_rates
from pipelines.run_state import RunState


def train(job: Job, hooks: Hooks, device: torch.device) -> Metrics:
    """Train to the end and return the last metrics, on rank 0 those of the evaluation too. The process group is up.

    Raises:
        UserError: what the user gave does not fit together.
        DivergedError: the loss of a logged step is not finite; all ranks raise it at the same step.
    """
    run = RunState(job, hooks, device)
    metrics: Metrics = {}
    if run.position.step >= run.total_steps:
        hooks.say(f"nothing is left to train: {run.total_steps:,} steps are done (train.epochs, train.max_steps)")
    while run.position.step < run.total_steps:
        with closing(run.epoch_batches()) as batches:
            for segment in run.segments():
                metrics = run_steps(run, islice(batches, segment.stop - segment.start))
                if segment.evaluate:
                    metrics |= evaluate(run)
                if segment.save:
                    hooks.save(run.position.step, metrics, run.save)
        run.position = run.position.next_epoch()
    memory = {"memory/peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    hooks.log(run.position.step, run.total_steps, memory)
    return (metrics or evaluate(run)) | memory | {"step": run.position.step}


def run_steps(run: RunState, batches: Iterator[Batch]) -> Metrics:
    """Take a step for each batch and return the last logged metrics. Logs every `log_every` steps and at the end."""
    feed, options, metrics = _Timed(batches), run.job.train, Metrics()
    meter = _Meter(run.device)
    while True:
        rate = set_learning_rates(run.optimizer, run.position.step, run.job.optim)
        try:
            loss, _, _ = run.pipeline.progress(feed)
        except StopIteration:
            break
        run.position = run.position.advanced(run.loader.global_batch)
        meter.add(loss)
        if run.position.step % options.log_every == 0:
            metrics = meter.read(run, feed) | {"train/lr": rate}
            run.hooks.log(run.position.step, run.total_steps, metrics)
    if meter.steps:
        metrics = meter.read(run, feed) | {"train/lr": rate}
        run.hooks.log(run.position.step, run.total_steps, metrics)
    return metrics


class _Meter:
    """Loss and speed between two logged points."""

    def __init__(self, device: torch.device) -> None:
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self.steps = 0
        self._start = time.perf_counter()

    def add(self, loss: torch.Tensor) -> None:
        self._loss += loss.detach().double().squeeze()
        self.steps += 1

    def read(self, run: RunState, feed: _Timed) -> Metrics:
        """Metrics since the last call; the loss is the mean over all ranks, so all ranks see the same number."""
        total = self._loss.clone()
        dist.all_reduce(total)
        loss = float(total) / self.steps / dist.get_world_size()
        seconds = time.perf_counter() - self._start
        metrics = {
            "train/loss": loss,
            "train/samples_per_s": self.steps * run.loader.global_batch / seconds,
            "time/step_ms": 1000 * seconds / self.steps,
            "time/data_wait_ms": 1000 * feed.seconds / self.steps,
        }
        if not math.isfinite(loss):
            run.hooks.log(run.position.step, run.total_steps, metrics)
            raise DivergedError(f"the loss is {loss} at step {run.position.step:,}")
        self._loss.zero_()
        self.steps, feed.seconds = 0, 0.0
        self._start = time.perf_counter()
        return metrics


class _Timed:
    """Passes batches on and adds up the time that the step waited for them."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self.seconds = 0.0

    def __iter__(self) -> _Timed:
        return self

    def __next__(self) -> Any:
        start = time.perf_counter()
        try:
            return next(self._batches)
        finally:
            self.seconds += time.perf_counter() - start
