"""Ids as values of 32 bits and these as words: what `ids` and `id_lists` are made of. `ids` has the format."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compression import bitpack
from compression.checksum import checksum
from compression.entropy import CHUNK, CHUNK_WORDS
from compression.errors import CorruptPayloadError
from compression.kernel import kernel
from compression.planes import entropy_bits
from compression.references import decode_references, encode_references
from compression.tables import TOTAL

MAGIC, VERSION = 0x6469, 1
HEADER_BYTES = 16
"""The words before the body and the checksum. `encode_ids` adds no more to the ids as they are."""
LIST_BYTES = 9
"""`encode_id_lists` adds at most HEADER_BYTES + 16 and this for each list."""

WIDE, NARROW, PACKED, CODED = 0, 1, 2, 3
CODER, ASCENDING, BASED, LISTS = 3, 4, 8, 16
GROUPS = 33
SAMPLE = 1 << 14
"""Values that the choice of a coder looks at."""

COUNT, LISTED, BASE, DIRECTORY, VALUES, RANGE = 1, 2, 3, 4, 5, 6
FIELDS = {
    COUNT: ("count", "as many ids do not fit the payload"),
    LISTED: ("lists", "no counts and tags of lists"),
    BASE: ("base", "the payload ends before it"),
    DIRECTORY: ("directory", "the parts are not as long as it says"),
    VALUES: ("values", "not what an encoder writes"),
    RANGE: ("values", "ids run over 64 bits"),
}


def as_ids(ids: ArrayLike) -> NDArray[Any]:
    array = np.asarray(ids)
    if array.size == 0 and not isinstance(ids, np.ndarray):
        array = array.astype(np.int64)
    if array.dtype not in (np.int64, np.int32):
        raise TypeError(f"ids are {array.dtype}: int64 or int32 is needed")
    if array.ndim != 1 or array.size >= 1 << 32:
        raise ValueError(f"ids have shape {list(array.shape)}: one dimension of less than 2^32 ids is needed")
    # Read-only memory is another type to compiled functions, which would compile once more.
    return np.ascontiguousarray(array) if array.flags.writeable else array.copy()


def seal(words: NDArray[np.uint32], mode: int, count: int, end: int) -> NDArray[np.uint8]:
    """The payload, of which the body ends at `end`."""
    words[0] = MAGIC | VERSION << 16 | mode << 24
    words[1] = count
    words[2] = end + 1
    words[end] = checksum(words[:end])
    return words[: end + 1].copy().view(np.uint8)


def open(payload: Any) -> tuple[NDArray[np.uint32], int, int]:
    """(words, mode, count), all of the header checked."""
    data = np.frombuffer(payload, np.uint8) if isinstance(payload, bytes | bytearray | memoryview) else payload
    data = np.asarray(data)
    if data.dtype != np.uint8 or data.ndim != 1:
        raise TypeError(f"a payload of ids is uint8 [any], not {data.dtype} {list(data.shape)}")
    if data.size % 4 or data.size < HEADER_BYTES:
        raise CorruptPayloadError("length", f"{data.size} bytes are no payload of ids")
    words = np.require(data, requirements="C")
    words = (words if words.ctypes.data % 4 == 0 and words.flags.writeable else words.copy()).view(np.uint32)
    first = int(words[0])
    if first & 0xFFFF != MAGIC:
        raise CorruptPayloadError("magic", f"{first & 0xFFFF:#06x} instead of {MAGIC:#06x}")
    if (first >> 16) & 0xFF != VERSION:
        raise CorruptPayloadError("version", f"{(first >> 16) & 0xFF}, this decoder knows {VERSION}")
    if words[2] != words.size:
        raise CorruptPayloadError("length", f"{words.size} words instead of {words[2]}")
    if words[-1] != checksum(words[:-1]):
        raise CorruptPayloadError("checksum", f"{words[-1]:#010x} is not that of the words before it")
    return words, first >> 24, int(words[1])


def most(words: NDArray[np.uint32], coder: int) -> int:
    """Ids that a payload can hold, so that one that lies does not claim all memory."""
    return words.size * {WIDE: 1, NARROW: 1, PACKED: 4 * bitpack.BLOCK, CODED: CHUNK}[coder]


def refuse(error: int) -> None:
    if error:
        raise CorruptPayloadError(*FIELDS[error])


@kernel
def bit_count(value):
    """Bits of a uint64; 0 has none."""
    bits = np.int64(0)
    while value:
        value >>= np.uint64(1)
        bits += 1
    return bits


@kernel
def survey(ids):
    """(strictly ascending, lowest, highest, OR of the gaps if ascending), of at least one id."""
    low, high = np.int64(ids[0]), np.int64(ids[0])
    gaps, falls = np.uint64(0), np.uint64(0)
    for i in range(np.uintp(1), np.uintp(ids.size)):
        before, here = np.int64(ids[i - np.uintp(1)]), np.int64(ids[i])
        low, high = min(low, here), max(high, here)
        falls |= np.uint64(here <= before)
        gaps |= np.uint64(here) - np.uint64(before) - np.uint64(1)
    return falls == 0, low, high, gaps


@kernel
def plan(ids):
    """How to make values of ids: (mode, base, group of lists with values of like size)."""
    if ids.size == 0:
        return PACKED, np.int64(0), np.int64(0)
    ascending, low, high, gaps = survey(ids)
    span = np.uint64(high) - np.uint64(low)
    largest = gaps if ascending else span
    if bit_count(largest) > 32:
        return WIDE, np.int64(0), np.int64(0)
    # Without a base, the first value of gaps or all other values are wider.
    first = low if ascending else high
    wider = max(bit_count(np.uint64(first)) - bit_count(largest), 0)
    based = low < 0 or first >> 32 != 0 or wider * min(ids.size, bitpack.BLOCK) > 64
    mean = np.float64(span) / max(ids.size - 1, 1) if ascending else np.float64(span) / 2
    group = min(max(bit_count(np.uint64(1.5 * mean)) - 1, 0), GROUPS - 1)
    flags = (ASCENDING if ascending else 0) | (BASED if based else 0)
    return PACKED | flags, low if based else np.int64(0), group


@kernel
def to_values(ids, ascending, base, values):
    if ascending:
        for i in range(np.uintp(1), np.uintp(ids.size)):
            values[i] = np.uint32(np.int64(ids[i]) - np.int64(ids[i - np.uintp(1)]) - 1)
        values[0] = np.uint32(np.int64(ids[0]) - base)
    else:
        for i in range(np.uintp(ids.size)):
            values[i] = np.uint32(np.int64(ids[i]) - base)


@kernel
def from_values(values, ascending, base, ids):
    """Reverse `to_values`; False if an id has over 64 bits."""
    good = True
    if ascending:
        here = base - 1
        for i in range(np.uintp(ids.size)):
            before = here
            here += np.int64(values[i]) + 1
            good &= (here > before) | (i == 0)
            ids[i] = here
        # The first id may be the lowest there is, and then the one before it is the highest.
        if ids.size:
            good &= ids[0] >= base
    else:
        for i in range(np.uintp(ids.size)):
            ids[i] = base + np.int64(values[i])
            good &= ids[i] >= base
    return good


@kernel
def as_they_are(ids, wide, words, at):
    """Write ids as words of 64 or 32 bits; returns where the next word begins or -1 if `words` is full."""
    end = at + np.int64(ids.size) * (2 if wide else 1)
    if end > words.size:
        return -1
    at = np.uintp(at)
    for i in range(np.uintp(ids.size)):
        words[at] = np.uint32(ids[i])
        at += np.uintp(1)
        if wide:
            words[at] = np.uint32(np.int64(ids[i]) >> 32)
            at += np.uintp(1)
    return end


@kernel
def read_as_they_are(words, at, wide, ids):
    at = np.uintp(at)
    for i in range(np.uintp(ids.size)):
        if wide:
            ids[i] = np.int64(words[at]) | np.int64(words[at + np.uintp(1)]) << 32
            at += np.uintp(2)
        else:
            ids[i] = np.int32(words[at])
            at += np.uintp(1)


@kernel
def put_base(base, words, at):
    words[at] = np.uint32(base)
    words[at + 1] = np.uint32(base >> 32)
    return at + 2


@kernel
def read_base(words, at):
    return np.int64(words[at]) | np.int64(words[at + 1]) << 32


@kernel
def write_packed(values, n, words, at):
    """Returns where the next word begins or -1 if `words` is full."""
    first = at + (bitpack.blocks(n) + 3) // 4
    if first > words.size:
        return -1
    words[at:first] = 0
    used = bitpack.pack_u32(values, n, words[first:], words[at:first].view(np.uint8))
    return first + used if used >= 0 else -1


@kernel
def read_packed(words, at, end, n, values):
    """Returns where the next word begins or -1 if these are no packed values."""
    first = at + (bitpack.blocks(n) + 3) // 4
    if first > end:
        return -1
    used = bitpack.unpack_u32(words[first:end], words[at:first].view(np.uint8), n, values)
    return first + used if used >= 0 else -1


@kernel
def coded_words(values, n):
    """About the words that rANS takes, from values evenly spread."""
    taken = min(n, SAMPLE)
    histogram = np.zeros(48, np.int64)
    extra, seen = np.int64(0), np.uint64(0)
    for i in range(taken):
        value = values[np.uintp(i * n // taken)]
        seen |= np.uint64(value)
        bits = bit_count(np.uint64(value))
        histogram[value if bits < 4 else 4 + bits] += 1
        extra += bits - 1 if bits > 3 else 0
    most = bit_count(seen)
    table = 1 + (most if most < 4 else 2 * most - 3) // 2
    lanes = 8 if n >= 1024 else 2
    return table + (n + CHUNK - 1) // CHUNK * (lanes + 2) + (entropy_bits(histogram, taken) + extra) * n // (32 * taken)


@kernel
def write_values(values, n, fast, words, at):
    """Write values the smaller way; returns (where the next word begins or -1 if `words` is full, coder)."""
    packed = write_packed(values, n, words, at)
    # The estimate is a little too high for values that are like each other.
    if fast or n == 0 or packed < 0 or 15 * coded_words(values, n) > 16 * (packed - at):
        return packed, PACKED
    symbols, stream = np.empty(n, np.uint8), np.empty(CHUNK + 2 * CHUNK_WORDS, np.uint16)
    pushes, slots = np.empty((1, 256, 4), np.uint32), np.empty((1, TOTAL), np.uint32)
    coded = encode_references(values, n, symbols, pushes, slots, stream, words, at)
    if coded < 0 or coded > packed:
        return write_packed(values, n, words, at), PACKED
    return coded, CODED


@kernel
def read_values(words, at, end, coder, n, values):
    """False if `words[at:end]` are not n values."""
    if coder == PACKED:
        return read_packed(words, at, end, n, values) == end
    symbols, stream = np.empty(n, np.uint8), np.empty(CHUNK + 2 * CHUNK_WORDS, np.uint16)
    pushes, slots = np.empty((1, 256, 4), np.uint32), np.empty((1, TOTAL), np.uint32)
    return decode_references(words, at, end, n, symbols, pushes, slots, stream, values)
