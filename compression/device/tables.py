"""Tables of many messages to payloads and back: one launch a stage, one copy of sizes to the host."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compression.device.backend import THREADS, WARPS, Arena, Backend
from compression.device.coded import CODED_STATE_BYTES, family_bytes, lay_out, upload_family
from compression.device.records import (
    ALIGNED,
    STATE_BYTES,
    Coding,
    Plan,
    Tables,
    make_plan,
)

CHECKSUM_WORDS = THREADS * 16
"""Of a message, that a block sums at least."""
MOST_CHECKSUM_BLOCKS = 1024
NEEDS_ROWS, NEEDS_CODED = 32, 64
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
    coded: int
    coded_count: int
    coded_of: int
    unit_owners: int
    units: int
    coded_states: int
    owners: int
    blocks: int
    states: int
    slots: int

    @property
    def positions(self) -> tuple[int, ...]:
        """What a kernel takes to find the sections of blocks."""
        return self.sections, self.owners, self.blocks, self.states

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
        self._family = upload_family(backend, self.arena.get("family", family_bytes()))

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
        at = _upload(self.arena, plan, decode=False, coded=False)
        small = 4 * (2 * count + 2 * tables.rows.size)
        problems = self.arena.get("small", small)
        sizes, ranges = problems + 4 * count, problems + 8 * count
        self.arena.backend.zero(problems, small)
        if coding.relative.any():
            self.arena.run("find_ranges", _warps(at.blocks), at.sections, at.owners, at.blocks, ranges)
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
        if at.rows_count:
            narrow, wide = slot(CODE_PLACES), slot(SPARE)
            run("count_patches", _warps(at.blocks), *at.positions, narrow, wide)
            run("choose_widths", at.rows_count, at.sections, at.rows, at.states, narrow, wide)
            run("write_codes", _warps(at.blocks), *at.positions, at.rows)
            run("match_rows", at.chunks, at.rows, at.row_owners, at.states)
            run("number_rows", at.rows_count, at.rows, at.states)
            run("refer_rows", at.chunks, at.rows, at.row_owners, at.states)
        widths, places, offsets = slot(WIDTHS), slot(PLACES), slot(OFFSETS)
        run("measure_blocks", _warps(at.blocks), *at.positions, widths, places)
        run("place_blocks", at.section_count, at.sections, at.states, widths, places, offsets)
        if at.rows_count > at.coded_count:
            of_streams = [slot(i) for i in (NUMBER_WIDTHS, CODE_WIDTHS, NUMBER_OFFSETS, CODE_OFFSETS)]
            run("measure_streams", _warps(at.blocks), *at.positions, at.rows, *of_streams[:2])
            run("place_streams", at.rows_count, at.sections, at.rows, at.states, *of_streams)
        if at.coded_count:
            self._choose_coded(at)

    def _choose_coded(self, at: _Uploaded) -> None:
        run = self.arena.run
        of_chunks = at.coded, at.rows, at.coded_of, at.row_owners, at.states
        run("count_references", at.chunks, *of_chunks)
        run("make_codebooks", at.coded_count, at.coded, at.coded_states, at.rows, at.states)
        run("measure_references", at.chunks, *of_chunks)
        run("fit_models", at.coded_count, at.coded, at.rows, at.states, self._family)
        run("make_residuals", _warps(at.blocks), *at.positions, at.rows, at.coded_of, at.coded)
        run("make_symbols", _warps(at.units), at.coded, at.unit_owners, at.units, at.rows, at.states, self._family)
        run("place_coded", at.coded_count, at.coded, at.coded_states, at.sections, at.rows, at.states)

    def _write(self, at: _Uploaded, sizes: int, checksum_grid: tuple[int, int]) -> None:
        """The payloads and their sizes."""
        run, slot = self.arena.run, at.slot
        run("write_frames", at.message_count, at.sections, at.states, at.messages, sizes)
        of_blocks = slot(WIDTHS), slot(PLACES), slot(OFFSETS)
        run("write_blocks", _warps(at.blocks), *at.positions, at.messages, *of_blocks)
        if at.rows_count > at.coded_count:
            of_streams = [slot(i) for i in (NUMBER_WIDTHS, CODE_WIDTHS, NUMBER_OFFSETS, CODE_OFFSETS)]
            run("write_streams", _warps(at.blocks), *at.positions, at.messages, at.rows, *of_streams)
        if at.coded_count:
            self._write_coded(at)
        if at.rows_count:
            run("write_code_patches", _warps(at.blocks), *at.positions, at.messages, slot(CODE_PLACES))
        run("write_checksums", checksum_grid, at.messages, sizes)

    def _write_coded(self, at: _Uploaded) -> None:
        run = self.arena.run
        run("clear_coded", _warps(at.blocks), *at.positions, at.messages)
        of_coded = at.coded, at.coded_states
        run("write_coded_heads", at.coded_count, *of_coded, at.sections, at.rows, at.states, at.messages)
        run(
            "write_references", at.chunks, *of_coded, at.sections, at.messages, at.rows, at.coded_of, at.row_owners,
            at.states,
        )  # fmt: skip
        run(
            "write_symbols", _warps(at.units), *of_coded, at.unit_owners, at.units, at.sections, at.rows, at.states,
            at.messages, self._family,
        )  # fmt: skip
        run("write_low_bits", _warps(at.blocks), *at.positions, at.messages, at.rows, at.coded_of, at.coded)


class TableDecoder:
    """Decodes payloads; keeps its memory, so it belongs to one stream at a time."""

    def __init__(self, backend: Backend) -> None:
        self.arena = Arena(backend)
        self._family = upload_family(backend, self.arena.get("family", family_bytes()))
        # Whether payloads have been seen that need this working memory.
        self._rows = self._coded = False

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
        needed = int(np.bitwise_or.reduce(problems[0]))
        if (needed & NEEDS_ROWS and not self._rows) or (needed & NEEDS_CODED and not self._coded):
            self._coded |= needed & NEEDS_CODED != 0
            self._rows = True
            return self.decode(tables, addresses, sizes)
        return np.flatnonzero(problems.any(axis=0))

    def _decode(self, tables: Tables, addresses: NDArray[np.uint64], sizes: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Problems, and what checksums lack, of each message."""
        plan = make_plan(tables, rows=self._rows)
        count = plan.messages.size
        foreign = (sizes % 4 != 0) | (sizes > 4 * plan.messages["capacity"])
        plan.messages["words"], plan.messages["capacity"] = addresses, np.where(foreign, 0, sizes // 4)
        at = _upload(self.arena, plan, decode=True, coded=self._coded)
        problems = self.arena.get("small", 8 * count)
        self.arena.backend.zero(problems, 8 * count)
        run, slot = self.arena.run, at.slot
        blocks = at.positions
        widths, offsets = slot(WIDTHS), slot(OFFSETS)
        run("read_frames", count, at.sections, at.states, at.messages, int(self._coded), problems)
        run("check_checksums", _checksum_grid(plan), at.messages, problems + 4 * count)
        run("find_blocks", at.section_count, at.sections, at.states, at.messages, widths, offsets, problems)
        run("read_blocks", _warps(at.blocks), *blocks, at.messages, widths, offsets, problems)
        if at.rows_count:
            of_streams = [slot(i) for i in (NUMBER_WIDTHS, CODE_WIDTHS, NUMBER_OFFSETS, CODE_OFFSETS)]
            run("find_streams", at.rows_count, at.sections, at.rows, at.states, at.messages, *of_streams, problems)
            run("read_streams", _warps(at.blocks), *blocks, at.messages, at.rows, *of_streams, problems)
        if self._coded:
            self._read_coded(at, problems)
        if at.rows_count:
            run("expand_rows", _warps(at.blocks), *blocks, at.rows, problems)
        run("read_patches", at.section_count, at.sections, at.states, at.messages, problems)
        return self.arena.backend.download(problems, 8 * count).view(np.uint32).reshape(2, count)

    def _read_coded(self, at: _Uploaded, problems: int) -> None:
        """Codes of sections of chain huffman."""
        run = self.arena.run
        of_coded = at.coded, at.coded_states, at.sections, at.rows, at.states
        of_units = at.unit_owners, at.units, at.sections, at.rows, at.states, at.messages, self._family, problems
        run("read_coded_heads", at.coded_count, *of_coded, at.messages, problems)
        run("read_references", at.coded_count, *of_coded, at.messages, problems)
        run("read_symbols", -(-at.units // THREADS), at.coded, *of_units)
        run("place_escapes", at.coded_count, *of_coded, problems)
        run("read_residuals", _warps(at.units), at.coded, at.coded_states, *of_units)
        run("restore_codes", _warps(at.blocks), *at.positions, at.rows, at.coded_of, at.coded, problems)


def _upload(arena: Arena, plan: Plan, *, decode: bool, coded: bool) -> _Uploaded:
    """All of a plan in one copy, and its working memory; `coded`: for any section to be of chain huffman."""
    sections, blocks = plan.sections.size, plan.owners.size
    states = arena.get("states", STATE_BYTES * sections)
    slots = arena.get("blocks", 4 * blocks * (9 if plan.rows.size else 3))
    if plan.rows.size:
        work = arena.get("rows", plan.row_bytes)
        for name in ("codes", "table", "slots", "numbers", "firsts"):
            plan.rows[name] += np.uint64(work)
        if not decode:
            arena.backend.zero(work, plan.zeroed_bytes)
    records, coded_of, unit_owners, size = layout = lay_out(plan, every=coded)
    if records.size:
        layout.place(plan, arena.get("coded", size))
    coded_states = arena.get("coded states", CODED_STATE_BYTES * records.size)
    # Of 8 bytes first: each part then begins at a multiple of its items.
    parts = plan.sections, plan.messages, plan.rows, records, coded_of, plan.owners, plan.row_owners, unit_owners
    data = np.concatenate([part.view(np.uint8) for part in parts])
    address = arena.get("plan", data.size)
    arena.backend.upload(address, data)
    at = np.cumsum([address, *(part.nbytes for part in parts)]).tolist()
    return _Uploaded(
        sections=at[0],
        section_count=sections,
        messages=at[1],
        message_count=plan.messages.size,
        rows=at[2],
        rows_count=plan.rows.size,
        coded=at[3],
        coded_count=records.size,
        coded_of=at[4],
        owners=at[5],
        blocks=blocks,
        row_owners=at[6],
        chunks=plan.row_owners.size,
        unit_owners=at[7],
        units=unit_owners.size,
        coded_states=coded_states,
        states=states,
        slots=slots,
    )


def _warps(count: int) -> int:
    """CUDA blocks, for a warp each of so many."""
    return -(-count // WARPS)


def _checksum_grid(plan: Plan) -> tuple[int, int]:
    largest = int(plan.messages["capacity"].max())
    return max(min(-(-largest // CHECKSUM_WORDS), MOST_CHECKSUM_BLOCKS), 1), plan.messages.size
