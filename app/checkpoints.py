"""Find the newest checkpoint of a run."""

from __future__ import annotations

from ray.train import Checkpoint, Result

from app.storage import open_storage


def find_checkpoint(folder: str) -> Checkpoint | None:
    """The newest complete checkpoint in a run's folder, as Ray Train recorded it; None if there is none."""
    filesystem, path = open_storage(folder)
    try:
        return Result.from_path(path, filesystem).checkpoint
    except (RuntimeError, OSError, ValueError):
        return None
