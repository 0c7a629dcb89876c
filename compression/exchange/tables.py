"""Tables as messages: some rows of each to every other rank, encoded in chunks, and as many from each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from compression.flat import tables_of

Matrix = NDArray[np.float32]
Flat = NDArray[np.float32]
Ints = NDArray[np.int64]


class Span(NamedTuple):
    """Rows of consecutive tables that go from one rank to another, each table's after those of the one before."""

    first: int
    rows: Ints
    """int64 [tables], of the tables first, first + 1, ..."""


class Chunk(NamedTuple):
    """What of a span goes in one message."""

    tables: Ints
    """int64 [n], ascending; tables without rows are left out."""
    begins: Ints
    """int64 [n]: the first row of each that is in this chunk."""
    rows: Ints
    dims: Ints
    start: int
    stop: int
    """Values of the span."""

    @property
    def most_bytes(self) -> int:
        """That its payload can have."""
        return 4 * (wire.HEADER + wire.DESCRIPTOR * self.tables.size + self.stop - self.start)


def cut(span: Span, dims: Ints, most: int) -> list[Chunk]:
    """A span in chunks of about `most` raw bytes; dims: int64, of all tables."""
    some = np.flatnonzero(span.rows)
    if not some.size:
        return []
    tables, rows = some + span.first, span.rows[some]
    wide = dims[tables]
    total = int((rows * wide).sum())
    if 4 * total <= most:
        return [Chunk(tables, np.zeros_like(rows), rows, wide, 0, total)]
    pieces: list[list[tuple[int, int, int]]] = []
    left = 0
    for table, count in zip(tables.tolist(), rows.tolist(), strict=True):
        begin, size = 0, 4 * int(dims[table])
        while begin < count:
            if left < size:
                pieces.append([])
                left = max(most, size)
            taken = min(count - begin, left // size)
            pieces[-1].append((table, begin, taken))
            left -= size * taken
            begin += taken
    chunks: list[Chunk] = []
    for piece in pieces:
        tables, begins, rows = np.array(piece, np.int64).T.copy()
        start = chunks[-1].stop if chunks else 0
        chunks.append(Chunk(tables, begins, rows, dims[tables], start, start + int((rows * dims[tables]).sum())))
    return chunks


@dataclass(frozen=True)
class Coding:
    """How the tables of a channel are coded, one entry a table."""

    bounds: Sequence[Bound]
    chains: Sequence[str]
    stochastic: bool = False

    def scaled(self, factor: float) -> Coding:
        """With all bounds so many times as large; 0 = bit for bit."""
        return replace(self, bounds=[_times(bound, factor) for bound in self.bounds])


def _times(bound: Bound, factor: float) -> Bound:
    if factor == 0:
        return 0.0
    return Relative(bound.share * factor) if isinstance(bound, Relative) else bound * factor


class TableChannel:
    """Tables of one module in one direction.

    Args:
        channel: what carries them.
        names, dims: of the tables, the same on all ranks; dims: int64.
        stats: where they are counted, under the kind of the channel.
        chunk_bytes: most raw bytes of a message.
        verify: decode what was encoded and compare.
    """

    def __init__(
        self,
        channel: Channel,
        names: Sequence[str],
        dims: Ints,
        coding: Coding,
        codec: Codec,
        stats: TableStats,
        *,
        chunk_bytes: int,
        verify: bool,
    ) -> None:
        self.channel, self.names, self.dims = channel, names, dims
        self._stated = self._coding = coding
        self._codec, self._stats = codec, stats
        self._most, self._verify = min(chunk_bytes, wire.PART_BYTES), verify
        self._sent = 0

    def scale_bounds(self, factor: float) -> None:
        """From the next message on, bounds so many times as large as the stated ones; 0 = bit for bit."""
        self._coding = self._stated.scaled(factor)

    def use_chain(self, chain: str) -> None:
        """From the next message on, code all tables by this chain."""
        chains = [chain] * len(self.names)
        self._stated = replace(self._stated, chains=chains)
        self._coding = replace(self._coding, chains=chains)

    def post(self, incoming: Sequence[Span], outgoing: Sequence[Span]) -> TableMessages:
        """Expect tables from all ranks, before any are sent; an entry a rank, the own one is not looked at."""
        return TableMessages(self, incoming, outgoing)

    def chunks(self, spans: Sequence[Span]) -> list[list[Chunk]]:
        """By rank."""
        me = self.channel.rank
        return [[] if rank == me else cut(span, self.dims, self._most) for rank, span in enumerate(spans)]

    def encode(self, chunk: Chunk, values: Flat, copies: int = 1) -> NDArray[np.uint8]:
        """A view of the codec's buffer, from the values of the span.

        Args:
            copies: how often it is sent.
        """
        start = time.perf_counter()
        part = values[chunk.start : chunk.stop]
        self._sent += 1
        payload = self._encode(chunk, part)
        self._count(chunk, part, payload, copies, time.perf_counter() - start)
        if self._verify:
            self._check(chunk, part, [self._coding.bounds[table] for table in chunk.tables], payload)
        return payload

    def _encode(self, chunk: Chunk, part: Flat) -> NDArray[np.uint8]:
        of = self._coding
        bounds = [of.bounds[table] for table in chunk.tables]
        chains = [of.chains[table] for table in chunk.tables]
        seed = hash((self._sent, self.channel.rank)) if of.stochastic else None
        return self._codec.encode_flat(part, chunk.rows, chunk.dims, bounds, chains, stochastic=seed)

    def decode(self, chunk: Chunk, payload: NDArray[np.uint8], out: Flat) -> None:
        """Decode into the values of the span.

        Raises:
            CorruptPayloadError: the payload does not hold what the sender was to send.
        """
        start = time.perf_counter()
        self._codec.decode_flat(payload, chunk.rows, chunk.dims, out[chunk.start : chunk.stop])
        self._share(self._stats.decode_s, chunk, time.perf_counter() - start)

    def names_of(self, chunk: Chunk) -> str:
        return ", ".join(self.names[table] for table in chunk.tables)

    def _count(self, chunk: Chunk, part: Flat, payload: NDArray[np.uint8], copies: int, seconds: float) -> None:
        count, kind, stats = chunk.tables.size, self.channel.kind, self._stats
        descriptors = payload.view(np.uint32)[wire.HEADER : wire.HEADER + wire.DESCRIPTOR * count]
        sizes = 4.0 * descriptors.reshape(count, wire.DESCRIPTOR)[:, 3]
        # A table is at most once in a chunk.
        stats.bytes[kind][chunk.tables] += copies * (sizes + (payload.size - sizes.sum()) / count)
        stats.raw[kind][chunk.tables] += copies * 4 * chunk.rows * chunk.dims
        self._share(stats.encode_s, chunk, seconds)
        stats.nonfinite += count_nonfinite(part)

    def _share(self, into: NDArray[np.float64], chunk: Chunk, seconds: float) -> None:
        into[chunk.tables] += chunk.rows * chunk.dims * (seconds / (chunk.stop - chunk.start))

    def _check(self, chunk: Chunk, part: Flat, bounds: Sequence[Bound], payload: NDArray[np.uint8]) -> None:
        decoded = np.empty_like(part)
        self._codec.decode_flat(payload, chunk.rows, chunk.dims, decoded)
        pairs = zip(*(tables_of(values, chunk.rows, chunk.dims) for values in (part, decoded)), strict=True)
        for i, (true, out) in enumerate(pairs):
            bound = absolute(bounds[i], true)
            with np.errstate(invalid="ignore"):
                held = np.abs(true.astype(np.float64) - out) <= bound
            held |= true.view(np.uint32) == out.view(np.uint32)
            if not held.all():
                row, column = np.argwhere(~held)[0].tolist()
                problem = (
                    f"table {self.names[chunk.tables[i]]}: row {chunk.begins[i] + row}, column {column} "
                    f"is {true[row, column]:.9g}, decoded {out[row, column]:.9g}, bound {bound:.9g}"
                )
                raise BoundError(f"{self.channel.kind} of {problem}") from self.channel.failed(problem)


class TableMessages:
    """One exchange of a `TableChannel`: send to each rank, then receive from each."""

    def __init__(self, tables: TableChannel, incoming: Sequence[Span], outgoing: Sequence[Span]) -> None:
        self._tables = tables
        self._in, self._out = tables.chunks(incoming), tables.chunks(outgoing)
        self._messages: Messages = tables.channel.post(
            [[chunk.most_bytes for chunk in chunks] for chunks in self._in],
            [[chunk.most_bytes for chunk in chunks] for chunks in self._out],
        )

    def send(self, peer: int, values: Flat) -> None:
        """Encode and send, chunk by chunk; float32, the values of the span that goes to the peer."""
        for number, chunk in enumerate(self._out[peer]):
            self._messages.send(peer, number, self._tables.encode(chunk, values))

    def send_all(self, values: Flat, out: Flat) -> None:
        """Send all ranks the same span; out: what they decode of it."""
        first, *others = self._tables.channel.peers
        for number, chunk in enumerate(self._out[first]):
            payload = self._tables.encode(chunk, values, 1 + len(others)).copy()
            for peer in (first, *others):
                self._messages.send(peer, number, payload)
            self._tables.decode(chunk, payload, out)

    def flush(self) -> None:
        """Nothing more is sent."""
        self._messages.flush()

    def receive(self, peer: int, out: Flat) -> None:
        """Wait for a rank's tables and decode them.

        Args:
            out: float32, the values of the span that comes from the peer, written.

        Raises:
            ExchangeError: nothing came in time, or not what was to come.
        """
        for number, chunk in enumerate(self._in[peer]):
            payload = self._messages.receive(peer, number)
            try:
                self._tables.decode(chunk, payload, out)
            except CorruptPayloadError as error:
                channel = self._tables.channel
                problem = f"{self._tables.names_of(chunk)}: {error}"
                raise channel.broken(peer, channel.rank, number, problem) from error

    def finish(self) -> None:
        """Wait until all is sent."""
        self._messages.finish()


def absolute(bound: Bound, values: Matrix) -> float:
    """The bound of a table in a message."""
    if not isinstance(bound, Relative):
        return float(bound)
    finite = values[np.isfinite(values)].astype(np.float64)
    return bound.share * float(finite.max() - finite.min()) if finite.size else 0.0
