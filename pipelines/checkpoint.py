"""Save and load everything that a run needs to go on exactly where it was.

A checkpoint folder holds what `torch.distributed.checkpoint` writes (each rank its own shards, so that any number of
ranks can load it), `rng_RANK.pt`, and `state.json`: the position in the data, what the model is, and its inputs.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper

from pipelines.dataset import MANIFEST, Dataset
from pipelines.errors import UserError
from pipelines.job import Job
from pipelines.model import table_configs

STATE = "state.json"


@dataclass(frozen=True)
class Position:
    """How far a run has come. `sample` counts rows of the epoch's global order, whatever the number of ranks."""

    step: int = 0
    epoch: int = 0
    sample: int = 0

    def advanced(self, rows: int) -> Position:
        return replace(self, step=self.step + 1, sample=self.sample + rows)

    def next_epoch(self) -> Position:
        return replace(self, epoch=self.epoch + 1, sample=0)


def identity(job: Job, dataset: Dataset) -> dict[str, Any]:
    """What must agree between a checkpoint and the run that loads it: model, optimisers, seed, data and their order."""
    tables = {
        column: [config.num_embeddings, config.embedding_dim]
        for column, config in zip(dataset.table_rows, table_configs(job.model, dataset), strict=True)
    }
    return {
        **{f"table {column}": shape for column, shape in tables.items()},
        **{f"model.{k}": v for k, v in job.model.model_dump(exclude={"table_dims", "table_rows"}).items()},
        "optim.sparse": job.optim.sparse,
        "optim.dense": job.optim.dense,
        "train.seed": job.train.seed,
        "data.train_split": job.data.train_split,
        "data.shuffle": job.data.shuffle,
        "data.window_groups": job.data.window_groups,
        "data set": hashlib.sha256((dataset.path / MANIFEST).read_bytes()).hexdigest()[:16],
    }


def inputs(dataset: Dataset) -> dict[str, Any]:
    """What a model of this data set takes, for its export."""
    return {
        "dense_columns": [d.name for d in dataset.manifest.dense],
        "tables": list(dataset.table_rows),
        "transform": dataset.manifest.transform,
    }


def save(
    folder: Path,
    model: DistributedModelParallel,
    optimizer: CombinedOptimizer,
    position: Position,
    job: Job,
    dataset: Dataset,
    others: dict[str, Any],
) -> None:
    """Write this rank's part into `folder`. Call it on every rank; their folders merged are one checkpoint.

    Args:
        others: what else `state.json` keeps.
    """
    rank = dist.get_rank()
    folder.mkdir(parents=True, exist_ok=True)
    dcp.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, checkpoint_id=folder)
    torch.save(_rng_state(), folder / f"rng_{rank}.pt")
    if rank == 0:
        state = {
            "position": asdict(position),
            "world_size": dist.get_world_size(),
            "identity": identity(job, dataset),
            "inputs": inputs(dataset),
            "model": job.model.model_dump(),
            **others,
        }
        (folder / STATE).write_text(json.dumps(state, indent=1))


def load(
    folder: Path, model: DistributedModelParallel, optimizer: CombinedOptimizer, job: Job, dataset: Dataset
) -> Position:
    """Load into a model of any number of ranks and any sharding plan. Call it on every rank.

    The random state is restored when the number of ranks is the saved one.

    Raises:
        UserError: the checkpoint is of another model, optimiser, seed, data set or data order.
    """
    state = read_state(folder)
    check_identity(state, job, dataset, str(folder))
    for _, part in optimizer.optimizers:
        if isinstance(part, KeyedOptimizerWrapper):
            # Torch creates its state in the first step; loading needs the tensors to load into.
            part.init_state()
    whole: dict[str, Any] = {"model": model.state_dict(), "optim": optimizer.state_dict()}
    dcp.load(whole, checkpoint_id=folder)
    model.load_state_dict(whole["model"])
    optimizer.load_state_dict(whole["optim"])
    if state["world_size"] == dist.get_world_size():
        _set_rng_state(torch.load(folder / f"rng_{dist.get_rank()}.pt", weights_only=True))
    return Position(**state["position"])


def read_state(folder: Path) -> dict[str, Any]:
    """`state.json` of a checkpoint.

    Raises:
        UserError: the folder is not a checkpoint.
    """
    try:
        return json.loads((folder / STATE).read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            "not a checkpoint", where=str(folder), fix="name a checkpoint_... folder inside a run folder"
        ) from error


def check_identity(state: dict[str, Any], job: Job, dataset: Dataset, where: str) -> None:
    """Compare a checkpoint's state with the run that would load it.

    Raises:
        UserError: they differ; names the first difference.
    """
    saved, ours = state["identity"], identity(job, dataset)
    for key in (*ours, *saved):
        if saved.get(key) == ours.get(key):
            continue
        if key == "data set":
            what = "the checkpoint was made from another data set"
        else:
            what = f"{key} is {saved.get(key, 'absent')} in the checkpoint and {ours.get(key, 'absent')} in this run"
        raise UserError(what, where=where, fix="go on with the settings of the saved run, or start a new one")


def _rng_state() -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_rng_state(state: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
