"""`thinwire export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
from ray.train import Checkpoint

from app.checkpoints import find_checkpoint
from app.storage import CONFIG, open_storage, resolve_storage
from pipelines.checkpoint import STATE, read_state
from pipelines.errors import UserError
from pipelines.export import export_checkpoint


def run_export(run: str, out: Path) -> dict[str, Any]:
    """Export the newest checkpoint of a run folder, or the checkpoint that `run` is.

    Raises:
        UserError: `run` is neither, or the run has no checkpoint yet.
    """
    where = resolve_storage(run).rstrip("/")
    filesystem, path = open_storage(where)
    if filesystem.get_file_info(f"{path}/{STATE}").type == pafs.FileType.File:
        checkpoint, folder = Checkpoint(path, filesystem), where.rpartition("/")[0]
    else:
        checkpoint, folder = newest_checkpoint(where), where
    with checkpoint.as_directory() as local:
        step = read_state(Path(local))["position"]["step"]
        export_checkpoint(Path(local), out)
    print(f"exported step {step:,} of {folder} to {out / 'model.pt'} and {out / 'score.py'}")
    return {"run": folder, "checkpoint": checkpoint.path, "step": step, "out": str(out)}


def newest_checkpoint(folder: str) -> Checkpoint:
    """`find_checkpoint` that insists.

    Raises:
        UserError: it is no run, or has none.
    """
    filesystem, path = open_storage(folder)
    if filesystem.get_file_info(f"{path}/{CONFIG}").type != pafs.FileType.File:
        raise UserError("neither a run nor a checkpoint", where=folder, fix="name a folder inside run.storage")
    checkpoint = find_checkpoint(folder)
    if checkpoint is None:
        raise UserError("the run has no checkpoint yet", where=folder, fix="train on, or set train.checkpoint_every")
    return checkpoint
