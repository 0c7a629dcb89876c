"""Canonical Huffman codes of at most 12 bits for uint8 symbols, in chunks that decode independently.

This is the entropy coder of arXiv 2407.04272 (there cuSZ's): the symbols are quantised codes. All functions here are
compiled and hold no state; threads may decode ranges of chunks of one message at the same time.

Layout, little-endian, uint32 words, n symbols (n itself is not stored):

- n = 0: no word. One distinct symbol: one word, the symbol; its code has no bits, so nothing follows. Else:
- lengths: the first byte is the largest used symbol, `last`; then `last + 1` nibbles, the code length in bits of each
  symbol from 0 on, low nibble first, 0 = unused; zeros up to a whole word.
- directory: for each chunk of `CHUNK` = 512 symbols (the last may be shorter) a uint16, its number of words; zeros up
  to a whole word.
- chunks, one after the other, each from a new word on: the codes of its symbols, from the lowest bit of a word upwards,
  the first bit of a code lowest; zeros up to a whole word. Nothing follows the last chunk.

The codes are canonical as in RFC 1951, 3.2.2: shorter codes are smaller, codes of equal length ascend with the symbol.

The lengths follow from the counts of the symbols alone, in integers:

1. Order the used symbols by (count, symbol), ascending; these are the leaves. Build a Huffman tree from two queues, the
   leaves in this order and the inner nodes in the order of their making: each new node takes, twice, the lighter of
   the two fronts, the leaf if they are equal.
2. N[d] = the number of leaves at depth d, those deeper than 12 counted in N[12]. While the sum of N[d] * 2^(12 - d)
   exceeds 2^12: take the largest d < 12 with N[d] > 0; N[d] -= 1, N[d + 1] += 2, N[12] -= 1 (a leaf moves down and
   becomes the brother of one that was too deep), which lowers the sum by 1.
3. In the order of 1, the first N[12] symbols get length 12, the next N[11] get length 11, and so on.
"""

from __future__ import annotations

import numpy as np

from compression.bits import load8, store8
from compression.codewords import MAX_LENGTH, canonical_codes, code_lengths, decode_table, sort_keys
from compression.kernel import inner, kernel

CHUNK = 512
"""Symbols in a chunk."""
BAD_COUNT, BAD_LENGTHS, BAD_DIRECTORY, BAD_CHUNK = 1, 2, 3, 4
FIELDS = {
    BAD_COUNT: "number of symbols",
    BAD_LENGTHS: "code lengths",
    BAD_DIRECTORY: "chunk directory",
    BAD_CHUNK: "chunk",
}
"""Error codes of the decoder, and the field that each one is about."""

_FULL = 1 << MAX_LENGTH
_CHUNK_WORDS = CHUNK * MAX_LENGTH // 32
_SLACK = 2
"""Words that `_encode_chunk` may overwrite after its chunk."""


@kernel
def encode(symbols: np.ndarray, words: np.ndarray) -> int:
    """Encodes symbols.

    Args:
        symbols: uint8 [n], contiguous.
        words: uint32, contiguous: where the message goes. All of it may be overwritten, nothing outside it.

    Returns:
        Words of the message, or -1 if it is longer than `words`.
    """
    n = symbols.size
    if n == 0:
        return 0
    keys, used = _sorted_counts(symbols)
    if used == 1:
        if words.size == 0:
            return -1
        words[0] = symbols[0]
        return 1
    lengths = np.zeros(256, np.uint8)
    last = code_lengths(keys, used, lengths)
    directory = _directory_at(last)
    at = directory + (chunk_count(n) + 1) // 2
    if at > words.size:
        return -1
    words[:at] = 0
    words[0] = last
    for symbol in range(last + 1):
        nibble = np.uintp(symbol + 2)
        words[nibble >> 3] |= np.uint32(lengths[symbol]) << np.uint32((nibble & 7) * 4)
    codes = canonical_codes(lengths, last)
    for chunk in range(chunk_count(n)):
        start = chunk * CHUNK
        stop = min(start + CHUNK, n)
        if at + _CHUNK_WORDS + _SLACK <= words.size:
            size = _encode_chunk(symbols, start, stop, codes, words, at)
        else:  # near the end of `words`
            aside = np.empty(_CHUNK_WORDS + _SLACK, np.uint32)
            size = _encode_chunk(symbols, start, stop, codes, aside, 0)
            if at + size > words.size:
                return -1
            words[at : at + size] = aside[:size]
        words[directory + (chunk >> 1)] |= np.uint32(size) << np.uint32((chunk & 1) * 16)
        at += size
    return at


