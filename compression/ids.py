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

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compression.errors import CorruptPayloadError
from compression.id_values import (
    ASCENDING,
    BASE,
    BASED,
    CODER,
    COUNT,
    FIELDS,
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
    read_values,
    refuse,
    seal,
    to_values,
    write_values,
)
from compression.kernel import kernel
from compression.tables import SENT_WORDS


def encode_ids(ids: ArrayLike, *, fast: bool = False) -> NDArray[np.uint8]:
    """Encode an array of ids, in any order and of any value.

    Args:
        ids: int64 or int32 [n < 2^32], an array, a torch tensor of the CPU or a list. Ascending ids without duplicates
            take least.
        fast: bit-packing always, without a look at what rANS would take.

    Returns:
        uint8 [<= the ids' own bytes + HEADER_BYTES].

    Raises:
        TypeError: ids of another dtype.
        ValueError: they have not one dimension, or are too many.

    >>> encode_ids([3, 5, 6, 9]).size
    24
    """
    array = as_ids(ids)
    words = np.empty(2 * array.size + array.size // 256 + SENT_WORDS + 64, np.uint32)
    mode, end = _encode_one(array, fast, words, 3)
    return seal(words, mode, array.size, end)


def decode_ids(payload: Any, out: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Reverse `encode_ids`.

    Args:
        payload: bytes or uint8 [any].
        out: int64 [n], contiguous; a new array if none is given.

    Raises:
        CorruptPayloadError: no encoder wrote these bytes; `out` may have been written to.
        TypeError: the payload is neither bytes nor uint8.
        ValueError: `out` is not such an array.

    >>> decode_ids(encode_ids([3, 5, 6, 9]))
    array([3, 5, 6, 9])
    """
    words, mode, count = open(payload)
    if mode >= LISTS:
        raise CorruptPayloadError("mode", f"{mode} is not that of a single array of ids")
    if count > most(words, mode & CODER):
        raise CorruptPayloadError(*FIELDS[COUNT])
    if out is None:
        out = np.empty(count, np.int64)
    elif out.shape != (count,) or out.dtype != np.int64 or not out.flags.c_contiguous:
        raise ValueError(f"out is {out.dtype} {list(out.shape)}: a contiguous array of int64 [{count}] is needed")
    refuse(_decode_one(words, 3, words.size - 1, mode, out))
    return out


@kernel
def _encode_one(ids, fast, words, start):
    """Write a body from `words[start]` on; returns (mode, where it ends)."""
    n = np.int64(ids.size)
    mode, base, _ = plan(ids)
    wide = ids.itemsize == 8
    if mode != WIDE:
        at = put_base(base, words, start) if mode & BASED else start
        values = np.empty(n, np.uint32)
        if n:
            to_values(ids, mode & ASCENDING != 0, base, values)
        at, coder = write_values(values, n, fast, words, at)
        if at >= 0 and at - start <= n * (2 if wide else 1):
            return (mode & ~CODER) | coder, at
    return (WIDE if wide else NARROW), as_they_are(ids, wide, words, start)


@kernel
def _decode_one(words, at, end, mode, ids):
    """Decode the body `words[at:end]`; returns 0 or what is wrong."""
    n, coder, base = np.int64(ids.size), mode & CODER, np.int64(0)
    if mode in (WIDE, NARROW):
        if end - at != n * (2 if mode == WIDE else 1):
            return COUNT
        read_as_they_are(words, at, mode == WIDE, ids)
        return 0
    if mode & BASED:
        if at + 2 > end:
            return BASE
        base = read_base(words, at)
        at += 2
    if coder < PACKED:
        return VALUES
    values = np.empty(n, np.uint32)
    if not read_values(words, at, end, coder, n, values):
        return VALUES
    return 0 if from_values(values, mode & ASCENDING != 0, base, ids) else RANGE
