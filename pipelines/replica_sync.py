"""The sync of hot rows by the messages and the codec of the thin exchange.

Slots are dealt out to ranks like cards: rank s mod W sums the gradients of slot s, so that slots ranked by frequency
make no rank the busiest. A rank tells each of them which of its slots it touched (a list of ids, in the forward pass),
then sends these slots' gradients; each adds them up in the order of ranks and sends the sums to all. It uses what the
others decode of them, so all ranks apply the same bits under any bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from cache import kernel
from cache.tables import Ints, Slots
from compression import Bound, Codec, decode_id_lists, encode_id_lists
from compression.errors import CorruptPayloadError
from compression.exchange.config import ExchangeConfig
from compression.exchange.link import next_number
from compression.exchange.messages import Announced, Arriving
from compression.exchange.stats import KINDS, TableStats
from compression.exchange.tables import Coding, Span, TableChannel
from compression.exchange.transport import Channel

Floats = NDArray[np.float32]
_KIND = "replica"


class ThinSync:
    """A `cache.sync.Sync`. All ranks must make it in the same order.

    Args:
        bounds, chains: of the gradients of each table, as those of cold rows have them. Each value is sent twice.
        link: bytes per second, what the chain `auto` decides by.

    Attributes:
        stats: what it sent.
    """

    def __init__(
        self,
        slots: Slots,
        group: dist.ProcessGroup,
        bounds: Sequence[Bound],
        chains: Sequence[str],
        *,
        link: float = 125e6,
        timeout_s: float = 300.0,
        stochastic: bool = False,
        verify: bool = False,
    ) -> None:
        self._slots, self._rank, self._ranks = slots, group.rank(), group.size()
        names = tuple(table.name for table in slots.tables)
        dims = np.array([table.dim for table in slots.tables], np.int64)
        self.stats = TableStats(names, _KIND, (*KINDS, _KIND))
        self._codec = Codec(link=link, exact=False)

        def channel() -> Channel:
            return Channel(group, kind=_KIND, number=next_number(), timeout_s=timeout_s)

        def tables() -> TableChannel:
            coding = Coding(bounds, chains, stochastic)
            settings: dict[str, Any] = {"chunk_bytes": 1 << 20, "verify": verify}
            return TableChannel(channel(), names, dims, coding, self._codec, self.stats, **settings)

        self._touches, self._unions = channel(), channel()
        self._gradients, self._sums = tables(), tables()
        self._peers = self._touches.peers

    def set_rate(self, bytes_per_second: float) -> None:
        """Of the network link; what the chain `auto` decides by."""
        self._codec.set_link(bytes_per_second)

    def scale_bounds(self, rows: float, gradients: float) -> None:  # noqa: ARG002
        """From the next message on, bounds so many times as large as the stated ones; rows do not travel."""
        self._gradients.scale_bounds(gradients)
        self._sums.scale_bounds(gradients)

    def use_chain(self, chain: str) -> None:
        """From the next message on, code all tables by this chain."""
        self._gradients.use_chain(chain)
        self._sums.use_chain(chain)

    def announce(self, touched: Ints) -> None:
        self.stats.steps += 1
        self._touched = touched
        owners = touched % self._ranks
        self._mine = [np.flatnonzero(owners == rank) for rank in range(self._ranks)]
        lists: list[NDArray[np.uint8] | None] = [None] * self._ranks
        for peer in self._peers:
            lists[peer] = encode_id_lists([touched[self._mine[peer]] // self._ranks])
        self._telling = self._touches.announce(lists)

    def send(self, gradients: Floats) -> None:
        self._of_ranks = self._lists(self._touches, self._telling.start(), self._touched[self._mine[self._rank]])
        self._union = np.unique(np.concatenate(self._of_ranks))
        payload = encode_id_lists([self._union // self._ranks])
        self._uniting: Announced = self._unions.announce([payload] * self._ranks)
        asked = [self._span(self._touched[mine]) for mine in self._mine]
        self._messages = self._gradients.post([self._span(of) for of in self._of_ranks], asked)
        starts = self._slots.starts(self._touched)
        for rank in [*self._peers, self._rank]:
            slots, mine = self._touched[self._mine[rank]], self._mine[rank]
            part = np.empty(self._slots.size_of(slots), np.float32)
            kernel.take(gradients, starts[mine], self._slots.dims[slots], part)
            if rank == self._rank:
                self._own = part
            else:
                self._messages.send(rank, part)
        self._messages.flush()

    def reduce(self) -> None:
        unions = self._lists(self._unions, self._uniting.start(), self._union, sent_by_owner=True)
        starts = self._slots.starts(self._union)
        sums = np.zeros(self._slots.size_of(self._union), np.float32)
        for rank in range(self._ranks):
            slots = self._of_ranks[rank]
            part = self._own if rank == self._rank else np.empty(self._slots.size_of(slots), np.float32)
            if rank != self._rank:
                self._messages.receive(rank, part)
            kernel.add(part, starts[np.searchsorted(self._union, slots)], self._slots.dims[slots], sums)
        self._messages.finish()
        self._of_all = unions
        sizes = [self._slots.size_of(union) for union in unions]
        self._ends = np.cumsum([0, *sizes])
        self._values = np.empty(int(self._ends[-1]), np.float32)
        own = self._part(self._rank)
        if not self._peers:
            own[:] = sums
            return
        self._spreading = self._sums.post(
            [self._span(union) for union in unions], [self._span(self._union)] * self._ranks
        )
        self._spreading.send_all(sums, own)
        self._spreading.flush()

    def receive(self) -> tuple[Ints, Floats]:
        if self._peers:
            for peer in self._peers:
                self._spreading.receive(peer, self._part(peer))
            self._spreading.finish()
        return np.concatenate(self._of_all), self._values

    def _part(self, rank: int) -> Floats:
        return self._values[self._ends[rank] : self._ends[rank + 1]]

    def _span(self, slots: Ints) -> Span:
        return Span(0, self._slots.by_table(slots))

    def _lists(self, channel: Channel, arriving: Arriving, own: Ints, sent_by_owner: bool = False) -> list[Ints]:
        """The slots that each rank told of: such that this rank owns, or that the sender does."""
        payloads = arriving.wait()
        lists = []
        for rank in range(self._ranks):
            if rank == self._rank:
                lists.append(own)
                continue
            try:
                (numbers,) = decode_id_lists(payloads[rank])
                lists.append(self._check(numbers * self._ranks + (rank if sent_by_owner else self._rank)))
            except (CorruptPayloadError, ValueError) as error:
                raise channel.broken(rank, self._rank, 0, str(error)) from error
        return lists

    def _check(self, slots: Ints) -> Ints:
        if slots.size and not (slots[0] >= 0 and slots[-1] < self._slots.size and (slots[1:] > slots[:-1]).all()):
            raise CorruptPayloadError("slots of hot rows", f"not ascending in 0 to {self._slots.size - 1}")
        return slots


def thin_sync(slots: Slots, config: ExchangeConfig, group: dist.ProcessGroup) -> ThinSync:
    """With the bounds that the gradients of the tables' cold rows have."""
    directions = [config.of(table.name).backward for table in slots.tables]
    return ThinSync(
        slots,
        group,
        [direction.bound for direction in directions],
        [direction.codec for direction in directions],
        link=config.link,
        timeout_s=config.timeout_s,
        stochastic=config.stochastic,
        verify=config.verify,
    )
