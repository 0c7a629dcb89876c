"""What users of TorchRec do with a model, as functions of the sharders.

Each returns numbers that must not depend on the exchange. All ranks run the same one.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from compression.exchange.sharders import links
from tests.compression.exchange.models import (
    FEATURES,
    Bags,
    BagsAndSequences,
    batch_of,
    batches,
    dense_optimizer,
    loss_of,
    sharded,
    train,
    weights_of,
)

Result = list[Any]
STEPS = 3


def run(dmp: DistributedModelParallel, feed: Iterable[KeyedJaggedTensor]) -> Result:
    """Losses and weights."""
    losses = train(dmp, feed)
    idle(dmp)
    return [losses, weights_of(dmp)]


def idle(dmp: DistributedModelParallel) -> None:
    """Nothing is on its way, on any channel of the thin exchange."""
    for link in links(dmp):
        for channel in (link.ids, link.rows.channel, link.gradients.channel):
            assert not channel._moving


def planned(sharders: list[Any]) -> Result:
    """By TorchRec's planner; one table cut into columns, one on every rank."""
    model, ranks = Bags(), dist.get_world_size()
    kinds = {"user": "table_wise", "item": "column_wise", "tag": "data_parallel"}
    constraints = {
        table: ParameterConstraints(sharding_types=[kind], min_partition=8 if kind == "column_wise" else None)
        for table, kind in kinds.items()
    }
    planner = EmbeddingShardingPlanner(topology=Topology(ranks, "cpu", local_world_size=ranks), constraints=constraints)
    plan = planner.collective_plan(model, sharders, dist.group.WORLD)
    return run(sharded(model, sharders, plan=plan), batches(STEPS))


class WithLoss(nn.Module):
    """As a pipeline wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Bags(collections=2)

    def forward(self, features: KeyedJaggedTensor) -> tuple[torch.Tensor, torch.Tensor]:
        loss = loss_of(self.model(features))
        return loss, loss.detach()


def pipelined(sharders: list[Any]) -> Result:
    """The same with and without a pipeline that sends the ids of the next batches early."""
    plain, dmp = sharded(WithLoss(), sharders), sharded(WithLoss(), sharders)
    optimizer, expected = dense_optimizer(plain), []
    for batch in batches(5):
        optimizer.zero_grad()
        loss, _ = plain(batch)
        loss.backward()
        optimizer.step()
        expected.append(float(loss.detach()))
    pipeline = TrainPipelineSparseDist(dmp, dense_optimizer(dmp), torch.device("cpu"), execute_all_batches=True)
    feed, losses = batches(5), []
    with contextlib.suppress(StopIteration):
        while True:
            losses.append(float(pipeline.progress(feed)))
    assert losses == expected
    assert weights_of(dmp) == weights_of(plain)
    idle(dmp)
    return [losses, weights_of(dmp)]


def both_kinds(sharders: list[Any]) -> Result:
    """An EmbeddingBagCollection and an EmbeddingCollection."""
    return run(sharded(BagsAndSequences(), sharders), batches(STEPS))


def other_features(sharders: list[Any]) -> Result:
    """Features in another order than that of the tables, and one more."""

    def reordered(batch: KeyedJaggedTensor) -> KeyedJaggedTensor:
        parts = {key: batch[key] for key in ("tag", "last", "item", "user")} | {"more": batch["tag"]}
        return KeyedJaggedTensor.from_jt_dict(parts)

    return run(sharded(Bags(), sharders), map(reordered, batches(STEPS)))


def narrow_ids(sharders: list[Any]) -> Result:
    """Of int32."""
    return run(sharded(Bags(), sharders), batches(STEPS, ids="int32"))


def without_ids(sharders: list[Any]) -> Result:
    """A feature that only one rank has ids of, one that none has, then no ids at all, then one feature."""
    feed = [
        batch_of(0, 8, without=["last"] if dist.get_rank() else ["last", "user"]),
        batch_of(1, 8, without=["user"]),
        batch_of(2, 8, without=FEATURES),
        batch_of(3, 8, without=["user", "item", "last"]),
    ]
    return run(sharded(BagsAndSequences(), sharders), feed)


def without_rows(sharders: list[Any]) -> Result:
    """A rank whose batch is empty, then all others' are."""
    last = dist.get_rank() == dist.get_world_size() - 1
    return run(
        sharded(Bags(), sharders),
        [batch_of(step, 0 if last == odd else 8) for step, odd in enumerate((True, False, True))],
    )


def evaluated(sharders: list[Any]) -> Result:
    """Between steps of training."""
    dmp = sharded(Bags(), sharders)
    found = []
    for step in range(STEPS):
        found.append(train(dmp, [batch_of(step, 8)]))
        dmp.eval()
        with torch.no_grad():
            found += [dmp(batch_of(100 + step + i, 5)).tolist() for i in range(2)]
        dmp.train()
        idle(dmp)
    return [found, weights_of(dmp)]


def in_turn(sharders: list[Any]) -> Result:
    """Two models of one group; then one of them goes."""
    models = [sharded(Bags(), sharders), sharded(Bags(collections=2), sharders)]
    found = [train(models[step % 2], [batch_of(step, 8)]) for step in range(6)]
    found.append(weights_of(models.pop(0)))
    gc.collect()
    return [*found, *run(models[0], batches(STEPS))]


def accumulated(sharders: list[Any]) -> Result:
    """Several batches forward before any goes backward: at once, in their order, and in reverse."""
    dmp = sharded(Bags(), sharders)
    found: Result = []
    for step, order in enumerate(("at once", [0, 1, 2], [2, 1, 0])):
        losses = [loss_of(dmp(batch_of(10 * step + i, 8))) for i in range(3)]
        found.append([float(loss.detach()) for loss in losses])
        if isinstance(order, str):
            sum(losses[1:], losses[0]).backward()
        else:
            for i in order:
                losses[i].backward()
        idle(dmp)
    return [found, weights_of(dmp)]


SCENARIOS: dict[str, Callable[[list[Any]], Result]] = {
    function.__name__: function
    for function in (
        planned, pipelined, both_kinds, other_features, narrow_ids, without_ids, without_rows, evaluated, in_turn,
        accumulated,
    )
}  # fmt: skip
