"""A cluster that can do what a configuration asks, or one clear message before anything is trained."""

from __future__ import annotations

import os

import pyarrow.fs as pafs
from rich.console import Console

from app import cluster, tracking
from app.config import RunConfig
from app.preflight import distinct_hosts, preflight
from app.storage import open_storage
from app.tracked_run import tracking_uri
from pipelines.dataset import Dataset
from pipelines.errors import UserError
from pipelines.job import Job
from pipelines.model import table_configs


def ready_cluster(config: RunConfig, dataset: Dataset, storage: str, console: Console) -> str:
    """Connect to Ray and look at every node.

    Returns:
        The device of all workers, cpu or cuda.

    Raises:
        UserError: the cluster does not answer, is too small, or a node lacks what the run needs.
    """
    workers = config.cluster.workers
    where = config.cluster.address or os.environ.get("RAY_ADDRESS") or "this machine"
    console.print(f"data   {dataset.path}", highlight=False, soft_wrap=True)
    console.print(f"ray    {workers} workers on {where}", highlight=False, soft_wrap=True)
    cluster.connect(config.cluster)
    device = cluster.choose_device(config.cluster)
    reports = preflight(data_path=str(dataset.path), storage_path=storage, num_workers=workers, device=device)
    uri = tracking.normalise_uri(tracking_uri(config))
    tracking.check_reachable_from_workers(uri, distinct_hosts(reports))
    if busy := cluster.waiting_for(config.cluster, device):
        console.print(f"wait   {busy}: the run starts when other jobs have ended", highlight=False, soft_wrap=True)
    return device


def check_run_folder(folder: str, *, resume: bool) -> None:
    """Raises UserError if a run's folder is there and should not, or the other way round."""
    filesystem, path = open_storage(folder)
    exists = filesystem.get_file_info(path).type != pafs.FileType.NotFound
    if exists and not resume:
        raise UserError(
            "a run of this name exists", where=folder, fix=f"go on with `thinwire train --resume {folder}`, or rename"
        )
    if resume and not exists:
        raise UserError("no such run", where=folder, fix="name a folder inside run.storage")


def check_job(job: Job, dataset: Dataset, workers: int) -> None:
    """What the workers would refuse, found before anything is started or written.

    Raises:
        UserError: a split or table does not exist, or there are too few rows.
    """
    for split in (job.data.train_split, job.data.valid_split):
        dataset.split(split)
    table_configs(job.model, dataset)
    rows, needed = dataset.split(job.data.train_split).rows, workers * job.train.batch_size
    if rows < needed:
        raise UserError(
            f"{rows:,} rows are fewer than one global batch of {needed:,} ({workers} workers)",
            where=f"split '{job.data.train_split}'",
            fix=f"use fewer workers or a smaller batch, as in --set train.batch_size={max(1, rows // workers // 20)}",
        )
