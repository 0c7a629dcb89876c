"""Save and load everything that a run needs to go on exactly where it was.

A checkpoint folder holds what `torch.distributed.checkpoint` writes (each rank its own shards, so that any number of
ranks can load it), `rng_RANK.pt`, and `state.json`: the position in the data and what the model is.
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


@dataclass(frozen=True)
class Identity:
    """What must agree between a checkpoint and the run that loads it."""

    data: str
    """Digest of the data set's manifest."""
    seed: int
    arch: str
    sparse_optimizer: str
    dense_optimizer: str
    tables: dict[str, list[int]]
    """Rows and dimension of each table."""


def data_digest(dataset: Dataset) -> str:
    return hashlib.sha256((dataset.path / MANIFEST).read_bytes()).hexdigest()


def save(
    folder: Path,
    model: DistributedModelParallel,
    optimizer: CombinedOptimizer,
    position: Position,
    identity: Identity,
    dataset: Dataset,
) -> None:
    """Write this rank's part into `folder`. Call it on every rank; their folders merged are one checkpoint."""
    rank = dist.get_rank()
    folder.mkdir(parents=True, exist_ok=True)
    dcp.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, checkpoint_id=folder)
    torch.save(_rng_state(), folder / f"rng_{rank}.pt")
    if rank == 0:
        state = {
            "position": asdict(position),
            "identity": asdict(identity),
            "world_size": dist.get_world_size(),
            "dataset_path": str(dataset.path),
        }
        (folder / STATE).write_text(json.dumps(state, indent=1))


def load(folder: Path, model: DistributedModelParallel, optimizer: CombinedOptimizer, identity: Identity) -> Position:
    """Load into a model of any number of ranks and any sharding plan. Call it on every rank.

    The random state is restored when the number of ranks is the saved one.

    Raises:
        UserError: the checkpoint is of another model, optimiser, seed or data set.
    """
    state = read_state(folder)
    _check_identity(Identity(**state["identity"]), identity, folder)
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


def _check_identity(saved: Identity, ours: Identity, folder: Path) -> None:
    for name, rows_dim in ours.tables.items():
        if saved.tables.get(name) != rows_dim:
            raise UserError(
                f"table '{name}' is {saved.tables.get(name, 'absent')} in the checkpoint and {rows_dim} in this run",
                where=str(folder),
                fix="use the configuration of the saved run",
            )
    for field in ("arch", "sparse_optimizer", "dense_optimizer", "seed", "data"):
        if getattr(saved, field) != getattr(ours, field):
            what = (
                "was made from another data set"
                if field == "data"
                else (f"has {field} {getattr(saved, field)}, this run {getattr(ours, field)}")
            )
            raise UserError(f"the checkpoint {what}", where=str(folder), fix="use the configuration of the saved run")


def _rng_state() -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_rng_state(state: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
