"""Find the newest checkpoint of a run."""

from __future__ import annotations

import logging

from ray.train import Checkpoint, Result

from app.storage import open_storage


def find_checkpoint(folder: str) -> Checkpoint | None:
    """The newest complete checkpoint in a run's folder, as Ray Train recorded it; None if there is none."""
    # Ray would advise to delete the folder of a run that is read rather than begun.
    logging.getLogger("ray.train").setLevel(logging.WARNING)
    filesystem, path = open_storage(folder)
    try:
        return Result.from_path(path, filesystem).checkpoint
    except (RuntimeError, OSError, ValueError):
        return None
