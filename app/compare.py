"""`thinwire compare`, seen from the driver: two arms of one configuration on paired seeds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch
from rich.console import Console

from app import tracking, train_command
from app.arms import ARMS, PAIRS, REPORT, RESULT, run_name
from app.board import kept, start_board
from app.compare_report import headline, page
from app.compare_result import summarise
from app.compare_worker import CompareSettings, compare
from app.config import RunConfig
from app.data import open_dataset
from app.exchange_choice import compile_ahead
from app.plan_choice import planned
from app.progress import data_progress
from app.ready import check_job, check_run_folder, ready_cluster
from app.storage import local_storage, resolve_storage
from app.tracked_run import closed_at_the_end, flat_params, log_exchange_tables, open_tracked_run
from app.tracking import RunHandle
from app.workers import WorkerGroup, run_workers
from cache.constants import Constants
from pipelines.dataset import Dataset
from pipelines.errors import UserError
from pipelines.options import ExchangeOptions
from pipelines.qcomms import qcomm_codecs

CANDIDATE = ("exchange.codec=thin", "exchange.dense=thin")
MAY_DIFFER = ("exchange", "bounds", "cache", "sharding", "optim")
"""Sections of the configuration in which the arms may differ: others would give them other work."""


@dataclass(frozen=True)
class Comparison:
    """What is compared."""

    arms: dict[str, RunConfig]
    changes: dict[str, str]
    """What each arm changes, for people."""
    seeds: tuple[int, ...]
    planned: bool = False
    """The candidate is to have what the planner chooses."""

    @property
    def base(self) -> RunConfig:
        return self.arms[ARMS[0]]


def configure(
    preset: str | None,
    file: Path | None,
    assignments: Sequence[str],
    data: str | None,
    changes: dict[str, tuple[str, ...]],
    seeds: int,
) -> Comparison:
    """The arms: one configuration, and what each of them changes in it.

    Raises:
        UserError: a wrong key or value, or arms that would do other work.
    """
    given = changes
    changes = {**given, ARMS[1]: given[ARMS[1]] or CANDIDATE}
    arms = {arm: train_command.configure(preset, file, (*assignments, *changes[arm]), data, None, None) for arm in ARMS}
    a, b = (config.model_dump() for config in arms.values())
    for section in a:
        if section not in MAY_DIFFER and a[section] != b[section]:
            raise UserError(
                f"the arms differ in '{section}', so they would not do the same work",
                where="--candidate",
                fix=f"change keys of {', '.join(MAY_DIFFER)} only; give --set for both arms",
            )
    if a == b:
        raise UserError("both arms are the same", where="--candidate", fix="for example exchange.codec=int8")
    first = arms[ARMS[0]].train.seed
    texts = {arm: describe(changes[arm], arms[arm].exchange) for arm in ARMS}
    return Comparison(arms, texts, tuple(range(first, first + seeds)), planned=not given[ARMS[1]])


def with_plan(comparison: Comparison, dataset: Dataset, console: Console) -> Comparison:
    """The comparison with what the planner chooses for its candidate, if it is to."""
    if not comparison.planned:
        return comparison
    candidate = ARMS[1]
    config, text = planned(comparison.arms[candidate], dataset, Constants())
    console.print(f"plan   {text}", highlight=False, soft_wrap=True)
    changes = comparison.changes | {candidate: f"{comparison.changes[candidate]}; plan: {text.partition(' (')[0]}"}
    return replace(comparison, arms=comparison.arms | {candidate: config}, changes=changes)


def describe(changes: tuple[str, ...], exchange: ExchangeOptions) -> str:
    """An arm, for people."""
    if changes in ((), ("exchange.codec=none",)) and exchange.codec == "none":
        return "TorchRec fp32"
    plain = exchange.model_dump(exclude_defaults=True)
    return " ".join(changes) or " ".join(f"exchange.{key}={value}" for key, value in plain.items())


def run_comparison(comparison: Comparison, *, preset: str | None, command: str, console: Console) -> dict[str, Any]:
    """Train all pairs, and leave report, result and MLflow runs. Pairs that were finished before a failure or Ctrl-C
    are kept and reported too.

    Returns:
        `compare_result.summarise`, with `changes`, `folder`, `report`, `mlflow_run_id`, `dashboard` and `seconds`.

    Raises:
        UserError: something that the user gave is wrong; nothing has been trained.
        KeyboardInterrupt: Ctrl-C, or the job was stopped; no worker is left.
        DivergedError: the loss of an arm became NaN or Inf.
        ray.train.TrainingFailedError: a worker failed.
    """
    start = time.monotonic()
    config = comparison.base
    name = config.run.name or f"compare-{preset or 'run'}-{time.strftime('%Y%m%d-%H%M%S')}"
    storage = resolve_storage(config.run.storage)
    run_folder, folder = f"{storage.rstrip('/')}/{name}", local_storage(config.run.storage) / name
    check_run_folder(run_folder, resume=False)
    with data_progress(console) as progress:
        dataset = open_dataset(config, progress)
    comparison = with_plan(comparison, dataset, console)
    jobs = {arm: one.job(str(dataset.path)) for arm, one in comparison.arms.items()}
    check_job(jobs[ARMS[0]], dataset, config.cluster.workers)
    found: dict[str, Any] = {}
    try:
        device = ready_cluster(config, dataset, storage, console)
        if device == "cpu":
            for job in jobs.values():
                qcomm_codecs(job.exchange.codec, torch.device("cpu"))
        compile_ahead((job.exchange for job in jobs.values()), console)
        parent = open_tracked_run(config, name, dataset, resume=False)
        children = _open_children(comparison, parent, folder, dataset)
        with closed_at_the_end(parent, list(children.values())) as tags:
            console.print(f"run    {folder}", highlight=False, soft_wrap=True)
            console.print(f"track  {tracking.dashboard_command(parent.uri)}", highlight=False, soft_wrap=True)
            board = start_board()
            threads = config.train.threads or config.cluster.cpus_per_worker
            settings = CompareSettings(jobs, comparison.seeds, children, board, run_folder, threads)
            # A pair cannot go on from its middle, so a lost worker ends the comparison.
            options = config.cluster.model_copy(update={"max_failures": 0})
            workers = WorkerGroup(options, device, name, storage, label="compare")
            try:
                run_workers(workers, compare, settings, board, console)
            finally:
                pairs = kept(board).get("pairs", [])
                _finish_children(children, pairs, stopped=isinstance(sys.exception(), KeyboardInterrupt))
                if pairs:
                    _log_tables(children, pairs)
                    found = _leave(comparison, parent, dataset, pairs, command, time.monotonic() - start)
                    tags |= {"result": headline(found), "pairs": str(len(pairs)), **comparison.changes}
                    if len(pairs) < len(comparison.seeds):
                        kept_text = f"{len(pairs)} of {len(comparison.seeds)} pairs were finished: {folder / REPORT}"
                        console.print(kept_text, highlight=False, soft_wrap=True)
    finally:
        ray.shutdown()
    return found | {
        "changes": comparison.changes,
        "folder": str(folder),
        "report": str(folder / REPORT),
        "mlflow_run_id": parent.run_id,
        "dashboard": tracking.dashboard_command(parent.uri),
        "seconds": time.monotonic() - start,
    }


def _open_children(comparison: Comparison, parent: RunHandle, folder: Path, dataset: Dataset) -> dict[str, RunHandle]:
    """An MLflow run for each arm and seed; files only, if there is no parent in MLflow."""
    config = comparison.base
    settings = tracking.TrackingSettings(parent.uri, config.tracking.experiment, config.tracking.on_error)
    tags = tracking.environment_tags(world_size=config.cluster.workers, synthetic=dataset.manifest.synthetic)
    children = {}
    for seed in comparison.seeds:
        for arm, one in comparison.arms.items():
            own = one.model_copy(update={"train": one.train.model_copy(update={"seed": seed})})
            name = run_name(seed, arm)
            if not parent.run_id:
                (folder / name).mkdir(parents=True)
                children[name] = RunHandle(parent.uri, "", str(folder / name), parent.started_ms)
                continue
            children[name] = tracking.open_run(
                settings,
                folder=folder / name,
                run_name=name,
                params=flat_params(own),
                config_yaml=own.to_yaml(),
                tags=tags | {"arm": arm, "seed": str(seed), "arm.changes": comparison.changes[arm]},
                parent_run_id=parent.run_id,
            )
    return children


def _finish_children(children: dict[str, RunHandle], pairs: Sequence[dict[str, Any]], stopped: bool) -> None:
    """Those of finished pairs have ended well; the others were stopped, or failed with the comparison."""
    done = {run_name(pair["seed"], arm): pair[arm]["last"] for pair in pairs for arm in ARMS}
    for name, child in children.items():
        last = done.get(name)
        tags = {"final_auc": f"{last['eval/auc']:.6f}"} if last and "eval/auc" in last else {}
        tracking.finish(child, "FINISHED" if last is not None else "KILLED" if stopped else "FAILED", tags)


def _log_tables(children: dict[str, RunHandle], pairs: Sequence[dict[str, Any]]) -> None:
    for pair in pairs:
        for arm in ARMS:
            log_exchange_tables(children[run_name(pair["seed"], arm)], pair[arm]["tables"])


def _leave(
    comparison: Comparison,
    parent: RunHandle,
    dataset: Dataset,
    pairs: Sequence[dict[str, Any]],
    command: str,
    seconds: float,
) -> dict[str, Any]:
    """Write what the finished pairs say into the run's folder and to the parent run."""
    folder, config = Path(parent.folder), comparison.base
    found = summarise(pairs)
    facts = {
        **comparison.changes,
        "pairs": ", ".join(f"seed {pair['seed']}" for pair in pairs),
        "data": f"{'SYNTHETIC' if dataset.manifest.synthetic else 'real'}, {dataset.path}",
        "workers": f"{config.cluster.workers}, batch {config.train.batch_size} each, "
        f"dimension {config.model.embedding_dim}",
        "took": f"{seconds:.0f} s",
        "command": command,
    }
    (folder / PAIRS).write_text(json.dumps(list(pairs)) + "\n")
    (folder / RESULT).write_text(json.dumps(found | {"facts": facts}, indent=1) + "\n")
    (folder / REPORT).write_text(page(found, pairs, facts))
    tracking.log_summary(parent, _numbers(found), [folder / REPORT, folder / RESULT, folder / PAIRS])
    return found


def _numbers(found: dict[str, Any]) -> dict[str, float]:
    """The parent run's metrics."""
    numbers = {f"compare/{key}_bytes_ratio": value for key, value in found["bytes_ratio"].items() if value}
    for key in ("auc_delta", "ne_delta", "speedup"):
        for part, value in (found[key] or {}).items():
            if value is not None:
                numbers[f"compare/{key}_{part}"] = float(value)
    return numbers
