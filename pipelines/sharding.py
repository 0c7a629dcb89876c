"""From a model to a sharded one: the plan, the fused table optimiser, `DistributedModelParallel`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.collective_utils import invoke_on_rank_and_broadcast_result
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper, DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
from torchrec.distributed.sharding_plan import (
    column_wise,
    row_wise,
    table_row_wise,
    table_wise,
)
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ModuleSharder, ShardingEnv, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from pipelines.dataset import module_name
from pipelines.dense import compress_dense
from pipelines.errors import UserError
from pipelines.groups import Groups
from pipelines.options import ExchangeOptions, OptimOptions, ShardingOptions, ShardOptions
from pipelines.owners import Load, assign
from pipelines.qcomms import qcomm_codecs

if TYPE_CHECKING:
    from compression.exchange import ExchangeConfig

# What the planner may choose from. Not data_parallel: its tables would leave the fused optimiser for the dense one,
# and not column_wise: row-wise Adagrad would keep one accumulator a column shard. Either way the placement would
# change the numbers.
_KINDS = {"cpu": ["table_wise"], "cuda": ["table_wise", "row_wise", "table_row_wise"]}
_FUSED = {
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "sgd": EmbOptimType.EXACT_SGD,
    "adam": EmbOptimType.ADAM,
}


def sharders(
    optim: OptimOptions, exchange: ExchangeOptions, device: torch.device, thin: ExchangeConfig | None = None
) -> list[ModuleSharder[nn.Module]]:
    """Sharders whose table kernels apply the optimiser inside the backward pass.

    Args:
        thin: what the thin exchange reads; None = tables go by TorchRec's own exchange.

    TorchRec divides the gradients that come back by the number of ranks, so a table sees the gradient of the loss
    averaged over the global batch, like the MLPs under DDP.

    Raises:
        UserError: FBGEMM has no kernel of this optimiser, or TorchRec no codec of this kind, for the device.
    """
    if optim.sparse == "adam" and device.type == "cpu":
        raise UserError(
            "FBGEMM has no fused Adam for tables on CPU", where="optim.sparse", fix="use rowwise_adagrad or sgd"
        )
    fused: dict[str, Any] = {"optimizer": _FUSED[optim.sparse], "learning_rate": optim.sparse_lr}
    if optim.sparse != "sgd":
        fused["eps"] = optim.eps
    if thin is not None:
        from compression.exchange import thin_sharders

        return thin_sharders(thin, fused_params=fused)
    sharder = EmbeddingBagCollectionSharder(
        fused_params=fused, qcomm_codecs_registry=qcomm_codecs(exchange.codec, device)
    )
    return [cast(ModuleSharder[nn.Module], sharder)]


def make_plan(
    model: nn.Module,
    options: ShardingOptions,
    table_sharders: list[ModuleSharder[nn.Module]],
    *,
    device: torch.device,
    batch_size: int,
    loads: Mapping[str, Load] | None = None,
) -> ShardingPlan:
    """The stated placement where the user stated one, TorchRec's planner for the other tables.

    Must be called on all ranks; all get the same plan.

    Args:
        loads: what each table asks of its owner, by name. If given, the others are placed by these, whole.

    Raises:
        UserError: a stated table or rank does not exist, or the tables do not fit into the ranks' memory.
    """
    world_size = dist.get_world_size()
    path, ebc = _embedding_collection(model)
    names = [c.name for c in ebc.embedding_bag_configs()]
    columns = [c.feature_names[0] for c in ebc.embedding_bag_configs()]
    for column, shard in options.tables.items():
        _check_stated(column, shard, columns, world_size, device)
    stated = {module_name(column): _generator(s) for column, s in options.tables.items()}
    rest = [n for n in names if n not in stated]
    tables: dict[str, Any] = {}
    if loads is not None:
        stated |= {t: table_wise(rank=r) for t, r in _owners(loads, stated, options).items()}
    elif rest:
        tables.update(_planned(model, path, rest, options, table_sharders, device, batch_size))
    if stated:
        sharder = table_sharders[0]
        parameters = sharder.shardable_parameters(ebc)
        local_size = get_local_size(world_size)
        for table, place in stated.items():
            tables[table] = place(parameters[table], local_size, world_size, device.type, sharder)
            # On CPU the default is the dense kernel, whose tables no optimiser would see.
            tables[table].compute_kernel = "fused"
    plan = ShardingPlan({path: EmbeddingModuleShardingPlan({name: tables[name] for name in names})})
    check_plan(plan, names)
    return plan


def check_plan(plan: ShardingPlan, tables: list[str]) -> None:
    """Raises RuntimeError unless each table is in the plan exactly once."""
    seen = Counter(t for module in plan.plan.values() for t in cast(EmbeddingModuleShardingPlan, module))
    wrong = [t for t in tables if seen[t] != 1] + [t for t in seen if t not in tables]
    if wrong:
        raise RuntimeError(f"the sharding plan does not hold each table exactly once: {', '.join(wrong)}")


def describe_plan(plan: ShardingPlan, model: nn.Module) -> str:
    """A line a table: rows, dimension, sharding type, kernel, ranks."""
    _, ebc = _embedding_collection(model)
    configs = {c.name: c for c in ebc.embedding_bag_configs()}
    lines = [f"{'table':<12} {'rows':>12} {'dim':>5} {'MB':>9}  {'sharding':<15} {'kernel':<8} ranks"]
    for module in plan.plan.values():
        for name, parameter in cast(EmbeddingModuleShardingPlan, module).items():
            config = configs[name]
            size = config.num_embeddings * config.embedding_dim * 4 / 1e6
            ranks = ",".join(map(str, parameter.ranks or [])) or "all"
            lines.append(
                f"{config.feature_names[0]:<12} {config.num_embeddings:>12,} {config.embedding_dim:>5} {size:>9.2f}  "
                f"{parameter.sharding_type:<15} {parameter.compute_kernel:<8} {ranks}"
            )
    return "\n".join(lines)


def shard_model(
    model: nn.Module,
    plan: ShardingPlan,
    table_sharders: list[ModuleSharder[nn.Module]],
    device: torch.device,
    groups: Groups,
    exchange: ExchangeOptions,
) -> DistributedModelParallel:
    """The sharded model; table weights are allocated but not yet initialised (see `model.init_tables`).

    Raises:
        UserError: the MLPs' gradients cannot be sent as `exchange.dense` says.
    """
    return DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(groups.exchange),
        device=device,
        plan=plan,
        sharders=table_sharders,
        data_parallel_wrapper=_DenseWrapper(groups.dense, exchange),
    )


class _DenseWrapper(DefaultDataParallelWrapper):
    """DDP over a group of its own, so that its bytes are told from the exchange's; gradients go as the options say."""

    def __init__(self, group: dist.ProcessGroup, exchange: ExchangeOptions) -> None:
        # DDP regroups its gradient buckets after the first step unless it looks for unused parameters. The order of
        # sums of a ring all-reduce follows the buckets, so a resumed run would differ in the last bits on four or more
        # ranks. The thin exchange does not sum by buckets, and does without the all-reduce that the look takes.
        super().__init__(static_graph=False, find_unused_parameters=exchange.dense != "thin")
        self._group, self._exchange = group, exchange

    def wrap(self, dmp: DistributedModelParallel, env: ShardingEnv, device: torch.device) -> None:  # noqa: ARG002
        super().wrap(dmp, ShardingEnv.from_process_group(self._group), device)
        compress_dense(dmp._dmp_wrapped_module, self._exchange, self._group, device)


