"""The MLflow run of a training run: opened from the configuration, closed as what the training came to."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app import tracking
from app.config import RunConfig
from app.run_guard import RunGuard
from app.storage import local_storage
from app.tracking import RunHandle
from pipelines.dataset import Dataset
from pipelines.job import DivergedError, Metrics

EXCHANGE_TABLES = "exchange_tables.csv"


def open_tracked_run(config: RunConfig, name: str, dataset: Dataset, resume: bool) -> RunHandle:
    """A new MLflow run, or that of the run to resume."""
    local = local_storage(config.run.storage) / name
    settings = tracking.TrackingSettings(
        uri=tracking_uri(config),
        experiment=config.tracking.experiment,
        on_error=config.tracking.on_error,
    )
    tags = tracking.environment_tags(world_size=config.cluster.workers, synthetic=dataset.manifest.synthetic)
    if resume and (found := tracking.reopen_run(local, config_yaml=config.to_yaml(), tags=tags)):
        return found
    return tracking.open_run(
        settings,
        folder=local,
        run_name=name,
        params=flat_params(config),
        config_yaml=config.to_yaml(),
        tags=tags,
    )


def tracking_uri(config: RunConfig) -> str:
    """`tracking.uri`, by default an SQLite file beside the runs."""
    return config.tracking.uri or f"sqlite:///{local_storage(config.run.storage)}/mlflow.db"


def flat_params(config: RunConfig) -> dict[str, Any]:
    """`section.key` -> value for MLflow; what is not set is left out."""
    sections = config.model_dump(exclude_none=True)
    return {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}


@contextmanager
def closed_at_the_end(run: RunHandle, children: Sequence[RunHandle] = ()) -> Iterator[dict[str, str]]:
    """Ends the MLflow run as what the block came to, also when the driver is killed inside it. Yields its last tags.

    Args:
        children: runs that the block ends itself, but which must not stay open when the driver is killed.
    """
    guard = RunGuard(run, *children) if run.run_id else None
    tags: dict[str, str] = {}
    status: tracking.Status = "FAILED"
    try:
        yield tags
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    except DivergedError as error:
        tags |= {"diverged": "true", "diverged_reason": str(error)}
        raise
    finally:
        tracking.finish(run, status, tags)
        if guard:
            guard.done()


def log_exchange_tables(run: RunHandle, rows: list[dict[str, Any]]) -> None:
    """What the thin exchange did by table, as `exchange_tables.csv` beside the run and in MLflow."""
    if rows:
        file = Path(run.folder) / EXCHANGE_TABLES
        with file.open("w", newline="") as out:
            # Paths send other kinds of messages.
            writer = csv.DictWriter(out, dict.fromkeys(key for row in rows for key in row), restval=0.0)
            writer.writeheader()
            writer.writerows(sorted(rows, key=lambda row: -row["output_dist_bytes"] - row["gradients_bytes"]))
        tracking.log_summary(run, {}, [file])


def final_tags(metrics: Metrics, dataset: Dataset) -> dict[str, str]:
    tags = {"final_auc": f"{metrics['eval/auc']:.6f}"} if "eval/auc" in metrics else {}
    if dataset.manifest.planted:
        tags["planted_best_auc"] = f"{dataset.manifest.planted.best_auc:.6f}"
    return tags
