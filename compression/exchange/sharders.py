"""Two lines in a TorchRec script: `sharders = thin_sharders(config)`, and hand them to `DistributedModelParallel`."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, cast

import torch
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder, ShardedEmbeddingCollection
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.types import ModuleSharder, ParameterSharding, ShardingEnv, ShardingType

from compression.exchange.agree import Terms, agree
from compression.exchange.choose import choose_path
from compression.exchange.config import Direction, ExchangeConfig
from compression.exchange.dense import DenseExchange
from compression.exchange.shardings import PooledSharding, RowSharding, SequenceSharding, keep_steps

THIN = {ShardingType.TABLE_WISE.value, ShardingType.COLUMN_WISE.value, ShardingType.TABLE_COLUMN_WISE.value}
"""Placements that the thin exchange serves; other tables go by TorchRec's own exchange."""
ROW, POOLED = "thin_row", "thin_pooled"


def thin_sharders(config: ExchangeConfig | None = None, **options: Any) -> list[ModuleSharder[nn.Module]]:
    """Sharders of `EmbeddingBagCollection` and `EmbeddingCollection` that exchange embeddings by the thin exchange.

    Args:
        config: default: `ExchangeConfig()`.
        options: of TorchRec's sharders, such as `fused_params`, and `qcomm_codecs_registry` for the tables that go by
            TorchRec's own exchange.

    The gradients of tables are divided by the number of ranks, unless `torchrec.distributed.comm_ops` is told otherwise
    (`set_gradient_division`), as TorchRec does it.
    """
    common = config or ExchangeConfig(), set[str]()
    both = [ThinEmbeddingBagCollectionSharder(*common, **options), ThinEmbeddingCollectionSharder(*common, **options)]
    return [cast(ModuleSharder[nn.Module], sharder) for sharder in both]


