"""Tables of many messages to payloads and back: one launch a stage, one copy of sizes to the host."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compression.device.backend import THREADS, WARPS, Arena, Backend
from compression.device.records import (
    ALIGNED,
    MESSAGE,
    ROWS,
    SECTION,
    STATE_BYTES,
    Coding,
    Plan,
    Tables,
    make_plan,
)

CHECKSUM_WORDS = THREADS * 16
"""Of a message, that a block sums at least."""
MOST_CHECKSUM_BLOCKS = 1024
NEEDS_ROWS = 32
"""See `Problem` in kernels/common.cuh."""


class Payloads(NamedTuple):
    """Encoded messages in one buffer.

    Attributes:
        starts, sizes: int64 [messages], in bytes of the buffer.
        unfinished: int64, messages that have a table to be sent bit for bit, which no kernel does; they have no
            payload.
    """

    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    unfinished: NDArray[np.int64]


class _Uploaded(NamedTuple):
    """A plan on the device: addresses of its records, how many there are, and of working memory.

    Attributes:
        blocks: owners, states, and the memory for `slots` of uint32 a block.
    """

    sections: int
    section_count: int
    messages: int
    message_count: int
    rows: int
    rows_count: int
    row_owners: int
    chunks: int
    owners: int
    blocks: int
    states: int
    slots: int

    def slot(self, number: int) -> int:
        """A uint32 of each block."""
        return self.slots + 4 * self.blocks * number


WIDTHS, PLACES, OFFSETS, NUMBER_WIDTHS, CODE_WIDTHS, NUMBER_OFFSETS, CODE_OFFSETS, CODE_PLACES, SPARE = range(9)
"""What is kept of each block; all but the first three only where equal rows are sent once."""


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
        count = plan.messages.size
        if not count:
            return Payloads(*(np.empty(0, np.int64) for _ in range(3)))
        ends = (-(-plan.messages["capacity"] // ALIGNED) * ALIGNED).cumsum()
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        out = self.arena.get(self.OUT, 4 * int(ends[-1]))
        plan.messages["words"] = (4 * starts + out).astype(np.uint64)
        at = _upload(self.arena, plan, tables_zeroed=True)
        small = 4 * (2 * count + 2 * tables.rows.size)
        problems = self.arena.get("small", small)
        sizes, ranges = problems + 4 * count, problems + 8 * count
        self.arena.backend.zero(problems, small)
        if coding.relative.any():
            self.arena.run("find_ranges", _warps(at), at.sections, at.owners, at.blocks, ranges)
        self.arena.run(
            "make_grids", -(-at.section_count // THREADS), at.sections, at.section_count, ranges, at.states, problems
        )
        self._choose(at)
        self._write(at, sizes, _checksum_grid(plan))
        found = self.arena.backend.download(problems, 8 * count).view(np.uint32).astype(np.int64).reshape(2, count)
        return Payloads(4 * starts, 4 * found[1], np.flatnonzero(found[0]))

    def _choose(self, at: _Uploaded) -> None:
        """What becomes of each section, and its size."""
        run, slot = self.arena.run, at.slot
        narrow, wide = slot(CODE_PLACES), slot(SPARE)
        if at.rows_count:
            run("count_patches", _warps(at), at.sections, at.owners, at.blocks, at.states, narrow, wide)
            run("choose_widths", at.rows_count, at.sections, at.rows, at.states, narrow, wide)
            run("write_codes", _warps(at), at.sections, at.owners, at.blocks, at.states, at.rows)
            run("match_rows", at.chunks, at.rows, at.row_owners, at.states)
            run("number_rows", at.rows_count, at.rows, at.states)
            run("refer_rows", at.chunks, at.rows, at.row_owners, at.states)
        widths, places, offsets = slot(WIDTHS), slot(PLACES), slot(OFFSETS)
        run("measure_blocks", _warps(at), at.sections, at.owners, at.blocks, at.states, widths, places)
        run("place_blocks", at.section_count, at.sections, at.states, widths, places, offsets)
        if at.rows_count:
            of_streams = [slot(i) for i in (NUMBER_WIDTHS, CODE_WIDTHS, NUMBER_OFFSETS, CODE_OFFSETS)]
            run("measure_streams", _warps(at), at.sections, at.owners, at.blocks, at.states, at.rows, *of_streams[:2])
            run("place_streams", at.rows_count, at.sections, at.rows, at.states, *of_streams)

    def _write(self, at: _Uploaded, sizes: int, checksum_grid: tuple[int, int]) -> None:
        """The payloads and their sizes."""
        run, slot = self.arena.run, at.slot
        blocks = at.sections, at.owners, at.blocks, at.states, at.messages
        run("write_frames", at.message_count, at.sections, at.states, at.messages, sizes)
        run("write_blocks", _warps(at), *blocks, slot(WIDTHS), slot(PLACES), slot(OFFSETS))
        if at.rows_count:
            of_streams = [slot(i) for i in (NUMBER_WIDTHS, CODE_WIDTHS, NUMBER_OFFSETS, CODE_OFFSETS, CODE_PLACES)]
            run("write_streams", _warps(at), *blocks, at.rows, *of_streams)
        run("write_checksums", checksum_grid, at.messages, sizes)


class TableDecoder:
    """Decodes payloads; keeps its memory, so it belongs to one stream at a time."""

    def __init__(self, backend: Backend) -> None:
        self.arena = Arena(backend)
        self._rows = False  # whether a payload with equal rows sent once has been seen

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
        if not tables.message_count:
            return np.empty(0, np.int64)
        problems = self._decode(tables, addresses, sizes)
        if not self._rows and (problems[0] & NEEDS_ROWS).any():
            self._rows = True
            problems = self._decode(tables, addresses, sizes)
        return np.flatnonzero(problems.any(axis=0))

    def _decode(self, tables: Tables, addresses: NDArray[np.uint64], sizes: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Problems, and what checksums lack, of each message."""
        plan = make_plan(tables, rows=self._rows)
        count = plan.messages.size
        foreign = (sizes % 4 != 0) | (sizes > 4 * plan.messages["capacity"])
        plan.messages["words"], plan.messages["capacity"] = addresses, np.where(foreign, 0, sizes // 4)
        at = _upload(self.arena, plan, tables_zeroed=False)
        problems = self.arena.get("small", 8 * count)
        self.arena.backend.zero(problems, 8 * count)
        run, slot = self.arena.run, at.slot
        blocks = at.sections, at.owners, at.blocks, at.states
        widths, offsets = slot(WIDTHS), slot(OFFSETS)
        run("read_frames", count, at.sections, at.states, at.messages, problems)
        run("check_checksums", _checksum_grid(plan), at.messages, problems + 4 * count)
        run("find_blocks", at.section_count, at.sections, at.states, at.messages, widths, offsets, problems)
        run("read_blocks", _warps(at), *blocks, at.messages, widths, offsets, problems)
        if at.rows_count:
            of_streams = [slot(i) for i in (NUMBER_WIDTHS, CODE_WIDTHS, NUMBER_OFFSETS, CODE_OFFSETS)]
            run("find_streams", at.rows_count, at.sections, at.rows, at.states, at.messages, *of_streams, problems)
            run("read_streams", _warps(at), *blocks, at.messages, at.rows, *of_streams, problems)
            run("expand_rows", _warps(at), *blocks, at.rows, problems)
        run("read_patches", at.section_count, at.sections, at.states, at.messages, problems)
        return self.arena.backend.download(problems, 8 * count).view(np.uint32).reshape(2, count)


def _upload(arena: Arena, plan: Plan, *, tables_zeroed: bool) -> _Uploaded:
    """All of a plan in one copy, and its working memory; `tables_zeroed`: hash tables are needed, and are to be 0."""
    sections, blocks = plan.sections.size, plan.owners.size
    states = arena.get("states", STATE_BYTES * sections)
    slots = arena.get("blocks", 4 * blocks * (9 if plan.rows.size else 3))
    if plan.rows.size:
        work = arena.get("rows", plan.row_bytes)
        for name in ("codes", "table", "slots", "numbers", "firsts"):
            plan.rows[name] += np.uint64(work)
        if tables_zeroed:
            arena.backend.zero(work, plan.table_bytes)
    parts = plan.sections, plan.messages, plan.rows, plan.owners, plan.row_owners
    data = np.concatenate([part.view(np.uint8) for part in parts])
    address = arena.get("plan", data.size)
    arena.backend.upload(address, data)
    messages = address + SECTION.itemsize * sections
    rows = messages + MESSAGE.itemsize * plan.messages.size
    owners = rows + ROWS.itemsize * plan.rows.size
    return _Uploaded(
        sections=address,
        section_count=sections,
        messages=messages,
        message_count=plan.messages.size,
        rows=rows,
        rows_count=plan.rows.size,
        row_owners=owners + 4 * blocks,
        chunks=plan.row_owners.size,
        owners=owners,
        blocks=blocks,
        states=states,
        slots=slots,
    )


def _warps(at: _Uploaded) -> int:
    """CUDA blocks, for a warp a block of values."""
    return -(-at.blocks // WARPS)


def _checksum_grid(plan: Plan) -> tuple[int, int]:
    largest = int(plan.messages["capacity"].max())
    return max(min(-(-largest // CHECKSUM_WORDS), MOST_CHECKSUM_BLOCKS), 1), plan.messages.size
