"""Batches whose hot ids have been taken out, in the background, before the exchange sees them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torchrec.datasets.utils import Batch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from cache.split import HotLookups, part
from cache.tables import HotSet
from pipelines.errors import UserError


@dataclass
class HotBatch(Batch):
    """A batch whose `sparse_features` are the cold ids alone."""

    hot: HotLookups
    whole: KeyedJaggedTensor
    """All ids, in host memory."""

    def to(self, device: torch.device, non_blocking: bool = False) -> HotBatch:
        moved = super().to(device, non_blocking)
        return HotBatch(moved.dense_features, moved.sparse_features, moved.labels, self.hot, self.whole)

    def pin_memory(self) -> HotBatch:
        pinned = super().pin_memory()
        return HotBatch(pinned.dense_features, pinned.sparse_features, pinned.labels, self.hot, self.whole)


class Splitter:
    """Takes the hot ids out of batches.

    Args:
        distinct: find the distinct cold ids too.

    Attributes:
        hot: the set that the next batch is split by.
    """

    def __init__(self, hot: HotSet, distinct: bool = False) -> None:
        self.hot, self._distinct = hot, distinct

    def __call__(self, batch: Batch) -> HotBatch:
        """
        Raises:
            UserError: an id that its table has no row for.
        """
        whole = batch.whole if isinstance(batch, HotBatch) else batch.sparse_features
        hot_set = self.hot  # Another thread may set another one.
        # A KJT in another order would be taken for other tables.
        assert whole.keys() == hot_set.slots.features
        weights = whole.weights_or_none()
        try:
            cold, hot = part(
                hot_set,
                whole.values().numpy(),
                whole.lengths().numpy(),
                whole.stride(),
                np.empty(0, np.float32) if weights is None else weights.numpy(),
                distinct=self._distinct,
            )
        except IndexError as error:
            raise UserError(str(error), where="batch", fix="prepare the data again") from error
        features = KeyedJaggedTensor(
            keys=whole.keys(),
            values=torch.from_numpy(cold.values),
            lengths=torch.from_numpy(cold.lengths),
            weights=None if weights is None else torch.from_numpy(cold.weights),
            stride=whole.stride(),
            length_per_key=cold.lengths.reshape(len(whole.keys()), -1).sum(axis=1, dtype=np.int64).tolist(),
        )
        return HotBatch(batch.dense_features, features, batch.labels, hot, whole)

    def again(self, batch: Batch) -> HotBatch:
        """A batch that was split, anew if that was by another set."""
        assert isinstance(batch, HotBatch)
        return batch if batch.hot.version == self.hot.version else self(batch)