@kernel
def chunk_count(n: int) -> int:
    """Chunks of n symbols."""
    return (n + CHUNK - 1) // CHUNK


@kernel
def _directory_at(last: int) -> int:
    """Words of the lengths."""
    return (last + 10) >> 3


@inner
def _sorted_counts(symbols: np.ndarray) -> tuple[np.ndarray, int]:
    """count << 8 | symbol of the used symbols, ascending (uint64), and their number."""
    # Equal symbols in a row would wait for each other's count: four counters take turns.
    counts = np.zeros((4, 256), np.uint32)
    for i in range(np.uintp(symbols.size)):
        counts[i & np.uintp(3), symbols[i]] += np.uint32(1)
    keys = np.empty(256, np.uint64)
    used = 0
    for symbol in range(256):
        count = counts[0, symbol] + counts[1, symbol] + counts[2, symbol] + counts[3, symbol]
        keys[used] = np.uint64(count) << np.uint64(8) | np.uint64(symbol)
        used += count != 0
    sort_keys(keys, used)
    return keys, used


@inner
def write_codes(
    symbols: np.ndarray, start: int, stop: int, codes: np.ndarray, words: np.ndarray, bit: np.uint64, bits: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """Appends the codes of symbols[start:stop] to a stream of bits, from the lowest bit of a word upwards.

    Args:
        codes: see `code_table`.
        words: uint32, out; room for MAX_LENGTH bits a symbol and 8 bytes.
        bit, bits: where the stream ends, in bits, and its last `bit % 8` bits. At first a multiple of 8, and 0.

    Returns:
        The new `bit` and `bits`.
    """
    to = bit >> np.uint64(3)
    held = bit & np.uint64(7)
    i = np.uintp(start)
    fours = i + ((np.uintp(stop) - i) & ~np.uintp(3))
    while i < fours:
        # At most 7 bits are held, four codes have at most 48.
        a, b = np.uint64(codes[symbols[i]]), np.uint64(codes[symbols[i + np.uintp(1)]])
        c, d = np.uint64(codes[symbols[i + np.uintp(2)]]), np.uint64(codes[symbols[i + np.uintp(3)]])
        i += np.uintp(4)
        ab = a >> np.uint64(8) | (b >> np.uint64(8)) << (a & np.uint64(63))
        cd = c >> np.uint64(8) | (d >> np.uint64(8)) << (c & np.uint64(63))
        size_ab = a + b & np.uint64(63)
        size = size_ab + (c + d & np.uint64(63))
        bits |= (ab | cd << size_ab) << held
        held += size
        store8(words, to, bits)
        to += held >> np.uint64(3)
        bits >>= held & np.uint64(56)
        held &= np.uint64(7)
    while i < np.uintp(stop):
        a = np.uint64(codes[symbols[i]])
        i += np.uintp(1)
        bits |= (a >> np.uint64(8)) << held
        held += a & np.uint64(63)
    # Fewer than 7 + 3 * 12 bits are left.
    store8(words, to, bits)
    to += held >> np.uint64(3)
    bits >>= held & np.uint64(56)
    return (to << np.uint64(3)) + (held & np.uint64(7)), bits


@inner
def _encode_chunk(symbols: np.ndarray, start: int, stop: int, codes: np.ndarray, words: np.ndarray, at: int) -> int:
    """Writes the codes of symbols[start:stop] from word `at` on; returns the number of words."""
    first = np.uint64(at) << np.uint64(5)
    bit, _ = write_codes(symbols, start, stop, codes, words, first, np.uint64(0))
    return (int(np.int64(bit - first)) + 31) >> 5


@kernel
def decode(words: np.ndarray, n: int, out: np.ndarray) -> int:
    """Decodes a message that fills `words` exactly.

    Args:
        words: uint32, contiguous; any content is safe.
        n: number of symbols.
        out: uint8, contiguous, of at least n elements; nothing is written beyond out[:n].

    Returns:
        0, or the code of an error in `FIELDS`; then out[:n] has no meaning.
    """
    return decode_chunks(words, n, out, 0, chunk_count(n))


@kernel
def decode_chunks(words: np.ndarray, n: int, out: np.ndarray, first: int, stop: int) -> int:
    """As `decode`, for the chunks first .. stop-1 only: writes out[first * CHUNK : min(stop * CHUNK, n)]."""
    if n < 0 or n > out.size or first < 0 or first > stop or stop > chunk_count(n):
        return BAD_COUNT
    if n == 0:
        return BAD_DIRECTORY if words.size else 0
    if words.size == 1:
        if words[0] > 255:
            return BAD_LENGTHS
        out[first * CHUNK : min(stop * CHUNK, n)] = words[0]
        return 0
    lengths = np.empty(256, np.uint8)
    last = _read_lengths(words, lengths)
    if last < 0:
        return BAD_LENGTHS
    directory = _directory_at(last)
    at = _find_chunk(words, directory, chunk_count(n), first)
    if at < 0:
        return BAD_DIRECTORY
    table = decode_table(lengths, last)
    return _decode_range(words, table, directory, at, first, stop, out[:n])


@inner
def _read_lengths(words: np.ndarray, lengths: np.ndarray) -> int:
    """Reads the lengths; returns the largest used symbol, or -1 if they make no full code."""
    if words.size == 0:
        return -1
    last = int(np.int64(words[0] & np.uint32(255)))
    size = _directory_at(last)
    if size > words.size:
        return -1
    kraft = 0
    for symbol in range(last + 1):
        nibble = np.uintp(symbol + 2)
        length = (words[nibble >> 3] >> np.uint32((nibble & 7) * 4)) & np.uint32(15)
        lengths[symbol] = length
        if length > MAX_LENGTH:
            return -1
        kraft += (_FULL >> length) & (_FULL - 1)
    used_bits = ((last + 3) * 4 - 1 & 31) + 1
    padding = np.uint64(words[size - 1]) >> np.uint64(used_bits)
    return last if kraft == _FULL and lengths[last] != 0 and padding == 0 else -1


@inner
def _find_chunk(words: np.ndarray, directory: int, chunks: int, first: int) -> int:
    """Word at which a chunk starts, or -1 if the directory and its chunks do not fill `words` exactly."""
    at = directory + (chunks + 1) // 2
    if at > words.size:
        return -1
    if chunks & 1 and words[at - 1] >> np.uint32(16):
        return -1
    found = at
    for chunk in range(chunks):
        if chunk == first:
            found = at
        at += _chunk_words(words, directory, chunk)
    return found if at == words.size else -1


@inner
def _chunk_words(words: np.ndarray, directory: int, chunk: int) -> int:
    pair = words[np.uintp(directory + (chunk >> 1))]
    return int(np.int64(pair >> np.uint32((chunk & 1) * 16) & np.uint32(0xFFFF)))


@inner
def _decode_range(
    words: np.ndarray, table: np.ndarray, directory: int, at: int, first: int, stop: int, out: np.ndarray
) -> int:
    """Decodes the chunks first .. stop-1, the first of which starts at word `at`, four at a time."""
    bit = np.empty(4, np.uint64)
    end = np.empty(4, np.int64)
    to = np.empty(4, np.uint64)
    for group in range(first, stop, 4):
        members = min(4, stop - group)
        for i in range(4):
            if i < members:
                bit[i] = at * 32
                at += _chunk_words(words, directory, group + i)
                end[i] = at
                to[i] = (group + i) * CHUNK
            else:  # decoded twice, to the same place
                bit[i], end[i], to[i] = bit[0], end[0], to[0]
        # Only the last member can be short; when it is done, the others go on without it.
        short = min(CHUNK, out.size - (group + members - 1) * CHUNK)
        _decode_four(words, table, bit, out, to, short)
        if short < CHUNK and members > 1:
            done = bit[members - 1]
            bit[members - 1], to[members - 1] = bit[0], to[0]
            for i in range(members, 4):
                bit[i], to[i] = bit[0], to[0]
            _decode_four(words, table, bit, out, to, CHUNK - short)
            bit[members - 1] = done
        for i in range(members):
            if (np.int64(bit[i]) + 31) >> 5 != end[i]:
                return BAD_CHUNK
            if bit[i] & np.uint64(31) and words[end[i] - 1] >> np.uint32(bit[i] & np.uint64(31)):
                return BAD_CHUNK
    return 0


@inner
def _decode_four(
    words: np.ndarray, table: np.ndarray, bit: np.ndarray, out: np.ndarray, to: np.ndarray, count: int
) -> None:
    """Decodes `count` symbols from each of four bits on, to each of four places; moves both."""
    limit = np.uint64(words.size * 4 - 8)
    mask = np.uint64(table.size - 1)
    # Four chains of look-ups that the processor runs side by side, as none waits for another.
    bit0, bit1, bit2, bit3 = bit[0], bit[1], bit[2], bit[3]
    whole = np.uint64(count) & ~np.uint64(3)
    for i in range(np.uint64(0), whole, np.uint64(4)):
        bit0 = _four_symbols(words, table, bit0, limit, out, to[0] + i)
        bit1 = _four_symbols(words, table, bit1, limit, out, to[1] + i)
        bit2 = _four_symbols(words, table, bit2, limit, out, to[2] + i)
        bit3 = _four_symbols(words, table, bit3, limit, out, to[3] + i)
    bit[0], bit[1], bit[2], bit[3] = bit0, bit1, bit2, bit3
    for stream in range(4):
        for i in range(whole, np.uint64(count)):
            entry = table[_bits(words, bit[stream], limit) & mask]
            out[to[stream] + i] = entry >> np.uint16(8)
            bit[stream] += entry & np.uint64(63)
        to[stream] += np.uint64(count)


@inner
def _four_symbols(
    words: np.ndarray, table: np.ndarray, bit: np.uint64, limit: np.uint64, out: np.ndarray, to: np.uint64
) -> np.uint64:
    """Decodes four symbols to out[to : to + 4]; returns the bit after them."""
    bits = _bits(words, bit, limit)
    mask = np.uint64(table.size - 1)
    size = np.uint64(0)
    for i in range(4):
        entry = np.uint64(table[bits & mask])
        out[to + np.uint64(i)] = entry >> np.uint64(8)
        bits >>= entry & np.uint64(63)
        size += entry
    return bit + (size & np.uint64(255))


@inner
def _bits(words: np.ndarray, bit: np.uint64, limit: np.uint64) -> np.uint64:
    """At least the next 57 bits of the data, zeros after their end; anything if `bit` lies beyond it."""
    byte = min(bit >> np.uint64(3), limit)
    return load8(words, byte) >> (bit - (byte << np.uint64(3)) & np.uint64(63))


@inner
def read_codes(
    words: np.ndarray, bit: np.ndarray, tables: np.ndarray, which: np.ndarray, out: np.ndarray, to: np.ndarray, n: int
) -> None:
    """Decodes `n` symbols from each of four places in a stream of bits, each with a table of its own.

    Args:
        words: uint32 [>= 2], outside of which nothing is read.
        bit: uint64 [4], where to begin, then where it ended.
        tables: uint16 [tables, 2 ^ MAX_LENGTH]; which: int64 [4], the table of each place.
        out: uint8; to: uint64 [4], where the symbols of each place go.
    """
    limit = np.uint64(words.size * 4 - 8)
    mask = np.uint64(tables.shape[1] - 1)
    table0, table1, table2, table3 = tables[which[0]], tables[which[1]], tables[which[2]], tables[which[3]]
    bit0, bit1, bit2, bit3 = bit[0], bit[1], bit[2], bit[3]
    whole = np.uint64(n) & ~np.uint64(3)
    for i in range(np.uint64(0), whole, np.uint64(4)):
        bit0 = _four_symbols(words, table0, bit0, limit, out, to[0] + i)
        bit1 = _four_symbols(words, table1, bit1, limit, out, to[1] + i)
        bit2 = _four_symbols(words, table2, bit2, limit, out, to[2] + i)
        bit3 = _four_symbols(words, table3, bit3, limit, out, to[3] + i)
    bit[0], bit[1], bit[2], bit[3] = bit0, bit1, bit2, bit3
    for place in range(4):
        for i in range(whole, np.uint64(n)):
            entry = tables[which[place], _bits(words, bit[place], limit) & mask]
            out[to[place] + i] = entry >> np.uint16(8)
            bit[place] += entry & np.uint64(63)
