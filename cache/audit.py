"""Whether the replicas of all ranks have the same bits, found by checksums of blocks of rows."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache.replica import Replica
from cache.tables import HotSet

BLOCK = 1024
"""Rows that one checksum is of."""


class DivergedReplicaError(RuntimeError):
    """The hot rows of a rank are not those of the others."""


class Block(NamedTuple):
    table: str
    first: int
    """Slot in the table."""
    last: int


def blocks(hot: HotSet) -> list[Block]:
    """Of all tables, the same on all ranks."""
    return [
        Block(table.name, first, min(first + BLOCK, table.hot))
        for table in hot.slots.tables
        for first in range(0, table.hot, BLOCK)
    ]


def checksums(replica: Replica, hot: HotSet) -> NDArray[np.int64]:
    """int64 [blocks]: CRC-32 of each block's ids, rows and optimiser state."""
    found = []
    for i, (table, ids) in enumerate(zip(hot.slots.tables, hot.ids, strict=True)):
        arrays: list[NDArray[Any]] = [ids, *replica.read(i).values()]
        for first in range(0, table.hot, BLOCK):
            sum = 0
            for array in arrays:
                sum = zlib.crc32(np.ascontiguousarray(array[first : first + BLOCK]).data, sum)
            found.append(sum)
    return np.array(found, np.int64)


def compare(of: list[Block], of_ranks: NDArray[np.int64]) -> None:
    """Compare the checksums of all ranks.

    Args:
        of_ranks: int64 [ranks, blocks].

    Raises:
        DivergedReplicaError: names the first block that is not the same on all, and the ranks whose checksum fewest
            others have; of two ranks both.
    """
    wrong = np.flatnonzero((of_ranks != of_ranks[0]).any(axis=0))
    if not wrong.size:
        return
    block = of[wrong[0]]
    _, inverse, counts = np.unique(of_ranks[:, wrong[0]], return_inverse=True, return_counts=True)
    usual = counts[inverse] == counts.max()
    ranks = np.flatnonzero(~usual) if not usual.all() else np.arange(len(of_ranks))
    raise DivergedReplicaError(
        f"hot rows of table {block.table}, slots {block.first} to {block.last - 1}, are not the same on all ranks: "
        f"{_say(ranks)} {'differ' if ranks.size > 1 else 'differs'}; {wrong.size} of {len(of)} blocks do. "
        "A host's memory may be faulty: go on from the last checkpoint, and watch whether it is the same host again"
    )


def _say(ranks: NDArray[np.int64]) -> str:
    return f"rank {ranks[0]}" if ranks.size == 1 else f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
