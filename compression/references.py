"""References to distinct rows as bits: the magnitude with a table that is sent, the rest of the bits as they are.

Values below 8 are symbols of their own. A larger value is told by its highest three bits and their place, one symbol,
and its lower bits, which follow those of all other values in one stream.
"""

from __future__ import annotations

import numpy as np

from compression import huffman
from compression.bits import load8, store8
from compression.entropy import CHUNK, decode_chunk, encode_chunk
from compression.kernel import inner
from compression.tables import SENT_WORDS, classify, read_classes

_DIRECT = 8
_SYMBOLS = 124
_KNOWN = 4096


def _symbol(value: int) -> int:
    if value < _DIRECT:
        return value
    top = value.bit_length() - 1
    return _DIRECT + 4 * (top - 3) + ((value >> (top - 2)) & 3)


_SYMBOL_OF = np.array([_symbol(v) for v in range(_KNOWN)], np.uint8)
_EXTRA = np.array([0 if s < _DIRECT else (s - _DIRECT) // 4 + 1 for s in range(256)], np.uint32)
_FIRST = np.array(
    [s if s < _DIRECT else (4 + (s & 3)) << min((s - _DIRECT) // 4 + 1, 29) for s in range(256)], np.int64
)


@inner
def _magnitude(value):
    """The symbol of a value."""
    if value < np.uint32(_KNOWN):
        return _SYMBOL_OF[value]
    top = 12
    while (value >> np.uint32(top)) > 1:
        top += 1
    return np.uint8(_DIRECT + 4 * (top - 3) + ((value >> np.uint32(top - 2)) & 3))


@inner
def encode_references(values, n, symbols, pushes, slots, scratch, words, at):
    """Write uint32 [n >= 1] with rANS; returns where the next word begins, or -1 if `words` is full.

    Layout: the table; one uint16 a chunk of 8192 symbols, its words, filled up to whole words; the chunks; low bits.

    Args:
        symbols: uint8 [n]; pushes: uint32 [1, 256, 4]; slots: uint32 [1, 2048]; scratch: uint16: working memory.
    """
    histogram = np.zeros(256, np.int64)
    for i in range(np.uintp(n)):
        symbol = _magnitude(values[i])
        symbols[i] = symbol
        histogram[symbol] += 1
    chunks = (n + CHUNK - 1) // CHUNK
    if at + SENT_WORDS + (chunks + 1) // 2 > words.size:
        return -1
    directory = classify(histogram, words, at)
    read_classes(words, at, directory, pushes[0], slots[0])
    at = directory + (chunks + 1) // 2
    entries = words[directory:at].view(np.uint16)
    entries[entries.size - 1] = 0
    choice = np.zeros(1, np.uint8)
    for chunk in range(chunks):
        start = chunk * CHUNK
        end = encode_chunk(symbols[start:], 0, 1, min(CHUNK, n - start), choice, pushes, scratch, words, at)
        if end < 0:
            return -1
        entries[chunk] = end - at
        at = end
    return _write_extra(values, symbols, n, words, at)


@inner
def encode_references_huffman(values, n, symbols, words, at):
    """As `encode_references`, with Huffman codes. Layout: words of the symbols, the symbols, low bits."""
    for i in range(np.uintp(n)):
        symbols[i] = _magnitude(values[i])
    if at >= words.size:
        return -1
    used = huffman.encode(symbols[:n], words[at + 1 :])
    if used < 0:
        return -1
    words[at] = used
    return _write_extra(values, symbols, n, words, at + 1 + used)


@inner
def _write_extra(values, symbols, n, words, at):
    """Append the lower bits; returns where the next word begins, or -1 if `words` is full."""
    bit, bits = np.uint64(at) << np.uint64(5), np.uint64(0)
    room = np.uint64(words.size) << np.uint64(5)
    for start in range(0, n, 256):
        if bit + np.uint64(256 * 32) > room:
            return -1
        for i in range(np.uintp(start), np.uintp(min(start + 256, n))):
            width = np.uint64(_EXTRA[symbols[i]])
            bits |= (np.uint64(values[i]) & ((np.uint64(1) << width) - np.uint64(1))) << (bit & np.uint64(7))
            store8(words, bit >> np.uint64(3), bits)
            end = (bit & np.uint64(7)) + width
            bits >>= end & np.uint64(56)
            bit += width
    return (np.int64(bit) + 31) // 32


@inner
def decode_references(words, at, end, n, symbols, pushes, slots, scratch, values):
    """Read uint32 [n] from `words[at:end]`; False if it is not what an encoder writes. Stays within all arrays."""
    chunks = (n + CHUNK - 1) // CHUNK
    directory = read_classes(words, at, end, pushes[0], slots[0])
    if directory < 0 or directory + (chunks + 1) // 2 > end:
        return False
    at = directory + (chunks + 1) // 2
    entries = words[directory:at].view(np.uint16)
    choice = np.zeros(1, np.uint8)
    for chunk in range(chunks):
        start = chunk * CHUNK
        stop = at + np.int64(entries[chunk])
        count = min(CHUNK, n - start)
        if stop > end or not decode_chunk(words, at, stop, 1, count, choice, slots, scratch, symbols[start:], 0):
            return False
        at = stop
    return _read_extra(words, at, end, symbols, n, values)


@inner
def decode_references_huffman(words, at, end, n, symbols, values):
    """As `decode_references`, with Huffman codes."""
    if at >= end:
        return False
    middle = at + 1 + np.int64(words[at])
    if middle > end or huffman.decode(words[at + 1 : middle], n, symbols) != 0:
        return False
    return _read_extra(words, middle, end, symbols, n, values)


@inner
def _read_extra(words, at, end, symbols, n, values):
    bit, stop = np.uint64(at) << np.uint64(5), np.uint64(end) << np.uint64(5)
    limit = np.uint64(max(words.size * 4 - 8, 0))
    if words.size < 2:
        return False
    foreign = np.uint8(0)
    for i in range(np.uintp(n)):
        symbol = symbols[i]
        foreign = max(foreign, symbol)
        width = np.uint64(_EXTRA[symbol])
        byte = min(bit >> np.uint64(3), limit)
        low = load8(words, byte) >> ((bit - (byte << np.uint64(3))) & np.uint64(63))
        values[i] = np.uint32(_FIRST[symbol]) + np.uint32(low & ((np.uint64(1) << width) - np.uint64(1)))
        bit += width
    if bit > stop or stop - bit > 31 or foreign >= _SYMBOLS:
        return False
    return (bit & np.uint64(31)) == 0 or np.uint64(words[end - 1]) >> (bit & np.uint64(31)) == 0
