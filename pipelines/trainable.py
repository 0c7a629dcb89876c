"""A sharded model with all that takes a step: optimiser, pipeline, and the groups that it sends through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.optim.keyed import KeyedOptimizer

from pipelines.dataset import Dataset
from pipelines.groups import Groups, counting_groups
from pipelines.job import Job
from pipelines.model import build_model, init_tables
from pipelines.optim import build_optimizer
from pipelines.sharding import describe_plan, make_plan, shard_model, sharders


@dataclass(frozen=True)
class Trainable:
    """`pipeline.progress(batches)` takes a step and returns (loss, logits [B], labels [B])."""

    model: DistributedModelParallel
    optimizer: KeyedOptimizer
    pipeline: Any
    groups: Groups
    plan: str
    """The placement of the tables, for people."""


def build_trainable(job: Job, dataset: Dataset, device: torch.device, groups: Groups | None = None) -> Trainable:
    """Build it as the job says, with the initial weights of `train.seed`. Called on all ranks at once.

    Args:
        groups: what to send through; default: groups of the default one that count, as `job.exchange` says.

    Raises:
        UserError: what the user gave does not fit together.
    """
    model = build_model(job.model, dataset, seed=job.train.seed, device=device)
    table_sharders = sharders(job.optim, job.exchange, device)
    plan = make_plan(model, job.sharding, table_sharders, device=device, batch_size=job.train.batch_size)
    text = describe_plan(plan, model)
    groups = groups or counting_groups(job.exchange)
    sharded = shard_model(model, plan, table_sharders, device, groups, job.exchange)
    init_tables(sharded, job.train.seed)
    optimizer = build_optimizer(sharded, job.optim)
    pipeline = TrainPipelineSparseDist(sharded, optimizer, device, execute_all_batches=True)
    return Trainable(sharded, optimizer, pipeline, groups, text)
