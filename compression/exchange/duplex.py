"""Messages one by one, every receive posted before any send: both directions of a link at once, for gloo.

A receive may be longer than what comes but never shorter, which would end the process. So a buffer has the size class
of the most that may come, and the tag of a message names its channel and size class: where two ranks disagree about the
most, the message is not matched, and both get an error after the timeout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from compression.exchange.frames import HEADER_BYTES, MOST_BYTES, SIZES, header, size_class
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

INLINE_BYTES = 1 << 15
"""A payload of so many bytes travels with its size: one message instead of two."""
_MOST_INLINE = 2 * HEADER_BYTES + INLINE_BYTES
_SIZES_CLASS = 255
_TAG = 1 << 30
"""Far from the tags of others."""


class _Receive(NamedTuple):
    buffer: Bytes
    work: dist.Work
    most: int


class _Send(NamedTuple):
    work: dist.Work
    peer: int
    chunk: int
    size: int


class _Sender:
    """Posts receives and sends of one exchange, and keeps the sends until they are done."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._sends: list[_Send] = []

    def receive(self, peer: int, chunk: int, most: int) -> _Receive:
        """Post a receive of at most so many bytes."""
        channel = self._channel
        try:
            return _post(channel, peer, chunk, most)
        except RuntimeError as error:
            raise channel.lost(error, peer, channel.rank, chunk, most) from error

    def wait(self, receive: _Receive, peer: int, chunk: int, until: float) -> Bytes:
        """The buffer of a receive."""
        channel = self._channel
        try:
            receive.work.wait(channel.left(until))
        except RuntimeError as error:
            raise channel.lost(error, peer, channel.rank, chunk, receive.most) from error
        return receive.buffer

    def send(self, peer: int, chunk: int, message: Bytes, most: int) -> None:
        """Start to send to a receive that was posted with the same most."""
        channel = self._channel
        try:
            work = channel.group.send([torch.from_numpy(message)], peer, _tag(channel, chunk, size_class(most)[0]))
        except RuntimeError as error:
            raise channel.lost(error, channel.rank, peer, chunk, message.size) from error
        self._sends.append(_Send(work, peer, chunk, message.size))

    def finish(self, until: float) -> None:
        """Wait until all is sent."""
        channel = self._channel
        for work, peer, chunk, size in self._sends:
            try:
                work.wait(channel.left(until))
            except RuntimeError as error:
                raise channel.lost(error, channel.rank, peer, chunk, size) from error
        self._sends.clear()


def _post(channel: Channel, peer: int, chunk: int, most: int) -> _Receive:
    number, size = size_class(most)
    buffer = np.empty(size, np.uint8)
    work = channel.group.recv([torch.from_numpy(buffer)], peer, _tag(channel, chunk, number))
    return _Receive(buffer, work, most)


def _tag(channel: Channel, chunk: int, size_class: int) -> int:
    # Receives of sizes are posted an exchange early, so that other messages must not match them.
    number = _SIZES_CLASS if chunk == SIZES else size_class
    return _TAG | (chunk & 63) << 24 | channel.number << 8 | number


class DuplexMessages(Messages):
    def __init__(
        self, channel: Channel, exchange: int, capacities: Sequence[Sequence[int]], limits: Sequence[Sequence[int]]
    ) -> None:
        super().__init__(channel, exchange, capacities, limits)
        self._sender = _Sender(channel)
        with channel.range():
            self._receives = {
                (peer, chunk): self._sender.receive(peer, chunk, HEADER_BYTES + most)
                for (peer, chunk), most in self._expected.items()
            }

    def _send(self, peer: int, chunk: int, message: Bytes) -> None:
        with self._channel.range():
            self._sender.send(peer, chunk, message, HEADER_BYTES + self._limits[peer][chunk])

    def _flush(self) -> None:
        pass

    def _receive(self, peer: int, chunk: int, most: int) -> Bytes:
        channel = self._channel
        with channel.range():
            message = self._sender.wait(self._receives.pop((peer, chunk)), peer, chunk, channel.until())
        size = channel.read(message, peer, chunk, self._exchange, most)
        return message[HEADER_BYTES : HEADER_BYTES + size]

    def _finish(self) -> None:
        with self._channel.range():
            self._sender.finish(self._channel.until())


