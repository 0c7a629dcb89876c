"""Find the newest checkpoint of a run."""

from __future__ import annotations

import json
import logging
from typing import Any

from ray.train import Checkpoint, Result

from app.storage import open_storage
from pipelines.checkpoint import STATE


def find_checkpoint(folder: str) -> Checkpoint | None:
    """The newest complete checkpoint in a run's folder, as Ray Train recorded it; None if there is none."""
    # Ray would advise to delete the folder of a run that is read rather than begun.
    logging.getLogger("ray.train").setLevel(logging.WARNING)
    filesystem, path = open_storage(folder)
    try:
        return Result.from_path(path, filesystem).checkpoint
    except (RuntimeError, OSError, ValueError):
        return None


def read_remote_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """`state.json` of a checkpoint, without fetching its weights from where it lies."""
    with checkpoint.filesystem.open_input_stream(f"{checkpoint.path}/{STATE}") as stream:
        return json.loads(stream.read())
