"""Integer ids as stand-alone payloads, one array or many with one header.

A payload is made of words of 32 bits, little-endian: magic 0x6469 | version << 16 | mode << 24; number of ids, or of
lists; words of the payload; a body; the checksum (`checksum.py`) of all words before it.

The mode of one array, in four bits, says how its ids became values of 32 bits and how these are coded:

- bits 0 and 1, coder: 0: the ids as words of 64 bits; 1: of 32 bits, signed; 2: values bit-packed (`bitpack`), a width
  of one byte for each 1024 of them, zeros up to a whole word, then the words; 3: values as `references` codes them.
- bit 2, ascending: the first value is the first id minus the base, each other value a gap: id - id before - 1. Else
  each value is the id minus the base.
- bit 3: the body begins with the base, 64 bits. Else the base is 0.

Mode 16 is of lists. Its body: two values for each list, first all counts, then all tags, bit-packed as above; the
bases; the ids of coders 0 and 1; a directory, one word for each group that has values: 2 * words of the group + (1 if
it is coded as coder 3); the groups. A tag is a mode | group << 4, where coder 2 means that the list's values are in
that group, behind those of the lists before. So lists that have gaps of like size share a table. All in the order of
lists and groups.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from compression.tables import SENT_WORDS, TOTAL

MAGIC, VERSION = 0x6469, 1
HEADER_BYTES = 16
"""The words before the body and the checksum. `encode_ids` adds no more to the ids as they are."""
LIST_BYTES = 9
"""`encode_id_lists` adds at most HEADER_BYTES + 16 and this for each list."""

_WIDE, _NARROW, _PACKED, _CODED = 0, 1, 2, 3
_CODER, _ASCENDING, _BASED, _LISTS = 3, 4, 8, 16
_GROUPS = 33
_SAMPLE = 1 << 14
"""Values that the choice of a coder looks at."""

_COUNT, _LISTED, _BASE, _DIRECTORY, _VALUES, _RANGE = 1, 2, 3, 4, 5, 6
_FIELDS = {
    _COUNT: ("count", "as many ids do not fit the payload"),
    _LISTED: ("lists", "no counts and tags of lists"),
    _BASE: ("base", "the payload ends before it"),
    _DIRECTORY: ("directory", "the parts are not as long as it says"),
    _VALUES: ("values", "not what an encoder writes"),
    _RANGE: ("values", "ids run over 64 bits"),
}


def encode_ids(ids: ArrayLike, *, fast: bool = False) -> NDArray[np.uint8]:
    """Encode an array of ids, in any order and of any value.

    Args:
        ids: int64 or int32 [n < 2^32], an array, a torch tensor of the CPU or a list. Ascending ids without duplicates
            take least.
        fast: bit-packing always, without a look at what rANS would take.

    Returns:
        uint8 [<= the ids' own bytes + HEADER_BYTES].

    >>> encode_ids([3, 5, 6, 9]).size
    24
    """
    array = _as_ids(ids)
    words = np.empty(2 * array.size + array.size // 256 + SENT_WORDS + 64, np.uint32)
    mode, end = _encode_one(array, fast, words, 3)
    return _seal(words, mode, array.size, end)


def decode_ids(payload: Any, out: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Reverse `encode_ids`.

    Args:
        payload: bytes or uint8 [any].
        out: int64 [n], contiguous; a new array if none is given.

    Raises:
        CorruptPayloadError: no encoder wrote these bytes; `out` may have been written to.
        ValueError: `out` is not such an array.

    >>> decode_ids(encode_ids([3, 5, 6, 9]))
    array([3, 5, 6, 9])
    """
    words, mode, count = _open(payload)
    if mode >= _LISTS:
        raise CorruptPayloadError("mode", f"{mode} is not that of a single array of ids")
    if count > _most(words, mode & _CODER):
        raise CorruptPayloadError(*_FIELDS[_COUNT])
    if out is None:
        out = np.empty(count, np.int64)
    elif out.shape != (count,) or out.dtype != np.int64 or not out.flags.c_contiguous:
        raise ValueError(f"out is {out.dtype} {list(out.shape)}: a contiguous array of int64 [{count}] is needed")
    _raise(_decode_one(words, 3, words.size - 1, mode, out))
    return out


def encode_id_lists(lists: Sequence[ArrayLike], *, fast: bool = False) -> NDArray[np.uint8]:
    """Encode arrays of ids, as in `encode_ids`, into one payload with one header and shared tables.

    Returns:
        uint8 [<= the ids' own bytes + HEADER_BYTES + 16 + LIST_BYTES * number of lists].
    """
    arrays = [_as_ids(ids) for ids in lists]
    counts = np.array([array.size for array in arrays], np.int64)
    narrow = np.array([array.dtype == np.int32 for array in arrays], np.bool_)
    ids = np.concatenate([np.empty(0, np.int64), *arrays])
    raw = int((counts * np.where(narrow, 1, 2)).sum())
    limit = 3 + raw + 3 + (LIST_BYTES * counts.size) // 4
    words = np.empty(limit + ids.size // 256 + 66 * SENT_WORDS + 4 * counts.size + 64, np.uint32)
    end = _encode_lists(ids, counts, fast, False, words, 3)
    if end < 0 or end > limit:
        end = _encode_lists(ids, counts, fast, True, words, 3)
    return _seal(words, _LISTS, counts.size, end)


def decode_id_lists(payload: Any) -> list[NDArray[np.int64]]:
    """Reverse `encode_id_lists`: int64 arrays, parts of one buffer.

    Raises:
        CorruptPayloadError: no encoder wrote these bytes.
    """
    words, mode, lists = _open(payload)
    if mode != _LISTS:
        raise CorruptPayloadError("mode", f"{mode} is not that of lists of ids")
    if 2 * lists > _most(words, _PACKED):
        raise CorruptPayloadError(*_FIELDS[_COUNT])
    end = words.size - 1
    listed = np.empty(2 * lists, np.uint32)
    at = _read_packed(words, 3, end, 2 * lists, listed)
    if at < 0:
        raise CorruptPayloadError(*_FIELDS[_LISTED])
    counts, tags = listed[:lists], listed[lists:]
    groups = np.empty((_GROUPS, 2), np.int64)
    error, plain_at, directory = _measure_lists(counts, tags, words, at, end, groups)
    _raise(error)
    ends = np.cumsum(counts, dtype=np.int64)
    out = np.empty(int(ends[-1]) if lists else 0, np.int64)
    _raise(_decode_lists(counts, tags, words, at, groups, plain_at, directory, out))
    return np.split(out, ends[:-1]) if lists else []


def _as_ids(ids: ArrayLike) -> NDArray[Any]:
    array = np.asarray(ids)
    if array.size == 0 and not isinstance(ids, np.ndarray):
        array = array.astype(np.int64)
    if array.dtype not in (np.int64, np.int32):
        raise TypeError(f"ids are {array.dtype}: int64 or int32 is needed")
    if array.ndim != 1 or array.size >= 1 << 32:
        raise ValueError(f"ids have shape {list(array.shape)}: one dimension of less than 2^32 ids is needed")
    return np.ascontiguousarray(array)


def _seal(words: NDArray[np.uint32], mode: int, count: int, end: int) -> NDArray[np.uint8]:
    """The payload, of which the body ends at `end`."""
    words[0] = MAGIC | VERSION << 16 | mode << 24
    words[1] = count
    words[2] = end + 1
    words[end] = checksum(words[:end])
    return words[: end + 1].copy().view(np.uint8)


def _open(payload: Any) -> tuple[NDArray[np.uint32], int, int]:
    """(words, mode, count), all of the header checked."""
    data = np.frombuffer(payload, np.uint8) if isinstance(payload, bytes | bytearray | memoryview) else payload
    data = np.asarray(data)
    if data.dtype != np.uint8 or data.ndim != 1:
        raise TypeError(f"a payload of ids is uint8 [any], not {data.dtype} {list(data.shape)}")
    if data.size % 4 or data.size < HEADER_BYTES:
        raise CorruptPayloadError("length", f"{data.size} bytes are no payload of ids")
    words = np.require(data, requirements="C")
    words = (words if words.ctypes.data % 4 == 0 else words.copy()).view(np.uint32)
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


def _most(words: NDArray[np.uint32], coder: int) -> int:
    """Ids that a payload can hold, so that one that lies does not claim all memory."""
    return words.size * {_WIDE: 1, _NARROW: 1, _PACKED: 4 * bitpack.BLOCK, _CODED: CHUNK}[coder]


def _raise(error: int) -> None:
    if error:
        raise CorruptPayloadError(*_FIELDS[error])


@kernel
def _bits(value):  # type: ignore[no-untyped-def]
    """Bits of a uint64; 0 has none."""
    bits = np.int64(0)
    while value:
        value >>= np.uint64(1)
        bits += 1
    return bits


@kernel
def _survey(ids):  # type: ignore[no-untyped-def]
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
def _plan(ids):  # type: ignore[no-untyped-def]
    """How to make values of ids: (mode, base, group of lists with values of like size)."""
    if ids.size == 0:
        return _PACKED, np.int64(0), np.int64(0)
    ascending, low, high, gaps = _survey(ids)
    span = np.uint64(high) - np.uint64(low)
    largest = gaps if ascending else span
    if _bits(largest) > 32:
        return _WIDE, np.int64(0), np.int64(0)
    # Without a base, the first value of gaps or all other values are wider.
    first = low if ascending else high
    wider = max(_bits(np.uint64(first)) - _bits(largest), 0)
    based = low < 0 or first >> 32 != 0 or wider * min(ids.size, bitpack.BLOCK) > 64
    mean = np.float64(span) / max(ids.size - 1, 1) if ascending else np.float64(span) / 2
    group = min(max(_bits(np.uint64(1.5 * mean)) - 1, 0), _GROUPS - 1)
    flags = (_ASCENDING if ascending else 0) | (_BASED if based else 0)
    return _PACKED | flags, low if based else np.int64(0), group


@kernel
def _to_values(ids, ascending, base, values):  # type: ignore[no-untyped-def]
    if ascending:
        for i in range(np.uintp(1), np.uintp(ids.size)):
            values[i] = np.uint32(np.int64(ids[i]) - np.int64(ids[i - np.uintp(1)]) - 1)
        values[0] = np.uint32(np.int64(ids[0]) - base)
    else:
        for i in range(np.uintp(ids.size)):
            values[i] = np.uint32(np.int64(ids[i]) - base)


@kernel
def _from_values(values, ascending, base, ids):  # type: ignore[no-untyped-def]
    """Reverse `_to_values`; False if an id has over 64 bits."""
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
def _as_they_are(ids, wide, words, at):  # type: ignore[no-untyped-def]
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
def _read_as_they_are(words, at, wide, ids):  # type: ignore[no-untyped-def]
    at = np.uintp(at)
    for i in range(np.uintp(ids.size)):
        if wide:
            ids[i] = np.int64(words[at]) | np.int64(words[at + np.uintp(1)]) << 32
            at += np.uintp(2)
        else:
            ids[i] = np.int32(words[at])
            at += np.uintp(1)


@kernel
def _put_base(base, words, at):  # type: ignore[no-untyped-def]
    words[at] = np.uint32(base)
    words[at + 1] = np.uint32(base >> 32)
    return at + 2


@kernel
def _base(words, at):  # type: ignore[no-untyped-def]
    return np.int64(words[at]) | np.int64(words[at + 1]) << 32


@kernel
def _write_packed(values, n, words, at):  # type: ignore[no-untyped-def]
    """Returns where the next word begins or -1 if `words` is full."""
    first = at + (bitpack.blocks(n) + 3) // 4
    if first > words.size:
        return -1
    words[at:first] = 0
    used = bitpack.pack_u32(values, n, words[first:], words[at:first].view(np.uint8))
    return first + used if used >= 0 else -1


@kernel
def _read_packed(words, at, end, n, values):  # type: ignore[no-untyped-def]
    """Returns where the next word begins or -1 if these are no packed values."""
    first = at + (bitpack.blocks(n) + 3) // 4
    if first > end:
        return -1
    used = bitpack.unpack_u32(words[first:end], words[at:first].view(np.uint8), n, values)
    return first + used if used >= 0 else -1


@kernel
def _coded_words(values, n):  # type: ignore[no-untyped-def]
    """About the words that rANS takes, from values evenly spread."""
    taken = min(n, _SAMPLE)
    histogram = np.zeros(48, np.int64)
    extra, seen = np.int64(0), np.uint64(0)
    for i in range(taken):
        value = values[np.uintp(i * n // taken)]
        seen |= np.uint64(value)
        bits = _bits(np.uint64(value))
        histogram[value if bits < 4 else 4 + bits] += 1
        extra += bits - 1 if bits > 3 else 0
    most = _bits(seen)
    table = 1 + (most if most < 4 else 2 * most - 3) // 2
    lanes = 8 if n >= 1024 else 2
    return table + (n + CHUNK - 1) // CHUNK * (lanes + 2) + (entropy_bits(histogram, taken) + extra) * n // (32 * taken)


@kernel
def _write_values(values, n, fast, words, at):  # type: ignore[no-untyped-def]
    """Write values the smaller way; returns (where the next word begins or -1 if `words` is full, coder)."""
    packed = _write_packed(values, n, words, at)
    # The estimate is a little too high for values that are like each other.
    if fast or n == 0 or packed < 0 or 15 * _coded_words(values, n) > 16 * (packed - at):
        return packed, _PACKED
    symbols, stream = np.empty(n, np.uint8), np.empty(CHUNK + 2 * CHUNK_WORDS, np.uint16)
    pushes, slots = np.empty((1, 256, 4), np.uint32), np.empty((1, TOTAL), np.uint32)
    coded = encode_references(values, n, symbols, pushes, slots, stream, words, at)
    if coded < 0 or coded > packed:
        return _write_packed(values, n, words, at), _PACKED
    return coded, _CODED


@kernel
def _read_values(words, at, end, coder, n, values):  # type: ignore[no-untyped-def]
    """False if `words[at:end]` are not n values."""
    if coder == _PACKED:
        return _read_packed(words, at, end, n, values) == end
    symbols, stream = np.empty(n, np.uint8), np.empty(CHUNK + 2 * CHUNK_WORDS, np.uint16)
    pushes, slots = np.empty((1, 256, 4), np.uint32), np.empty((1, TOTAL), np.uint32)
    return decode_references(words, at, end, n, symbols, pushes, slots, stream, values)


@kernel
def _encode_one(ids, fast, words, start):  # type: ignore[no-untyped-def]
    """Write a body from `words[start]` on; returns (mode, where it ends)."""
    n = np.int64(ids.size)
    mode, base, _ = _plan(ids)
    wide = ids.itemsize == 8
    if mode != _WIDE:
        at = _put_base(base, words, start) if mode & _BASED else start
        values = np.empty(n, np.uint32)
        if n:
            _to_values(ids, mode & _ASCENDING != 0, base, values)
        at, coder = _write_values(values, n, fast, words, at)
        if at >= 0 and at - start <= n * (2 if wide else 1):
            return (mode & ~_CODER) | coder, at
    return (_WIDE if wide else _NARROW), _as_they_are(ids, wide, words, start)


@kernel
def _decode_one(words, at, end, mode, ids):  # type: ignore[no-untyped-def]
    """Decode the body `words[at:end]`; returns 0 or what is wrong."""
    n, coder, base = np.int64(ids.size), mode & _CODER, np.int64(0)
    if mode in (_WIDE, _NARROW):
        if end - at != n * (2 if mode == _WIDE else 1):
            return _COUNT
        _read_as_they_are(words, at, mode == _WIDE, ids)
        return 0
    if mode & _BASED:
        if at + 2 > end:
            return _BASE
        base = _base(words, at)
        at += 2
    if coder < _PACKED:
        return _VALUES
    values = np.empty(n, np.uint32)
    if not _read_values(words, at, end, coder, n, values):
        return _VALUES
    return 0 if _from_values(values, mode & _ASCENDING != 0, base, ids) else _RANGE


@kernel
def _is_narrow(ids):  # type: ignore[no-untyped-def]
    """Whether all ids have 32 bits."""
    narrow = True
    for i in range(np.uintp(ids.size)):
        narrow &= np.int64(np.int32(ids[i])) == ids[i]
    return narrow


@kernel
def _plan_lists(ids, counts, plain, listed, bases):  # type: ignore[no-untyped-def]
    """Fill counts and tags, uint32 [2 * lists], and int64 bases; returns the values in each group.

    Args:
        plain: all ids as they are.
    """
    totals = np.zeros(_GROUPS, np.int64)
    lists, end = counts.size, np.int64(0)
    for i in range(lists):
        begin, end = end, end + counts[i]
        mode, base, group = _plan(ids[begin:end])
        if plain:
            mode = _NARROW if _is_narrow(ids[begin:end]) else _WIDE
        if mode >= _PACKED:
            totals[group] += counts[i]
            mode |= group << 4
        listed[i], listed[lists + i], bases[i] = counts[i], mode, base
    return totals


@kernel
def _encode_lists(ids, counts, fast, plain, words, at):  # type: ignore[no-untyped-def]
    """Write the body of lists; returns where it ends or -1 if `words` is full."""
    lists = counts.size
    listed, bases = np.empty(2 * lists, np.uint32), np.empty(lists, np.int64)
    totals = _plan_lists(ids, counts, plain, listed, bases)
    at = _write_packed(listed, 2 * lists, words, at)
    if at < 0 or at + 2 * lists + _GROUPS > words.size:
        return -1
    for i in range(lists):
        if listed[lists + i] & np.uint32(_BASED):
            at = _put_base(bases[i], words, at)
    values, places = np.empty(totals.sum(), np.uint32), totals.cumsum() - totals
    end = np.int64(0)
    for i in range(lists):
        n, tag = counts[i], np.int64(listed[lists + i])
        begin, end = end, end + n
        if tag < _PACKED:
            at = _as_they_are(ids[begin:end], tag == _WIDE, words, at)
            if at < 0:
                return -1
        elif n:
            place = places[tag >> 4]
            _to_values(ids[begin:end], tag & _ASCENDING != 0, bases[i], values[place : place + n])
            places[tag >> 4] += n
    return _write_groups(values, totals, fast, words, at)


@kernel
def _write_groups(values, totals, fast, words, at):  # type: ignore[no-untyped-def]
    directory = at
    at += np.count_nonzero(totals)
    if at > words.size:
        return -1
    begin = 0
    for n in totals:
        if n:
            end, coder = _write_values(values[begin : begin + n], n, fast, words, at)
            if end < 0:
                return -1
            words[directory] = 2 * (end - at) + (coder == _CODED)
            directory += 1
            at = end
            begin += n
    return at


@kernel
def _measure_lists(counts, tags, words, at, end, groups):  # type: ignore[no-untyped-def]
    """Check that the parts of the body from the bases on, `words[at:end]`, fit each other.

    Args:
        groups: int64 [groups, 2], out: values, entry of the directory.

    Returns:
        0 or what is wrong, where the ids that are as they are begin, where the directory begins.
    """
    groups[:] = 0
    bases, plain = 0, np.int64(0)
    for i in range(counts.size):
        n, tag = np.int64(counts[i]), np.int64(tags[i])
        coder, group = tag & _CODER, tag >> 4
        if coder == _CODED or (coder < _PACKED and tag != coder) or group >= _GROUPS:
            return _LISTED, at, at
        if coder == _PACKED:
            groups[group, 0] += n
            bases += 1 if tag & _BASED else 0
        else:
            plain += n * (2 if coder == _WIDE else 1)
    plain_at = at + 2 * bases
    directory = plain_at + plain
    if directory > end:
        return _COUNT, at, at
    entry = directory
    at = directory + np.count_nonzero(groups[:, 0])
    if at > end:
        return _DIRECTORY, at, at
    for part in groups:
        if part[0]:
            part[1] = words[entry]
            size, coded = part[1] // 2, part[1] % 2
            if part[0] > size * (CHUNK if coded else 4 * bitpack.BLOCK):
                return _COUNT, at, at
            entry += 1
            at += size
    return (0 if at == end else _DIRECTORY), plain_at, directory


@kernel
def _decode_lists(counts, tags, words, base_at, groups, plain_at, directory, ids):  # type: ignore[no-untyped-def]
    """Decode what `_measure_lists` has checked; returns 0 or what is wrong."""
    values, places = np.empty(groups[:, 0].sum(), np.uint32), groups[:, 0].cumsum() - groups[:, 0]
    at = directory + np.count_nonzero(groups[:, 0])
    for group in range(_GROUPS):
        n, entry, begin = groups[group, 0], groups[group, 1], places[group]
        if n:
            stop, coder = at + entry // 2, _CODED if entry % 2 else _PACKED
            if not _read_values(words, at, stop, coder, n, values[begin : begin + n]):
                return _VALUES
            at = stop
    end, good = np.int64(0), True
    for i in range(counts.size):
        n, tag = np.int64(counts[i]), np.int64(tags[i])
        begin, end = end, end + n
        if tag < _PACKED:
            _read_as_they_are(words, plain_at, tag == _WIDE, ids[begin:end])
            plain_at += n * (2 if tag == _WIDE else 1)
            continue
        base = np.int64(0)
        if tag & _BASED:
            base = _base(words, base_at)
            base_at += 2
        place = places[tag >> 4]
        good &= _from_values(values[place : place + n], tag & _ASCENDING != 0, base, ids[begin:end])
        places[tag >> 4] += n
    return 0 if good else _RANGE
