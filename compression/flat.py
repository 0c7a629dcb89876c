"""Many small float32 tables, one after the other in memory, to the payload that `Codec.encode` makes of them.

Of a table of a few hundred rows, Python's part of `Codec.encode` takes longer than the coding: here it is one call for
all tables before the sections are coded, and one after.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compression import message
from compression.checksum import checksum
from compression.kernel import kernels
from compression.message import BITS, BYTES, CHAIN, COLUMNS, END, ROWS, SIZE, SLACK, START, STOP, TARGET, VALUES, WIDTH
from compression.quantize import LARGEST, SMALLEST, value_range
from compression.wire import BITPACK, BOUNDS, DEDUP, DESCRIPTOR, HEADER, MAGIC, RAW, VERSION
from compression.workspace import Workspace

kernel = kernels("flat", Path(__file__).parent, ("kernel", "bits", "checksum", "flat", "message", "quantize", "wire"))

MOST_BYTES = 1 << 20
"""Raw bytes of all tables: of more, Python's part does not matter."""


@kernel
def plan_tables(values, rows, columns, limits, relative, chains, plan, grids, bounds):
    """What `message.encode_sections` takes, as `Codec.encode` makes it.

    Args:
        values: float32 [sum of rows * columns].
        rows, columns: int64 [tables].
        limits: float64 [tables], the bound, or where `relative` (bool [tables]) its share of the range of the table.
        chains: int64 [tables].
        plan: int64 [tables, WIDTH]; grids: float32 [tables, 3]; bounds: float32 [tables], on the wire. Written.

    Returns:
        False if a table is to be sent bit for bit.
    """
    at = np.int64(values.ctypes.data)
    pair, edge = np.empty(2, np.int32), np.empty(1, np.float32)
    for i in range(rows.size):
        n = rows[i] * columns[i]
        bound = limits[i]
        if relative[i]:
            pair[0], pair[1] = value_range(at, n)
            ends = pair.view(np.float32)
            bound *= max(np.float64(ends[1]) - np.float64(ends[0]), 0.0)
        if bound < SMALLEST and n and chains[i] != RAW:
            return False
        bound = min(bound, LARGEST)
        edge[0] = bound
        if edge[0] > bound:
            edge.view(np.int32)[0] -= 1
        bounds[i] = edge[0]
        grids[i] = 1
        if edge[0] > 0:
            grids[i, 0] = 2 * np.float64(edge[0]) * (1 - 2.0**-14)
            grids[i, 1] = np.float32(1) / grids[i, 0]
            edge.view(np.int32)[0] -= 1
            grids[i, 2] = edge[0]
        plan[i, VALUES] = plan[i, BITS] = plan[i, BYTES] = at
        plan[i, SIZE] = 4 * n
        plan[i, ROWS], plan[i, COLUMNS], plan[i, CHAIN] = rows[i], columns[i], chains[i] if n else RAW
        at += 4 * n
    return True


@kernel
def seal(plan, bounds, words, end):
    """Fill in header and descriptors of the sections that were coded; words: uint32, `end` of them are the payload."""
    at = HEADER + DESCRIPTOR * plan.shape[0]
    words[0], words[1], words[2], words[3], words[4] = MAGIC, VERSION, plan.shape[0], end, 0
    edge = np.zeros(1, np.float32)
    for i in range(plan.shape[0]):
        d = HEADER + DESCRIPTOR * i
        words[d], words[d + 1], words[d + 2], words[d + 3] = (
            plan[i, CHAIN],
            plan[i, ROWS],
            plan[i, COLUMNS],
            plan[i, STOP] - at,
        )
        edge[0] = bounds[i] if plan[i, CHAIN] >= BITPACK else 0
        words[d + 4] = edge.view(np.uint32)[0]
        at = plan[i, STOP]
    words[4] = checksum(words[:end])


