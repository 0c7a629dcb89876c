"""Rows of any dtype, bit by bit as they are: equal rows once, byte planes, rANS.

The distinct rows, in the order in which they are first seen, are one sequence of elements. It is cut into blocks of
65536 elements, the last one shorter; a block of n elements of b bytes makes b planes of n bytes: the first bytes of all
its elements, then the second bytes, and so on.

A section is made of words of 32 bits, little-endian:

- distinct rows; words of the references.
- The references of all rows (`vector_lz`, `references`), only where there are fewer distinct rows than rows.
- A directory: for each block and each of its planes one word, 2 * (words of the plane) + (1 if it is coded).
- The planes in this order. One that is not coded: its bytes, then zeros up to a whole word. A coded one: its table
  (`tables.classify`); the words of each of its chunks of 8192 bytes, 16 bits each, then zeros up to a whole word; the
  chunks (`entropy`).

Rows are compared if there are at least 8 of 8 to 65536 bytes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compression import tables, vector_lz
from compression.entropy import CHUNK, CHUNK_WORDS, LANES, decode_chunk, encode_chunk
from compression.kernel import inner, kernel
from compression.references import decode_references, encode_references

BLOCK = 1 << 16
"""Most elements that are split into planes together."""
HEADER = 2
"""Words of a section before its references."""

COUNTS, REFERENCES, DIRECTORY, TABLE, SYMBOLS = 1, 2, 3, 4, 5
FIELDS = {COUNTS: "counts", REFERENCES: "references", DIRECTORY: "directory", TABLE: "table", SYMBOLS: "symbols"}
"""What `decode_planes` can find wrong."""

_LOG2 = np.array([0] + [round(256 * math.log2(i)) for i in range(1, 1024)], np.int64)


class PlanesWork(NamedTuple):
    """Working memory of `encode_planes` and `decode_planes`, from `planes_work`."""

    padded: NDArray[np.uint64]
    table: NDArray[np.int32]
    references: NDArray[np.uint32]
    firsts: NDArray[np.int32]
    block: NDArray[np.uint8]
    symbols: NDArray[np.uint8]
    stream: NDArray[np.uint16]
    pushes: NDArray[np.uint32]
    slots: NDArray[np.uint32]


def planes_work(rows: int, row_bytes: int, *, decode: bool) -> PlanesWork:
    """Arrays large enough for rows of this size and for fewer of them.

    At most 41 bytes a row, twice a block, and, to encode rows of other than whole words of 8 bytes, the rows once.

    Args:
        decode: for decoding, else for encoding; an array that is not needed is empty.
    """
    compared = rows if is_compared(rows, row_bytes) else 0
    encode = 0 if decode else compared
    power = 64
    while power < 2 * encode:
        power *= 2
    block = (min(BLOCK * 8, rows * row_bytes) + 7) // 8
    return PlanesWork(
        padded=np.empty(encode * ((row_bytes + 7) // 8) if row_bytes % 8 else 0, np.uint64),
        table=np.empty(power if encode else 0, np.int32),
        references=np.empty(compared, np.uint32),
        firsts=np.empty(compared, np.int32),
        block=np.empty(block, np.uint64).view(np.uint8),
        symbols=np.empty(max(block * 8, compared), np.uint8),
        stream=np.empty(CHUNK + 2 * CHUNK_WORDS, np.uint16),
        pushes=np.empty((1, 256, 4), np.uint32),
        slots=np.empty((1, tables.TOTAL), np.uint32),
    )


@kernel
def is_compared(rows, row_bytes):
    """Whether equal rows are looked for."""
    return rows >= 8 and 8 <= row_bytes <= 65536


@kernel
def entropy_bits(histogram, n):
    """Bits that n symbols take, from int64 counts that add up to n. In integers: every machine decides alike."""
    whole = _log2(n)
    total = np.int64(0)
    for count in histogram:
        total += count * (whole - _log2(count))
    return (total + 255) // 256


@inner
def _log2(n):
    """256 * log2(n), of 0: 0."""
    shift = 0
    while n >> shift >= 1024:
        shift += 1
    return _LOG2[n >> shift] + 256 * shift


@kernel
def encode_planes(raw, rows, row_bytes, element_bytes, work, words, at):
    """Write a section and return where it ends, or -1 if it does not fit or is not smaller than the rows.

    Args:
        raw: uint8 [rows * row_bytes], contiguous.
        rows: at least 1, below 2^31.
        element_bytes: 1, 2, 4 or 8, and `row_bytes` a multiple of it.
        work: see `planes_work`.
        words: uint32, out, written from `at` on.
    """
    limit = min(words.size, at + (rows * row_bytes + 3) // 4 - 1)
    distinct = _match(raw, rows, row_bytes, work) if is_compared(rows, row_bytes) else rows
    start = at
    at += HEADER
    if at > limit:
        return -1
    words[start] = distinct
    words[start + 1] = 0
    if distinct < rows:
        end = encode_references(work.references, rows, work.symbols, work.pushes, work.slots, work.stream, words, at)
        if end < 0:
            return -1
        words[start + 1] = end - at
        at = end
    elements = distinct * row_bytes // element_bytes
    directory = at
    at += (elements + BLOCK - 1) // BLOCK * element_bytes
    if at > limit:
        return -1
    for first in range(0, elements, BLOCK):
        n = min(BLOCK, elements - first)
        begin, size = first * element_bytes, n * element_bytes
        source = raw[begin : begin + size]
        if distinct < rows:
            _gather(raw, row_bytes, work.firsts, begin, size, work.block)
            source = work.block[:size]
        _split(source, n, element_bytes, work.symbols)
        for plane in range(element_bytes):
            end, coded = _write_plane(work.symbols[plane * n : (plane + 1) * n], n, work, words[:limit], at)
            if end < 0:
                return -1
            words[directory] = np.uint32(2 * (end - at) + coded)
            directory += 1
            at = end
    return at


@inner
def _match(raw, rows, row_bytes, work):
    """Number the distinct rows; returns how many there are."""
    width = (row_bytes + 7) // 8
    if row_bytes % 8:
        keys = work.padded[: rows * width]
        keys[:] = 0
        padded = keys.view(np.uint8)
        for row in range(rows):
            _copy(raw, row * row_bytes, padded, row * width * 8, row_bytes)
    else:
        keys = raw[: rows * row_bytes].view(np.uint64)
    size = 64
    while size < 2 * rows:
        size *= 2
    return vector_lz.match(keys, width, rows, work.table[:size], work.references, work.firsts)


@inner
def _copy(source, start, target, at, n):
    start, at = np.uintp(start), np.uintp(at)
    for i in range(np.uintp(n)):
        target[at + i] = source[start + i]


@inner
def _gather(raw, row_bytes, firsts, begin, size, out):
    """The bytes `begin` to `begin + size` of the distinct rows."""
    done = 0
    while done < size:
        row, offset = (begin + done) // row_bytes, (begin + done) % row_bytes
        n = min(row_bytes - offset, size - done)
        _copy(raw, np.int64(firsts[row]) * row_bytes + offset, out, done, n)
        done += n


@inner
def _scatter(source, begin, size, row_bytes, firsts, out):
    """Put the bytes `begin` to `begin + size` of the distinct rows where these are first seen."""
    done = 0
    while done < size:
        row, offset = (begin + done) // row_bytes, (begin + done) % row_bytes
        n = min(row_bytes - offset, size - done)
        _copy(source, done, out, np.int64(firsts[row]) * row_bytes + offset, n)
        done += n


@inner
def _split(source, n, element_bytes, planes):
    """Elements, uint8 [n * element_bytes], into planes [element_bytes * n]."""
    if element_bytes == 4:
        _split_words(source.view(np.uint32), n, 4, planes)
    elif element_bytes == 2:
        _split_words(source.view(np.uint16), n, 2, planes)
    elif element_bytes == 8:
        _split_words(source.view(np.uint64), n, 8, planes)
    else:
        _copy(source, 0, planes, 0, n)


@inner
def _split_words(elements, n, element_bytes, planes):
    for plane in range(element_bytes):
        out = planes[plane * n : (plane + 1) * n]
        shift = elements.dtype.type(8 * plane)
        for i in range(np.uintp(n)):
            out[i] = np.uint8(elements[i] >> shift)


@inner
def _join(planes, n, element_bytes, out):
    """Reverse `_split`."""
    if element_bytes == 4:
        _join_words(planes, n, 4, out.view(np.uint32))
    elif element_bytes == 2:
        _join_words(planes, n, 2, out.view(np.uint16))
    elif element_bytes == 8:
        _join_words(planes, n, 8, out.view(np.uint64))
    else:
        _copy(planes, 0, out, 0, n)


@inner
def _join_words(planes, n, element_bytes, out):
    for i in range(np.uintp(n)):
        out[i] = planes[i]
    for plane in range(1, element_bytes):
        source = planes[plane * n : (plane + 1) * n]
        shift = out.dtype.type(8 * plane)
        for i in range(np.uintp(n)):
            out[i] |= out.dtype.type(source[i]) << shift


@inner
def _histogram(symbols, n):
    # Four counts of each symbol: a run of equal symbols would wait for its own last count.
    counts = np.zeros((4, 256), np.int32)
    whole = np.uintp(n - n % 4)
    i = np.uintp(0)
    while i < whole:
        for lane in range(np.uintp(4)):
            counts[lane, symbols[i + lane]] += np.int32(1)
        i += np.uintp(4)
    while i < np.uintp(n):
        counts[np.uintp(0), symbols[i]] += np.int32(1)
        i += np.uintp(1)
    histogram = np.empty(256, np.int64)
    for s in range(256):
        histogram[s] = counts[0, s] + counts[1, s] + counts[2, s] + counts[3, s]
    return histogram


@inner
def _write_plane(symbols, n, work, words, at):
    """Returns (where the plane ends or -1, 1 if it is coded)."""
    histogram = _histogram(symbols, n)
    chunks = (n + CHUNK - 1) // CHUNK
    raw = (n + 3) // 4
    coded = entropy_bits(histogram, n) // 32 + tables.SENT_WORDS + chunks * (LANES + 2)
    # The table is coarse, and time is not worth the last percents.
    if 32 * coded >= 31 * raw:
        end = at + raw
        if end > words.size:
            return -1, 0
        words[end - 1] = 0
        _copy(symbols, 0, words[at:end].view(np.uint8), 0, n)
        return end, 0
    if at + tables.SENT_WORDS + chunks > words.size:
        return -1, 1
    directory = tables.classify(histogram, words, at)
    tables.read_classes(words, at, directory, work.pushes[0], work.slots[0])
    at = directory + (chunks + 1) // 2
    words[at - 1] = 0
    entries = words[directory:at].view(np.uint16)
    choice = np.zeros(1, np.uint8)
    for chunk in range(chunks):
        start = chunk * CHUNK
        count = min(CHUNK, n - start)
        end = encode_chunk(symbols[start:], 0, 1, count, choice, work.pushes, work.stream, words, at)
        if end < 0:
            return -1, 1
        entries[chunk] = end - at
        at = end
    return at, 1


@kernel
def decode_planes(words, at, end, rows, row_bytes, element_bytes, work, out):
    """Decode the section `words[at:end]` into uint8 [rows * row_bytes]; returns 0 or the number in FIELDS of what is
    wrong. Stays within all arrays whatever the words say.
    """
    if at + HEADER > end:
        return COUNTS
    distinct, references_end = np.int64(words[at]), at + HEADER + np.int64(words[at + 1])
    at += HEADER
    if distinct > rows or distinct < 1 or (distinct < rows and not is_compared(rows, row_bytes)):
        return COUNTS
    if references_end > end or (distinct == rows and references_end != at):
        return REFERENCES
    if distinct < rows and not _read_references(words, at, references_end, rows, distinct, work):
        return REFERENCES
    elements = distinct * row_bytes // element_bytes
    directory = references_end
    at = directory + (elements + BLOCK - 1) // BLOCK * element_bytes
    if at > end:
        return DIRECTORY
    for first in range(0, elements, BLOCK):
        n = min(BLOCK, elements - first)
        for plane in range(element_bytes):
            entry = np.int64(words[directory])
            directory += 1
            stop = at + entry // 2
            if stop > end:
                return DIRECTORY
            error = _read_plane(words, at, stop, entry % 2 == 1, n, work, work.symbols[plane * n :])
            if error:
                return error
            at = stop
        begin, size = first * element_bytes, n * element_bytes
        if distinct < rows:
            _join(work.symbols, n, element_bytes, work.block[:size])
            _scatter(work.block, begin, size, row_bytes, work.firsts, out)
        else:
            _join(work.symbols, n, element_bytes, out[begin : begin + size])
    if distinct < rows:
        _repeat(work.references, work.firsts, rows, row_bytes, out)
    return 0 if at == end else DIRECTORY


@inner
def _read_references(words, at, end, rows, distinct, work):
    """Fill `work.references` with numbers of distinct rows and `work.firsts`; False if they are wrong."""
    good = decode_references(
        words, at, end, rows, work.symbols, work.pushes, work.slots, work.stream, work.references
    ) and vector_lz.resolve(work.references, rows, distinct)
    if good:
        count = np.uint32(0)
        for row in range(np.uintp(rows)):
            if work.references[row] == count:
                work.firsts[np.uintp(count)] = row
                count += np.uint32(1)
        good = np.int64(count) == distinct
    return good


@inner
def _read_plane(words, at, end, coded, n, work, symbols):
    """Decode `words[at:end]` into uint8 [n]; returns 0 or what is wrong."""
    if not coded:
        if end - at != (n + 3) // 4:
            return DIRECTORY
        _copy(words[at:end].view(np.uint8), 0, symbols, 0, n)
        return 0
    chunks = (n + CHUNK - 1) // CHUNK
    directory = tables.read_classes(words, at, end, work.pushes[0], work.slots[0])
    if directory < 0 or directory + (chunks + 1) // 2 > end:
        return TABLE
    at = directory + (chunks + 1) // 2
    entries = words[directory:at].view(np.uint16)
    choice = np.zeros(1, np.uint8)
    for chunk in range(chunks):
        start = chunk * CHUNK
        count = min(CHUNK, n - start)
        stop = at + np.int64(entries[chunk])
        if stop > end or not decode_chunk(
            words, at, stop, 1, count, choice, work.slots, work.stream, symbols[start:], 0
        ):
            return SYMBOLS
        at = stop
    return 0 if at == end else SYMBOLS


@inner
def _repeat(numbers, firsts, rows, row_bytes, out):
    """Copy each row that is not a first one from the first one."""
    for row in range(rows):
        first = np.int64(firsts[np.uintp(numbers[row])])
        if first != row:
            _copy(out, first * row_bytes, out, row * row_bytes, row_bytes)
