"""What a rank is told to train, and what it asks of whoever started it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pipelines.options import (
    BoundOptions,
    CacheOptions,
    DataOptions,
    ExchangeOptions,
    ModelOptions,
    OptimOptions,
    ShardingOptions,
    TrainOptions,
)

Metrics = dict[str, float]


@dataclass(frozen=True)
class Job:
    """What to train, the same on every rank."""

    dataset_path: str
    _: KW_ONLY
    data: DataOptions = field(default_factory=DataOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    optim: OptimOptions = field(default_factory=OptimOptions)
    sharding: ShardingOptions = field(default_factory=ShardingOptions)
    exchange: ExchangeOptions = field(default_factory=ExchangeOptions)
    bounds: BoundOptions = field(default_factory=BoundOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    train: TrainOptions = field(default_factory=TrainOptions)


class Hooks(Protocol):
    """Every rank calls each of these at the same steps."""

    def say(self, text: str) -> None:
        """Tell the user; only rank 0 need be heard."""

    def log(self, step: int, total_steps: int, metrics: Metrics) -> None:
        """Record metrics. Must return at once and never fail."""

    def save(self, step: int, metrics: Metrics, write: Callable[[Path], None]) -> None:
        """Have `write` fill a folder on every rank, and keep the merged folders as one checkpoint or none."""

    def tables(self, rows: list[dict[str, Any]]) -> None:
        """Keep what the thin exchange did, a dictionary a table; empty without it."""

    def restore(self) -> AbstractContextManager[Path | None]:
        """The checkpoint to go on from, None at the beginning of a run."""


class DivergedError(RuntimeError):
    """The loss is NaN or Inf."""
