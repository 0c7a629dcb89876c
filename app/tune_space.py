"""What `thinwire tune` searches, and the configuration that a point of it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.config import RunConfig
from compression.bounds import SHAPES, Curve, relative_to_uniform
from pipelines.dataset import Dataset
from pipelines.job import Job

Point = dict[str, Any]
Curves = tuple[Mapping[str, Curve], Mapping[str, Curve]]
"""Of rows and of gradients, by table; see `pipelines.profiler`."""


@dataclass(frozen=True)
class Space:
    """Ranges of the search: relative bounds, the schedule, and how much every worker holds."""

    row_bound: tuple[float, float] = (0.003, 0.08)
    gradient_bound: tuple[float, float] = (0.002, 0.04)
    dense_bound: tuple[float, float] = (0.001, 0.02)
    start: tuple[float, float] = (1.0, 4.0)
    """Multiplier of the bounds at the first step."""
    phase: tuple[float, float] = (0.1, 0.6)
    """Share of all steps after which the multiplier is 1."""
    hot_share: tuple[float, ...] = (0.0, 0.01, 0.05)
    """Share of each table's rows that every worker holds."""

    def distributions(self) -> dict[str, Any]:
        """For Ray Tune, by name of the parameter."""
        from ray import tune

        return {
            "row_bound": tune.loguniform(*self.row_bound),
            "gradient_bound": tune.loguniform(*self.gradient_bound),
            "dense_bound": tune.loguniform(*self.dense_bound),
            "tables": tune.choice(["uniform", "each"]),
            "shape": tune.choice(list(SHAPES)),
            "start": tune.uniform(*self.start),
            "phase": tune.uniform(*self.phase),
            "path": tune.choice(["auto", "pooled"]),
            "hot_share": tune.choice(list(self.hot_share)),
        }


def space_of(config: RunConfig, device: str) -> Space:
    """What can be searched: not all tables can have hot rows, see docs/cache.md."""
    split = any(shard.type == "column_wise" for shard in config.sharding.tables.values())
    if device != "cpu" or config.optim.sparse == "adam" or split:
        return Space(hot_share=(config.cache.hot_share,))
    return Space()


def default_point(config: RunConfig, tables: str) -> Point:
    """What `config` says, the same bounds for all tables or one for `each`."""
    exchange = config.exchange
    return {
        "row_bound": exchange.row_bound,
        "gradient_bound": exchange.gradient_bound,
        "dense_bound": exchange.dense_bound,
        "tables": tables,
        "shape": "constant",
        "start": 2.0,
        "phase": 0.3,
        "path": "auto",
        "hot_share": config.cache.hot_share,
    }


def first_points(config: RunConfig, space: Space) -> list[Point]:
    """Where a search begins: what `config` says for all tables, and once, twice and four times that by table."""
    found = [default_point(config, "uniform")]
    for factor in (1, 2, 4):
        point = default_point(config, "each")
        for key in ("row_bound", "gradient_bound", "dense_bound"):
            low, high = getattr(space, key)
            point[key] = min(max(factor * point[key], low), high)
        found.append(point)
    return found


def config_of(point: Point, base: RunConfig, curves: Curves, steps: int) -> RunConfig:
    """The configuration of a point.

    Args:
        steps: of the whole run.
    """
    tables = bounds_of_tables(point["row_bound"], curves[0]) if point["tables"] == "each" else {}
    exchange = {
        "codec": "thin",
        "dense": "thin",
        "row_bound": _short(point["row_bound"]),
        "gradient_bound": _short(point["gradient_bound"]),
        "dense_bound": _short(point["dense_bound"]),
        "path": point["path"],
        "tables": tables,
    }
    bounds: dict[str, Any] = {"shape": point["shape"]}
    if point["shape"] != "constant":
        start = _short(point["start"])
        bounds |= {"start": start, "gradient_start": start, "steps": round(point["phase"] * steps)}
    values = base.model_dump()
    values["exchange"] |= exchange
    values["bounds"] |= bounds
    values["cache"] |= {"hot_share": point["hot_share"]}
    return RunConfig.model_validate(values)


def bounds_of_tables(row_bound: float, rows: Mapping[str, Curve]) -> dict[str, dict[str, float]]:
    """Bounds of rows by table that do together no more harm than this one for all. Gradients keep one for all: found in
    the same way, theirs cost AUC."""
    bounds = relative_to_uniform(rows, row_bound).bounds
    return {table: {"row_bound": _short(bound)} for table, bound in bounds.items()}


def changes(config: RunConfig) -> dict[str, Any]:
    """The keys that a search decides, for a YAML file."""
    exchange = config.exchange.model_dump(
        include={"codec", "dense", "row_bound", "gradient_bound", "dense_bound", "path", "link_mbit"}
    )
    tables = {name: one.model_dump(exclude_defaults=True) for name, one in config.exchange.tables.items()}
    bounds = config.bounds.model_dump(include={"shape", "start", "gradient_start", "steps"})
    cache = config.cache.model_dump(include={"hot_share"})
    return {"exchange": exchange | {"tables": tables}, "bounds": bounds, "cache": cache}


def steps_of(job: Job, dataset: Dataset, workers: int) -> int:
    """Steps of a whole run."""
    rows = dataset.split(job.data.train_split).rows
    steps = job.train.epochs * (rows // (workers * job.train.batch_size))
    return min(steps, job.train.max_steps or steps)


def _short(value: float) -> float:
    return float(f"{value:.4g}")
