"""Tables of many messages to payloads and back: one launch a stage, one copy of sizes to the host."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compression.device.backend import THREADS, WARPS, Arena, Backend
from compression.device.records import ALIGNED, MESSAGE, SECTION, STATE_BYTES, Coding, Plan, Tables, make_plan

CHECKSUM_WORDS = THREADS * 16
"""Of a message, that a block sums at least."""
MOST_CHECKSUM_BLOCKS = 1024


class Payloads(NamedTuple):
    """Encoded messages in one buffer.

    Attributes:
        starts, sizes: int64 [messages], in bytes of the buffer.
        unfinished: int64, messages that have a table to be sent bit for bit, which no kernel does: whoever called
            puts in what the CPU codec makes of them; there is room for the largest payload.
    """

    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    unfinished: NDArray[np.int64]


class _Uploaded(NamedTuple):
    """Addresses of a plan on the device."""

    sections: int
    owners: int
    messages: int


class TableEncoder:
    """Encodes tables; keeps its memory, so it belongs to one stream at a time."""

    OUT = "payloads"

    def __init__(self, backend: Backend) -> None:
        self.arena = Arena(backend)

    def encode(self, tables: Tables, coding: Coding) -> Payloads:
        """Encode tables on the device; the payloads are in the buffer `OUT` until the next call.

        Raises:
            ValueError: see `make_plan`.
        """
        plan = make_plan(tables, coding)
        count, blocks = plan.messages.size, plan.owners.size
        starts = (-(-plan.messages["capacity"] // ALIGNED) * ALIGNED).cumsum()
        out = self.arena.get(self.OUT, 4 * int(starts[-1]) if count else 0)
        starts = np.concatenate([[0], starts[:-1]]).astype(np.int64)[:count]
        plan.messages["words"] = (4 * starts + out).astype(np.uint64)
        if not count:
            return Payloads(starts, starts, starts)
        at = _upload(self.arena, plan)
        problems = self.arena.get("small", 4 * (2 * count + 2 * tables.rows.size))
        sizes, ranges = problems + 4 * count, problems + 8 * count
        self.arena.backend.zero(problems, 4 * (2 * count + 2 * tables.rows.size))
        self._code(plan, at, blocks, problems, ranges, bool(coding.relative.any()))
        states = self.arena.get("states", STATE_BYTES * plan.sections.size)
        self.arena.run("write_frames", count, at.sections, states, at.messages, sizes)
        widths, places, offsets = _of_blocks(self.arena, blocks)
        self.arena.run(
            "write_blocks", _warps(blocks), at.sections, at.owners, blocks, states, at.messages, widths, places, offsets
        )
        self.arena.run("write_checksums", _checksum_grid(plan), at.messages, sizes)
        small = self.arena.backend.download(problems, 8 * count).view(np.uint32).astype(np.int64).reshape(2, count)
        return Payloads(4 * starts, 4 * small[1], np.flatnonzero(small[0]))

    def _code(self, plan: Plan, at: _Uploaded, blocks: int, problems: int, ranges: int, relative: bool) -> None:
        """The state of each section: what becomes of it, and its size."""
        arena, sections = self.arena, plan.sections.size
        states = arena.get("states", STATE_BYTES * sections)
        widths, places, offsets = _of_blocks(arena, blocks)
        if relative:
            arena.run("find_ranges", _warps(blocks), at.sections, at.owners, blocks, ranges)
        arena.run("make_grids", -(-sections // THREADS), at.sections, sections, ranges, states, problems)
        arena.run("measure_blocks", _warps(blocks), at.sections, at.owners, blocks, states, widths, places)
        arena.run("place_blocks", sections, at.sections, states, widths, places, offsets)


class TableDecoder:
    """Decodes payloads; keeps its memory, so it belongs to one stream at a time."""

    def __init__(self, backend: Backend) -> None:
        self.arena = Arena(backend)

    def decode(self, tables: Tables, addresses: NDArray[np.uint64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Decode into the tables.

        Args:
            addresses: uint64 [messages], of payloads, at multiples of 4.
            sizes: int64 [messages], their bytes.

        Returns:
            The messages that were not decoded: they are damaged, hold other tables, or a chain that no kernel decodes.
            The CPU codec decodes them, or says what is wrong. What was written to their tables has no meaning.

        Raises:
            ValueError: see `make_plan`.
        """
        plan = make_plan(tables)
        count, blocks, sections = plan.messages.size, plan.owners.size, plan.sections.size
        if not count:
            return np.empty(0, np.int64)
        foreign = (sizes % 4 != 0) | (sizes > 4 * plan.messages["capacity"])
        plan.messages["words"], plan.messages["capacity"] = addresses, np.where(foreign, 0, sizes // 4)
        at = _upload(self.arena, plan)
        problems = self.arena.get("small", 8 * count)
        self.arena.backend.zero(problems, 8 * count)
        states = self.arena.get("states", STATE_BYTES * sections)
        widths, _, offsets = _of_blocks(self.arena, blocks)
        run = self.arena.run
        run("read_frames", count, at.sections, states, at.messages, problems)
        run("check_checksums", _checksum_grid(plan), at.messages, problems + 4 * count)
        run("find_blocks", sections, at.sections, states, at.messages, widths, offsets, problems)
        run(
            "read_blocks", _warps(blocks), at.sections, at.owners, blocks, states, at.messages, widths, offsets, problems
        )
        run("read_patches", sections, at.sections, states, at.messages, problems)
        small = self.arena.backend.download(problems, 8 * count).view(np.uint32).reshape(2, count)
        return np.flatnonzero(small.any(axis=0))


def _upload(arena: Arena, plan: Plan) -> _Uploaded:
    """All of a plan in one copy."""
    parts = [plan.sections.view(np.uint8), plan.messages.view(np.uint8), plan.owners.view(np.uint8)]
    data = np.concatenate(parts)
    address = arena.get("plan", data.size)
    arena.backend.upload(address, data)
    messages = address + SECTION.itemsize * plan.sections.size
    return _Uploaded(address, messages + MESSAGE.itemsize * plan.messages.size, messages)


def _of_blocks(arena: Arena, blocks: int) -> tuple[int, int, int]:
    """Three uint32 of each block."""
    start = arena.get("blocks", 12 * blocks)
    return start, start + 4 * blocks, start + 8 * blocks


def _warps(blocks: int) -> int:
    """CUDA blocks, for a warp a block of values."""
    return -(-blocks // WARPS)


def _checksum_grid(plan: Plan) -> tuple[int, int]:
    largest = int(plan.messages["capacity"].max())
    return max(min(-(-largest // CHECKSUM_WORDS), MOST_CHECKSUM_BLOCKS), 1), plan.messages.size
