"""Which columns of which tables lie on which rank, and where they go in the output: the same on all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from torchrec.modules.embedding_configs import PoolingType


@dataclass(frozen=True)
class Shard:
    """A table, or some of its columns, on one rank."""

    table: str
    rank: int
    rows: int
    dim: int
    features: tuple[int, ...]
    """Places in the KJT that a rank hands to the exchange."""
    columns: tuple[int, ...]
    """First column of each feature in the pooled output."""
    mean: bool
    """Bags are averaged, not summed."""


@dataclass(frozen=True)
class Layout:
    """All shards of a module that go the same path, in the order of their ranks."""

    shards: tuple[Shard, ...]
    rank: int
    ranks: int
    features: tuple[str, ...]
    """Of the KJT, one for each feature of each shard, in their order."""
    width: int
    """Columns of the pooled output."""

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """First and last + 1 of each rank's shards."""
        ends = np.searchsorted([s.rank for s in self.shards], range(self.ranks + 1)).tolist()
        return list(pairwise(ends))

    @property
    def own(self) -> tuple[int, int]:
        return self.spans[self.rank]

    @cached_property
    def first_features(self) -> np.ndarray:
        """int64 [shards + 1]: first feature of each shard; the features of a shard follow each other."""
        return np.cumsum([0, *(len(s.features) for s in self.shards)])

    @cached_property
    def dims(self) -> np.ndarray:
        return np.array([s.dim for s in self.shards], np.int64)

    @cached_property
    def rows(self) -> np.ndarray:
        return np.array([s.rows for s in self.shards], np.int64)

    @cached_property
    def columns(self) -> np.ndarray:
        """int64 [features]: first column of each in the output."""
        return np.array([c for s in self.shards for c in s.columns], np.int64)

    @cached_property
    def means(self) -> np.ndarray:
        """bool [shards]"""
        return np.array([s.mean for s in self.shards], np.bool_)

    @cached_property
    def own_columns(self) -> np.ndarray:
        """int64 [own shards]: first column of each in the output of the lookup, where each feature has its own."""
        first, last = self.own
        widths = np.array([s.dim * len(s.features) for s in self.shards[first:last]], np.int64)
        return np.cumsum(widths) - widths


def read_layout(sharding: Any) -> Layout:
    """Of a `BaseCwEmbeddingSharding` of TorchRec, which lists its tables by rank."""
    names = list(dict.fromkeys(sharding.embedding_names()))
    widths: dict[str, int] = dict.fromkeys(names, 0)
    for name, dim in zip(sharding.uncombined_embedding_names(), sharding.uncombined_embedding_dims(), strict=True):
        widths[name] += dim
    starts = dict(zip(names, np.cumsum([0, *widths.values()]).tolist(), strict=False))
    shards: list[Shard] = []
    features: list[str] = []
    for rank, configs in enumerate(sharding._grouped_embedding_configs_per_rank):
        for table in (t for config in configs for t in config.embedding_tables):
            place = len(features)
            features += table.feature_names
            offset = table.local_metadata.shard_offsets[1]
            shards.append(
                Shard(
                    table=table.name,
                    rank=rank,
                    rows=table.local_rows,
                    dim=table.local_cols,
                    features=tuple(range(place, len(features))),
                    columns=tuple(starts[name] + offset for name in table.embedding_names),
                    mean=table.pooling == PoolingType.MEAN,
                )
            )
    return Layout(tuple(shards), sharding._rank, sharding._world_size, tuple(features), sum(widths.values()))
