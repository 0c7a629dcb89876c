"""Training with hot rows on every rank, on real ranks: the same numbers as without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from app.config import load_config
from pipelines.dataset import Dataset
from pipelines.job import Job
from pipelines.loader import Loader
from pipelines.metrics import KINDS
from pipelines.model import TABLE_MARK
from pipelines.trainable import Trainable, build_trainable
from tests.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("compiled")
BATCH, DIM = 64, 8
EXACT = ["exchange.codec=thin", "exchange.row_bound=0", "exchange.gradient_bound=0"]
HOT = ["cache.hot_rows={C1: 7, C3: 60, C6: 50}", "cache.hot_share=0.1"]


def job_of(data: str, *assignments: str) -> Job:
    small = [f"train.batch_size={BATCH}", f"model.embedding_dim={DIM}", "model.dense_layers=[16]"]
    return load_config(assignments=[*small, "model.over_layers=[16]", *assignments]).job(data)


def weights(built: Trainable) -> dict[str, list[float]]:
    """Of all tables, and their optimiser's state, that this rank owns; the MLPs."""
    if built.hot:
        built.hot.write_back()
    found = {}
    for key, value in built.model.state_dict().items():
        parts = [s.tensor for s in value.local_shards()] if TABLE_MARK in key else [value]
        found[key] = torch.cat([part.flatten() for part in parts]).tolist() if parts else []
    for key, of in built.model.fused_optimizer.state_dict()["state"].items():
        for name, value in of.items():
            found[f"{key} {name}"] = torch.cat([s.tensor.flatten() for s in value.local_shards()]).tolist()
    return found


def take_steps(data: str, steps: int, *assignments: str) -> dict[str, Any]:
    dataset = Dataset(data)
    built = build_trainable(job_of(data, *assignments), dataset, torch.device("cpu"))
    loader = Loader(
        dataset,
        "train",
        batch_size=BATCH,
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        prepare=built.hot.splitter if built.hot else None,
    )
    built.groups.wire.take()
    losses, epoch = [], 0
    while len(losses) < steps:
        batches = loader.train_batches(epoch)
        try:
            while len(losses) < steps:
                losses.append(built.pipeline.progress(batches)[0].item())
        except StopIteration:
            epoch += 1
        finally:
            batches.close()
    found = {"losses": losses, "wire": dict(zip(KINDS, built.groups.wire.take().tolist(), strict=True))}
    return found | {"weights": weights(built)}


def on_a_rank(data: str) -> dict[str, Any]:
    return {
        "plain": take_steps(data, 30, "exchange.codec=none"),
        "plain_hot": take_steps(data, 30, "exchange.codec=none", *HOT),
        "thin_hot": take_steps(data, 30, *EXACT, *HOT),
    }


def merged(ranks: list[dict[str, Any]], arm: str) -> dict[str, list[float]]:
    """The weights of all ranks."""
    return {key: value for rank in ranks for key, value in rank[arm]["weights"].items() if value}


def test_the_same(small_dataset: Dataset) -> None:
    ranks = run_ranks(on_a_rank, 2, str(small_dataset.path))
    plain = merged(ranks, "plain")
    for arm in ("plain_hot", "thin_hot"):
        for rank in ranks:
            assert rank[arm]["losses"] == pytest.approx(rank["plain"]["losses"], rel=1e-6)
            print(rank[arm]["wire"])
        found = merged(ranks, arm)
        assert found.keys() == plain.keys()
        for key, value in plain.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-6, atol=1e-7, err_msg=key)
