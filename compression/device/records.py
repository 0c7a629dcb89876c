"""Tables and messages as the kernels read them: the structures of `kernels/common.cuh`, field by field."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compression.wire import DESCRIPTOR, HEADER, MOST_VALUES, PART_BYTES

SECTION = np.dtype(
    [("values", "<u8")]
    + [(name, "<i8") for name in ("n", "rows", "columns", "dtype", "chain", "table", "message", "first_block")]
    + [("first_value", "<i8"), ("stochastic", "<i8"), ("relative", "<i8"), ("seed", "<u8"), ("bound", "<f8")]
)
MESSAGE = np.dtype([("first_section", "<i8"), ("sections", "<i8"), ("words", "<u8"), ("capacity", "<i8")])
STATE_BYTES = 56
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
        count: messages, some of which may have no table.
    """

    addresses: NDArray[np.uint64]
    rows: Ints
    columns: Ints
    dtypes: Ints
    messages: Ints
    count: int


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
        raw: int64 [S], raw words.
    """

    sections: NDArray[np.void]
    owners: NDArray[np.uint32]
    messages: NDArray[np.void]
    raw: Ints


def make_plan(tables: Tables, coding: Coding | None = None) -> Plan:
    """The sections of tables, cut as `wire.parts` does, and their messages, without the addresses of payloads.

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
    raw = (n * item[table] + 3) // 4
    messages = np.zeros(tables.count, MESSAGE)
    counts = np.bincount(sections["message"], minlength=tables.count)
    messages["sections"], messages["first_section"] = counts, counts.cumsum() - counts
    ends = np.concatenate([[0], raw.cumsum()])
    held = ends[messages["first_section"] + counts] - ends[messages["first_section"]]
    messages["capacity"] = HEADER + DESCRIPTOR * counts + held
    if n.size and n.max() >= MOST_VALUES:
        raise ValueError(f"a section of {n.max()} values: a row is too wide")
    if messages.size and messages["capacity"].max() >= MOST_WORDS:
        raise ValueError(f"a message of {4 * messages['capacity'].max()} bytes: at most {4 * MOST_WORDS} go in one")
    return Plan(sections, np.repeat(np.arange(table.size, dtype=np.uint32), blocks), messages, raw)
