"""A Ray Train worker of a trial of `thinwire tune`: one configuration, trained with each of the seeds."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
import torch.distributed as dist

from app.compare_result import WARM_UP
from app.tracking import RunHandle
from app.worker import begin, open_writer
from pipelines.errors import UserError
from pipelines.job import DivergedError, Job, Metrics
from pipelines.run_state import RunState
from pipelines.train import train_in_windows

LOST = -1.0
"""The AUC delta of a trial that diverged: finite, so that it can be ranked, and worse than any other."""


@dataclass(frozen=True)
class Baseline:
    """What trial 0, TorchRec's fp32 exchange, came to with the same seeds."""

    auc: dict[str, float]
    """By `key(seed, step)`."""
    step_ms: float
    wire_kb: float
    exchange_kb: float

    @classmethod
    def of(cls, outcome: Mapping[str, Any]) -> Baseline:
        """From what the trial left."""
        wire, exchange = (outcome[f"{kind}_bytes_per_step"] / 1e3 for kind in ("wire", "exchange"))
        return cls(outcome["auc"], outcome["step_ms"], wire, exchange)


@dataclass(frozen=True)
class TrialSettings:
    """What a trial hands to each of its workers."""

    job: Job
    seeds: tuple[int, ...]
    run: RunHandle
    board: Any
    """Of this trial: its outcome."""
    shown: Any
    """The board of the search, which shows how far it is."""
    threads: int
    baseline: Baseline | None
    """None: this trial is the baseline."""
    link_bytes: float
    """Bytes per second of a worker's link."""
    stop_below: float
    """An AUC delta at which a trial ends at once."""


def key(seed: int, step: int) -> str:
    return f"{seed}/{step}"


def speedup(baseline: Baseline, wire_kb: float, coding_ms: float, link_bytes: float) -> float:
    """By the cost law: a step computes for as long as the baseline's did here, where bytes cost next to nothing, sends
    its bytes over the link, and encodes and decodes.

    >>> base = Baseline({}, step_ms=20.0, wire_kb=1000.0, exchange_kb=900.0)
    >>> round(speedup(base, wire_kb=100.0, coding_ms=2.0, link_bytes=12.5e6), 2)
    3.33
    """
    per_kb = 1e6 / link_bytes
    return (baseline.step_ms + baseline.wire_kb * per_kb) / (baseline.step_ms + wire_kb * per_kb + coding_ms)


def train_trial(settings: TrialSettings) -> None:
    """Entry point of a worker. Rank 0 gives the board the outcome."""
    device = begin(settings.threads)
    trial = _Trial(settings, device, ray.train.get_context().get_world_rank() == 0)
    try:
        for seed in settings.seeds:
            if not trial.train(seed):
                break
            gc.collect()
    except UserError as error:
        ray.get(settings.board.fail.remote(error))
        raise
    trial.finish()


