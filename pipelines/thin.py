"""The thin exchange of a run: whether it pays, and what `compression.exchange` reads, from options and counts."""

from __future__ import annotations

import functools
import os
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist
from filelock import FileLock
from torch import nn
from torchrec.distributed.types import ShardingPlan

from pipelines.dataset import Dataset, module_name
from pipelines.errors import UserError
from pipelines.hot_tables import hot_counts
from pipelines.job import Job
from pipelines.model import table_configs
from pipelines.options import ExchangeOptions, TableExchange, link_bytes
from pipelines.owners import Load, loads

if TYPE_CHECKING:
    from compression.exchange import Direction, ExchangeConfig
    from compression.exchange.stats import TableStats

# `compression.exchange` is imported where it is used: it loads compiled code, which other runs need not wait for.

RATIO, CODING, STEP_S = 30.0, 2e-10, 2e-3
"""Of the thin exchange next to fp32: bytes; seconds of encoding and decoding for each byte that fp32 sends; and seconds
that a step takes in any case. Measured by `thinwire bench exchange`; conservative."""


def pays(options: ExchangeOptions, values: int, ranks: int, hosts: int) -> bool:
    """Whether the thin exchange takes less time than fp32 by the cost law (design of arXiv 2407.04272, section 4.3).

    Args:
        values: that the bags of a rank's batch have in all tables: batch * sum of dimensions.
        hosts: on which the ranks are. Within one, memory is the link, and is fast enough for fp32.
    """
    if hosts < 2 and options.link_mbit is None:
        return False
    sent = 2 * 4 * values * (ranks - 1) / ranks
    link = link_bytes(options)
    return ranks > 1 and sent / link > sent / (RATIO * link) + sent * CODING + STEP_S


def resolve(job: Job, dataset: Dataset, ranks: int, hosts: int) -> ExchangeOptions:
    """The job's exchange with `auto` decided."""
    if job.exchange.codec != "auto":
        return job.exchange
    values = job.train.batch_size * sum(config.embedding_dim for config in table_configs(job.model, dataset))
    return job.exchange.model_copy(update={"codec": "thin" if pays(job.exchange, values, ranks, hosts) else "none"})


def table_loads(job: Job, dataset: Dataset) -> dict[str, Load]:
    """What each table of the job asks of its owner, by the data set's names: its cold rows."""
    configs = {c.feature_names[0]: c for c in table_configs(job.model, dataset)}
    rows = {name: c.num_embeddings for name, c in configs.items()}
    dims = {name: c.embedding_dim for name, c in configs.items()}
    return loads(dataset, rows, dims, job.train.batch_size, hot_counts(job.cache, rows))


@functools.cache
def compile_exchange() -> None:
    """Compile or load what the exchange runs, before ranks wait for each other; once in a process, and one process of a
    host at a time, so that the others find it done."""
    from compression.exchange import warm_up

    with compile_lock():
        warm_up()


def compile_lock() -> FileLock:
    """Held by the process of this host that compiles."""
    return FileLock(Path(tempfile.gettempdir()) / f"thinwire-compile-{os.getuid()}.lock")


def count_hosts() -> int:
    """On which the ranks of the default group are. All ranks must call it at once."""
    names: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(names, socket.gethostname())
    return len(set(names))


def exchange_config(options: ExchangeOptions, of_tables: Mapping[str, Load], batch_size: int) -> ExchangeConfig:
    """Of all tables of a model.

    Args:
        of_tables: by name of the table.
        batch_size: rows that a rank takes in a step.

    Raises:
        UserError: an option names an unknown table.
    """
    from compression.exchange import ExchangeConfig, TablePolicy

    for table in options.tables:
        if table not in of_tables:
            raise UserError(
                f"no table '{table}'", where=f"exchange.tables.{table}", fix=f"tables are {', '.join(of_tables)}"
            )
    policies = {}
    for table, load in of_tables.items():
        own = options.tables.get(table, TableExchange())
        chain = own.chain or options.chain
        policies[module_name(table)] = TablePolicy(
            path=own.path or options.path,
            forward=_direction(own, own.row_bound, options.row_bound, chain),
            backward=_direction(own, own.gradient_bound, options.gradient_bound, chain),
            bag_length=load.bag_length,
        )
    return ExchangeConfig(
        tables=policies,
        batch_size=batch_size,
        link=link_bytes(options),
        timeout_s=options.timeout_s,
        stochastic=options.stochastic,
        verify=options.verify,
    )


def describe(options: ExchangeOptions, of_tables: Mapping[str, Load], plan: ShardingPlan) -> str:
    """A line for people: the bounds, and how evenly the ranks are asked for rows."""
    work = [0.0] * dist.get_world_size()
    placed = next(iter(plan.plan.values()))
    for table, load in of_tables.items():
        ranks = placed[module_name(table)].ranks
        for rank in ranks:
            work[rank] += load.work / len(ranks)
    total = sum(work) or 1.0  # nothing is served where every rank holds all rows
    shares = ", ".join(f"{one / total:.0%}" for one in work)
    bounds = f"{options.row_bound:.2%} of a table's range for rows, {options.gradient_bound:.2%} for gradients"
    return f"thin exchange: errors up to {bounds}; ranks are expected to serve {shares} of it"


def table_stats(model: nn.Module) -> list[TableStats]:
    """Counters of the thin exchanges of a model."""
    from compression.exchange.sharders import links

    return [link.stats for link in links(model)]


def _direction(table: TableExchange, own: float | None, common: float, chain: str) -> Direction:
    from compression import Relative
    from compression.exchange import Direction

    bound = common if own is None else own
    absolute = own is not None and table.bounds == "absolute"
    return Direction(bound if absolute or not bound else Relative(bound), chain)
