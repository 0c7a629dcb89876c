"""TorchRec's parts of a sharded module, with the thin exchange in the place of its input and output dist."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
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
    """What the shardings below have in common."""

    config: ExchangeConfig
    link: Link

    def _connect(self, path: str, layout: Layout) -> None:
        self.link = Link(layout, self.config, path, cast(Any, self)._pg)

    def create_output_dist(self, device: torch.device | None = None) -> nn.Module:  # noqa: ARG002
        return ThinOutputDist()


class RowSharding(_Thin, CwPooledEmbeddingSharding):
    """The row exchange of pooled tables, whole ones and columns of them."""

    def __init__(self, config: ExchangeConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.config = config
        self._connect("row", read_layout(self))

    def create_input_dist(self, device: torch.device | None = None) -> nn.Module:  # noqa: ARG002
        distinct = _distinct(self.link.layout)
        return ThinInputDist(lambda features: RowStep(self.link, distinct, features))


class PooledSharding(_Thin, CwPooledEmbeddingSharding):
    """The pooled exchange, of whole tables and columns of them."""

    def __init__(self, config: ExchangeConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.config = config
        layout = read_layout(self)
        shards = [
            replace(s, features=(feature,), columns=(column,))
            for s in layout.shards
            for feature, column in zip(s.features, s.columns, strict=True)
        ]
        self._connect("pooled", replace(layout, shards=tuple(shards)))

    def create_input_dist(self, device: torch.device | None = None) -> nn.Module:  # noqa: ARG002
        return ThinInputDist(lambda features: PooledStep(self.link, features))


class SequenceSharding(_Thin, CwSequenceEmbeddingSharding):
    """The row exchange of tables that are not pooled."""

    def __init__(self, config: ExchangeConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.config = config
        self._connect("row", read_layout(self))

    def create_input_dist(self, device: torch.device | None = None) -> nn.Module:  # noqa: ARG002
        distinct = _distinct(self.link.layout)
        return ThinInputDist(lambda features: SequenceStep(self.link, distinct, features))


def _distinct(layout: Layout) -> Distinct:
    return Distinct(layout.rows.tolist(), layout.first_features.tolist(), [shard.table for shard in layout.shards])
