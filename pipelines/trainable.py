"""A sharded model with all that takes a step: optimiser, pipeline, and the groups that it sends through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.optim.keyed import KeyedOptimizer

from pipelines.dataset import Dataset
from pipelines.groups import Groups, counting_groups
from pipelines.hot import Hot, compile_hot
from pipelines.hot_tables import hot_tables
from pipelines.job import Job
from pipelines.model import build_model, init_tables
from pipelines.optim import build_optimizer
from pipelines.ranges import watch_thin_exchange
from pipelines.sharding import describe_plan, make_plan, shard_model, sharders
from pipelines.thin import compile_exchange, count_hosts, describe, exchange_config, resolve, table_loads, table_stats


@dataclass(frozen=True)
class Trainable:
    """`pipeline.progress(batches)` takes a step and returns (loss, logits [B], labels [B])."""

    model: DistributedModelParallel
    optimizer: KeyedOptimizer
    pipeline: Any
    groups: Groups
    plan: str
    """The placement of the tables, for people."""
    exchange_stats: list[Any]
    """`compression.exchange.stats.TableStats` of the thin exchange, if it is used."""
    hot: Hot | None = None
    """Rows that every rank holds; batches must go through its `splitter`."""


def build_trainable(job: Job, dataset: Dataset, device: torch.device, groups: Groups | None = None) -> Trainable:
    """Build it as the job says, with the initial weights of `train.seed`. Called on all ranks at once.

    Args:
        groups: what to send through; default: groups of the default one that count, as `job.exchange` says.

    Raises:
        UserError: what the user gave does not fit together.
    """
    tables = hot_tables(job, dataset, device)
    model = build_model(job.model, dataset, seed=job.train.seed, device=device, hot=bool(tables))
    hosts = count_hosts() if job.exchange.codec == "auto" else 1
    exchange, batch = resolve(job, dataset, dist.get_world_size(), hosts), job.train.batch_size
    of_tables = table_loads(job, dataset) if exchange.codec == "thin" else None
    config = exchange_config(exchange, of_tables, batch) if of_tables else None
    table_sharders = sharders(job.optim, exchange, device, config)
    plan = make_plan(model, job.sharding, table_sharders, device=device, batch_size=batch, loads=of_tables)
    text = describe_plan(plan, model)
    if tables:
        compile_hot()
    if of_tables or exchange.dense == "thin":
        compile_exchange()
        watch_thin_exchange()
    if of_tables:
        text += f"\n{describe(exchange, of_tables, plan)}"
    groups = groups or counting_groups(exchange)
    sharded = shard_model(model, plan, table_sharders, device, groups, exchange)
    init_tables(sharded, job.train.seed)
    optimizer = build_optimizer(sharded, job.optim)
    pipeline = TrainPipelineSparseDist(sharded, optimizer, device, execute_all_batches=True)
    hot = Hot(tables, sharded, job, groups, config) if tables else None
    if hot is not None:
        text += f"\n{hot.describe()}"
    stats = table_stats(sharded) if of_tables else []
    return Trainable(sharded, optimizer, pipeline, groups, text, stats, hot)
