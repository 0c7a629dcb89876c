"""A trial of `thinwire tune`: a Ray Tune function that runs Ray Train workers and an MLflow run of its own."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import ray.train

from app import tracking
from app.board import start_board
from app.config import RunConfig
from app.run_guard import RunGuard
from app.tracked_run import flat_params, log_exchange_tables
from app.tracking import RunHandle, TrackingSettings
from app.tune_result import read_outcome, write_outcome
from app.tune_space import Curves, Point, config_of
from app.tune_worker import Baseline, TrialSettings, train_trial
from app.workers import make_trainer

BASELINE = "trial-0-baseline"
SUMMARY = ("speedup", "auc_delta", "wire_bytes_per_step", "exchange_bytes_per_step", "ratio", "step_ms", "coding_ms")
"""Metrics of a trial's MLflow run."""


@dataclass(frozen=True)
class Search:
    """What all trials have in common."""

    base: RunConfig
    data: str
    device: str
    folder: str
    """Local folder of the search."""
    parent: RunHandle
    tags: dict[str, str]
    curves: Curves
    steps: int
    """Of a whole run."""
    seeds: tuple[int, ...]
    link_bytes: float
    stop_below: float
    board: Any = None
    baseline: Baseline | None = None


def run_trial(point: Point, search: Search) -> None:
    """What Ray Tune calls. Its metrics come from the workers."""
    from ray import tune
    from ray.tune.integration.ray_train import TuneReportCallback

    name = f"trial-{tune.get_context().get_trial_id()}"
    before = Path(search.folder) / name
    if (outcome := read_outcome(before)) is not None:
        # It ended, but the search was killed before Ray Tune had taken note.
        tune.report({key: outcome[key] for key in SUMMARY if key in outcome})
        return
    shutil.rmtree(before, ignore_errors=True)
    config = config_of(point, search.base, search.curves, search.steps)
    outcome = train_once(name, config, search, [TuneReportCallback()], point)
    search.board.say.remote(f"{name}: {describe(outcome)}")


def describe(outcome: dict[str, Any]) -> str:
    """For people, in a line."""
    why = "" if outcome["why"] == "finished" else f"; {outcome['why']}"
    return (
        f"speedup {outcome['speedup']:.2f}x, AUC {outcome['auc_delta']:+.5f}, "
        f"{outcome['wire_bytes_per_step'] / 1e3:.1f} KB a step{why}"
    )


def train_once(
    name: str, config: RunConfig, search: Search, callbacks: list[Any], point: Point | None = None
) -> dict[str, Any]:
    """Train a configuration, tracked as a child of the search's run, and leave `outcome.json` in its folder.

    Raises:
        ray.train.TrainingFailedError: a worker failed.
    """
    run = _open_child(name, config, search)
    guard = RunGuard(run) if run.run_id else None
    status: tracking.Status = "FAILED"
    tags: dict[str, str] = {}
    record: dict[str, Any] = {"trial": name, "point": point, "mlflow_run_id": run.run_id}
    try:
        outcome = _fit(name, config, search, run, callbacks)
        log_exchange_tables(run, outcome.pop("tables"))
        record |= outcome
        tags = {"why": outcome["why"]}
        if outcome["diverged"]:
            tags["diverged"] = "true"
        else:
            status = "FINISHED"
        summary = {key: float(outcome[key]) for key in SUMMARY if key in outcome}
        tracking.log_summary(run, {k: v for k, v in summary.items() if math.isfinite(v)}, [])
        return outcome
    except Exception as error:
        tags = {"why": f"failed: {' '.join(str(error).split())[:200]}"}
        record |= tags
        raise
    except BaseException:
        status = "KILLED"
        raise
    finally:
        tracking.finish(run, status, tags)
        if guard:
            guard.done()
        if "why" in record:
            # Last of all: a trial with an outcome is not done again.
            write_outcome(Path(run.folder), record)


def _open_child(name: str, config: RunConfig, search: Search) -> RunHandle:
    parent = search.parent
    if not parent.run_id:
        (Path(search.folder) / name).mkdir(parents=True, exist_ok=True)
        return replace(parent, folder=str(Path(search.folder) / name))
    settings = TrackingSettings(parent.uri, config.tracking.experiment, config.tracking.on_error)
    return tracking.open_run(
        settings,
        folder=Path(search.folder) / name,
        run_name=name,
        params=flat_params(config),
        config_yaml=config.to_yaml(),
        tags=search.tags | {"trial": name},
        parent_run_id=parent.run_id,
    )


def _fit(name: str, config: RunConfig, search: Search, run: RunHandle, callbacks: list[Any]) -> dict[str, Any]:
    options, board = config.cluster, start_board()
    settings = TrialSettings(
        job=config.job(search.data),
        seeds=search.seeds,
        run=run,
        board=board,
        shown=search.board,
        threads=config.train.threads or options.cpus_per_worker,
        baseline=search.baseline,
        link_bytes=search.link_bytes,
        stop_below=search.stop_below,
    )
    trainer = make_trainer(
        train_trial,
        settings,
        options,
        search.device,
        ray.train.RunConfig(
            name=name,
            storage_path=f"{search.folder}/workers",
            callbacks=callbacks,
            failure_config=ray.train.FailureConfig(max_failures=0),
        ),
    )
    try:
        trainer.fit()
    except ray.train.TrainingFailedError:
        _, error = ray.get(board.outcome.remote())
        if error is not None:
            raise error from None
        raise
    return dict(ray.get(board.outcome.remote())[0])
