"""Which rows of which tables a job wants on every rank."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from cache.tables import HotTable
from pipelines.dataset import Dataset
from pipelines.errors import UserError
from pipelines.job import Job
from pipelines.model import table_configs
from pipelines.options import CacheOptions

_SPECIAL = 2


def hot_tables(job: Job, dataset: Dataset, device: torch.device) -> list[HotTable]:
    """The tables of a job with the hot rows that it states; none if it states none.

    Raises:
        UserError: an option names an unknown table, or does not fit.
    """
    configs = table_configs(job.model, dataset)
    sizes = {config.feature_names[0]: config.num_embeddings for config in configs}
    counts = hot_counts(job.cache, sizes)
    if not any(counts.values()):
        return []
    _check(job, counts, device)
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
    return {table: options.hot_rows.get(table, _share(options.hot_share, size)) for table, size in rows.items()}


def _share(share: float, rows: int) -> int:
    """Rows that are a share of a table, and the two before the most frequent one: missing and unknown."""
    return min(_SPECIAL + math.ceil(share * (rows - _SPECIAL)), rows) if share else 0


def _check(job: Job, counts: Mapping[str, int], device: torch.device) -> None:
    if device.type != "cpu":
        raise UserError("hot rows are for workers on CPU so far", where="cache", fix="leave hot_rows and hot_share out")
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
