"""The pooled exchange: owners pool, and send each rank one row a bag. It is TorchRec's own way, for long bags; ids,
lengths, rows and gradients are compressed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from compression.errors import CorruptPayloadError
from compression.exchange.blocks import pack, unpack
from compression.exchange.distinct import no_row
from compression.exchange.layout import Shard
from compression.exchange.link import Link
from compression.exchange.step import Flat, Ints, Matrix, Step


class PooledStep(Step):
    """Each shard of the layout has one feature; a block has a row for each bag of a rank."""

    def __init__(self, link: Link, features: KeyedJaggedTensor) -> None:
        super().__init__(link, features)
        count = len(self.layout.shards)
        self.counts = np.full(count, self.batch, np.int64)
        sizes = np.diff(self.offsets[:: self.batch]) if self.batch else np.zeros(count, np.int64)
        self._check_ids(sizes)
        link.stats.lookups += sizes
        link.stats.distinct += sizes

    def lists(self) -> list[list[NDArray[Any]]]:
        """Lengths of bags, ids, and if there are weights their bits, for each shard."""
        found: list[list[NDArray[Any]]] = []
        for first, last in self.layout.spans:
            of: list[NDArray[Any]] = []
            for feature in range(first, last):
                offsets = self.offsets[feature * self.batch : (feature + 1) * self.batch + 1]
                start, stop = int(offsets[0]), int(offsets[-1])
                of += [np.diff(offsets), self.values[start:stop]]
                if self.weighted:
                    of.append(self.weights[start:stop].view(np.int32))
            found.append(of)
        return found

    def features_of(self, lists: list[list[Ints]]) -> KeyedJaggedTensor:
        own = self.layout.shards[slice(*self.layout.own)]
        each = len(lists[self.layout.rank]) // max(len(own), 1)
        for rank, of in enumerate(lists):
            _check(own, of, each, rank)
        batches = [of[0].size if of else 0 for of in lists]
        self.asked = np.repeat(np.array(batches, np.int64)[:, None], len(own), axis=1)
        self.first = np.cumsum(self.asked, axis=0) - self.asked
        self.columns = self.layout.own_columns
        lengths, values, weights = (
            np.concatenate([np.empty(0, np.int64), *(of[each * i + k] for i in range(len(own)) for of in lists)])
            if k < each
            else None
            for k in range(3)
        )
        return KeyedJaggedTensor(
            keys=[self.keys[place] for shard in own for place in shard.features],
            values=_tensor(values).to(self.device),
            lengths=_tensor(lengths).to(self.device),
            weights=None if weights is None else _tensor(weights.astype(np.int32).view(np.float32)).to(self.device),
            stride=sum(batches),
        )

    def output(self, blocks: Flat) -> torch.Tensor:
        out = np.empty((self.batch, self.layout.width), np.float32)
        unpack(blocks, *self._places, 1.0, out)
        return torch.from_numpy(out)

    def gradients(self, grad: Matrix) -> Flat:
        flat = np.empty(int(self.bases[-1]), np.float32)
        pack(grad, *self._places, flat)
        return flat

    def _check_ids(self, sizes: Ints) -> None:
        """Raises IndexError: an id that its table has no row for."""
        rows = self.layout.rows
        # A negative id is a large one without its sign.
        bad = self.values.view(np.uint64) >= np.repeat(rows, sizes).view(np.uint64)
        if bad.any():
            at = int(bad.argmax())
            shard = int(np.searchsorted(np.cumsum(sizes), at, "right"))
            raise no_row(int(self.values[at]), self.layout.shards[shard].table, int(rows[shard]), shard, at)

    @property
    def _places(self) -> tuple[Ints, Ints, Ints, Ints]:
        """First row, rows, first column and columns of each block in the output."""
        return np.zeros_like(self.counts), self.counts, self.layout.columns, self.layout.dims


def _tensor(array: NDArray[Any] | None) -> torch.Tensor:
    return torch.empty(0, dtype=torch.int64) if array is None else torch.from_numpy(array)


def _check(own: tuple[Shard, ...], of: list[Ints], each: int, rank: int) -> None:
    """Raises CorruptPayloadError unless the lists of a rank make bags of ids of the own tables."""
    if len(of) != each * len(own):
        raise CorruptPayloadError(f"lists from rank {rank}", f"{len(of)}, not {each} for each of {len(own)} tables")
    for i, shard in enumerate(own):
        lengths, ids = of[each * i], of[each * i + 1]
        bad = lengths.size != of[0].size or (lengths < 0).any() or lengths.sum() != ids.size
        if bad or (each == 3 and of[each * i + 2].size != ids.size):
            raise CorruptPayloadError(f"bags of table {shard.table} from rank {rank}", "lengths and ids do not match")
        if ids.size and not (ids.min() >= 0 and ids.max() < shard.rows):
            raise CorruptPayloadError(f"ids of table {shard.table} from rank {rank}", f"not in 0 to {shard.rows - 1}")
