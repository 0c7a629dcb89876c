"""One rank of `test_wire`, run in a host of the lab: steps between two marks, and what was counted in them.

python -m tests.benchmarks.wire_rank RANK RANKS ADDRESS DATA FOLDER ASSIGNMENT...
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from app.config import load_config
from pipelines.dataset import Dataset
from pipelines.loader import Loader
from pipelines.metrics import KINDS
from pipelines.trainable import build_trainable

BATCH, DIM, STEPS = 512, 16, 40


def main() -> None:
    rank, ranks, address, data, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], Path(sys.argv[5])
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group("gloo", init_method=f"tcp://{address}:29511", rank=rank, world_size=ranks)
    dataset = Dataset(data)
    small = [f"train.batch_size={BATCH}", f"model.embedding_dim={DIM}", *sys.argv[6:]]
    built = build_trainable(load_config(assignments=small).job(data), dataset, torch.device("cpu"))
    loader = Loader(dataset, "train", batch_size=BATCH, rank=rank, world_size=ranks)
    stream = loader.train_batches(0)
    feed = itertools.cycle([next(stream) for _ in range(3)])
    stream.close()
    built.pipeline.progress(feed)
    mark(folder, rank, "ready")
    built.groups.wire.take()
    for _ in range(STEPS):
        built.pipeline.progress(feed)
    dist.barrier()
    counted = dict(zip(KINDS, built.groups.wire.take().tolist(), strict=True))
    (folder / f"counted-{rank}.json").write_text(json.dumps(counted))
    mark(folder, rank, "done")
    dist.destroy_process_group()


def mark(folder: Path, rank: int, name: str) -> None:
    """Say that this rank is there, and wait for the word to go on. No byte goes over the network meanwhile."""
    (folder / f"{name}-{rank}").touch()
    while not (folder / f"after-{name}").exists():
        time.sleep(0.01)


if __name__ == "__main__":
    main()
