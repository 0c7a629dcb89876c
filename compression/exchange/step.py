"""One batch through the exchange: what is the same whether rows or pooled rows travel."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from compression.errors import CorruptPayloadError
from compression.exchange.blocks import pack, unpack
from compression.exchange.link import Link
from compression.exchange.tables import Flat, Ints, Matrix, Span
from compression.id_lists import decode_id_lists, encode_id_lists


class Step:
    """A batch: `start`, `lookup_features`, `send_rows`, `receive_rows`, `send_gradients`, `receive_gradients`, in this
    order on all ranks. Each of the first three returns while messages are on their way.

    A *block* is what one rank gets of one shard: rows of the shard's columns, in float32. A rank keeps the blocks that
    it gets in one array, those of a rank's shards after each other; the owner has all of its blocks in the output of
    its lookup.

    Attributes:
        counts: int64 [shards], rows of each block that this rank gets.
        asked: int64 [ranks, own shards], rows of each block that this rank is the owner of.
        first, columns: int64 [ranks, own shards] and [own shards]: where these blocks lie in the lookup's output.
    """

    counts: Ints
    asked: Ints
    first: Ints
    columns: Ints

    def __init__(self, link: Link, features: KeyedJaggedTensor) -> None:
        if features.variable_stride_per_key():
            raise ValueError("the thin exchange takes one batch size for all features: give these tables path=torchrec")
        self.link, self.layout = link, link.layout
        self.device = features.device()
        self.keys = features.keys()
        self.batch = features.stride()
        self.values = to_array(features.values()).astype(np.int64, copy=False)
        self.offsets = to_array(features.offsets()).astype(np.int64, copy=False)
        if self.values.size != self.offsets[-1]:
            raise ValueError(f"{self.values.size} ids of {self.keys}, but bags of {self.offsets[-1]} in all")
        weights = features.weights_or_none()
        self.weighted = weights is not None
        self.weights = np.empty(0, np.float32) if weights is None else to_array(weights.float())
        link.stats.steps += 1

    # What differs between the paths.

    def lists(self) -> list[list[NDArray[Any]]]:
        """Arrays of integers for each rank, sent as ids."""
        raise NotImplementedError

    def features_of(self, lists: list[list[Ints]]) -> KeyedJaggedTensor:
        """What to look up, from the lists of all ranks; sets `asked`, `first` and `columns`.

        Raises:
            CorruptPayloadError: lists that no rank sends.
        """
        raise NotImplementedError

    def output(self, blocks: Flat) -> torch.Tensor:
        """Of the exchange, from the blocks that this rank got."""
        raise NotImplementedError

    def gradients(self, grad: Matrix) -> Flat:
        """Of the blocks, from that of the output."""
        raise NotImplementedError

    # What does not.

    def begin(self) -> None:
        """Ids start to travel."""
        lists = self.lists()
        payloads: list[NDArray[np.uint8] | None] = [None] * self.layout.ranks
        for peer in self.link.ids.peers:
            first, last = self.layout.spans[peer]
            if first == last:
                continue
            payload = payloads[peer] = encode_id_lists(lists[peer])
            raw = [array.nbytes for array in lists[peer]]
            each = len(raw) // (last - first)
            self.link.stats.add_ids(first, [sum(raw[at : at + each]) for at in range(0, len(raw), each)], payload.size)
        self._own_lists = [np.asarray(ids, np.int64) for ids in lists[self.layout.rank]]
        self._announced = self.link.ids.announce(payloads)

    def start(self) -> None:
        """The sizes are here, the ids travel."""
        self._arriving = self._announced.start()

    def lookup_features(self) -> KeyedJaggedTensor:
        """All ids are here."""
        payloads = self._arriving.wait()
        lists: list[list[Ints]] = []
        for rank in range(self.layout.ranks):
            if rank == self.layout.rank or self.layout.own[0] == self.layout.own[1]:
                lists.append(self._own_lists)
                continue
            try:
                lists.append(decode_id_lists(payloads[rank]))
            except CorruptPayloadError as error:
                raise self.link.ids.broken(rank, self.layout.rank, 0, str(error)) from error
        try:
            features = self.features_of(lists)
        except CorruptPayloadError as error:
            raise self.link.ids.broken(None, self.layout.rank, 0, str(error)) from error
        self._rows = self.link.rows.post(self._wanted, self._served)
        return features

    def send_rows(self, rows: torch.Tensor) -> None:
        """Send each rank its blocks of the lookup's output, float32 [rows, columns]."""
        table = to_array(rows)
        self._lookup_shape = rows.shape
        self._blocks = np.empty(int(self.bases[-1]), np.float32)
        for peer in self.link.ids.peers:
            self._rows.send(peer, self._pack(table, peer, self._block_of(peer)))
        self._rows.flush()
        rank = self.layout.rank
        self._pack(table, rank, self._span_of(self._blocks, rank))

    def receive_rows(self) -> torch.Tensor:
        for peer in self.link.ids.peers:
            self._rows.receive(peer, self._span_of(self._blocks, peer))
        self._rows.finish()
        return self.output(self._blocks).to(self.device)

    def send_gradients(self, grad: torch.Tensor) -> None:
        """Of the output, which then go to the owners of the blocks."""
        self._messages = self.link.gradients.post(self._served, self._wanted)
        self._sums = self.gradients(to_array(grad))
        for peer in self.link.ids.peers:
            self._messages.send(peer, self._span_of(self._sums, peer))
        self._messages.flush()

    def receive_gradients(self) -> torch.Tensor:
        """Of the lookup's output, divided by the number of ranks, so that tables see the gradient of the loss averaged
        over the global batch; as TorchRec does it, also where a user has turned that off."""
        table = np.zeros(self._lookup_shape, np.float32)
        rank = self.layout.rank
        self._unpack(self._span_of(self._sums, rank), rank, table)
        for peer in self.link.ids.peers:
            flat = self._block_of(peer)
            self._messages.receive(peer, flat)
            self._unpack(flat, peer, table)
        self._messages.finish()
        return torch.from_numpy(table).to(self.device)

    @cached_property
    def bases(self) -> Ints:
        """int64 [shards + 1]: where each block that this rank gets begins."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts * self.layout.dims)])

    @cached_property
    def _own_dims(self) -> Ints:
        return self.layout.dims[slice(*self.layout.own)]

    @cached_property
    def _wanted(self) -> list[Span]:
        """By rank, the blocks that this rank gets from it."""
        return [Span(first, self.counts[first:last]) for first, last in self.layout.spans]

    @cached_property
    def _served(self) -> list[Span]:
        """By rank, the blocks that it gets from this rank."""
        return [Span(self.layout.own[0], asked) for asked in self.asked]

    def _block_of(self, peer: int) -> Flat:
        """Room for the blocks that a rank gets from this one."""
        return np.empty(int((self.asked[peer] * self._own_dims).sum()), np.float32)

    def _pack(self, table: Matrix, peer: int, flat: Flat) -> Flat:
        if flat.size:
            pack(table, self.first[peer], self.asked[peer], self.columns, self._own_dims, flat)
        return flat

    def _unpack(self, flat: Flat, peer: int, table: Matrix) -> None:
        if flat.size:
            divisor = self.layout.ranks if get_gradient_division() else 1
            unpack(flat, self.first[peer], self.asked[peer], self.columns, self._own_dims, divisor, table)

    def _span_of(self, blocks: Flat, peer: int) -> Flat:
        """The blocks that are the peer's."""
        first, last = self.layout.spans[peer]
        return blocks[self.bases[first] : self.bases[last]]


def to_array(tensor: torch.Tensor) -> NDArray[Any]:
    """A contiguous NumPy view of a CPU tensor, or of a copy where it is another."""
    return tensor.detach().cpu().contiguous().numpy()
