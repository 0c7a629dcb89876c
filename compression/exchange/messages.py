"""What the two schedules of a channel have in common: messages of known limits, and payloads of announced sizes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from compression.exchange.frames import HEADER_BYTES, MOST_BYTES, Stamp, header

if TYPE_CHECKING:
    from compression.exchange.transport import Channel

Bytes = NDArray[np.uint8]
Payloads = Sequence[Bytes | None]


class Messages(ABC):
    """One exchange in which every rank knows the most that it gets: send all, flush, receive all, finish.

    A chunk of which the most is 0 bytes does not travel. Made by `Channel.post`.
    """

    def __init__(
        self, channel: Channel, exchange: int, capacities: Sequence[Sequence[int]], limits: Sequence[Sequence[int]]
    ) -> None:
        self._channel, self._exchange = channel, exchange
        self._capacities, self._limits = capacities, limits
        self._unsent = {(p, c): most for p in channel.peers for c, most in enumerate(limits[p]) if most}
        self._expected = {(p, c): most for p in reversed(channel.peers) for c, most in enumerate(capacities[p]) if most}

    def send(self, peer: int, chunk: int, payload: Bytes | None) -> None:
        """Copy a payload and, where the schedule allows it, send it at once.

        Args:
            payload: uint8 [bytes]; None = empty.

        Raises:
            ValueError: more than was agreed, or sent before. Nothing was sent.
            ExchangeError: the peer is gone.
        """
        size = 0 if payload is None else payload.size
        channel = self._channel
        most = self._unsent.get((peer, chunk), 0)
        if size > most:
            raise channel.refused(
                channel.rank, peer, chunk, f"a payload of {size} bytes, but at most {most} were agreed on or are left"
            )
        if most:
            del self._unsent[peer, chunk]
            self._send(peer, chunk, framed(channel.stamp(channel.rank, chunk, self._exchange), payload))

    def flush(self) -> None:
        """Nothing more comes: what was not sent is sent empty."""
        for peer, chunk in list(self._unsent):
            self.send(peer, chunk, None)
        self._flush()

    def receive(self, peer: int, chunk: int) -> Bytes:
        """Wait for a payload.

        Returns:
            uint8 [bytes], writable, aligned to 8 bytes.

        Raises:
            ValueError: received before.
            ExchangeError: it did not come in time, or another came.
        """
        most = self._expected.pop((peer, chunk), 0)
        if not most:
            if peer != self._channel.rank and not self._capacities[peer][chunk]:
                return np.empty(0, np.uint8)
            raise ValueError(f"chunk {chunk} from rank {peer} is received once, and by another rank")
        return self._receive(peer, chunk, most)

    def finish(self) -> None:
        """Wait until all is sent, and drop what was not received.

        Raises:
            ExchangeError: a peer does not take what was sent, or is gone.
        """
        self.flush()
        for peer, chunk in list(self._expected):
            self.receive(peer, chunk)
        self._finish()
        self._channel.done(self._exchange)

    @abstractmethod
    def _send(self, peer: int, chunk: int, message: Bytes) -> None: ...

    @abstractmethod
    def _flush(self) -> None: ...

    @abstractmethod
    def _receive(self, peer: int, chunk: int, most: int) -> Bytes: ...

    @abstractmethod
    def _finish(self) -> None: ...


class Announced(ABC):
    """Payloads whose sizes are on their way. Made by `Channel.announce`."""

    @abstractmethod
    def start(self) -> Arriving:
        """Wait for the sizes; payloads start to travel.

        Raises:
            ExchangeError: they did not come in time, or are none.
        """


class Arriving(ABC):
    """Payloads that are on their way."""

    @abstractmethod
    def wait(self) -> list[Bytes | None]:
        """Wait for all payloads, and until all own ones are sent.

        Returns:
            By source rank: uint8 [bytes], writable, aligned to 8 bytes; None where nothing was sent.

        Raises:
            ExchangeError: one did not come in time, or another came.
        """


def framed(stamp: Stamp, payload: Bytes | None) -> Bytes:
    """A payload behind its header."""
    size = 0 if payload is None else payload.size
    message = np.empty(HEADER_BYTES + size, np.uint8)
    message[:HEADER_BYTES] = np.frombuffer(header(stamp, size), np.uint8)
    if payload is not None:
        message[HEADER_BYTES:] = payload
    return message


def announced_payload(channel: Channel, source: int, exchange: int, message: Bytes, size: int) -> Bytes:
    """The payload of a message whose size was announced.

    Raises:
        ExchangeError: the header is not the right one.
    """
    found = channel.read(message, source, 0, exchange, MOST_BYTES)
    if found != size:
        raise channel.broken(source, channel.rank, 0, f"{size} bytes were announced, the payload has {found}")
    return message[HEADER_BYTES : HEADER_BYTES + size]


def announced_message(channel: Channel, exchange: int, payload: Bytes | None, size: int) -> Bytes:
    """A payload behind its header, of the announced size in any case: a longer one would end the receiver's process."""
    message = framed(channel.stamp(channel.rank, 0, exchange), payload)
    end = HEADER_BYTES + size
    return message if end == message.size else np.resize(message, end)
