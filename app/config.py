"""A run's configuration: preset, then YAML file, then `--set`, validated once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from app.config_text import nearest, validation_error
from app.presets import PRESETS
from pipelines.errors import UserError
from pipelines.job import Job
from pipelines.options import (
    BoundOptions,
    CacheOptions,
    DataOptions,
    ExchangeOptions,
    ModelOptions,
    NonNegative,
    OptimOptions,
    Options,
    Positive,
    Rate,
    ShardingOptions,
    TrainOptions,
)


class RunOptions(Options):
    name: str | None = None
    """Folder of the run inside `storage`; default: the preset's name and the time."""
    storage: str = "runs"
    """Where runs keep checkpoints, logs and exports. With several nodes a path that all of them share, or s3://..."""
    export: bool = True
    """Write the final model as one state dict for plain torch."""


class ClusterOptions(Options):
    workers: Positive = 2
    """Ranks, each a Ray Train worker."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto = cuda where the cluster has GPUs for all workers. gloo on cpu, NCCL on cuda."""
    cpus_per_worker: Positive = 1
    """CPUs that Ray reserves for a worker."""
    placement: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """How Ray places workers on nodes; STRICT_SPREAD = one a node."""
    max_failures: NonNegative = 3
    """Restarts from the last checkpoint after a worker or node is lost."""
    address: str | None = None
    """Ray cluster to connect to, `auto` for one that runs on this node; default: RAY_ADDRESS, else a local one."""
    collective_timeout_s: Rate = 300
    """A collective that waits longer fails the step, and the run restarts from its last checkpoint."""
    lost_host_wait_s: Rate = 300
    """Once a host is lost, the run ends if its workers do not all run again within so many seconds. Their start, some
    20 seconds, counts too."""


class TrackingOptions(Options):
    uri: str | None = None
    """MLflow tracking URI; default: the SQLite file mlflow.db in `run.storage`, or in
    ~/.local/share/thinwire if that is no path."""
    experiment: str = "thinwire"
    """MLflow experiment."""
    on_error: Literal["continue", "stop"] = "continue"
    """What to do when the tracking server does not answer at the start."""
    system_metrics: bool = True
    """Log CPU, memory, network and GPU use of rank 0's node."""


class RunConfig(Options):
    """Everything that a training run reads."""

    run: RunOptions = RunOptions()
    data: DataOptions = DataOptions()
    model: ModelOptions = ModelOptions()
    optim: OptimOptions = OptimOptions()
    sharding: ShardingOptions = ShardingOptions()
    exchange: ExchangeOptions = ExchangeOptions()
    bounds: BoundOptions = BoundOptions()
    cache: CacheOptions = CacheOptions()
    train: TrainOptions = TrainOptions()
    cluster: ClusterOptions = ClusterOptions()
    tracking: TrackingOptions = TrackingOptions()

    def job(self, dataset_path: str) -> Job:
        """What a rank needs of it."""
        return Job(
            dataset_path,
            data=self.data,
            model=self.model,
            optim=self.optim,
            sharding=self.sharding,
            exchange=self.exchange,
            bounds=self.bounds,
            cache=self.cache,
            train=self.train,
        )

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(), sort_keys=False)


def load_config(
    preset: str | None = None,
    file: Path | None = None,
    assignments: Iterable[str] = (),
    base: dict[str, Any] | None = None,
    overrides: dict[str, Any] | None = None,
) -> RunConfig:
    """Put a configuration together.

    Args:
        preset: a name in `app.presets.PRESETS`.
        file: YAML with any of the sections.
        assignments: `section.key=value`, the value in YAML.
        base: plain configuration that the others change, as that of a run to resume.
        overrides: sections that win over all others, as options of the command do.

    Raises:
        UserError: an unknown key or preset (with the nearest one), a wrong type, an unreadable file.
    """
    values: dict[str, Any] = {}
    _merge(values, base or {})
    if preset is not None:
        if preset not in PRESETS:
            raise UserError(f"no preset '{preset}'", where="--preset", fix=nearest(preset, PRESETS))
        _merge(values, PRESETS[preset])
    if file is not None:
        _merge(values, read_yaml(file))
    for text in assignments:
        _merge(values, _assignment(text))
    _merge(values, overrides or {})
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise validation_error(error, RunConfig) from None


def read_yaml(file: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping.

    Raises:
        UserError: it is missing, unreadable or something else.
    """
    try:
        return parse_yaml(file.read_text(), str(file))
    except OSError as error:
        raise UserError(f"cannot read it: {error.strerror}", where=str(file)) from error
    except UnicodeDecodeError as error:
        raise UserError("is not text", where=str(file)) from error


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """YAML text that holds a mapping.

    Raises:
        UserError: it is something else.
    """
    try:
        loaded = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise UserError(f"not YAML: {' '.join(str(error).split())}", where=where) from error
    if loaded is not None and not isinstance(loaded, dict):
        raise UserError("holds no sections", where=where, fix="write for example `train:` and under it `epochs: 1`")
    return loaded or {}


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1e-3 as text, for want of a dot."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _assignment(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"'{text}' is not section.key=value", where="--set", fix="for example --set train.epochs=2")
    try:
        nested: Any = yaml.load(value, Loader=_Loader)
    except yaml.YAMLError as error:
        raise UserError(f"'{value}' is not a YAML value", where=f"--set {key}", fix="put it in quotes") from error
    for part in reversed(key.strip().split(".")):
        nested = {part: nested}
    return nested


def _merge(into: dict[str, Any], other: dict[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = _copy(value)


def _copy(value: Any) -> Any:
    return {k: _copy(v) for k, v in value.items()} if isinstance(value, dict) else value
