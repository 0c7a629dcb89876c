"""Which rank owns which table under the thin exchange: so that no rank sends much more than the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipelines.dataset import Dataset


@dataclass(frozen=True)
class Load:
    """What a table asks of its owner."""

    distinct: float
    """Expected distinct ids in a rank's batch."""
    bag_length: float
    """Mean ids in a bag."""
    memory: int
    """Bytes of its weights."""
    work: float
    """Bytes that its owner sends to, or gets from, a rank in a step, about."""


def loads(
    dataset: Dataset, rows: dict[str, int], dims: dict[str, int], batch: int, hot: Mapping[str, int] | None = None
) -> dict[str, Load]:
    """Of each table, from the counts of the train split.

    Args:
        rows, dims: by name of the table; batch: of a rank.
        hot: by name, its first rows that are looked up elsewhere.
    """
    train = dataset.split("train").rows if "train" in dataset.manifest.splits else 1
    found = {}
    for table in dataset.manifest.tables:
        counts = pq.read_table(dataset.path / "tables" / f"{table.name}.parquet", columns=["count"])["count"].to_numpy()
        bag_length = counts.sum() / max(train, 1) if table.multi_hot else 1.0
        cold = counts[(hot or {}).get(table.name, 0) :]
        share = cold.sum() / max(counts.sum(), 1)
        distinct = expected_distinct(cold, batch * bag_length * share)
        dim = dims[table.name]
        # An id takes about 10 bits; a row and its gradient about 3 bits a value.
        work = distinct * (1.25 + dim * 0.75)
        found[table.name] = Load(distinct, float(bag_length), 4 * rows[table.name] * dim, work)
    return found


def expected_distinct(counts: NDArray[np.int64], lookups: float) -> float:
    """Of so many draws from ids that occur this often: the sum of 1 - (1 - p)^lookups over ids.

    >>> round(expected_distinct(np.array([1, 1]), 2), 3)
    1.5
    """
    seen = counts[counts > 0].astype(np.float64)
    if not seen.size:
        return 0.0
    shares = np.minimum(seen / seen.sum(), 1 - 1e-12)
    return float(-np.expm1(lookups * np.log1p(-shares)).sum())


def assign(tables: dict[str, Load], ranks: int, memory: int | None = None) -> dict[str, int] | None:
    """The owner of each table: the largest tables first, each to the rank with the least work so far that has room.

    Args:
        memory: bytes that a rank may give to tables; None = any.

    Returns:
        None if the tables do not fit.

    >>> assign({"a": Load(1, 1, 1, 5.0), "b": Load(1, 1, 1, 4.0), "c": Load(1, 1, 1, 3.0)}, 2)
    {'a': 0, 'b': 1, 'c': 1}
    """
    work, taken, owners = [0.0] * ranks, [0] * ranks, {}
    for name, load in sorted(tables.items(), key=lambda item: (-item[1].work, item[0])):
        room = [r for r in range(ranks) if memory is None or taken[r] + load.memory <= memory]
        if not room:
            return None
        rank = min(room, key=lambda r: (work[r], taken[r], r))
        work[rank] += load.work
        taken[rank] += load.memory
        owners[name] = rank
    return owners
