"""What a module sends through: its layout, a channel for ids and one for tables in each direction, and the counters."""

from __future__ import annotations

import itertools

import torch.distributed as dist

from compression.codec import Codec
from compression.exchange.agree import Terms
from compression.exchange.config import ExchangeConfig
from compression.exchange.layout import Layout
from compression.exchange.stats import TableStats
from compression.exchange.tables import Coding, TableChannel
from compression.exchange.transport import Channel

_numbers = itertools.count()


def next_number() -> int:
    """For a channel: ranks make the same modules in the same order, so they give a channel the same number."""
    return next(_numbers)


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
        self._codec = Codec(link=config.link, exact=False)
        forward, backward = [p.forward for p in policies], [p.backward for p in policies]
        self.ids = self._channel("ids")
        self.rows = self._tables("output_dist", Coding([d.bound for d in forward], [d.codec for d in forward]))
        self.gradients = self._tables(
            "gradients", Coding([d.bound for d in backward], [d.codec for d in backward], config.stochastic)
        )

    def _channel(self, kind: str) -> Channel:
        return Channel(
            self.group,
            kind=kind,
            number=next_number(),
            timeout_s=self.config.timeout_s,
            schedule=self.config.schedule,
            describe=lambda source, target, _: self._describe(kind, source, target),
        )

    def _tables(self, kind: str, coding: Coding) -> TableChannel:
        return TableChannel(
            self._channel(kind),
            self.stats.tables,
            self.layout.dims,
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

    @property
    def terms(self) -> Terms:
        """What all ranks must agree on."""
        of, config = self.layout, self.config
        policies = [config.of(table) for table in self.stats.tables]
        return Terms(
            placement=(self.stats.path, of.shards, of.features, of.width),
            settings=(
                [(p.forward, p.backward) for p in policies],
                (config.chunk_bytes, config.schedule, config.stochastic),
            ),
            number=self.ids.number,
        )

    def set_rate(self, bytes_per_second: float) -> None:
        """Of the network link; what the codec `auto` decides by."""
        self._codec.set_link(bytes_per_second)

    def scale_bounds(self, rows: float, gradients: float) -> None:
        """From the next message on, bounds so many times as large as the config's."""
        self.rows.scale_bounds(rows)
        self.gradients.scale_bounds(gradients)

    def use_chain(self, chain: str) -> None:
        """From the next message on, both directions."""
        self.rows.use_chain(chain)
        self.gradients.use_chain(chain)
