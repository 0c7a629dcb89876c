"""Messages of all ranks in one all-to-all, after one of their headers: for backends other than gloo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.distributed import AllToAllOptions

from compression.exchange.frames import HEADER_BYTES, MOST_BYTES, SIZES, header, layout
from compression.exchange.messages import (
    Announced,
    Arriving,
    Bytes,
    Messages,
    Payloads,
    announced_message,
    announced_payload,
)

if TYPE_CHECKING:
    from compression.exchange.transport import Channel


class _AllToAll:
    """One all-to-all.

    Args:
        outgoing: messages to each rank.
        incoming: sizes of the messages from each rank.
    """

    def __init__(self, channel: Channel, outgoing: list[list[Bytes]], incoming: list[list[int]]) -> None:
        self._channel, self._sizes = channel, incoming
        self._places, splits = layout(incoming)
        places, sent = layout([[message.size for message in of_rank] for of_rank in outgoing])
        buffer = np.zeros(sum(sent), np.uint8)
        for starts, of_rank in zip(places, outgoing, strict=True):
            for start, message in zip(starts, of_rank, strict=True):
                buffer[start : start + message.size] = message
        options = AllToAllOptions()
        options.timeout, options.asyncOp = channel.timeout, True
        self._output = torch.empty(sum(splits), dtype=torch.uint8, device=channel.device)
        # Kept until all is sent.
        self._input = torch.from_numpy(buffer).to(channel.device)
        try:
            self._work = channel.group.all_to_all_single(self._output, self._input, splits, sent, options)
        except RuntimeError as error:
            raise channel.lost(error, None, channel.rank, 0, self._output.numel()) from error

    def wait(self) -> list[list[Bytes]]:
        """Messages from each rank."""
        channel = self._channel
        try:
            self._work.wait(channel.timeout)
            received = self._output.cpu().numpy()
        except RuntimeError as error:
            raise channel.lost(error, None, channel.rank, 0, self._output.numel()) from error
        return [
            [received[start : start + size] for start, size in zip(starts, sizes, strict=True)]
            for starts, sizes in zip(self._places, self._sizes, strict=True)
        ]


class CollectiveMessages(Messages):
    def __init__(
        self, channel: Channel, exchange: int, capacities: Sequence[Sequence[int]], limits: Sequence[Sequence[int]]
    ) -> None:
        super().__init__(channel, exchange, capacities, limits)
        self._messages: dict[tuple[int, int], Bytes] = {}
        self._moving: _AllToAll | None = None
        self._received: dict[tuple[int, int], Bytes] = {}

    def _send(self, peer: int, chunk: int, message: Bytes) -> None:
        self._messages[peer, chunk] = message

    def _flush(self) -> None:
        if self._moving is not None:
            return
        channel = self._channel
        outgoing: list[list[Bytes]] = [[] for _ in range(channel.ranks)]
        for (peer, _), message in sorted(self._messages.items(), key=lambda item: item[0]):
            outgoing[peer].append(message)
        self._keys = [[key for key in sorted(self._expected) if key[0] == peer] for peer in range(channel.ranks)]
        with channel.range():
            heads = _AllToAll(
                channel,
                [[message[:HEADER_BYTES] for message in of_rank] for of_rank in outgoing],
                [[HEADER_BYTES] * len(keys) for keys in self._keys],
            ).wait()
        sizes = [
            [
                channel.read(head, *key, self._exchange, self._expected[key])
                for key, head in zip(keys, of_rank, strict=True)
            ]
            for keys, of_rank in zip(self._keys, heads, strict=True)
        ]
        with channel.range():
            self._moving = _AllToAll(
                channel, [[message[HEADER_BYTES:] for message in of_rank] for of_rank in outgoing], sizes
            )

    def _receive(self, peer: int, chunk: int, most: int) -> Bytes:  # noqa: ARG002
        if self._moving is None:
            raise ValueError("flush before the first receive")
        if not self._received:
            with self._channel.range():
                arrived = self._moving.wait()
            for keys, of_rank in zip(self._keys, arrived, strict=True):
                self._received.update(zip(keys, of_rank, strict=True))
        return self._received.pop((peer, chunk))

    def _finish(self) -> None:
        assert self._moving is not None
        with self._channel.range():
            self._moving.wait()


class CollectiveAnnounced(Announced):
    def __init__(self, channel: Channel, exchange: int, payloads: Payloads, sizes: list[int]) -> None:
        self._channel, self._exchange = channel, exchange
        self._messages: list[list[Bytes]] = [[] for _ in range(channel.ranks)]
        heads: list[list[Bytes]] = [[] for _ in range(channel.ranks)]
        for peer in channel.peers:
            stamp = channel.stamp(channel.rank, SIZES, exchange)
            heads[peer].append(np.frombuffer(header(stamp, sizes[peer]), np.uint8))
            if 0 < sizes[peer] <= MOST_BYTES:
                self._messages[peer].append(announced_message(channel, exchange, payloads[peer], sizes[peer]))
        with channel.range("sizes"):
            self._heads = _AllToAll(
                channel, heads, [[HEADER_BYTES] * (r != channel.rank) for r in range(channel.ranks)]
            )

    def start(self) -> Arriving:
        channel = self._channel
        with channel.range("sizes"):
            heads = self._heads.wait()
        sizes = [
            [channel.read(head, peer, SIZES, self._exchange, MOST_BYTES) for head in of_rank]
            for peer, of_rank in enumerate(heads)
        ]
        incoming = [[HEADER_BYTES + size for size in of_rank if size] for of_rank in sizes]
        with channel.range():
            moving = _AllToAll(channel, self._messages, incoming)
        return _CollectiveArriving(channel, self._exchange, moving)


class _CollectiveArriving(Arriving):
    def __init__(self, channel: Channel, exchange: int, moving: _AllToAll) -> None:
        self._channel, self._exchange, self._moving = channel, exchange, moving

    def wait(self) -> list[Bytes | None]:
        channel = self._channel
        with channel.range():
            arrived = self._moving.wait()
        payloads: list[Bytes | None] = [None] * channel.ranks
        for peer, of_rank in enumerate(arrived):
            for message in of_rank:
                size = message.size - HEADER_BYTES
                payloads[peer] = announced_payload(channel, peer, self._exchange, message, size)
        channel.done(self._exchange)
        return payloads
