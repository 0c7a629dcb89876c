"""A hook of DDP that sends the gradients of the other parameters through the same channels and codec.

Every rank sends each other one that one's slice of the gradients, takes the mean of its own slice, and sends it to all:
two exchanges, each of which is one message to a rank, where a ring has 2 (W - 1) steps. Means are taken in the order of
ranks and of parameters, so they do not depend on how DDP fills its buckets; all ranks get the same bits.

Weights [outputs, inputs] travel as a table with a row an input: gradients of one input are of one size, which the codec
sees, and for many they are zero. On the DLRM of the demo that takes a third fewer bits than value after value.
"""

# No `from __future__ import annotations`: DDP compares the types of a hook's signature, which must not be strings.
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn
from torch.autograd import Variable
from torch.futures import Future

from compression.codec import Codec, Relative
from compression.exchange.dense_slices import Slices, from_values, to_values
from compression.exchange.link import next_number
from compression.exchange.stats import TableStats
from compression.exchange.tables import Coding, Flat, Span, TableChannel
from compression.exchange.transport import Channel, Schedule

SLOW_LINK = 125e6
"""Bytes per second, up to which huffman is worth its time: it takes some 0.3 ms more for MLPs of 60,000 parameters than
bitpack, and saves some 35 KB."""


class DenseExchange:
    """State of `dense_hook`. All ranks must make it in the same order.

    Args:
        group: of all ranks.
        parameters: those whose gradients DDP averages, in an order that is the same in every run.
        bound: largest error of a gradient that is sent, as a share of the range of the part of a parameter's gradients
            that is sent; each is sent twice. 0 = bit for bit.
        chain: of the codec; auto = huffman or bitpack by the rate of the link alone, not by a trial: under bounds as
            tight as these the odd value depends on the chain, and a resumed run is to go on with the same bits.
        link: bytes per second of a rank's link, for `auto`; `set_link` changes it.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        parameters: Sequence[nn.Parameter],
        bound: float = 0.002,
        chain: str = "auto",
        *,
        link: float = 125e6,
        timeout_s: float = 300.0,
        schedule: Schedule = "auto",
    ) -> None:
        self.parameters = list(parameters)
        self.rank, self.ranks = group.rank(), group.size()
        self._of = Slices(self.parameters, self.ranks)
        names = tuple(f"parameter {i}" for i in range(self._of.dims.size))
        coding = Coding([Relative(bound) if bound else 0.0] * len(names), [_chain(chain, link)] * len(names))
        stats = TableStats(names, "dense", ("dense",))
        self._asked = chain
        codec = Codec(link=link, exact=False)
        self._slices, self._means = (
            TableChannel(
                Channel(group, kind="dense", number=next_number(), timeout_s=timeout_s, schedule=schedule),
                names,
                self._of.dims,
                coding,
                codec,
                stats,
                chunk_bytes=1 << 20,
                verify=False,
            )
            for _ in range(2)
        )
        self._gradients: list[torch.Tensor] = []
        self._waiting: list[tuple[dist.GradBucket, Future[torch.Tensor]]] = []

    def set_link(self, bytes_per_second: float) -> None:
        """The rate of the link, by which the chain `auto` decides from now on."""
        for tables in (self._slices, self._means):
            tables.use_chain(_chain(self._asked, bytes_per_second))

    def reduce(self, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        """The future of a bucket's means. When the last bucket is full they start to travel; the rest is done when the
        backward pass ends."""
        future: Future[torch.Tensor] = Future()
        self._waiting.append((bucket, future))
        if bucket.is_last():
            self._start(self._values())
            # It comes before the one that DDP waits for the futures in.
            Variable._execution_engine.queue_callback(self._end)
        return future

    def average(self, values: Flat) -> Flat:
        """The means of all ranks' float32 [parameters' values], in the order of `to_values`; the same bits on all."""
        self._start(values)
        return self._finish()

    def _values(self) -> Flat:
        self._gradients = _by_parameter(self.parameters, [bucket for bucket, _ in self._waiting])
        return to_values(self._gradients)

    def _end(self) -> None:
        from_values(self._finish(), self._of.ends, self._gradients)
        waiting, self._waiting, self._gradients = self._waiting, [], []
        for bucket, future in waiting:
            future.set_result(bucket.buffer())

    def _start(self, values: Flat) -> None:
        """Send each rank its slice."""
        self._mine = values
        if self.ranks == 1:
            return
        each = [Span(int(first), rows) for first, rows in zip(self._of.firsts, self._of.rows, strict=False)]
        own = [each[self.rank]] * self.ranks
        self._gathering = self._slices.post(own, each)
        self._spreading = self._means.post(each, own)
        for peer in self._slices.channel.peers:
            self._gathering.send(peer, self._slice(values, peer))
        self._gathering.flush()

    def _finish(self) -> Flat:
        """Take the mean of the own slice, send it to all, and get the others'."""
        values, peers = self._mine, self._slices.channel.peers
        if not peers:
            return values
        own = self._slice(values, self.rank)
        of_ranks = np.empty((self.ranks, own.size), np.float32)
        of_ranks[self.rank] = own
        for peer in peers:
            self._gathering.receive(peer, of_ranks[peer])
        self._gathering.finish()
        mean = of_ranks[0].copy()
        for rank in range(1, self.ranks):
            mean += of_ranks[rank]
        mean /= self.ranks
        means = np.empty_like(values)
        self._spreading.send_all(mean, self._slice(means, self.rank))
        self._spreading.flush()
        for peer in peers:
            self._spreading.receive(peer, self._slice(means, peer))
        self._spreading.finish()
        return means

    def _slice(self, values: NDArray[np.float32], rank: int) -> Flat:
        return values[self._of.cuts[rank] : self._of.cuts[rank + 1]]


def _chain(asked: str, link: float) -> str:
    if asked != "auto":
        return asked
    return "huffman" if link <= SLOW_LINK else "bitpack"


def _by_parameter(parameters: Sequence[nn.Parameter], buckets: Sequence[dist.GradBucket]) -> list[torch.Tensor]:
    """Views of the buckets, in the order of the parameters."""
    found = {
        id(parameter): gradient
        for bucket in buckets
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True)
    }
    return [found[id(parameter)] for parameter in parameters]


def dense_hook(state: DenseExchange, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """For `DistributedDataParallel.register_comm_hook(DenseExchange(...), dense_hook)`."""
    return state.reduce(bucket)
