"""A job as the cost model sees it: counts and dimensions of its tables, their owners, the size of its MLPs."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.parquet as pq
import torch

from cache.cost import Setting
from cache.frequency import Frequencies
from cache.lookups import Table
from pipelines.dataset import Dataset
from pipelines.job import Job
from pipelines.model import TABLE_MARK, build_model, table_configs
from pipelines.owners import Load, assign
from pipelines.thin import table_loads


@dataclass(frozen=True)
class Workload:
    """What does not depend on the cluster."""

    tables: tuple[Table, ...]
    loads: dict[str, Load]
    dense_values: int
    optimizer: str
    batch: int
    dense: str

    def owners(self, ranks: int) -> list[int]:
        """The rank of each table, as a run places them."""
        owners = assign(self.loads, ranks)
        assert owners is not None  # memory is not limited
        return [owners[table.name] for table in self.tables]

    def setting(self, ranks: int, link_mbit: float | None = None, batch: int | None = None) -> Setting:
        return Setting(
            ranks=ranks,
            batch=batch or self.batch,
            link_mbit=link_mbit,
            dense_values=self.dense_values,
            dense="thin" if self.dense == "thin" else "none",
        )


def read_workload(job: Job, dataset: Dataset) -> Workload:
    """From the counts of the train split that are stored with a data set."""
    configs = {config.feature_names[0]: config for config in table_configs(job.model, dataset)}
    loads = table_loads(job, dataset)
    rows = dataset.split(job.data.train_split).rows
    tables = []
    for table in dataset.manifest.tables:
        config = configs[table.name]
        tables.append(
            Table(
                name=table.name,
                dim=config.embedding_dim,
                of=frequencies(dataset, table.name, config.num_embeddings),
                bag_length=loads[table.name].bag_length,
                epoch_rows=rows,
            )
        )
    return Workload(
        tables=tuple(tables),
        loads=loads,
        dense_values=count_dense(job, dataset),
        optimizer=job.optim.sparse,
        batch=job.train.batch_size,
        dense=job.exchange.dense,
    )


def frequencies(dataset: Dataset, table: str, rows: int) -> Frequencies:
    """Exact counts of the train split, by id.

    Args:
        rows: of the embedding table; more than ids if the model was told so.
    """
    counts = pq.read_table(dataset.path / "tables" / f"{table}.parquet", columns=["count"])["count"].to_numpy()
    return Frequencies.of(counts, rows)


def count_dense(job: Job, dataset: Dataset) -> int:
    """Parameters that DDP averages."""
    model = build_model(job.model, dataset, seed=0, device=torch.device("meta"))
    return sum(p.numel() for name, p in model.named_parameters() if TABLE_MARK not in name)