class Ahead:
    """Receives of sizes for the next exchange of a channel: a message that meets its receive takes half the time."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._posted: dict[int, _Receive] = {}

    def post(self) -> None:
        if torch.autograd._profiler_enabled():
            # gloo's threads would write into the profiler's records when the next exchange comes, long after it ended.
            return
        # A peer may have ended after its last exchange; if that was not the last, the next one finds out.
        with contextlib.suppress(RuntimeError):
            for peer in reversed(self._channel.peers):
                if peer not in self._posted:
                    self._posted[peer] = _post(self._channel, peer, SIZES, _MOST_INLINE)

    def take(self, sender: _Sender) -> dict[int, _Receive]:
        posted, self._posted = self._posted, {}
        for peer in reversed(self._channel.peers):
            if peer not in posted:
                posted[peer] = sender.receive(peer, SIZES, _MOST_INLINE)
        return posted


class DuplexAnnounced(Announced):
    def __init__(self, channel: Channel, exchange: int, payloads: Payloads, sizes: list[int], ahead: Ahead) -> None:
        self._channel, self._exchange, self._ahead = channel, exchange, ahead
        self._sender = _Sender(channel)
        with channel.range("sizes"):
            self._sizes = ahead.take(self._sender)
        self._later: dict[int, Bytes] = {}
        for peer in channel.peers:
            self._announce(peer, payloads[peer], sizes[peer])

    def _announce(self, peer: int, payload: Bytes | None, size: int) -> None:
        channel = self._channel
        message = np.frombuffer(header(channel.stamp(channel.rank, SIZES, self._exchange), size), np.uint8).copy()
        inline = 0 < size <= INLINE_BYTES
        if 0 < size <= MOST_BYTES:
            framed = announced_message(channel, self._exchange, payload, size)
            if inline:
                message = np.concatenate([message, framed])
            else:
                self._later[peer] = framed
        with channel.range(None if inline else "sizes"):
            self._sender.send(peer, SIZES, message, _MOST_INLINE)

    def start(self) -> Arriving:
        channel, until = self._channel, self._channel.until()
        arrived: dict[int, tuple[int, Bytes]] = {}
        for peer, receive in self._sizes.items():
            with channel.range("sizes"):
                buffer = self._sender.wait(receive, peer, SIZES, until)
            size = channel.read(buffer, peer, SIZES, self._exchange, MOST_BYTES)
            arrived[peer] = size, buffer[HEADER_BYTES:]
        with channel.range("sizes"):
            self._ahead.post()
        with channel.range():
            receives = {
                peer: self._sender.receive(peer, 0, HEADER_BYTES + size)
                for peer, (size, _) in arrived.items()
                if size > INLINE_BYTES
            }
            for peer, message in self._later.items():
                self._sender.send(peer, 0, message, message.size)
        return _DuplexArriving(channel, self._exchange, self._sender, arrived, receives)


class _DuplexArriving(Arriving):
    def __init__(
        self,
        channel: Channel,
        exchange: int,
        sender: _Sender,
        arrived: dict[int, tuple[int, Bytes]],
        receives: dict[int, _Receive],
    ) -> None:
        self._channel, self._exchange, self._sender = channel, exchange, sender
        self._arrived, self._receives = arrived, receives

    def wait(self) -> list[Bytes | None]:
        channel, until = self._channel, self._channel.until()
        payloads: list[Bytes | None] = [None] * channel.ranks
        for peer, (size, message) in self._arrived.items():
            if peer in self._receives:
                with channel.range():
                    message = self._sender.wait(self._receives.pop(peer), peer, 0, until)
            if size:
                payloads[peer] = announced_payload(channel, peer, self._exchange, message, size)
        with channel.range():
            self._sender.finish(until)
        channel.done(self._exchange)
        return payloads
