"""The training loop of one rank. It knows nothing of Ray: whoever starts the ranks gives it `Hooks`."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import islice
from typing import Any, cast

import torch
import torch.distributed as dist
from torchrec.datasets.utils import Batch

from pipelines.evaluate import evaluate
from pipelines.job import DivergedError, Hooks, Job, Metrics
from pipelines.metrics import wire_metrics
from pipelines.metrics.cache import CacheMeter
from pipelines.metrics.thin import SUMS, ThinMeter
from pipelines.optim import set_learning_rates
from pipelines.run_state import RunState


def train(job: Job, hooks: Hooks, device: torch.device) -> Metrics:
    """Train to the end and return the last metrics, on rank 0 those of the evaluation too. The process group is up.

    Raises:
        UserError: what the user gave does not fit together.
        DivergedError: the loss of a logged step is not finite; all ranks raise it at the same step.
    """
    windows = train_in_windows(RunState(job, hooks, device))
    while True:
        try:
            next(windows)
        except StopIteration as end:
            return cast(Metrics, end.value)


def train_in_windows(run: RunState) -> Generator[Metrics, None, Metrics]:
    """`train`, yielding the metrics of every logged point, so that two runs can take turns."""
    metrics: Metrics = {}
    if run.position.step >= run.total_steps:
        run.hooks.say(f"nothing is left to train: {run.total_steps:,} steps are done (train.epochs, train.max_steps)")
    while run.position.step < run.total_steps:
        with closing(run.epoch_batches()) as batches:
            for segment in run.segments():
                feed = _Timed(run.split(islice(batches, segment.stop - segment.start)))
                metrics = yield from _run_steps(run, feed)
                if segment.shadow:
                    _evaluate_bounds(run, feed.last)
                if segment.adapt and run.hot is not None:
                    said, moves = run.hot.adapt()
                    run.hooks.say(f"step {run.position.step:,}: {said}")
                    run.hooks.log(run.position.step, run.total_steps, moves)
                if segment.evaluate:
                    metrics |= evaluate(run)
                if segment.save:
                    run.hooks.save(run.position.step, metrics, run.save)
        run.position = run.position.next_epoch()
    memory = {"memory/peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    run.hooks.log(run.position.step, run.total_steps, memory)
    run.hooks.tables(run.exchange_tables())
    return (metrics or evaluate(run)) | memory | {"step": run.position.step}


def _evaluate_bounds(run: RunState, batch: Batch) -> None:
    said, metrics = run.bounds.evaluate(batch)
    run.hooks.say(f"step {run.position.step:,}: {said}")
    run.hooks.log(run.position.step, run.total_steps, metrics)


def _run_steps(run: RunState, feed: _Timed) -> Generator[Metrics, None, Metrics]:
    """Take a step for each batch and return the last logged metrics. Logs every `log_every` steps and at the end."""
    options, metrics = run.job.train, Metrics()
    meter = _Meter(run, feed)
    while True:
        rate = set_learning_rates(run.optimizer, run.position.step, run.job.optim)
        run.bounds.before(run.position.step)
        if run.hot is not None:
            run.hot.before(run.position.step)
        try:
            loss, _, _ = run.pipeline.progress(feed)
        except StopIteration:
            break
        run.position = run.position.advanced(run.loader.global_batch)
        meter.add(loss)
        if run.hot is not None:
            run.hot.audit_if_due(run.position.step)
        if run.position.step % options.log_every == 0:
            metrics = meter.read(rate)
            yield metrics
            meter.start()
    if meter.steps:
        metrics = meter.read(rate)
        yield metrics
    return metrics


class _Meter:
    """Loss, speed and wire bytes between two logged points."""

    def __init__(self, run: RunState, feed: _Timed) -> None:
        self._run, self._feed = run, feed
        self._thin, self._cache = ThinMeter(run.exchange_stats), CacheMeter(run.hot)
        run.groups.wire.take()  # what an evaluation sent
        self.start()

    def start(self) -> None:
        self._loss = torch.zeros((), dtype=torch.float64, device=self._run.device)
        self.steps, self._feed.seconds = 0, 0.0
        self._thin.take()
        self._cache.take()
        self._start = time.perf_counter()

    def add(self, loss: torch.Tensor) -> None:
        self._loss += loss.detach().double().squeeze()
        self.steps += 1

    def read(self, rate: float) -> Metrics:
        """Metrics since `start`, logged; loss and wire bytes are means over all ranks, so all ranks see the same."""
        run, wire = self._run, self._run.groups.wire.take()
        sums = torch.cat([self._loss.cpu().reshape(1), wire, self._thin.take(), self._cache.take()]).to(run.device)
        dist.all_reduce(sums, group=run.groups.exchange)
        means = (sums / self.steps / dist.get_world_size()).cpu()
        loss, of_wire, of_thin, of_cache = means.split([1, len(wire), len(SUMS), self._cache.size])
        seconds = time.perf_counter() - self._start
        metrics = {
            "train/loss": float(loss),
            "train/samples_per_s": self.steps * run.loader.global_batch / seconds,
            "train/lr": rate,
            "time/step_ms": 1000 * seconds / self.steps,
            "time/data_wait_ms": 1000 * self._feed.seconds / self.steps,
            **wire_metrics(of_wire),
            **self._thin.metrics(of_thin),
            **self._cache.metrics(of_cache),
            **run.bounds.metrics(),
        }
        run.hooks.log(run.position.step, run.total_steps, metrics)
        if not math.isfinite(metrics["train/loss"]):
            raise DivergedError(f"the loss is {metrics['train/loss']} at step {run.position.step:,}")
        return metrics


class _Timed:
    """Passes batches on, keeps the last one, and adds up the time that the step waited for them."""

    last: Batch

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self.seconds = 0.0

    def __iter__(self) -> _Timed:
        return self

    def __next__(self) -> Any:
        start = time.perf_counter()
        try:
            self.last = next(self._batches)
            return self.last
        finally:
            self.seconds += time.perf_counter() - start
