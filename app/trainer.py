"""A training run, seen from the driver: data, cluster, tracking, Ray Train, export."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import ray
import ray.train
from rich.console import Console

from app import tracking
from app.board import start_board
from app.checkpoints import find_checkpoint, read_remote_state
from app.config import RunConfig
from app.data import open_dataset
from app.exchange_choice import compile_ahead, decide_exchange
from app.progress import data_progress
from app.ready import check_job, check_run_folder, ready_cluster
from app.storage import CONFIG, resolve_storage, write_text
from app.tracked_run import closed_at_the_end, final_tags, log_exchange_tables, open_tracked_run
from app.tracking_model import log_exported_model
from app.worker import WorkerSettings, work
from app.workers import WorkerGroup, run_workers
from pipelines import score
from pipelines.checkpoint import check_identity
from pipelines.dataset import Dataset
from pipelines.export import export_checkpoint
from pipelines.job import Job, Metrics


@dataclass(frozen=True)
class TrainResult:
    """What a finished run leaves."""

    folder: str
    """Path or URI of the run in the storage."""
    checkpoint: str
    export: str | None
    metrics: Metrics
    mlflow_run_id: str
    dashboard: str
    """The command that opens the MLflow dashboard."""
    synthetic: bool
    best_auc: float | None
    """For synthetic data: the AUC that no model can beat."""
    seconds: float


def run_training(config: RunConfig, *, preset: str | None, resume: bool, console: Console) -> TrainResult:
    """Train as `config` says, on Ray, from the first batch or from the newest checkpoint of the run.

    Raises:
        UserError: something that the user gave is wrong; nothing has been trained.
        KeyboardInterrupt: Ctrl-C, or the job was stopped. The MLflow run is marked KILLED, no worker is left.
        DivergedError: the loss became NaN or Inf.
        ray.train.TrainingFailedError: a worker failed more often than `cluster.max_failures` allows.
    """
    start = time.monotonic()
    name = config.run.name or f"{preset or 'run'}-{time.strftime('%Y%m%d-%H%M%S')}"
    storage = resolve_storage(config.run.storage)
    folder = f"{storage.rstrip('/')}/{name}"
    check_run_folder(folder, resume=resume)
    with data_progress(console) as progress:
        dataset = open_dataset(config, progress)
    if config.data.path is not None:
        # Saved with the run, which may be resumed from another working folder.
        config.data.path = str(dataset.path)
    job = config.job(str(dataset.path))
    check_job(job, dataset, config.cluster.workers)
    if resume:
        _check_resume(job, dataset, folder)
    try:
        device = ready_cluster(config, dataset, storage, console)
        decide_exchange(config, dataset, device, console)
        compile_ahead([config.exchange], console)
        job = config.job(str(dataset.path))
        run = open_tracked_run(config, name, dataset, resume)
        write_text(f"{folder}/{CONFIG}", config.to_yaml())
        with closed_at_the_end(run) as tags:
            console.print(f"run    {folder}", highlight=False, soft_wrap=True)
            console.print(f"track  {tracking.dashboard_command(run.uri)}", highlight=False, soft_wrap=True)
            board = start_board()
            settings = WorkerSettings(
                job=job,
                run=run,
                board=board,
                run_folder=f"{storage}/{name}",
                system_metrics=config.tracking.system_metrics,
                threads=config.train.threads or config.cluster.cpus_per_worker,
            )
            workers = WorkerGroup(
                config.cluster,
                device,
                name,
                storage,
                config.train.keep_checkpoints,
                go_on=f"`thinwire train --resume {folder}`",
            )
            checkpoint, metrics = run_workers(workers, work, settings, board, console)
            tags.update(final_tags(metrics, dataset))
            log_exchange_tables(run, ray.get(board.tables.remote()))
            export = _export(config, checkpoint, run, dataset) if config.run.export else None
    except KeyboardInterrupt:
        if find_checkpoint(folder):
            console.print(f"go on  thinwire train --resume {folder}", highlight=False, soft_wrap=True)
        raise
    finally:
        ray.shutdown()
    planted = dataset.manifest.planted
    return TrainResult(
        folder=folder,
        checkpoint=checkpoint.path,
        export=str(export) if export else None,
        metrics=metrics,
        mlflow_run_id=run.run_id,
        dashboard=tracking.dashboard_command(run.uri),
        best_auc=planted.best_auc if planted else None,
        synthetic=dataset.manifest.synthetic,
        seconds=time.monotonic() - start,
    )


def _check_resume(job: Job, dataset: Dataset, folder: str) -> None:
    checkpoint = find_checkpoint(folder)
    if checkpoint is not None:
        check_identity(read_remote_state(checkpoint), job, dataset, checkpoint.path)


def _export(config: RunConfig, checkpoint: ray.train.Checkpoint, run: tracking.RunHandle, dataset: Dataset) -> Path:
    """The final model beside the run, and in MLflow with a signature."""
    with checkpoint.as_directory() as folder:
        out = export_checkpoint(Path(folder), Path(run.folder) / "export")
    example = example_rows(dataset, config.data.valid_split)
    log_exported_model(run, out, example, score_rows(out, dataset, example))
    return out


def example_rows(dataset: Dataset, split: str, rows: int = 5) -> dict[str, Any]:
    """The first rows of a split by column: float32 arrays, int32 arrays, and lists of ids for multi-hot tables."""
    part = dataset.split(split).parts[0]
    table = pq.ParquetFile(dataset.path / part.path).read_row_group(0).slice(0, rows)
    multi = {t.name for t in dataset.manifest.tables if t.multi_hot}
    names = [d.name for d in dataset.manifest.dense] + [t.name for t in dataset.manifest.tables]
    return {n: table[n].to_pylist() if n in multi else table[n].to_numpy() for n in names}


def score_rows(export: Path, dataset: Dataset, rows: dict[str, Any]) -> np.ndarray:
    """Click probabilities float32 [n] of `example_rows` by an exported model."""
    dense = [rows[d.name] for d in dataset.manifest.dense]
    n = len(rows[dataset.manifest.tables[0].name])
    ids = {t.name: rows[t.name] for t in dataset.manifest.tables}
    stacked = np.stack(dense, axis=1) if dense else np.empty((n, 0), np.float32)
    return score.predict(score.load(export / "model.pt"), stacked, ids)
