"""The hot rows of a run: which they are, what keeps them in step, and how they get from their owners and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.distributed.model_parallel import DistributedModelParallel

from cache.hot_rows import HotRows
from cache.optim import STATES
from cache.replica import Replica
from cache.sync import Sync, TorchSync
from cache.tables import HotSet, HotTable, Slots
from pipelines.dataset import Dataset, module_name
from pipelines.errors import UserError
from pipelines.groups import Groups
from pipelines.hot_batch import Splitter
from pipelines.job import Job
from pipelines.model import HotLookup, table_configs
from pipelines.options import CacheOptions, OptimOptions
from pipelines.owner_rows import OwnerRows

if TYPE_CHECKING:
    from compression.exchange import ExchangeConfig


def hot_tables(job: Job, dataset: Dataset) -> list[HotTable]:
    """The tables of a job with the hot rows that it states; none if it states none.

    Raises:
        UserError: an option names an unknown table, or does not fit.
    """
    configs = table_configs(job.model, dataset)
    sizes = {config.feature_names[0]: config.num_embeddings for config in configs}
    counts = hot_counts(job.cache, sizes)
    if not any(counts.values()):
        return []
    _check(job, counts)
    return [
        HotTable(
            config.name,
            config.num_embeddings,
            config.embedding_dim,
            counts[config.feature_names[0]],
            tuple(config.feature_names),
            job.model.pooling == "mean",
        )
        for config in configs
    ]


def hot_counts(options: CacheOptions, rows: Mapping[str, int]) -> dict[str, int]:
    """Hot rows of each table.

    Args:
        rows: of each table, by name.

    Raises:
        UserError: an option names an unknown table, or more rows than it has.
    """
    for table, count in options.hot_rows.items():
        where = f"cache.hot_rows.{table}"
        if table not in rows:
            raise UserError(f"no table '{table}'", where=where, fix=f"tables are {', '.join(rows)}")
        if count > rows[table]:
            raise UserError(f"{count:,} of {rows[table]:,} rows", where=where, fix="use at most as many as there are")
    return {table: options.hot_rows.get(table, int(options.hot_share * size)) for table, size in rows.items()}


def _check(job: Job, counts: Mapping[str, int]) -> None:
    if job.optim.sparse == "adam":
        raise UserError(
            "FBGEMM does not tell the step that its fused Adam is at, so hot rows cannot go on with it",
            where="cache",
            fix="use optim.sparse=rowwise_adagrad or sgd, or no hot rows",
        )
    if job.optim.sparse != "rowwise_adagrad":
        return
    for table, shard in job.sharding.tables.items():
        if shard.type == "column_wise" and counts.get(table):
            raise UserError(
                f"table '{table}' is column_wise, which gives each shard an accumulator of row-wise Adagrad",
                where=f"cache.hot_rows.{table}",
                fix="place the table table_wise, give it 0 hot rows, or use optim.sparse=sgd",
            )


class Hot:
    """Hot rows of a sharded model whose tables have their values. All ranks must make it at once.

    Attributes:
        rows: what the model looks up.
        splitter: what its batches must go through.
    """

    def __init__(
        self,
        tables: list[HotTable],
        model: DistributedModelParallel,
        optim: OptimOptions,
        groups: Groups,
        thin: ExchangeConfig | None,
    ) -> None:
        slots = Slots(tables)
        settings = {} if optim.sparse == "sgd" else {"eps": optim.eps}
        replica = Replica(slots, optim.sparse, **settings)
        self.stats = []
        sync: Sync
        if thin is None:
            sync = TorchSync(slots, groups.replica)
        else:
            from pipelines.replica_sync import thin_sync

            sync = thin_sync(slots, thin, groups.replica)
            self.stats = [sync.stats]
        self.sync = sync
        self.rows = HotRows(replica, sync, _rate_of(model), _divisor)
        self.splitter = Splitter(HotSet.first_rows(slots))
        self._owners = OwnerRows(model, list(STATES[optim.sparse]), groups.replica)
        self._group = groups.replica
        for module in model.modules():
            if isinstance(module, HotLookup):
                module.rows = self.rows
        self.refresh()

    def describe(self) -> str:
        """A line for people."""
        slots = self.rows.replica.slots
        rows = sum(table.rows for table in slots.tables)
        size = 4 * (slots.values + sum(state.size for state in self.rows.replica.optimizer.state.values()))
        return f"hot rows: {slots.size:,} of {rows:,} on every rank, {size / 1e6:.1f} MB with their optimiser's state"

    def refresh(self) -> None:
        """Read the hot rows and their state from their owners, on all ranks at once: after whatever changed tables."""
        self.rows.settle()
        for i, table in enumerate(self.splitter.hot.slots.tables):
            views = self.rows.replica.read(i)
            for name, values in self._owners.read(table.name, self.splitter.hot.ids[i], views).items():
                views[name][...] = values

    def write_back(self) -> None:
        """Write the hot rows and their state where their owners keep them: before whatever reads tables."""
        self.rows.settle()
        for i, table in enumerate(self.splitter.hot.slots.tables):
            self._owners.write(table.name, self.splitter.hot.ids[i], self.rows.replica.read(i))


def _rate_of(model: DistributedModelParallel) -> Callable[[], float]:
    return lambda: model.fused_optimizer.param_groups[0]["lr"]


def _divisor() -> float:
    return dist.get_world_size() if get_gradient_division() else 1.0
