"""Run a function on real gloo ranks, and compare what they made."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# Processes are forked from one that has done the imports, which take several seconds a rank.
START = "forkserver"
multiprocessing.get_context(START).set_forkserver_preload(["pipelines.train"])


def run_ranks(function: Callable[..., Any], world_size: int, *args: Any) -> list[Any]:
    """Call `function(*args)` on each of `world_size` ranks in processes of their own; the results by rank, as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_rank, (world_size, folder, function, args), nprocs=world_size, start_method=START)
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(world_size)]


def _rank(rank: int, world_size: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(f"{folder}/store", world_size),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=60),
    )
    try:
        result = function(*args)
        (Path(folder) / f"{rank}.json").write_text(json.dumps(result))
    except Exception:
        # Some of torch's errors do not survive pickling, which would hide them.
        raise RuntimeError(traceback.format_exc()) from None
    finally:
        dist.destroy_process_group()


def digest(model_file: Path) -> str:
    """Of all weights of an exported model."""
    state = torch.load(model_file, weights_only=True)["state_dict"]
    return hashlib.sha256(b"".join(state[k].numpy().tobytes() for k in sorted(state))).hexdigest()
