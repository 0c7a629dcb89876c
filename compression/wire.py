"""The frame of a payload: header, one descriptor a section, and the sections. docs/wire-format.md has all of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compression.checksum import checksum
from compression.errors import CorruptPayloadError

MAGIC = int.from_bytes(b"TWRP", "little")
VERSION = 1
HEADER = 5
"""Words: magic, version, sections, words of the payload, checksum of all words but this."""
DESCRIPTOR = 5
"""Words: chain and dtype, rows, columns, words of the section, bound (float32)."""
PART_BYTES = 1 << 23
"""A table of more raw bytes is cut by rows into sections of at most so many, which threads code at the same time."""
BOUNDS = 2.0**-101, 2.0**120
"""Of a lossy section. A table with a bound below 2^-100 is sent bit for bit; stochastic rounding halves the others."""
MOST_VALUES = 1 << 31
"""Values of a section are fewer."""

RAW, LOSSLESS, BITPACK, HUFFMAN, RANS, DEDUP = range(6)
CHAINS = {"raw": RAW, "lossless": LOSSLESS, "bitpack": BITPACK, "huffman": HUFFMAN, "rans": RANS, "dedup": DEDUP}
"""Number of each chain on the wire. A number is never given to another chain."""
DTYPES = ("float32", "float16", "bfloat16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool")
"""Dtypes by their number on the wire."""
ITEM_BYTES = (4, 2, 2, 8, 1, 1, 2, 4, 8, 1)
FLOAT32, FLOAT16, BFLOAT16 = 0, 1, 2


class Section(NamedTuple):
    """A table, or some rows of a large one, in a payload."""

    chain: int
    dtype: int
    rows: int
    columns: int
    bound: float
    """Absolute; 0 if bit-exact."""
    start: int
    stop: int
    """Words of the payload."""


def max_bytes(shapes: list[tuple[int, int, int]]) -> int:
    """The most bytes that a payload of tables of these (rows, columns, bytes of a value) can have."""
    cut = [
        (stop - start) * columns * item for rows, columns, item in shapes for start, stop in parts(rows, columns * item)
    ]
    return 4 * (HEADER + DESCRIPTOR * len(cut) + sum((size + 3) // 4 for size in cut))


def parts(rows: int, row_bytes: int) -> list[tuple[int, int]]:
    """The rows of each section of a table; an empty table has one section."""
    if rows * row_bytes <= PART_BYTES:
        return [(0, rows)]
    count = max(min(-(-rows * row_bytes // PART_BYTES), rows), 1)
    return [(rows * i // count, rows * (i + 1) // count) for i in range(count)]


def write_frame(words: NDArray[np.uint32], sections: list[Section]) -> None:
    """Fill in header and descriptors of a payload whose sections are in place."""
    words[:HEADER] = MAGIC, VERSION, len(sections), words.size, 0
    descriptors = words[HEADER : HEADER + DESCRIPTOR * len(sections)].reshape(-1, DESCRIPTOR)
    bounds = np.array([s.bound for s in sections], np.float32).view(np.uint32)
    descriptors[:, :4] = [(s.chain | s.dtype << 8, s.rows, s.columns, s.stop - s.start) for s in sections] or 0
    descriptors[:, 4] = bounds
    words[4] = _sum(words)


def _sum(words: NDArray[np.uint32]) -> int:
    """Checksum with 0 in the place of the checksum. It is a sum over words, so that place is taken out of it: a payload
    that others may read at the same time is not written to."""
    place = np.zeros(HEADER, np.uint32)
    without = int(checksum(place))
    place[4] = words[4]
    return (int(checksum(words)) - int(checksum(place)) + without) % (1 << 32)


def as_words(payload: Any) -> NDArray[np.uint32]:
    """A payload, any bytes-like object, array or CPU tensor, as uint32 [n].

    Raises:
        CorruptPayloadError: it is no whole number of words.
    """
    if hasattr(payload, "numpy"):
        payload = payload.numpy()
    raw = np.frombuffer(payload, np.uint8)
    if raw.size % 4:
        raise CorruptPayloadError("length", f"{raw.size} bytes are no whole number of 4-byte words")
    if raw.ctypes.data % 4 or not raw.flags.writeable:  # read-only memory is another type to compiled functions
        raw = raw.copy()
    return raw.view(np.uint32)


def read_frame(words: NDArray[np.uint32]) -> list[Section]:
    """Check the frame and return the sections.

    Raises:
        CorruptPayloadError: names the field that is wrong.
    """
    if words.size < HEADER:
        raise CorruptPayloadError("length", f"{4 * words.size} bytes are less than a header of {4 * HEADER}")
    if words[0] != MAGIC:
        raise CorruptPayloadError("magic", f"{int(words[0]):#010x} is not {MAGIC:#010x}")
    if words[1] != VERSION:
        raise CorruptPayloadError("version", f"{int(words[1])} is not {VERSION}, the version that this release reads")
    if words[3] != words.size:
        raise CorruptPayloadError("length", f"the header says {4 * int(words[3])} bytes, there are {4 * words.size}")
    if words[4] != _sum(words):
        raise CorruptPayloadError("checksum", "the bytes are not those that were sent")
    count = int(words[2])
    at = HEADER + DESCRIPTOR * count
    if at > words.size:
        raise CorruptPayloadError("sections", f"{count} descriptors do not fit into {4 * words.size} bytes")
    descriptors = words[HEADER:at].reshape(count, DESCRIPTOR)
    bounds = np.ascontiguousarray(descriptors[:, 4]).view(np.float32).tolist()
    sections = []
    for i, (first, rows, columns, size, _) in enumerate(descriptors.tolist()):
        section = Section(first & 0xFF, first >> 8, rows, columns, bounds[i], at, at + size)
        _check_section(section, i)
        at += size
        sections.append(section)
    if at != words.size:
        raise CorruptPayloadError("section lengths", f"sections end at word {at} of {words.size}")
    return sections


def _check_section(section: Section, i: int) -> None:
    chain, dtype, rows, columns, bound, start, stop = section
    if chain > DEDUP:
        raise CorruptPayloadError(f"chain of section {i}", f"there is no chain {chain}")
    if dtype >= len(DTYPES) or (chain >= BITPACK and dtype > BFLOAT16):
        raise CorruptPayloadError(f"dtype of section {i}", f"{dtype} is none for chain {chain}")
    if rows * columns >= MOST_VALUES:
        raise CorruptPayloadError(f"shape of section {i}", f"{rows} x {columns} values are too many")
    if not (BOUNDS[0] <= bound <= BOUNDS[1] if chain >= BITPACK else bound == 0):
        raise CorruptPayloadError(f"bound of section {i}", f"{bound} is none for chain {chain}")
    raw = (rows * columns * ITEM_BYTES[dtype] + 3) // 4
    if stop - start > raw or (chain == RAW and stop - start != raw):
        raise CorruptPayloadError(f"length of section {i}", f"{4 * (stop - start)} bytes for {4 * raw} bytes of values")
