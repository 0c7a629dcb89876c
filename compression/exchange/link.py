"""What a module sends through: its layout, a channel for ids and one for tables in each direction, and the counters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
import torch.distributed as dist

from compression.codec import Codec
from compression.exchange.config import ExchangeConfig
from compression.exchange.errors import ExchangeError
from compression.exchange.layout import Layout
from compression.exchange.stats import TableStats
from compression.exchange.tables import Coding, TableChannel
from compression.exchange.transport import Channel

_numbers = itertools.count()
"""Ranks make the same modules in the same order, so they give a channel the same number."""


class Link:
    """Channels of the tables of one module that go the same path. All ranks must make it in the same order.

    Args:
        path: `row` or `pooled`, for the counters.
        group: of all ranks.
    """

    def __init__(self, layout: Layout, config: ExchangeConfig, path: str, group: dist.ProcessGroup) -> None:
        self.layout, self.config, self.group = layout, config, group
        tables = tuple(shard.table for shard in layout.shards)
        policies = [config.of(table) for table in tables]
        self.stats = TableStats(tables, path)
        self._codec = Codec(link=config.link)
        forward, backward = [p.forward for p in policies], [p.backward for p in policies]
        self.ids = self._channel("ids")
        self.rows = self._tables("output_dist", Coding([d.bound for d in forward], [d.codec for d in forward]))
        self.gradients = self._tables(
            "gradients", Coding([d.bound for d in backward], [d.codec for d in backward], config.stochastic)
        )
        self._agreed = False

    def _channel(self, kind: str) -> Channel:
        return Channel(
            self.group,
            kind=kind,
            number=next(_numbers),
            timeout_s=self.config.timeout_s,
            schedule=self.config.schedule,
            describe=lambda source, target, _: self._describe(kind, source, target),
        )

    def _tables(self, kind: str, coding: Coding) -> TableChannel:
        return TableChannel(
            self._channel(kind),
            self.stats.tables,
            self.layout.dims.tolist(),
            coding,
            self._codec,
            self.stats,
            chunk_bytes=self.config.chunk_bytes,
            verify=self.config.verify,
        )

    def _describe(self, kind: str, source: int, target: int) -> str:
        """Tables that a message holds: rows come from their owner, ids and gradients go to it."""
        first, last = self.layout.spans[source if kind == "output_dist" else target]
        names = list(dict.fromkeys(self.stats.tables[first:last]))
        return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")

    def peers(self) -> Iterator[int]:
        """All other ranks, begun by the next one, so that not all send to the same rank at once."""
        layout = self.layout
        return ((layout.rank + i) % layout.ranks for i in range(1, layout.ranks))

    def agree(self, device: torch.device) -> None:
        """At the first batch: find out whether all ranks exchange the same tables in the same way.

        Raises:
            ExchangeError: they do not.
        """
        if self._agreed:
            return
        mine = torch.tensor([self.layout.digest()], dtype=torch.int64, device=device)
        all_of_them = [torch.empty_like(mine) for _ in range(self.layout.ranks)]
        dist.all_gather(all_of_them, mine, group=self.group)
        values = [int(one) for one in all_of_them]
        wrong = [rank for rank, value in enumerate(values) if value != values[0]]
        if wrong:
            raise ExchangeError(f"ranks {wrong} have other tables, or place them otherwise, than rank 0: use one plan")
        self._agreed = True

    def set_rate(self, bytes_per_second: float) -> None:
        """Of the network link; what the codec `auto` decides by."""
        self._codec.set_link(bytes_per_second)
