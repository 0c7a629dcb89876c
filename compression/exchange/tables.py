"""Tables as messages: some rows of each to every other rank, encoded in chunks, and as many from each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compression import wire
from compression.codec import Bound, Codec, Relative
from compression.errors import CorruptPayloadError
from compression.exchange.blocks import count_nonfinite
from compression.exchange.errors import BoundError
from compression.exchange.stats import TableStats
from compression.exchange.transport import Channel, Messages

Matrix = NDArray[np.float32]


class Slice(NamedTuple):
    """Some rows of a table in a chunk."""

    table: int
    start: int
    stop: int


def cut(rows: Sequence[int], dims: Sequence[int], most: int) -> list[list[Slice]]:
    """Rows of tables in chunks of about `most` raw bytes, in order. Empty tables are in none."""
    chunks: list[list[Slice]] = []
    left = 0
    for table, (count, dim) in enumerate(zip(rows, dims, strict=True)):
        start = 0
        while start < count:
            if left < 4 * dim:
                chunks.append([])
                left = max(most, 4 * dim)
            stop = min(count, start + left // (4 * dim))
            chunks[-1].append(Slice(table, start, stop))
            left -= 4 * dim * (stop - start)
            start = stop
    return chunks


def most_bytes(chunk: Sequence[Slice], dims: Sequence[int]) -> int:
    """That the payload of a chunk can have."""
    values = sum((s.stop - s.start) * dims[s.table] for s in chunk)
    return 4 * (wire.HEADER + wire.DESCRIPTOR * len(chunk) + values)


class Span(NamedTuple):
    """Rows of consecutive tables that go from one rank to another."""

    first: int
    rows: Sequence[int]
    """Of the tables first, first + 1, ..."""


@dataclass(frozen=True)
class Coding:
    """How the tables of a channel are coded, one entry a table."""

    bounds: Sequence[Bound]
    chains: Sequence[str]
    stochastic: bool = False


class TableChannel:
    """Tables of one module in one direction.

    Args:
        channel: what carries them.
        names, dims: of the tables, the same on all ranks.
        stats: where they are counted, under the kind of the channel.
        chunk_bytes: most raw bytes of a message.
        verify: decode what was encoded and compare.
    """

    def __init__(
        self,
        channel: Channel,
        names: Sequence[str],
        dims: Sequence[int],
        coding: Coding,
        codec: Codec,
        stats: TableStats,
        *,
        chunk_bytes: int,
        verify: bool,
    ) -> None:
        self.channel, self.names, self.dims = channel, names, list(dims)
        self._coding, self._codec, self._stats = coding, codec, stats
        self._most, self._verify = min(chunk_bytes, wire.PART_BYTES), verify
        self._sent = 0

    def post(self, incoming: Sequence[Span], outgoing: Sequence[Span]) -> TableMessages:
        """Expect tables from all ranks, before any are sent; an entry a rank, the own one is not looked at."""
        return TableMessages(self, incoming, outgoing)

    def chunks(self, span: Span) -> list[list[Slice]]:
        """Slices whose tables count from the span's first."""
        return cut(span.rows, self.dims[span.first : span.first + len(span.rows)], self._most)

    def capacities(self, span: Span, chunks: list[list[Slice]]) -> list[int]:
        return [most_bytes(chunk, self.dims[span.first :]) for chunk in chunks]

    def encode(self, first: int, chunk: list[Slice], tables: Sequence[Matrix]) -> NDArray[np.uint8]:
        """A view of the codec's buffer."""
        start = time.perf_counter()
        parts = [tables[s.table][s.start : s.stop] for s in chunk]
        bounds = [self._coding.bounds[first + s.table] for s in chunk]
        chains = [self._coding.chains[first + s.table] for s in chunk]
        self._sent += 1
        seed = hash((self._sent, self.channel.rank, first)) if self._coding.stochastic else None
        payload = self._codec.encode(parts, bounds, chains, stochastic=seed)
        self._count(first, chunk, parts, payload, time.perf_counter() - start)
        if self._verify:
            self._check(first, chunk, parts, bounds, payload)
        return payload

    def decode(self, first: int, chunk: list[Slice], payload: NDArray[np.uint8], outs: Sequence[Matrix]) -> None:
        """Decode into some rows of the outs.

        Raises:
            CorruptPayloadError: the payload does not hold what the sender was to send.
        """
        start = time.perf_counter()
        parts = [outs[s.table][s.start : s.stop] for s in chunk]
        self._codec.decode(payload, parts)
        self._share(self._stats.decode_s, first, chunk, parts, time.perf_counter() - start)

    def names_of(self, first: int, chunk: list[Slice]) -> str:
        return ", ".join(self.names[first + s.table] for s in chunk)

    def _count(self, first: int, chunk: list[Slice], parts: list[Matrix], payload: NDArray[np.uint8], s: float) -> None:
        count, kind, stats = len(chunk), self.channel.kind, self._stats
        descriptors = payload.view(np.uint32)[wire.HEADER : wire.HEADER + wire.DESCRIPTOR * count]
        sizes = 4 * descriptors.reshape(count, wire.DESCRIPTOR)[:, 3].astype(np.float64)
        tables = [first + s.table for s in chunk]
        np.add.at(stats.bytes[kind], tables, sizes + (payload.size - sizes.sum()) / count)
        np.add.at(stats.raw[kind], tables, [part.nbytes for part in parts])
        self._share(stats.encode_s, first, chunk, parts, s)
        stats.nonfinite += sum(count_nonfinite(part.reshape(-1)) for part in parts)

    def _share(self, into: NDArray[np.float64], first: int, chunk: list[Slice], parts: list[Matrix], s: float) -> None:
        sizes = np.array([part.nbytes for part in parts], np.float64)
        np.add.at(into, [first + s.table for s in chunk], sizes * (s / sizes.sum()))

    def _check(
        self, first: int, chunk: list[Slice], parts: list[Matrix], bounds: list[Bound], payload: NDArray[np.uint8]
    ) -> None:
        decoded = [np.empty_like(part) for part in parts]
        self._codec.decode(payload, decoded)
        for piece, part, out, bound in zip(chunk, parts, decoded, bounds, strict=True):
            if isinstance(bound, Relative):
                finite = part[np.isfinite(part)].astype(np.float64)
                bound = bound.share * float(finite.max() - finite.min()) if finite.size else 0.0
            with np.errstate(invalid="ignore"):
                held = np.abs(part.astype(np.float64) - out) <= bound
            held |= part.view(np.uint32) == out.view(np.uint32)
            if not held.all():
                row, column = np.argwhere(~held)[0].tolist()
                raise BoundError(
                    f"{self.channel.kind} of table {self.names[first + piece.table]}: row {piece.start + row}, "
                    f"column {column} is {part[row, column]!r}, decoded {out[row, column]!r}, bound {bound!r}"
                )