def _embedding_collection(model: nn.Module) -> tuple[str, EmbeddingBagCollection]:
    found = [(path, m) for path, m in model.named_modules() if isinstance(m, EmbeddingBagCollection)]
    if len(found) != 1:
        raise RuntimeError(f"expected one EmbeddingBagCollection, found {len(found)}")
    return found[0]


def _owners(loads: Mapping[str, Load], stated: Container[str], options: ShardingOptions) -> dict[str, int]:
    """The rank of each table whose place is not stated."""
    budget = int(options.device_memory_gb * 1024**3) if options.device_memory_gb else None
    found = assign({module_name(t): load for t, load in loads.items()}, dist.get_world_size(), budget)
    if found is None:
        raise _does_not_fit("no rank has room for the next one")
    return {table: rank for table, rank in found.items() if table not in stated}


def _does_not_fit(reason: str) -> UserError:
    return UserError(
        f"the tables do not fit: {reason}",
        where="sharding",
        fix="use more workers, a smaller model.embedding_dim, or raise sharding.device_memory_gb",
    )


def _planned(
    model: nn.Module,
    path: str,
    tables: list[str],
    options: ShardingOptions,
    table_sharders: list[ModuleSharder[nn.Module]],
    device: torch.device,
    batch_size: int,
) -> dict[str, Any]:
    budget = int(options.device_memory_gb * 1024**3) if options.device_memory_gb else None
    on_gpu = device.type == "cuda"
    topology = Topology(
        world_size=dist.get_world_size(),
        local_world_size=get_local_size(dist.get_world_size()),
        compute_device=device.type,
        hbm_cap=budget if on_gpu else None,
        ddr_cap=None if on_gpu else budget,
    )
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch_size,
        constraints={t: ParameterConstraints(sharding_types=_KINDS[device.type]) for t in tables},
    )

    def plan_or_error() -> ShardingPlan | PlannerError:
        try:
            return planner.plan(model, table_sharders)
        except PlannerError as error:
            return error

    # Rank 0 plans for all; an error must reach all as well, or the others would wait for the plan.
    plan = invoke_on_rank_and_broadcast_result(dist.group.WORLD, 0, plan_or_error)
    if isinstance(plan, PlannerError):
        raise _does_not_fit(" ".join(str(plan).split())[:300])
    planned = cast(EmbeddingModuleShardingPlan, plan.plan[path])
    return {t: planned[t] for t in tables}


def _check_stated(table: str, shard: ShardOptions, tables: list[str], world_size: int, device: torch.device) -> None:
    where = f"sharding.tables.{table}"
    if table not in tables:
        raise UserError(f"no table '{table}'", where=where, fix=f"tables are {', '.join(tables)}")
    if any(r >= world_size for r in shard.ranks):
        raise UserError(f"ranks {shard.ranks} for {world_size} workers", where=where, fix=f"use 0 to {world_size - 1}")
    if shard.type in ("table_wise", "table_row_wise") and len(shard.ranks) != 1:
        raise UserError(f"{shard.type} takes one rank, got {shard.ranks}", where=where, fix="write ranks: [0]")
    if shard.type == "column_wise" and not shard.ranks:
        raise UserError("column_wise needs the rank of each shard", where=where, fix="write ranks: [0, 1]")
    if device.type == "cpu" and shard.type in ("row_wise", "table_row_wise"):
        raise UserError(
            f"TorchRec has no {shard.type} sharding of pooled embeddings on CPU", where=where, fix="use table_wise"
        )


def _generator(shard: ShardOptions) -> Any:
    if shard.type == "table_wise":
        return table_wise(rank=shard.ranks[0])
    if shard.type == "column_wise":
        return column_wise(ranks=shard.ranks)
    if shard.type == "table_row_wise":
        return table_row_wise(host_index=shard.ranks[0])
    return row_wise()
