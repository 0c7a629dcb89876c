"""Embedding batches, gradients and ids of a DLRM that trains on the demo preset: early, in the middle, late.

    python -m benchmarks.codec.trained FOLDER [--quick]

One process trains on the global batch; what it captures is what an owner of all tables would send to one rank.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from app.config import load_config
from app.data import open_dataset
from pipelines.errors import UserError
from pipelines.groups import local_groups
from pipelines.job import Job
from pipelines.loader import Loader
from pipelines.optim import set_learning_rates
from pipelines.trainable import Trainable, build_trainable

BATCH = 2048
"""Rows of a captured batch: the demo's global batch, and that of the paper's dumps."""
STAGES = {"early": 20, "middle": 220, "late": 430}
QUICK_STAGES = {"early": 20, "late": 80}
"""Steps that are captured; an epoch of the demo has 439, of the quick data 87."""
QUICK_ROWS = 200_000
IDS = "ids"
IDS_EVERY = 2
"""Ids are kept of every second step."""
Progress = Callable[[str, int, int], None]


def capture_batches(folder: Path, quick: bool, progress: Progress | None = None) -> dict[str, Path]:
    """Train on the demo preset, unless `folder` holds its batches from before, and write `.npz` files.

    One for each stage, with arrays of each table C, float32 [2048, D]: `rows/C` and `gradients/C`, as one all-to-all of
    TorchRec would carry them. And one, "ids", with the distinct ids of every second batch, ascending, one batch after
    the other, as `ids/C`, int64 [n], and how many each batch has, as `counts/C`, int64 [batches].

    Raises:
        UserError: the training fails.
    """
    files = {name: folder / f"{name}.npz" for name in (*(QUICK_STAGES if quick else STAGES), IDS)}
    if all(file.exists() for file in files.values()):
        return files
    # In a process of its own, which takes its warnings with it; on one thread, for the same batches on any machine.
    command = [sys.executable, "-m", "benchmarks.codec.trained", str(folder), *(["--quick"] if quick else [])]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as process:
        last = ""
        assert process.stdout is not None
        for line in process.stdout:
            last = line.strip() or last
            if progress and line.startswith("progress\t"):
                _, stage, done, total = line.split("\t")
                progress(stage, int(done), int(total))
    if process.returncode:
        raise UserError(f"training the demo model failed: {last}", where="bench codec")
    return files


def train(folder: Path, quick: bool, progress: Progress) -> None:
    """What `capture_batches` does in its process."""
    folder.mkdir(parents=True, exist_ok=True)
    changes = [f"train.batch_size={BATCH}", f"run.storage={folder}"]
    changes += [f"data.synthetic.rows={QUICK_ROWS}"] if quick else []
    config = load_config("demo", None, changes)
    dataset = open_dataset(config, progress)
    job = config.job(str(dataset.path))
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        built = build_trainable(job, dataset, torch.device("cpu"), local_groups())
        loader = Loader(dataset, job.data.train_split, batch_size=BATCH, shuffle=True, seed=job.train.seed)
        stages = QUICK_STAGES if quick else STAGES
        _train(built, loader, job, list(dataset.table_rows), stages, folder, progress)
    finally:
        dist.destroy_process_group()


def _train(
    built: Trainable,
    loader: Loader,
    job: Job,
    names: list[str],
    stages: dict[str, int],
    folder: Path,
    progress: Progress,
) -> None:
    seen = _Seen(names)
    batches = loader.train_batches(epoch=0)
    last = max(stages.values())
    for step in range(last + 1):
        set_learning_rates(built.optimizer, step, job.optim)
        built.pipeline.progress(batches)
        if step == 0:  # the first step traces the model, which a hook would break
            built.model.module.model.sparse_arch.register_forward_hook(seen.forward)
        elif step % IDS_EVERY == 0:
            seen.keep_ids()
        for stage, at in stages.items():
            if step == at:
                np.savez(folder / f"{stage}.npz", **seen.batch())
        progress("training the demo model", step + 1, last + 1)
    np.savez(folder / f"{IDS}.npz", **seen.ids())
    batches.close()


class _Seen:
    """What went through the model's embedding part."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._ids: dict[str, list[Any]] = {name: [] for name in names}

    def forward(self, _: torch.nn.Module, inputs: tuple[KeyedJaggedTensor], output: torch.Tensor) -> None:
        self._features, self._rows = inputs[0], output.detach().clone()
        output.register_hook(self._backward)

    def _backward(self, gradient: torch.Tensor) -> None:
        self._gradients = gradient.detach().clone()

    def keep_ids(self) -> None:
        for name, found in self._ids.items():
            found.append(np.unique(self._features[name].values().numpy()).astype(np.int64))

    def batch(self) -> dict[str, Any]:
        """Rows and gradients of the last step."""
        found = {}
        for i, name in enumerate(self._names):
            found[f"rows/{name}"] = self._rows[:, i].numpy()
            found[f"gradients/{name}"] = self._gradients[:, i].numpy()
        return found

    def ids(self) -> dict[str, Any]:
        found = {f"ids/{name}": np.concatenate(ids) for name, ids in self._ids.items()}
        return found | {f"counts/{name}": np.array([i.size for i in ids]) for name, ids in self._ids.items()}


if __name__ == "__main__":
    train(
        Path(sys.argv[1]),
        "--quick" in sys.argv[2:],
        lambda *at: print("progress", *at, sep="\t", flush=True),
    )