class TableMessages:
    """One exchange of a `TableChannel`: send to each rank, then receive from each."""

    def __init__(self, tables: TableChannel, incoming: Sequence[Span], outgoing: Sequence[Span]) -> None:
        self._tables, self._incoming, self._outgoing = tables, incoming, outgoing
        me = tables.channel.rank
        self._in = [[] if r == me else tables.chunks(span) for r, span in enumerate(incoming)]
        self._out = [[] if r == me else tables.chunks(span) for r, span in enumerate(outgoing)]
        self._messages: Messages = tables.channel.post(
            [tables.capacities(span, chunks) for span, chunks in zip(incoming, self._in, strict=True)],
            [tables.capacities(span, chunks) for span, chunks in zip(outgoing, self._out, strict=True)],
        )

    def send(self, peer: int, tables: Sequence[Matrix]) -> None:
        """Encode and send, chunk by chunk; float32 [rows, dim] for each table of the span that goes to the peer."""
        first = self._outgoing[peer].first
        for number, chunk in enumerate(self._out[peer]):
            self._messages.send(peer, number, self._tables.encode(first, chunk, tables))

    def flush(self) -> None:
        """Nothing more is sent."""
        self._messages.flush()

    def receive(self, peer: int, outs: Sequence[Matrix]) -> None:
        """Wait for a rank's tables and decode them.

        Args:
            outs: float32 [rows, dim], contiguous, for each table of the span that comes from the peer.

        Raises:
            ExchangeError: nothing came in time, or not what was to come.
        """
        first = self._incoming[peer].first
        for number, chunk in enumerate(self._in[peer]):
            payload = self._messages.receive(peer, number)
            try:
                self._tables.decode(first, chunk, payload, outs)
            except CorruptPayloadError as error:
                names = self._tables.names_of(first, chunk)
                raise self._tables.channel.broken(
                    peer, self._tables.channel.rank, number, f"{names}: {error}"
                ) from error

    def finish(self) -> None:
        """Wait until all is sent."""
        self._messages.finish()
