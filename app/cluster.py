"""Connect to Ray, and what the cluster can give to the workers."""

from __future__ import annotations

import logging
import os
from typing import Literal

import ray

from app.config import ClusterOptions
from pipelines.errors import UserError
from pipelines.ray_tasks import knock

# Nothing travels through the object store but small messages.
_OBJECT_STORE_BYTES = 256 * 1024**2


def connect(options: ClusterOptions) -> None:
    """Connect to `cluster.address`, else to RAY_ADDRESS, else start Ray on this machine.

    Raises:
        UserError: the cluster does not answer.
    """
    if ray.is_initialized():
        return
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = options.address or os.environ.get("RAY_ADDRESS")
    if address is None:
        # A laptop may have fewer cores than the run has workers: they then share them.
        cpus = max(os.cpu_count() or 1, options.workers * options.cpus_per_worker)
        ray.init(
            address="local",
            num_cpus=cpus,
            object_store_memory=_OBJECT_STORE_BYTES,
            include_dashboard=False,
            **quiet,
        )
        return
    try:
        knock(address)
        ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"no Ray cluster answers at {address}: {' '.join(str(error).split())[:200]}",
            where="cluster.address",
            fix="start one, or unset it and RAY_ADDRESS to run on this machine",
        ) from error


def choose_device(options: ClusterOptions) -> Literal["cpu", "cuda"]:
    """The device of all workers.

    Raises:
        UserError: the cluster has too few CPUs or GPUs for the workers, so that they would wait for ever.
    """
    total = ray.cluster_resources()
    gpus, cpus = int(total.get("GPU", 0)), int(total.get("CPU", 0))
    device = options.device
    if device == "auto":
        device = "cuda" if gpus >= options.workers else "cpu"
    if device == "cuda" and gpus < options.workers:
        raise UserError(
            f"{options.workers} workers need a GPU each, the cluster has {gpus}",
            where="cluster.workers",
            fix="use fewer workers, more nodes, or cluster.device=cpu",
        )
    needed = options.workers * options.cpus_per_worker
    if cpus < needed:
        raise UserError(
            f"{options.workers} workers of {options.cpus_per_worker} CPUs need {needed}, the cluster has {cpus}",
            where="cluster",
            fix="use fewer workers or cpus_per_worker, or add nodes",
        )
    return device


def waiting_for(options: ClusterOptions, device: str) -> str:
    """What other jobs hold of what the workers need, for people; empty if nothing."""
    free = ray.available_resources()
    needed = {"CPU": options.workers * options.cpus_per_worker} | ({"GPU": options.workers} if device == "cuda" else {})
    short = [f"{int(free.get(kind, 0))} of {n} {kind}s are free" for kind, n in needed.items() if free.get(kind, 0) < n]
    return ", ".join(short)
