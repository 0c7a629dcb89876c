"""Small TorchRec models on real ranks, trained with and without the thin exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import column_wise, construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from compression.exchange import Direction, ExchangeConfig, TablePolicy

SUM, MEAN = PoolingType.SUM, PoolingType.MEAN
TABLES = [("user", 1000, 8, ["user"], SUM), ("item", 50, 16, ["item", "last"], SUM), ("tag", 300, 12, ["tag"], MEAN)]
"""Name, rows, columns, features and pooling."""
WIDTH = sum(dim * len(features) for _, _, dim, features, _ in TABLES)
FEATURES = ["user", "item", "last", "tag"]
ROWS = {feature: rows for _, rows, _, features, _ in TABLES for feature in features}


def exact(path: str, **others: Any) -> ExchangeConfig:
    """Bit for bit; path may be `mixed`: another one for each table."""
    ways = {"user": "row", "item": "torchrec", "tag": "pooled"} if path == "mixed" else {}
    policies = {table: TablePolicy(way, Direction(), Direction()) for table, way in ways.items()}  # type: ignore[arg-type]
    default = TablePolicy("auto" if path == "mixed" else path, Direction(), Direction())  # type: ignore[arg-type]
    return ExchangeConfig(default=default, tables=policies, **others)


def torchrec_sharders(**options: Any) -> list[Any]:
    """Of TorchRec's own exchange."""
    return [EmbeddingBagCollectionSharder(**options), EmbeddingCollectionSharder(**options)]


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
        self.over = nn.Linear(WIDTH * collections, 1)

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


class BagsAndSequences(nn.Module):
    """Both kinds of tables."""

    def __init__(self) -> None:
        super().__init__()
        self.bags, self.sequences = Bags(), Sequences()

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        return self.bags(features) + self.sequences(features)


def batch_of(
    step: int, rows: int, *, weighted: bool = False, bag: int = 3, without: Sequence[str] = (), ids: str = "int64"
) -> KeyedJaggedTensor:
    """Bags of 0 to `bag` ids for this rank; the same for a (step, rank, rows) always.

    Args:
        without: features that have no ids.
        ids: dtype.
    """
    random = np.random.default_rng([step, dist.get_rank(), rows])
    lengths = random.integers(0, bag + 1, (len(FEATURES), rows))
    lengths[[FEATURES.index(feature) for feature in without]] = 0
    values = [
        np.minimum(random.zipf(1.3, int(lengths[i].sum())), ROWS[feature]) - 1 for i, feature in enumerate(FEATURES)
    ]
    flat = torch.from_numpy(np.concatenate(values).astype(ids))
    return KeyedJaggedTensor(
        keys=FEATURES,
        values=flat,
        lengths=torch.from_numpy(lengths.reshape(-1).astype(np.int32)),
        weights=torch.from_numpy(random.random(flat.numel(), np.float32)) if weighted else None,
        stride=rows,
    )


def batches(steps: int, rows: int = 32, **options: Any) -> Iterator[KeyedJaggedTensor]:
    """Rank r has `rows` - r rows."""
    return (batch_of(step, rows - dist.get_rank(), **options) for step in range(steps))


def plan_of(model: nn.Module, sharders: list[Any], columns: bool, ranks: int, first: int = 0) -> ShardingPlan:
    """Tables in turn to the ranks, from the first on; with `columns` the second is cut into halves."""
    found = {}
    for path, module in model.named_modules():
        if not isinstance(module, EmbeddingBagCollection | EmbeddingCollection):
            continue
        sharder = next(s for s in sharders if isinstance(module, s.module_type))
        per_table: dict[str, Any] = {}
        for i, (name, parameter) in enumerate(sharder.shardable_parameters(module).items()):
            cut = columns and (parameter.shape[1] == 16 or isinstance(module, EmbeddingCollection))
            per_table[name] = (
                column_wise(ranks=[0, ranks - 1], compute_kernel="fused")
                if cut
                else table_wise(rank=(first + i) % ranks, compute_kernel="fused")
            )
        found[path] = construct_module_sharding_plan(
            module, per_table, sharder=sharder, device_type="cpu", local_size=ranks, world_size=ranks
        )
    return ShardingPlan(found)


def fused(optimizer: str, rate: float = 0.1) -> dict[str, Any]:
    """Parameters of the optimizer of tables."""
    kinds = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}
    found = {"optimizer": kinds[optimizer], "learning_rate": rate}
    # Adagrad divides a gradient by its size plus eps. Where the terms of one cancel, only rounding is left, of which a
    # tiny eps would make a whole step: then sums in another order train another model.
    return found if optimizer == "sgd" else found | {"eps": 1e-3}


def sharded(
    model: nn.Module,
    sharders: list[Any],
    columns: bool = False,
    *,
    plan: ShardingPlan | None = None,
    group: dist.ProcessGroup | None = None,
) -> DistributedModelParallel:
    """With weights that depend on the names and shapes alone. All ranks must call it at once."""
    group = group or dist.group.WORLD
    assert group is not None
    env = ShardingEnv.from_process_group(group)
    plan = plan or plan_of(model, sharders, columns, group.size())
    dmp = DistributedModelParallel(model, env=env, device=torch.device("cpu"), plan=plan, sharders=sharders)
    with torch.no_grad():
        for name, weight in dmp.state_dict().items():
            for first_column, tensor in _parts(weight):
                torch.manual_seed(len(name) + 31 * first_column)
                tensor.copy_(torch.rand(tensor.shape) - 0.5)
    return dmp


def _parts(weight: Any) -> list[tuple[int, torch.Tensor]]:
    """What a rank has of a weight, and the first columns of it."""
    if not hasattr(weight, "local_shards"):
        return [(0, weight)]
    return [(shard.metadata.shard_offsets[1], shard.tensor) for shard in weight.local_shards()]


def weights_of(dmp: DistributedModelParallel) -> dict[str, list[float]]:
    """This rank's weights."""
    return {
        name: torch.cat([torch.empty(0), *(tensor.reshape(-1) for _, tensor in _parts(weight))]).tolist()
        for name, weight in dmp.state_dict().items()
    }


def dense_optimizer(dmp: DistributedModelParallel, adam: bool = False) -> torch.optim.Optimizer:
    """Of all weights that are not in tables with an optimizer of their own."""
    weights = [weight for _, weight in in_backward_optimizer_filter(dmp.named_parameters())]
    return torch.optim.Adam(weights, 0.01) if adam else torch.optim.SGD(weights, 0.1)


def loss_of(out: torch.Tensor) -> torch.Tensor:
    return (out - 1).square().mean()


def train(dmp: DistributedModelParallel, feed: Iterable[KeyedJaggedTensor], adam: bool = False) -> list[float]:
    """Losses of plain steps."""
    optimizer = dense_optimizer(dmp, adam)
    losses = []
    for batch in feed:
        optimizer.zero_grad()
        loss = loss_of(dmp(batch))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def error_of(case: Callable[[dist.ProcessGroup], object]) -> str:
    """Type and text of the error that a case raises on this rank, in a group of its own, which an error may break; or
    nothing. All ranks must call it at once, and then wait for each other."""
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=60))
    forget_notes()
    try:
        case(group)
        said = ""
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    dist.barrier()
    return said


def forget_notes() -> None:
    """Of failures so far. All ranks must call it at once."""
    dist.barrier()
    if dist.get_rank() == 0:
        store = dist.distributed_c10d._get_default_store()
        for key in ("count", *range(1, 10)):
            store.delete_key(f"thinwire/exchange/{key}")
    dist.barrier()