class _Thin:
    """What the two modules have in common: they are TorchRec's, but for what happens between ranks."""

    _env: ShardingEnv
    _agreed = False

    def __init__(self, config: ExchangeConfig, tables: set[str], **kwargs: Any) -> None:
        self._config, self._tables = config, tables
        super().__init__(**kwargs)

    def input_dist(self, ctx: Any, features: Any) -> Any:
        if not self._agreed:
            self._agree(features.device())
        request = super().input_dist(ctx, features)  # type: ignore[misc]
        keep_steps(request.awaitables, ctx.sharding_contexts)
        return request

    def _agree(self, device: torch.device) -> None:
        unknown = [table for table in self._config.tables if table not in self._tables]
        if unknown:
            raise ValueError(f"ExchangeConfig.tables has {unknown}, the model has {sorted(self._tables)}")
        of_links = [link.terms for link in links(cast(nn.Module, self))]
        placement = [self._placed, *(terms.placement for terms in of_links)]
        terms = Terms(placement, [terms.settings for terms in of_links], [terms.number for terms in of_links])
        assert self._env.process_group is not None
        agree(terms, self._env.process_group, device, self._config.timeout_s)
        self._agreed = True

    def _place(self, grouped: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Keep what all ranks must agree on, also of tables that go by TorchRec's own exchange."""
        self._placed = [
            (key, info.embedding_config.name, info.param_sharding.ranks)
            for key, infos in grouped.items()
            for info in infos
        ]
        return grouped


class ThinEmbeddingBagCollection(_Thin, ShardedEmbeddingBagCollection):
    """Pooled tables."""

    def create_grouped_sharding_infos(self, *args: Any, **kwargs: Any) -> Any:
        found: dict[str, list[Any]] = defaultdict(list)
        for kind, infos in super().create_grouped_sharding_infos(*args, **kwargs).items():
            for info in infos:
                found[self._key(kind, info)].append(info)
        return self._place(found)

    def _key(self, kind: str, info: Any) -> str:
        table = info.embedding_config
        policy = self._config.of(table.name)
        if kind not in THIN or policy.path == "torchrec":
            return kind
        path: str = policy.path
        if path == "auto":
            lossy = _is_lossy(policy.forward) or _is_lossy(policy.backward)
            path = choose_path(
                table.num_embeddings, table.embedding_dim, self._config.batch_size, policy.bag_length, lossy
            )
        return ROW if path == "row" else POOLED

    def create_embedding_bag_sharding(self, sharding_infos: list[Any], *args: Any, **kwargs: Any) -> Any:
        key = self._key(sharding_infos[0].param_sharding.sharding_type, sharding_infos[0])
        if key not in (ROW, POOLED):
            return super().create_embedding_bag_sharding(sharding_infos, *args, **kwargs)
        sharding = RowSharding if key == ROW else PooledSharding
        return sharding(self._config, sharding_infos, *args, **kwargs)


class ThinEmbeddingCollection(_Thin, ShardedEmbeddingCollection):
    """Tables that are not pooled: they go by the row exchange, or by TorchRec's own."""

    def create_grouped_sharding_infos(self, *args: Any, **kwargs: Any) -> Any:
        found: dict[str, list[Any]] = {}
        for kind, infos in super().create_grouped_sharding_infos(*args, **kwargs).items():
            thin = [info for info in infos if self._is_thin(kind, info)]
            others = [info for info in infos if not self._is_thin(kind, info)]
            if thin and others and kind == ShardingType.COLUMN_WISE.value:
                raise ValueError("column-wise tables of an EmbeddingCollection go all by path=torchrec, or none")
            # TorchRec asks this key whether shards are column-wise.
            found.update({kind: others or thin} | ({f"{ROW}:{kind}": thin} if others and thin else {}))
        return self._place(found)

    def _is_thin(self, kind: str, info: Any) -> bool:
        return kind in THIN and self._config.of(info.embedding_config.name).path != "torchrec"

    def create_embedding_sharding(
        self, sharding_type: str, sharding_infos: list[Any], *args: Any, **kwargs: Any
    ) -> Any:
        info = sharding_infos[0]
        if not self._is_thin(info.param_sharding.sharding_type, info):
            return super().create_embedding_sharding(sharding_type, sharding_infos, *args, **kwargs)
        return SequenceSharding(self._config, sharding_infos, *args, **kwargs)


class _ThinSharder:
    """What the two sharders have in common: they are TorchRec's, for modules that exchange as `config` says. They add
    the names of their tables to `tables`."""

    thin: type[_Thin]
    fused_params: dict[str, Any] | None
    qcomm_codecs_registry: dict[str, Any] | None

    def __init__(self, config: ExchangeConfig, tables: set[str], **options: Any) -> None:
        super().__init__(**options)
        self.config, self.tables = config, tables

    def shard(
        self,
        module: nn.Module,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> Any:
        self.tables.update(params)
        return self.thin(
            self.config,
            self.tables,
            module=module,
            table_name_to_parameter_sharding=params,
            env=env,
            fused_params=self.fused_params,
            device=device,
            qcomm_codecs_registry=self.qcomm_codecs_registry,
            module_fqn=module_fqn,
        )


class ThinEmbeddingBagCollectionSharder(_ThinSharder, EmbeddingBagCollectionSharder):
    thin = ThinEmbeddingBagCollection


class ThinEmbeddingCollectionSharder(_ThinSharder, EmbeddingCollectionSharder):
    thin = ThinEmbeddingCollection


def exchange_report(model: nn.Module, *, reset: bool = False) -> list[dict[str, Any]]:
    """What the thin exchanges of a model did on this rank, a dictionary a table and path: lookups and distinct rows,
    bytes that this rank sent by kind and in float32, milliseconds of encoding and decoding; means a step.

    Args:
        reset: count from 0 again.
    """
    found = [row for link in links(model) for row in link.stats.rows()]
    if reset:
        for link in links(model):
            link.stats.reset()
    return found


def set_link(model: nn.Module, bytes_per_second: float) -> None:
    """Tell the thin exchanges of a model the rate of the link, by which the codec `auto` decides from now on; those of
    its other parameters too, see `dense_hook`."""
    for link in links(model):
        link.set_rate(bytes_per_second)
    for module in model.modules():
        for _, state in getattr(module, "_comm_hooks", ()):  # of DistributedDataParallel
            if isinstance(state, DenseExchange):
                state.set_link(bytes_per_second)


def scale_bounds(model: nn.Module, rows: float = 1.0, gradients: float = 1.0) -> None:
    """From the next message on, the bounds of all thin exchanges of a model are so many times as large as their config
    says, until they are scaled again; 0 = bit for bit. A rank may differ from the others: a message tells its bounds.

    Raises:
        ValueError: a factor is negative or not finite.
    """
    for factor in (rows, gradients):
        if not 0 <= factor < math.inf:
            raise ValueError(f"a factor of bounds is finite and at least 0, not {factor}")
    for link in links(model):
        link.scale_bounds(rows, gradients)


def use_chain(model: nn.Module, chain: str) -> None:
    """Code all tables of the thin exchanges of a model by one chain of the codec from the next message on, to measure
    it; all ranks must be told between the same two steps. Which of the lossy chains it is changes what arrives in the
    odd value at most, under relative bounds below 0.4 %.

    Raises:
        ValueError: no such chain.
    """
    Direction(codec=chain)
    for link in links(model):
        link.use_chain(chain)


def links(model: nn.Module) -> list[Any]:
    """The links of all thin exchanges of a model, and what else its modules send through such channels: their
    `thin_links`, which have a link's `stats`, `set_rate`, `scale_bounds` and `use_chain`."""
    found: list[Any] = []
    for module in model.modules():
        found += getattr(module, "thin_links", [])
        if isinstance(module, ThinEmbeddingBagCollection):
            found += [s.link for s in module._embedding_shardings if hasattr(s, "link")]
        elif isinstance(module, ThinEmbeddingCollection):
            found += [s.link for s in module._sharding_type_to_sharding.values() if hasattr(s, "link")]
    return found


def _is_lossy(direction: Direction) -> bool:
    return direction.bound != 0.0
