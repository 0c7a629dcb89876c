"""TorchRec's parts of a sharded module, with the thin exchange in the place of its input and output dist."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.embedding_sharding import BaseEmbeddingDist, BaseSparseFeaturesDist
from torchrec.distributed.sharding.cw_sequence_sharding import CwSequenceEmbeddingSharding
from torchrec.distributed.sharding.cw_sharding import CwPooledEmbeddingSharding
from torchrec.distributed.types import Awaitable
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from compression.exchange.autograd import exchange
from compression.exchange.config import ExchangeConfig
from compression.exchange.distinct import Distinct
from compression.exchange.layout import Layout, read_layout
from compression.exchange.link import Link
from compression.exchange.notes import leave_note
from compression.exchange.pooled import PooledStep
from compression.exchange.row import RowStep, SequenceStep
from compression.exchange.step import Step

Begin = Callable[[KeyedJaggedTensor], Step]


class ThinInputDist(BaseSparseFeaturesDist[KeyedJaggedTensor]):
    """Sends ids to the owners of their rows. An id that its table has no row for is an IndexError."""

    def __init__(self, make_step: Begin) -> None:
        super().__init__()
        self._make_step = make_step

    def forward(self, sparse_features: KeyedJaggedTensor) -> Awaitable[Awaitable[KeyedJaggedTensor]]:
        try:
            step = self._make_step(sparse_features)
        except IndexError as error:
            leave_note(f"ids: {error}")
            raise
        step.begin()
        return Sizes(step)


class Sizes(Awaitable[Awaitable[KeyedJaggedTensor]]):
    """Of the messages of ids."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step

    def _wait_impl(self) -> Awaitable[KeyedJaggedTensor]:
        self.step.start()
        return _Ids(self.step)


class _Ids(Awaitable[KeyedJaggedTensor]):
    def __init__(self, step: Step) -> None:
        super().__init__()
        self._step = step

    def _wait_impl(self) -> KeyedJaggedTensor:
        return self._step.lookup_features()


class ThinOutputDist(BaseEmbeddingDist[Any, torch.Tensor, torch.Tensor]):
    """Sends what was looked up to the ranks that asked. The context has the step of the batch, see `keep_steps`."""

    def forward(self, local_embs: torch.Tensor, sharding_ctx: Any = None) -> Awaitable[torch.Tensor]:
        return exchange(local_embs, sharding_ctx.step)


def keep_steps(awaitables: list[Any], contexts: list[Any]) -> None:
    """Hand the step of a batch from the input dists of a module to its output dists."""
    for awaitable, context in zip(awaitables, contexts, strict=True):
        if isinstance(awaitable, Sizes):
            context.step = awaitable.step


class _Thin:
    """What the shardings below have in common: a link, and the exchange in the place of TorchRec's input and output
    dist. It stands before a `BaseCwEmbeddingSharding`."""

    path = "row"
    _pg: dist.ProcessGroup | None

    def __init__(self, config: ExchangeConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert self._pg is not None
        self.link = Link(self._layout(), config, self.path, self._pg)

    def _layout(self) -> Layout:
        return read_layout(self)

    def _begin(self) -> Begin:
        """What makes a step of a batch."""
        raise NotImplementedError

    def create_input_dist(self, device: torch.device | None = None) -> nn.Module:  # noqa: ARG002
        return ThinInputDist(self._begin())

    def create_output_dist(self, device: torch.device | None = None) -> nn.Module:  # noqa: ARG002
        return ThinOutputDist()


class _Rows(_Thin):
    """Of shardings whose tables go by the row exchange."""

    step = RowStep

    def _begin(self) -> Begin:
        of = self.link.layout
        distinct = Distinct(of.rows.tolist(), of.first_features.tolist(), [shard.table for shard in of.shards])
        return lambda features: self.step(self.link, distinct, features)


class RowSharding(_Rows, CwPooledEmbeddingSharding):
    """The row exchange of pooled tables, whole ones and columns of them."""


class SequenceSharding(_Rows, CwSequenceEmbeddingSharding):
    """The row exchange of tables that are not pooled."""

    step = SequenceStep


class PooledSharding(_Thin, CwPooledEmbeddingSharding):
    """The pooled exchange, of whole tables and columns of them."""

    path = "pooled"

    def _layout(self) -> Layout:
        layout = read_layout(self)
        shards = [
            replace(s, features=(feature,), columns=(column,))
            for s in layout.shards
            for feature, column in zip(s.features, s.columns, strict=True)
        ]
        return replace(layout, shards=tuple(shards))

    def _begin(self) -> Begin:
        return lambda features: PooledStep(self.link, features)
