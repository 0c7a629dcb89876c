"""A Ray Train worker of `thinwire compare`: baseline and candidate trained side by side, window by window."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch

from app.arms import ARMS, PAIRS, run_name
from app.storage import write_text
from app.tracking import RunHandle
from app.worker import begin, open_writer
from pipelines.errors import UserError
from pipelines.job import DivergedError, Job, Metrics
from pipelines.run_state import RunState
from pipelines.train import train_in_windows


@dataclass(frozen=True)
class CompareSettings:
    """What the driver hands to each worker."""

    jobs: dict[str, Job]
    """By arm."""
    seeds: tuple[int, ...]
    runs: dict[str, RunHandle]
    """By `run_name(seed, arm)`."""
    board: Any
    run_folder: str
    """Path or URI of the comparison in the storage."""
    threads: int


def compare(settings: CompareSettings) -> None:
    """Entry point of a worker. Rank 0 gives the board all finished pairs after each of them."""
    device = begin(settings.threads)
    first = ray.train.get_context().get_world_rank() == 0
    pairs: list[dict[str, Any]] = []
    try:
        for number, seed in enumerate(settings.seeds):
            pairs.append(_Pair(settings, number, seed, device, first).train())
            if first:
                ray.get(settings.board.finish.remote({"pairs": pairs}))
                write_text(f"{settings.run_folder}/{PAIRS}", json.dumps(pairs) + "\n")
            gc.collect()  # two models are in cycles of references
    except (UserError, DivergedError) as error:
        ray.get(settings.board.fail.remote(error))
        raise


class _Pair:
    """Both arms with one seed: the same initial weights and the same order of data."""

    def __init__(self, settings: CompareSettings, number: int, seed: int, device: torch.device, first: bool) -> None:
        self._settings, self._number, self._seed = settings, number, seed
        self._device, self._first = device, first
        self._steps = dict.fromkeys(ARMS, 0)

    def train(self) -> dict[str, Any]:
        """Windows of `train.log_every` steps in turn, A B, B A, A B, ..., so that a drift of the machine meets both
        alike. Returns the metrics of each window and the last ones, by arm."""
        hooks = {arm: _ArmHooks(self, arm) for arm in ARMS}
        windows: dict[str, list[Metrics]] = {arm: [] for arm in ARMS}
        last: dict[str, Metrics] = {}
        order = list(ARMS)
        try:
            running = {arm: train_in_windows(self._run_state(arm, hooks[arm])) for arm in ARMS}
            while running:
                for arm in [a for a in order if a in running]:
                    try:
                        windows[arm].append(next(running[arm]))
                    except StopIteration as end:
                        last[arm] = end.value
                        del running[arm]
                    except DivergedError as error:
                        raise DivergedError(f"{arm}, seed {self._seed}: {error}") from error
                order.reverse()
        finally:
            for one in hooks.values():
                one.close()
        return {
            "seed": self._seed,
            **{arm: {"windows": windows[arm], "last": last[arm], "tables": hooks[arm].of_tables} for arm in ARMS},
        }

    def _run_state(self, arm: str, hooks: _ArmHooks) -> RunState:
        job = self._settings.jobs[arm]
        options = job.train.model_copy(update={"seed": self._seed})
        return RunState(replace(job, train=options), hooks, self._device)

    def progress(self, arm: str, step: int, total: int, metrics: Metrics) -> None:
        """Tell the board how far all pairs have come together."""
        self._steps[arm] = step
        arms, pairs = len(ARMS), len(self._settings.seeds)
        done = self._number * arms * total + sum(self._steps.values())
        self._settings.board.update.remote(done, pairs * arms * total, metrics)


class _ArmHooks:
    """`pipelines.job.Hooks` of one arm: metrics to its MLflow run, no checkpoints."""

    def __init__(self, pair: _Pair, arm: str) -> None:
        self._pair, self._arm = pair, arm
        self.of_tables: list[dict[str, Any]] = []
        settings = pair._settings
        run = settings.runs[run_name(pair._seed, arm)]
        self._writer = open_writer(run, system_metrics=False) if pair._first else None

    def say(self, text: str) -> None:
        # The placement is the same for all seeds.
        if self._pair._first and self._pair._number == 0 and self._arm == ARMS[0]:
            self._pair._settings.board.say.remote(text)

    def log(self, step: int, total_steps: int, metrics: Metrics) -> None:
        if self._writer is not None:
            self._writer.log(step, metrics)
            self._pair.progress(self._arm, step, total_steps, metrics)

    def save(self, step: int, metrics: Metrics, write: Callable[[Path], None]) -> None:
        """A pair that was stopped begins anew."""

    def tables(self, rows: list[dict[str, Any]]) -> None:
        self.of_tables = rows

    @contextmanager
    def restore(self) -> Iterator[Path | None]:
        yield None

    def close(self) -> None:
        if self._writer is not None:
            unsent = self._writer.close()
            if unsent.points:
                self._pair._settings.board.say.remote(f"{run_name(self._pair._seed, self._arm)}: {unsent}")