@kernel
def open_tables(words, rows, columns, out, plan, steps):
    """The inverse of `seal`: check the frame, and fill in what `message.decode_sections` takes.

    Args:
        words: uint32, the payload.
        out: float32 [sum of rows * columns].

    Returns:
        False if the payload is not a sound one of float32 tables of these shapes, or has a bit-exact one.
    """
    tables = rows.size
    at = HEADER + DESCRIPTOR * tables
    if words.size < at or words[0] != MAGIC or words[1] != VERSION or words[2] != tables or words[3] != words.size:
        return False
    sent, words[4] = words[4], 0
    sound = checksum(words) == sent
    words[4] = sent
    if not sound:
        return False
    target = np.int64(out.ctypes.data)
    edge = np.empty(1, np.float32)
    for i in range(tables):
        d = HEADER + DESCRIPTOR * i
        n, stop = rows[i] * columns[i], at + np.int64(words[d + 3])
        chain = np.int64(words[d])
        edge.view(np.uint32)[0] = words[d + 4]
        if words[d + 1] != rows[i] or words[d + 2] != columns[i] or stop - at > n or stop > words.size:
            return False
        if chain == RAW:
            steps[i] = 1
            if stop - at != n:
                return False
        elif BITPACK <= chain <= DEDUP and BOUNDS[0] <= edge[0] <= BOUNDS[1]:
            steps[i] = 2 * np.float64(edge[0]) * (1 - 2.0**-14)
        else:
            return False
        plan[i, TARGET], plan[i, START], plan[i, END], plan[i, SIZE] = target, at, stop, 4 * n
        plan[i, ROWS], plan[i, COLUMNS], plan[i, CHAIN] = rows[i], columns[i], chain
        target += 4 * n
        at = stop
    return at == words.size


class Flat:
    """Encodes and decodes tables in one array; keeps its memory, so it belongs to one thread at a time."""

    def __init__(self, encoder: Workspace, decoder: Workspace) -> None:
        self._encoder, self._decoder = encoder, decoder
        self._words = np.empty(0, np.uint32)

    def encode(
        self,
        values: NDArray[np.float32],
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
        limits: NDArray[np.float64],
        relative: NDArray[np.bool_],
        chains: Sequence[int],
    ) -> NDArray[np.uint8] | None:
        """See `plan_tables`. The payload, valid until the next call; None where `Codec.encode` is to be used."""
        tables = rows.size
        plan, grids, bounds = (
            np.zeros((tables, WIDTH), np.int64),
            np.empty((tables, 3), np.float32),
            np.empty(tables, np.float32),
        )
        numbers = np.array(chains, np.int64)
        if not plan_tables(values, rows, columns, limits, relative, numbers, plan, grids, bounds):
            return None
        head = HEADER + DESCRIPTOR * tables
        if self._words.size < head + values.size + SLACK:
            self._words = np.empty(2 * (head + values.size) + SLACK, np.uint32)
        words = self._words[: head + values.size + SLACK]
        end = message.encode_sections(plan, grids, self._encoder.of_small(rows, columns), words, head)
        seal(plan, bounds, words, end)
        return words[:end].view(np.uint8)

    def decode(
        self, words: NDArray[np.uint32], rows: NDArray[np.int64], columns: NDArray[np.int64], out: NDArray[np.float32]
    ) -> bool:
        """Decode a payload, uint32 [words], to float32 [sum of rows * columns]. False where `Codec.decode` is to be
        used, or is to tell what is wrong."""
        plan, steps = np.zeros((rows.size, WIDTH), np.int64), np.empty(rows.size, np.float32)
        if not open_tables(words, rows, columns, out, plan, steps):
            return False
        return bool(message.decode_sections(plan, steps, self._decoder.of_small(rows, columns), words) < 0)


def tables_of(
    values: NDArray[np.float32], rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> list[NDArray[np.float32]]:
    """Views of tables that lie one after the other in one array."""
    ends = np.cumsum(rows * columns).tolist()
    return [values[end - n * c : end].reshape(n, c) for end, n, c in zip(ends, rows, columns, strict=True)]
