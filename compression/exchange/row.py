"""The row exchange: a rank asks owners for distinct rows, pools by itself, and sends back one gradient a row.

Each row that a rank needs travels once, in whatever many bags it is, and so does the sum of its gradients (arXiv
2411.01611 removes duplicates of lookups the same way).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from compression.errors import CorruptPayloadError
from compression.exchange.distinct import Distinct
from compression.exchange.link import Link
from compression.exchange.pooling import gather, gather_backward, pool, pool_backward
from compression.exchange.step import Flat, Ints, Matrix, Step


class RowStep(Step):
    """Of tables whose rows are pooled, each block the distinct rows of a shard."""

    def __init__(self, link: Link, distinct: Distinct, features: KeyedJaggedTensor) -> None:
        super().__init__(link, features)
        self.ids, self.inverse, self.counts = distinct(self.values, self.offsets, self.batch)
        starts = self.layout.first_features[:-1] * self.batch
        stops = self.layout.first_features[1:] * self.batch
        link.stats.lookups += self.offsets[stops] - self.offsets[starts]
        link.stats.distinct += self.counts

    def lists(self) -> list[list[NDArray[Any]]]:
        parts = np.split(self.ids, np.cumsum(self.counts)[:-1]) if self.counts.size else []
        return [parts[first:last] for first, last in self.layout.spans]

    def features_of(self, lists: list[list[Ints]]) -> KeyedJaggedTensor:
        own = self.layout.shards[slice(*self.layout.own)]
        for rank, of in enumerate(lists):
            if len(of) != len(own):
                raise CorruptPayloadError(f"lists from rank {rank}", f"{len(of)} of {len(own)} tables")
            for shard, ids in zip(own, of, strict=True):
                if ids.size and not (ids[0] >= 0 and ids[-1] < shard.rows and (ids[1:] > ids[:-1]).all()):
                    raise CorruptPayloadError(
                        f"ids of table {shard.table} from rank {rank}", f"not ascending in 0 to {shard.rows - 1}"
                    )
        self.asked = np.array([[ids.size for ids in of] for of in lists], np.int64).reshape(len(lists), len(own))
        by_shard = [of[i] for i in range(len(own)) for of in lists]
        values = torch.from_numpy(np.concatenate([np.empty(0, np.int64), *by_shard]))
        return self._features(values, [self.keys[place] for shard in own for place in shard.features])

    def _features(self, values: torch.Tensor, keys: list[str]) -> KeyedJaggedTensor:
        """A bag of one for each id, under the first feature of its table; all features have as many bags."""
        self.first = np.cumsum(self.asked, axis=0) - self.asked
        self.columns = self.layout.own_columns
        totals = self.asked.sum(axis=0)
        bags = max(int(totals.max(initial=0)), 1)
        lengths = np.zeros((len(keys), bags), np.int64)
        at = 0
        for shard, total in zip(self.layout.shards[slice(*self.layout.own)], totals.tolist(), strict=True):
            lengths[at, :total] = 1
            at += len(shard.features)
        return KeyedJaggedTensor(
            keys=keys,
            values=values.to(self.device),
            lengths=torch.from_numpy(lengths.reshape(-1)).to(self.device),
            weights=torch.ones(values.numel(), device=self.device) if self.weighted else None,
            stride=bags,
        )

    def output(self, blocks: Flat) -> torch.Tensor:
        out = np.empty((self.batch, self.layout.width), np.float32)
        pool(blocks, *self._bags, self.weights, out)
        return torch.from_numpy(out)

    def gradients(self, grad: Matrix) -> Flat:
        sums = np.empty(int(self.bases[-1]), np.float32)
        pool_backward(grad, *self._bags, self.weights, sums)
        return sums

    @property
    def _bags(self) -> tuple[Any, Any, Any, Any, Any, Any, Any, Any]:
        of, bases = self.layout, self.bases[:-1]
        return bases, of.dims, of.first_features, of.columns, of.means, self.offsets, self.batch, self.inverse


class SequenceStep(RowStep):
    """Of tables whose rows are not pooled: the output has a row for each id."""

    def _features(self, values: torch.Tensor, keys: list[str]) -> KeyedJaggedTensor:
        # The lookup has all rows below each other, those of a shard for one rank after another.
        by_shard = self.asked.T.reshape(-1)
        self.first = (np.cumsum(by_shard) - by_shard).reshape(self.asked.T.shape).T.copy()
        self.columns = np.zeros(self.asked.shape[1], np.int64)
        lengths, totals = [], self.asked.sum(axis=0).tolist()
        for shard, total in zip(self.layout.shards[slice(*self.layout.own)], totals, strict=True):
            lengths += [total] + [0] * (len(shard.features) - 1)
        return KeyedJaggedTensor(
            keys=keys,
            values=values.to(self.device),
            lengths=torch.tensor(lengths, dtype=torch.int64, device=self.device),
            stride=1,
        )

    def output(self, blocks: Flat) -> torch.Tensor:
        out = np.empty((self.values.size, self._dim), np.float32)
        gather(blocks, *self._positions, out)
        return torch.from_numpy(out)

    def gradients(self, grad: Matrix) -> Flat:
        sums = np.empty(int(self.bases[-1]), np.float32)
        gather_backward(grad, *self._positions, sums)
        return sums

    @property
    def _dim(self) -> int:
        return int(self.layout.dims.max(initial=0))

    @property
    def _positions(self) -> tuple[Any, Any, Any, Any, Any, Any]:
        return self.bases[:-1], self._dim, self.layout.first_features, self.offsets, self.batch, self.inverse
