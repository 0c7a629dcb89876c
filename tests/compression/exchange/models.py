"""Small TorchRec models on real ranks, trained with and without the thin exchange."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import column_wise, construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

SUM, MEAN = PoolingType.SUM, PoolingType.MEAN
TABLES = [("user", 1000, 8, ["user"], SUM), ("item", 50, 16, ["item", "last"], SUM), ("tag", 300, 8, ["tag"], MEAN)]
"""Name, rows, columns, features and pooling."""
FEATURES = ["user", "item", "last", "tag"]


class Bags(nn.Module):
    """Pooled tables into a linear layer. Weighted bags are summed: FBGEMM on CPU leaves the division of a weighted mean
    out of its backward pass."""

    def __init__(self, weighted: bool = False, collections: int = 1) -> None:
        super().__init__()
        self.ebcs = nn.ModuleList(
            EmbeddingBagCollection(
                device=torch.device("meta"),
                is_weighted=weighted,
                tables=[
                    EmbeddingBagConfig(
                        name=f"{n}{i or ''}",
                        num_embeddings=r,
                        embedding_dim=d,
                        feature_names=f,
                        pooling=SUM if weighted else p,
                    )
                    for n, r, d, f, p in TABLES
                ],
            )
            for i in range(collections)
        )
        self.over = nn.Linear(48 * collections, 1)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        pooled = [ebc(features).to_dict() for ebc in self.ebcs]
        return self.over(torch.cat([of[name] for of in pooled for name in FEATURES], 1)).sum(1)


class Sequences(nn.Module):
    """Tables that are not pooled, summed over each sample's ids."""

    def __init__(self) -> None:
        super().__init__()
        self.ec = EmbeddingCollection(
            device=torch.device("meta"),
            tables=[
                EmbeddingConfig(name=n, num_embeddings=r, embedding_dim=8, feature_names=f) for n, r, _, f, _ in TABLES
            ],
        )
        self.over = nn.Linear(8, 1)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        found = self.ec(features)
        sums = [nn.functional.embedding_bag(
            torch.arange(jt.values().size(0)), jt.values(), jt.offsets()[:-1].long(), mode="sum"
        ) for jt in found.values()]  # fmt: skip
        return self.over(torch.stack(sums).sum(0)).sum(1)


def batch_of(step: int, rows: int, *, weighted: bool = False, bag: int = 3) -> KeyedJaggedTensor:
    """Bags of 0 to `bag` ids for this rank; the same for a (step, rank, rows) always."""
    random = np.random.default_rng([step, dist.get_rank(), rows])
    lengths = random.integers(0, bag + 1, (len(FEATURES), rows))
    sizes = {feature: r for _, r, _, features, _ in TABLES for feature in features}
    values = [
        np.minimum(random.zipf(1.3, int(lengths[i].sum())), sizes[feature]) - 1 for i, feature in enumerate(FEATURES)
    ]
    flat = torch.from_numpy(np.concatenate(values))
    return KeyedJaggedTensor(
        keys=FEATURES,
        values=flat,
        lengths=torch.from_numpy(lengths.reshape(-1).astype(np.int32)),
        weights=torch.from_numpy(random.random(flat.numel(), np.float32)) if weighted else None,
        stride=rows,
    )


def plan_of(model: nn.Module, sharders: list[Any], columns: bool) -> ShardingPlan:
    """Tables in turn to the ranks; with `columns` the second is cut into halves."""
    ranks = dist.get_world_size()
    found = {}
    for path, module in model.named_modules():
        if not isinstance(module, EmbeddingBagCollection | EmbeddingCollection):
            continue
        sharder = next(s for s in sharders if isinstance(module, s.module_type))
        per_table: dict[str, Any] = {}
        for i, (name, parameter) in enumerate(sharder.shardable_parameters(module).items()):
            cut = columns and parameter.shape[1] == 16
            per_table[name] = (
                column_wise(ranks=[0, ranks - 1], compute_kernel="fused")
                if cut
                else table_wise(rank=i % ranks, compute_kernel="fused")
            )
        if columns and isinstance(module, EmbeddingCollection):
            per_table = {name: column_wise(ranks=[0, ranks - 1], compute_kernel="fused") for name in per_table}
        found[path] = construct_module_sharding_plan(module, per_table, sharder=sharder, device_type="cpu")
    return ShardingPlan(found)


def fused(optimizer: str) -> dict[str, Any]:
    kinds = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}
    return {"optimizer": kinds[optimizer], "learning_rate": 0.1} | ({} if optimizer == "sgd" else {"eps": 1e-8})


def sharded(model: nn.Module, sharders: list[Any], columns: bool = False) -> DistributedModelParallel:
    """With weights that depend on the names and shapes alone."""
    assert dist.group.WORLD is not None
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    plan = plan_of(model, sharders, columns)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.over.parameters():  # type: ignore[union-attr]
            parameter.copy_(torch.rand_like(parameter) - 0.5)
    dmp = DistributedModelParallel(model, env=env, device=torch.device("cpu"), plan=plan, sharders=sharders)
    with torch.no_grad():
        for name, weight in dmp.state_dict().items():
            if hasattr(weight, "local_shards"):
                for shard in weight.local_shards():
                    torch.manual_seed(len(name) + 31 * shard.metadata.shard_offsets[1])
                    shard.tensor.copy_(torch.rand(shard.tensor.shape) - 0.5)
    return dmp


def weights_of(dmp: DistributedModelParallel) -> dict[str, list[float]]:
    """This rank's weights."""
    found = {}
    for name, weight in dmp.state_dict().items():
        shards = weight.local_shards() if hasattr(weight, "local_shards") else None
        tensors = [weight] if shards is None else [s.tensor for s in shards]
        found[name] = torch.cat([t.reshape(-1) for t in tensors] or [torch.empty(0)]).tolist()
    return found


def train(dmp: DistributedModelParallel, steps: int, rows: int = 32, **batch: Any) -> list[float]:
    """Losses of plain steps; rank r takes `rows` - r rows."""
    optimizer = torch.optim.SGD([p for n, p in dmp.named_parameters() if "over" in n], 0.1)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        out = dmp(batch_of(step, rows - dist.get_rank(), **batch))
        loss = (out - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses
