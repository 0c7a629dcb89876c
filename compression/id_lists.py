"""Many arrays of ids in one payload: one header, and tables that lists of like gaps share. `ids` has the format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compression import bitpack
from compression.entropy import CHUNK
from compression.errors import CorruptPayloadError
from compression.id_values import (
    ASCENDING,
    BASED,
    CODED,
    CODER,
    COUNT,
    DIRECTORY,
    FIELDS,
    GROUPS,
    LIST_BYTES,
    LISTED,
    LISTS,
    NARROW,
    PACKED,
    RANGE,
    VALUES,
    WIDE,
    as_ids,
    as_they_are,
    from_values,
    most,
    open,
    plan,
    put_base,
    read_as_they_are,
    read_base,
    read_packed,
    read_values,
    refuse,
    seal,
    to_values,
    write_packed,
    write_values,
)
from compression.kernel import kernel
from compression.tables import SENT_WORDS


def encode_id_lists(lists: Sequence[ArrayLike], *, fast: bool = False) -> NDArray[np.uint8]:
    """Encode arrays of ids into one payload with one header and shared tables.

    Args:
        lists: each as the `ids` of `encode_ids`.
        fast: see `encode_ids`.

    Returns:
        uint8 [<= the ids' own bytes + HEADER_BYTES + 16 + LIST_BYTES * number of lists].

    Raises:
        TypeError, ValueError: as `encode_ids`.

    >>> encode_id_lists([[3, 5, 6, 9], [], [7, -1]]).size
    60
    """
    arrays = [as_ids(ids) for ids in lists]
    counts = np.array([array.size for array in arrays], np.int64)
    narrow = np.array([array.dtype == np.int32 for array in arrays], np.bool_)
    ids = np.concatenate([np.empty(0, np.int64), *arrays])
    raw = int((counts * np.where(narrow, 1, 2)).sum())
    limit = 3 + raw + 3 + (LIST_BYTES * counts.size) // 4
    words = np.empty(limit + ids.size // 256 + 66 * SENT_WORDS + 4 * counts.size + 64, np.uint32)
    end = _encode_lists(ids, counts, fast, False, words, 3)
    if end < 0 or end > limit:
        end = _encode_lists(ids, counts, fast, True, words, 3)
    return seal(words, LISTS, counts.size, end)


def decode_id_lists(payload: Any) -> list[NDArray[np.int64]]:
    """Reverse `encode_id_lists`: int64 arrays, parts of one buffer.

    Args:
        payload: bytes or uint8 [any].

    Raises:
        CorruptPayloadError: no encoder wrote these bytes.
        TypeError: the payload is neither bytes nor uint8.

    >>> [ids.tolist() for ids in decode_id_lists(encode_id_lists([[3, 5, 6, 9], [], [7, -1]]))]
    [[3, 5, 6, 9], [], [7, -1]]
    """
    words, mode, lists = open(payload)
    if mode != LISTS:
        raise CorruptPayloadError("mode", f"{mode} is not that of lists of ids")
    if 2 * lists > most(words, PACKED):
        raise CorruptPayloadError(*FIELDS[COUNT])
    end = words.size - 1
    listed = np.empty(2 * lists, np.uint32)
    at = read_packed(words, 3, end, 2 * lists, listed)
    if at < 0:
        raise CorruptPayloadError(*FIELDS[LISTED])
    counts, tags = listed[:lists], listed[lists:]
    groups = np.empty((GROUPS, 2), np.int64)
    error, plain_at, directory = _measure_lists(counts, tags, words, at, end, groups)
    refuse(error)
    ends = np.cumsum(counts, dtype=np.int64)
    out = np.empty(int(ends[-1]) if lists else 0, np.int64)
    refuse(_decode_lists(counts, tags, words, at, groups, plain_at, directory, out))
    return np.split(out, ends[:-1]) if lists else []


@kernel
def _is_narrow(ids):
    """Whether all ids have 32 bits."""
    narrow = True
    for i in range(np.uintp(ids.size)):
        narrow &= np.int64(np.int32(ids[i])) == ids[i]
    return narrow


@kernel
def _plan_lists(ids, counts, plain, listed, bases):
    """Fill counts and tags, uint32 [2 * lists], and int64 bases; returns the values in each group.

    Args:
        plain: all ids as they are.
    """
    totals = np.zeros(GROUPS, np.int64)
    lists, end = counts.size, np.int64(0)
    for i in range(lists):
        begin, end = end, end + counts[i]
        mode, base, group = plan(ids[begin:end])
        if plain:
            mode = NARROW if _is_narrow(ids[begin:end]) else WIDE
        if mode >= PACKED:
            totals[group] += counts[i]
            mode |= group << 4
        listed[i], listed[lists + i], bases[i] = counts[i], mode, base
    return totals


@kernel
def _encode_lists(ids, counts, fast, plain, words, at):
    """Write the body of lists; returns where it ends or -1 if `words` is full."""
    lists = counts.size
    listed, bases = np.empty(2 * lists, np.uint32), np.empty(lists, np.int64)
    totals = _plan_lists(ids, counts, plain, listed, bases)
    at = write_packed(listed, 2 * lists, words, at)
    if at < 0 or at + 2 * lists + GROUPS > words.size:
        return -1
    for i in range(lists):
        if listed[lists + i] & np.uint32(BASED):
            at = put_base(bases[i], words, at)
    values, places = np.empty(totals.sum(), np.uint32), totals.cumsum() - totals
    end = np.int64(0)
    for i in range(lists):
        n, tag = counts[i], np.int64(listed[lists + i])
        begin, end = end, end + n
        if tag < PACKED:
            at = as_they_are(ids[begin:end], tag == WIDE, words, at)
            if at < 0:
                return -1
        elif n:
            place = places[tag >> 4]
            to_values(ids[begin:end], tag & ASCENDING != 0, bases[i], values[place : place + n])
            places[tag >> 4] += n
    return _write_groups(values, totals, fast, words, at)


@kernel
def _write_groups(values, totals, fast, words, at):
    directory = at
    at += np.count_nonzero(totals)
    if at > words.size:
        return -1
    begin = 0
    for n in totals:
        if n:
            end, coder = write_values(values[begin : begin + n], n, fast, words, at)
            if end < 0:
                return -1
            words[directory] = 2 * (end - at) + (coder == CODED)
            directory += 1
            at = end
            begin += n
    return at


@kernel
def _measure_lists(counts, tags, words, at, end, groups):
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
        coder, group = tag & CODER, tag >> 4
        if coder == CODED or (coder < PACKED and tag != coder) or group >= GROUPS:
            return LISTED, at, at
        if coder == PACKED:
            groups[group, 0] += n
            bases += 1 if tag & BASED else 0
        else:
            plain += n * (2 if coder == WIDE else 1)
    plain_at = at + 2 * bases
    directory = plain_at + plain
    if directory > end:
        return COUNT, at, at
    entry = directory
    at = directory + np.count_nonzero(groups[:, 0])
    if at > end:
        return DIRECTORY, at, at
    for part in groups:
        if part[0]:
            part[1] = words[entry]
            size, coded = part[1] // 2, part[1] % 2
            if part[0] > size * (CHUNK if coded else 4 * bitpack.BLOCK):
                return COUNT, at, at
            entry += 1
            at += size
    return (0 if at == end else DIRECTORY), plain_at, directory


@kernel
def _decode_lists(counts, tags, words, base_at, groups, plain_at, directory, ids):
    """Decode what `_measure_lists` has checked; returns 0 or what is wrong."""
    values, places = np.empty(groups[:, 0].sum(), np.uint32), groups[:, 0].cumsum() - groups[:, 0]
    at = directory + np.count_nonzero(groups[:, 0])
    for group in range(GROUPS):
        n, entry, begin = groups[group, 0], groups[group, 1], places[group]
        if n:
            stop, coder = at + entry // 2, CODED if entry % 2 else PACKED
            if not read_values(words, at, stop, coder, n, values[begin : begin + n]):
                return VALUES
            at = stop
    end, good = np.int64(0), True
    for i in range(counts.size):
        n, tag = np.int64(counts[i]), np.int64(tags[i])
        begin, end = end, end + n
        if tag < PACKED:
            read_as_they_are(words, plain_at, tag == WIDE, ids[begin:end])
            plain_at += n * (2 if tag == WIDE else 1)
            continue
        base = np.int64(0)
        if tag & BASED:
            base = read_base(words, base_at)
            base_at += 2
        place = places[tag >> 4]
        good &= from_values(values[place : place + n], tag & ASCENDING != 0, base, ids[begin:end])
        places[tag >> 4] += n
    return 0 if good else RANGE
