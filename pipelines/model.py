"""TorchRec's DLRM, DLRM_DCN and DLRM_Projection from options and a data set, with an init that no sharding changes."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.models.dlrm import DLRM, DLRM_DCN, DLRM_Projection, DLRMTrain
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from pipelines.dataset import Dataset, module_name
from pipelines.errors import UserError
from pipelines.options import ModelOptions

if TYPE_CHECKING:
    from cache.hot_rows import HotRows
    from cache.split import HotLookups
    from pipelines.hot_batch import HotBatch

TABLE_MARK = ".embedding_bags."
"""Stands in the name of each parameter that is a table, and in no other."""
_POOLING = {"sum": PoolingType.SUM, "mean": PoolingType.MEAN}
# Rows drawn from one random stream, so that a shard draws only the blocks that it holds a part of.
_INIT_BLOCK = 65_536


def table_configs(options: ModelOptions, dataset: Dataset) -> list[EmbeddingBagConfig]:
    """One config a table, in the data set's order.

    Raises:
        UserError: an option names an unknown table, or fewer rows than the data set has ids.
    """
    names = list(dataset.table_rows)
    for key in ("table_dims", "table_rows"):
        for name in getattr(options, key):
            if name not in names:
                raise UserError(f"no table '{name}'", where=f"model.{key}", fix=f"tables are {', '.join(names)}")
    configs = []
    for table in dataset.manifest.tables:
        rows = options.table_rows.get(table.name, table.rows)
        if rows < table.rows:
            raise UserError(
                f"table '{table.name}' would have {rows} rows, but the data set holds {table.rows} ids for it",
                where=f"model.table_rows.{table.name}",
                fix="give it more rows, or prepare the data with --max-ids or --min-count",
            )
        configs.append(
            EmbeddingBagConfig(
                name=module_name(table.name),
                feature_names=[table.name],
                num_embeddings=rows,
                embedding_dim=options.table_dims.get(table.name, options.embedding_dim),
                pooling=_POOLING[options.pooling],
            )
        )
    return configs


class Lookups(NamedTuple):
    """The ids of a batch, parted."""

    cold: KeyedJaggedTensor
    hot: HotLookups


class HotLookup(nn.Module):
    """Adds the rows that every rank holds to what the exchange brings. Has nothing that DDP or a checkpoint sees.

    Attributes:
        rows: set once the model is sharded.
        thin_links: for `compression.exchange.sharders.links`.
    """

    rows: HotRows
    thin_links: list[Any]

    def __init__(self) -> None:
        super().__init__()
        self._keys: list[str] | None = None
        self._dims: list[int] = []

    def forward(self, cold: KeyedTensor, hot: HotLookups) -> KeyedTensor:
        """The pooled embeddings of whole bags, from those of their cold ids; these may be on their way."""
        if self._keys is None:
            self._keys, self._dims = cold.keys(), cold.length_per_key()
        values = self.rows.look_up(lambda: cold.values(), hot, self._keys, self._dims)
        return KeyedTensor(self._keys, self._dims, values)


class ProjectedSparseArch(nn.Module):
    """Looks up tables of any dimension and brings each to D with a linear map of its own (mixed-dimension
    embeddings, arXiv 1909.11810).

    Takes a KJT of stride B and gives float32 [B, F, D], as TorchRec's SparseArch does.

    Args:
        hot: take `Lookups`, and look up hot rows in `hot_lookup`.
    """

    def __init__(self, ebc: EmbeddingBagCollection, dim: int, device: torch.device, hot: bool = False) -> None:
        super().__init__()
        self.hot_lookup = HotLookup() if hot else None
        self.embedding_bag_collection = ebc
        configs = ebc.embedding_bag_configs()
        self.sparse_feature_names = [name for c in configs for name in c.feature_names]
        self.projections = nn.ModuleDict(
            {
                c.name: nn.Linear(c.embedding_dim, dim, bias=False, device=device)
                for c in configs
                if c.embedding_dim != dim
            }
        )

    def forward(self, features: KeyedJaggedTensor | Lookups) -> torch.Tensor:
        if self.hot_lookup is None:
            pooled = self.embedding_bag_collection(features).to_dict()
        else:
            pooled = self.hot_lookup(self.embedding_bag_collection(features.cold), features.hot).to_dict()
        rows = []
        for column in self.sparse_feature_names:
            name = module_name(column)
            rows.append(self.projections[name](pooled[column]) if name in self.projections else pooled[column])
        return torch.stack(rows, dim=1)


class HotTrain(DLRMTrain):
    """DLRMTrain of a `HotBatch`."""

    def forward(self, batch: HotBatch) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        logits = self.model(batch.dense_features, Lookups(batch.sparse_features, batch.hot)).squeeze(-1)
        loss = self.loss_fn(logits, batch.labels.float())
        return loss, (loss.detach(), logits.detach(), batch.labels.detach())


def build_model(
    options: ModelOptions, dataset: Dataset, *, seed: int, device: torch.device, hot: bool = False
) -> DLRMTrain:
    """The unsharded model: MLPs on `device` with weights of `seed`, tables on the meta device.

    Args:
        hot: every rank is to hold rows of the tables: the model takes a `HotBatch`.

    Its output is (loss, (loss, logits [B], labels [B])); the loss is binary cross-entropy averaged over the B rows of
    the local batch.
    """
    configs = table_configs(options, dataset)
    dim = options.embedding_dim
    mixed = any(c.embedding_dim != dim for c in configs)
    tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    torch.manual_seed(seed)
    # TorchRec's classes insist on one dimension, so a mixed model is built over stand-ins of dimension D first.
    model = _dlrm(options, _uniform_stand_in(configs, dim) if mixed else tables, len(dataset.manifest.dense), device)
    if mixed or hot:
        model.sparse_arch = ProjectedSparseArch(tables, dim, device, hot)
    return HotTrain(model) if hot else DLRMTrain(model)


def _dlrm(options: ModelOptions, ebc: EmbeddingBagCollection, dense: int, device: torch.device) -> DLRM:
    dim = options.embedding_dim
    common = {
        "embedding_bag_collection": ebc,
        "dense_in_features": dense,
        "dense_arch_layer_sizes": [*options.dense_layers, dim],
        "over_arch_layer_sizes": [*options.over_layers, 1],
        "dense_device": device,
    }
    if options.arch == "dcn":
        return DLRM_DCN(**common, dcn_num_layers=options.dcn_layers, dcn_low_rank_dim=options.dcn_rank)
    if options.arch == "projection":
        branch = [options.projection_outputs * dim]
        return DLRM_Projection(**common, interaction_branch1_layer_sizes=branch, interaction_branch2_layer_sizes=branch)
    return DLRM(**common)


def _uniform_stand_in(configs: list[EmbeddingBagConfig], dim: int) -> EmbeddingBagCollection:
    tables = [
        EmbeddingBagConfig(name=c.name, feature_names=c.feature_names, num_embeddings=1, embedding_dim=dim)
        for c in configs
    ]
    return EmbeddingBagCollection(tables=tables, device=torch.device("meta"))


@torch.no_grad()
def init_tables(model: DistributedModelParallel, seed: int) -> None:
    """Fill every table shard in place from uniform(-1/sqrt(rows), 1/sqrt(rows)), TorchRec's own default.

    A value depends on (seed, table, row, column) only, so that runs with another number of workers or another
    sharding plan start from the same weights.
    """
    for key, value in model.state_dict().items():
        if TABLE_MARK not in key:
            continue
        table = key.split(TABLE_MARK)[1].removesuffix(".weight")
        if isinstance(value, ShardedTensor):
            rows = value.size(0)
            for shard in value.local_shards():
                top, left = shard.metadata.shard_offsets
                _fill(shard.tensor, table, seed, rows, value.size(1), top, left)
        else:
            _fill(value, table, seed, value.size(0), value.size(1), 0, 0)


def _fill(shard: torch.Tensor, table: str, seed: int, rows: int, columns: int, top: int, left: int) -> None:
    limit = rows**-0.5
    end = top + shard.size(0)
    for block in range(top // _INIT_BLOCK, -(-end // _INIT_BLOCK)):
        generator = torch.Generator(device=shard.device)
        generator.manual_seed(zlib.crc32(f"{seed}/{table}/{block}".encode()))
        start = block * _INIT_BLOCK
        drawn = torch.empty(min(_INIT_BLOCK, rows - start), columns, device=shard.device)
        drawn.uniform_(-limit, limit, generator=generator)
        first, last = max(top, start), min(end, start + drawn.size(0))
        shard[first - top : last - top] = drawn[first - start : last - start, left : left + shard.size(1)]
