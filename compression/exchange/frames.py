"""The header before each message, and the buffers that messages come in."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from compression.errors import CorruptPayloadError

_MAGIC, _VERSION = 0xA7, 1
_FIELDS = struct.Struct("<BBHHHIq")
_CHECK = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CHECK.size
"""A multiple of 8, so that a payload behind it is as aligned as the buffer."""
MOST_BYTES = 1 << 30
"""Of a payload."""
SIZES = 0xFFFF
"""The chunk of a header that tells the size of what follows in another message."""


class Stamp(NamedTuple):
    """Tells messages apart."""

    channel: int
    source: int
    chunk: int
    exchange: int
    """Counts what a channel sends, modulo 2^32."""


def header(stamp: Stamp, size: int) -> bytes:
    """HEADER_BYTES: magic, version, stamp, size of the payload as int64, CRC-32 of these."""
    fields = _FIELDS.pack(_MAGIC, _VERSION, *stamp, size)
    return fields + _CHECK.pack(zlib.crc32(fields))


def read_header(data: bytes, expected: Stamp) -> int:
    """The size of the payload.

    Args:
        data: at least HEADER_BYTES of anything.

    Raises:
        CorruptPayloadError: not the header that was expected.
    """
    magic, version, *stamp, size = _FIELDS.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptPayloadError("magic", f"{magic:#x}, not {_MAGIC:#x}: not a message of Thinwire")
    if version != _VERSION:
        raise CorruptPayloadError("version", f"{version}, not {_VERSION}: install one version on all ranks")
    if zlib.crc32(data[: _FIELDS.size]) != _CHECK.unpack_from(data, _FIELDS.size)[0]:
        raise CorruptPayloadError("check of the header", "changed on its way")
    for name, got, wanted in zip(Stamp._fields, stamp, expected, strict=True):
        if got != wanted:
            raise CorruptPayloadError(name, f"{got}, not {wanted}: a stale message, or ranks that do not keep step")
    return int(size)


def size_class(size: int) -> tuple[int, int]:
    """A number below 232 for sizes up to MOST_BYTES and some, and the largest size of that number: at most 1/8 more."""
    last = max(size, 1) - 1
    shift = max(last.bit_length() - 4, 0)
    return (last >> shift) + 8 * shift, ((last >> shift) + 1) << shift


def layout(sizes: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[int]]:
    """How messages lie after each other, each at a multiple of 8 bytes.

    Args:
        sizes: of the messages of each rank.

    Returns:
        Where each message begins, and the bytes of each rank.
    """
    places: list[list[int]] = []
    splits: list[int] = []
    at = 0
    for of_rank in sizes:
        first = at
        places.append([])
        for size in of_rank:
            places[-1].append(at)
            at += -(-size // 8) * 8
        splits.append(at - first)
    return places, splits