class _Trial:
    def __init__(self, settings: TrialSettings, device: torch.device, first: bool) -> None:
        self._settings, self._device, self._first = settings, device, first
        self._windows: list[list[Metrics]] = []
        self._auc: dict[str, float] = {}
        self._ended: dict[int, tuple[int, float]] = {}
        """The last step of each seed, and its AUC."""
        self._why = "finished"
        self.tables: list[dict[str, Any]] = []
        """What the thin exchange did with the first seed."""

    def train(self, seed: int) -> bool:
        """Train with one seed to its end; False if the trial is over."""
        job, hooks = self._settings.job, _Hooks(self, seed)
        run = RunState(replace(job, train=job.train.model_copy(update={"seed": seed})), hooks, self._device)
        self._windows.append([])
        every, evaluated = job.train.eval_every, 0
        windows = train_in_windows(run)
        try:
            while True:
                try:
                    self._windows[-1].append(next(windows))
                except StopIteration:
                    return self._judge(seed, hooks, last=True)
                # An evaluation comes after the window that ends with its step.
                if every and (count := (run.position.step - 1) // every) > evaluated:
                    evaluated = count
                    if not self._judge(seed, hooks, last=False):
                        return False
        except DivergedError as error:
            self._why = f"diverged: seed {seed}, {error}"
            self._report(LOST)
            return False
        finally:
            windows.close()
            hooks.close()

    def _judge(self, seed: int, hooks: _Hooks, last: bool) -> bool:
        """Report the newest AUC to Ray Tune; False if it is too low to go on."""
        found = [hooks.auc]
        dist.broadcast_object_list(found, 0)
        step, auc = found[0]
        self._auc[key(seed, step)] = auc
        if last:
            self._ended[seed] = step, auc
        delta = self.auc_delta(seed, step)
        self._report(delta)
        if delta < self._settings.stop_below and not (last and seed == self._settings.seeds[-1]):
            self._why = f"stopped early: AUC {delta:+.4f} at step {step:,}, seed {seed}"
            self._ended[seed] = step, auc
            return False
        return True

    def auc_delta(self, seed: int, step: int) -> float:
        """Mean over the seeds that have ended, or of this one at a step."""
        base = self._settings.baseline
        if base is None:
            return 0.0
        if seed in self._ended:
            return statistics.fmean(self.final_deltas())
        return self._auc[key(seed, step)] - base.auc[key(seed, step)]

    def final_deltas(self) -> list[float]:
        """Of each seed, at its last step."""
        base = self._settings.baseline
        if base is None:
            return [0.0] * len(self._ended)
        return [auc - base.auc[key(seed, step)] for seed, (step, auc) in self._ended.items()]

    def _report(self, delta: float) -> None:
        """To Ray Tune, on all ranks at once."""
        ray.train.report({"auc_delta": delta} | self.costs())

    def costs(self) -> Metrics:
        """Bytes and times of a step, and what follows by the cost law."""
        base, windows = self._settings.baseline, [w for of_seed in self._windows for w in of_seed]
        timed = [w for of_seed in self._windows for w in of_seed[WARM_UP:-1]] or windows
        if not windows:
            return {"speedup": 0.0, "wire_bytes_per_step": 0.0, "ratio": 0.0}
        wire, exchange = (statistics.fmean(w[f"wire/{k}_kb"] for w in windows) for k in ("total", "exchange"))
        coding = statistics.median(w.get("exchange/encode_ms", 0.0) + w.get("exchange/decode_ms", 0.0) for w in timed)
        found = {
            "wire_bytes_per_step": 1000 * wire,
            "exchange_bytes_per_step": 1000 * exchange,
            "step_ms": statistics.median(w["time/step_ms"] for w in timed),
            "coding_ms": coding,
        }
        if base is None:
            return found | {"speedup": 1.0, "ratio": 1.0}
        return found | {
            "speedup": speedup(base, wire, coding, self._settings.link_bytes),
            "ratio": base.exchange_kb / exchange if exchange else 0.0,
        }

    def finish(self) -> None:
        if self._first:
            deltas = self.final_deltas()
            diverged = self._why.startswith("diverged")
            outcome = {
                "why": self._why,
                "diverged": diverged,
                "auc_delta": LOST if diverged or not deltas else statistics.fmean(deltas),
                "auc_deltas": deltas,
                "auc": self._auc,
                "tables": self.tables,
                **self.costs(),
            }
            ray.get(self._settings.board.finish.remote(outcome))

    def progress(self, step: int, total: int, metrics: Metrics) -> None:
        done, seeds = len(self._ended) * total, len(self._settings.seeds)
        self._settings.shown.update.remote(done + step, seeds * total, metrics)


class _Hooks:
    """`pipelines.job.Hooks` of one seed: metrics to the trial's MLflow run, no checkpoints."""

    def __init__(self, trial: _Trial, seed: int) -> None:
        self._trial, self.auc = trial, (0, float("nan"))
        settings = trial._settings
        # A point of a step is written once, so MLflow gets the curves of the first seed alone.
        write = trial._first and seed == settings.seeds[0]
        self._writer = open_writer(settings.run, system_metrics=False) if write else None

    def say(self, text: str) -> None:
        pass

    def log(self, step: int, total_steps: int, metrics: Metrics) -> None:
        if not self._trial._first:
            return
        if "eval/auc" in metrics:
            self.auc = step, metrics["eval/auc"]
        if self._writer is not None:
            self._writer.log(step, metrics)
        self._trial.progress(step, total_steps, metrics)

    def save(self, step: int, metrics: Metrics, write: Callable[[Path], None]) -> None:
        """A trial that was stopped begins anew: no trial fills the disk."""

    def tables(self, rows: list[dict[str, Any]]) -> None:
        self._trial.tables = self._trial.tables or rows

    @contextmanager
    def restore(self) -> Iterator[Path | None]:
        yield None

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
