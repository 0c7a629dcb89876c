"""Tables and messages as the kernels read them: the structures of `kernels/common.cuh`, field by field."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compression.device.backend import THREADS
from compression.shapes import FEWEST_ROWS, MOST_COLUMNS
from compression.wire import BITPACK, DEDUP, DESCRIPTOR, HEADER, HUFFMAN, MOST_VALUES, PART_BYTES

SECTION = np.dtype(
    [("values", "<u8")]
    + [(name, "<i8") for name in ("n", "rows", "columns", "dtype", "chain", "table", "message", "first_block")]
    + [("first_value", "<i8"), ("stochastic", "<i8"), ("relative", "<i8"), ("seed", "<u8"), ("bound", "<f8")]
    + [("work", "<i8")]
)
MESSAGE = np.dtype([("first_section", "<i8"), ("sections", "<i8"), ("words", "<u8"), ("capacity", "<i8")])
ROWS = np.dtype(
    [(name, "<i8") for name in ("section", "rows", "columns", "first_chunk")]
    + [("codes", "<u8"), ("table", "<u8"), ("mask", "<i8"), ("slots", "<u8"), ("numbers", "<u8"), ("firsts", "<u8")]
)
STATE_BYTES = 56
HISTOGRAM = 128
"""Counts of the symbols of references."""
BLOCK = 1024
"""Values that are packed together."""
ALIGNED = 64
"""Words: each message begins at a multiple of so many."""
MOST_WORDS = 1 << 32
"""A payload has fewer."""

Ints = NDArray[np.int64]


class Tables(NamedTuple):
    """Tables on a device, in the order of messages; an entry a table.

    Attributes:
        addresses: uint64, of float32, float16 or bfloat16 [rows, columns], contiguous.
        rows, columns, dtypes: int64; dtypes as on the wire.
        messages: int64, ascending: the message of each table.
        message_count: some of which may have no table.
    """

    addresses: NDArray[np.uint64]
    rows: Ints
    columns: Ints
    dtypes: Ints
    messages: Ints
    message_count: int


class Coding(NamedTuple):
    """How tables are encoded, an entry a table.

    Attributes:
        bounds: float64, absolute, or a share of the table's range where `relative` (bool).
        chains: int64, as on the wire.
        seeds: uint64 of each table if values are rounded at random, else None.
    """

    bounds: NDArray[np.float64]
    relative: NDArray[np.bool_]
    chains: Ints
    seeds: NDArray[np.uint64] | None = None


class Plan(NamedTuple):
    """What one upload holds.

    Attributes:
        sections: SECTION [S]; owners: uint32 [blocks], the section of each block; messages: MESSAGE [M].
        rows: ROWS [R], of sections whose equal rows are sent once, with addresses from 0 on; row_owners: uint32
            [chunks], the `rows` of each chunk of THREADS rows.
    """

    sections: NDArray[np.void]
    owners: NDArray[np.uint32]
    messages: NDArray[np.void]
    rows: NDArray[np.void]
    row_owners: NDArray[np.uint32]

    @property
    def zeroed_bytes(self) -> int:
        """Of all hash tables, each with a histogram before it; other working memory of rows follows them."""
        return 4 * int((HISTOGRAM + self.rows["mask"] + 1).sum())

    @property
    def row_bytes(self) -> int:
        """Of all working memory of rows."""
        last = self.rows[-1:]
        return int((last["firsts"].astype(np.int64) + 4 * last["rows"]).sum())


def make_plan(tables: Tables, coding: Coding | None = None, *, rows: bool = False) -> Plan:
    """The sections of tables, cut as `wire.parts` does, and their messages, without the addresses of payloads.

    Args:
        coding: to encode them.
        rows: to decode them where equal rows may have been sent once.

    Raises:
        ValueError: a section or a message is larger than the format allows.
    """
    item = np.where(tables.dtypes == 0, 4, 2)
    row_bytes = tables.columns * item
    parts = np.minimum(-(-tables.rows * row_bytes // PART_BYTES), tables.rows)
    parts = np.where(tables.rows * row_bytes > PART_BYTES, np.maximum(parts, 1), 1)
    table = np.repeat(np.arange(tables.rows.size), parts)
    number = np.arange(table.size) - np.repeat(parts.cumsum() - parts, parts)
    first, last = tables.rows[table] * number // parts[table], tables.rows[table] * (number + 1) // parts[table]
    sections = np.zeros(table.size, SECTION)
    sections["rows"], sections["columns"] = last - first, tables.columns[table]
    n = sections["n"] = (last - first) * tables.columns[table]
    sections["first_value"] = first * tables.columns[table]
    sections["values"] = tables.addresses[table] + (first * row_bytes[table]).astype(np.uint64)
    sections["dtype"], sections["table"], sections["message"] = tables.dtypes[table], table, tables.messages[table]
    blocks = -(-n // BLOCK)
    sections["first_block"] = blocks.cumsum() - blocks
    if coding is not None:
        sections["bound"], sections["relative"] = coding.bounds[table], coding.relative[table]
        sections["chain"] = coding.chains[table]
        if coding.seeds is not None:
            sections["stochastic"], sections["seed"] = 1, coding.seeds[table]
    compared = (sections["rows"] >= FEWEST_ROWS) & (sections["columns"] <= MOST_COLUMNS) & (sections["columns"] >= 2)
    if coding is not None:
        chain = sections["chain"]
        chain[(chain == DEDUP) & ~compared] = BITPACK
        worked = (chain == DEDUP) | ((chain == HUFFMAN) & (n > 0))
    else:
        worked = (n > 0) & rows
    sections["work"] = np.where(worked, worked.cumsum() - 1, -1)
    raw = (n * item[table] + 3) // 4
    messages = np.zeros(tables.message_count, MESSAGE)
    counts = np.bincount(sections["message"], minlength=tables.message_count)
    messages["sections"], messages["first_section"] = counts, counts.cumsum() - counts
    ends = np.concatenate([[0], raw.cumsum()])
    held = ends[messages["first_section"] + counts] - ends[messages["first_section"]]
    messages["capacity"] = HEADER + DESCRIPTOR * counts + held
    if n.size and n.max() >= MOST_VALUES:
        raise ValueError(f"a section of {n.max()} values: a row is too wide")
    if messages.size and messages["capacity"].max() >= MOST_WORDS:
        raise ValueError(f"a message of {4 * messages['capacity'].max()} bytes: at most {4 * MOST_WORDS} go in one")
    owners = np.repeat(np.arange(table.size, dtype=np.uint32), blocks)
    return Plan(sections, owners, messages, *_make_rows(sections, np.flatnonzero(worked), compared[worked]))


def _make_rows(
    sections: NDArray[np.void], which: Ints, compared: NDArray[np.bool_]
) -> tuple[NDArray[np.void], NDArray[np.uint32]]:
    """Working memory of these sections: what is to be 0 first, hash tables and histograms, then the rest. Sections that
    are not `compared` are taken as one column."""
    found = np.zeros(which.size, ROWS)
    if not which.size:
        return found, np.empty(0, np.uint32)
    rows = np.where(compared, sections["rows"][which], sections["n"][which])
    columns = np.where(compared, sections["columns"][which], 1)
    found["section"], found["rows"], found["columns"] = which, rows, columns
    sizes = 1 << np.ceil(np.log2(np.where(compared, np.maximum(2 * rows, 64), 1))).astype(np.int64)
    found["mask"] = sizes - 1
    found["table"] = 4 * (HISTOGRAM + sizes).cumsum() - 4 * sizes
    chunks = np.where(compared, -(-rows // THREADS), 0)
    found["first_chunk"] = chunks.cumsum() - chunks
    codes = -(-np.where(compared, rows * (-(-2 * columns // 8) * 8), 2 * rows) // 8) * 8
    each = np.where(compared, -(-4 * rows // 8) * 8, 0)
    begin = -(-4 * int((HISTOGRAM + sizes).sum()) // 8) * 8
    at = begin + (codes + 3 * each).cumsum() - (codes + 3 * each)
    found["codes"], found["slots"] = at, at + codes
    found["numbers"], found["firsts"] = at + codes + each, at + codes + 2 * each
    return found, np.repeat(np.arange(which.size, dtype=np.uint32), chunks)
