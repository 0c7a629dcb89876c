"""A two-tower retrieval model on made-up clicks, trained with TorchRec's own embedding exchange or the thin one.

torchrun --nproc-per-node 2 docs/examples/two_towers.py --exchange thin
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from compression.exchange import ExchangeConfig, TablePolicy, exchange_report, thin_sharders

USERS, ITEMS, TAGS, GROUPS = 50_000, 20_000, 500, 100
DIM, BATCH = 32, 512
# The lengths of bags cannot be known before there are data, and decide how a table is exchanged.
THIN = ExchangeConfig(batch_size=BATCH, tables={"table_history": TablePolicy(bag_length=10)})


@dataclass
class Clicks(Pipelineable):
    """A batch: users with what they clicked before, and the item that each of them clicks now."""

    user: KeyedJaggedTensor
    item: KeyedJaggedTensor

    def to(self, device: torch.device, non_blocking: bool = False) -> Clicks:
        return Clicks(self.user.to(device, non_blocking), self.item.to(device, non_blocking))

    def record_stream(self, stream: torch.Stream) -> None:
        self.user.record_stream(stream)
        self.item.record_stream(stream)

    def pin_memory(self) -> Clicks:
        return Clicks(self.user.pin_memory(), self.item.pin_memory())


class Tower(nn.Module):
    """Bags of ids to unit vectors, float32 [B, DIM]; a table a feature."""

    def __init__(self, features: dict[str, int], device: torch.device) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(
                name=f"table_{name}",
                num_embeddings=rows,
                embedding_dim=DIM,
                feature_names=[name],
                pooling=PoolingType.MEAN,
                init_fn=lambda weight: nn.init.normal_(weight, std=0.1),
            )
            for name, rows in features.items()
        ]
        self.ebc = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
        self.over = nn.Linear(DIM * len(tables), DIM, device=device)

    def forward(self, ids: KeyedJaggedTensor) -> torch.Tensor:
        return nn.functional.normalize(self.over(self.ebc(ids).values()), dim=1)


class TwoTowers(nn.Module):
    """Softmax of each user's own item over all items of the batch."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.user = Tower({"user": USERS, "history": ITEMS}, device)
        self.item = Tower({"item": ITEMS, "tags": TAGS}, device)

    def forward(self, batch: Clicks) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.user(batch.user) @ self.item(batch.item).T / 0.1
        loss = nn.functional.cross_entropy(scores, torch.arange(scores.size(0), device=scores.device))
        return loss, loss.detach()


def clicks(steps: int, rank: int) -> Iterator[Clicks]:
    """Users of a group click items of that group, whose tags are of that group; low ids come more often."""
    random = torch.Generator().manual_seed(rank)

    def feature(groups: torch.Tensor, rows: int, least: int, most: int) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = torch.randint(least, most + 1, groups.shape, generator=random)
        groups = groups.repeat_interleave(lengths)
        nth = torch.rand(groups.shape, generator=random) ** 3 * (rows // GROUPS)
        return lengths, nth.long() * GROUPS + groups

    def jagged(**features: tuple[torch.Tensor, torch.Tensor]) -> KeyedJaggedTensor:
        lengths, ids = zip(*features.values(), strict=True)
        return KeyedJaggedTensor(list(features), torch.cat(ids), lengths=torch.cat(lengths))

    for _ in range(steps):
        group = torch.randint(GROUPS, (BATCH,), generator=random)
        yield Clicks(
            user=jagged(user=feature(group, USERS, 1, 1), history=feature(group, ITEMS, 0, 20)),
            item=jagged(item=feature(group, ITEMS, 1, 1), tags=feature(group, TAGS, 1, 3)),
        )


def print_report(model: nn.Module) -> None:
    """What all ranks together sent to each other in a step, by table."""
    of_ranks: list[list[dict[str, Any]]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(of_ranks, exchange_report(model))
    if dist.get_rank() != 0:
        return
    print(f"{'table':<14} {'path':<7} distinct  ids, KB  rows, KB  gradients, KB  ratio")
    for rows in zip(*of_ranks, strict=True):
        of = {key: sum(row[key] for row in rows) for key in rows[0] if key not in ("table", "path")}
        sent, raw = (of[f"output_dist_{what}"] + of[f"gradients_{what}"] for what in ("bytes", "raw_bytes"))
        print(
            f"{rows[0]['table']:<14} {rows[0]['path']:<7} {of['distinct'] / of['lookups']:8.0%}"
            f" {of['ids_bytes'] / 1000:8.1f} {of['output_dist_bytes'] / 1000:9.1f}"
            f" {of['gradients_bytes'] / 1000:14.1f} {raw / sent:5.1f}x"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exchange", choices=("torchrec", "thin"), default="torchrec")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()

    torch.manual_seed(0)
    model = TwoTowers(device)
    tables = [*model.user.ebc.parameters(), *model.item.ebc.parameters()]
    apply_optimizer_in_backward(RowWiseAdagrad, tables, {"lr": 0.1})
    sharders = thin_sharders(THIN) if args.exchange == "thin" else None  # None: TorchRec's own
    sharded = DistributedModelParallel(model, device=device, sharders=sharders)

    dense = dict(in_backward_optimizer_filter(sharded.named_parameters()))
    adam = KeyedOptimizerWrapper(dense, lambda parameters: torch.optim.Adam(parameters, lr=0.01))
    optimizer = CombinedOptimizer([sharded.fused_optimizer, adam])
    pipeline = TrainPipelineSparseDist(sharded, optimizer, device)

    batches = clicks(args.steps, rank)
    for step in range(1, args.steps + 1):
        loss = pipeline.progress(batches)
        if step % 50 == 0 and rank == 0:
            print(f"step {step}  loss {loss:.4f}", flush=True)
    if args.exchange == "thin":
        print_report(sharded)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
