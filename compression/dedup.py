"""The fast way for tables with equal rows: quantise, store equal rows once, pack numbers and codes in minimal widths.

Section, in words: distinct rows, patches, words of the numbers, bytes of a code; the numbers of all rows (widths, words
of `bitpack`); the codes of the distinct rows, zigzag, row after row (likewise); indices of the patches; their bits.
"""

from __future__ import annotations

import numpy as np

from compression import bitpack, vector_lz
from compression.kernel import inner
from compression.rows import COUNTS, REFERENCES, SYMBOLS, expand, match_codes, quantize_codes
from compression.shapes import is_flat, most_patches

HEADER = 4


@inner
def encode_dedup(x, bits, rows, columns, step, inverse, limit, work, words, at):
    """Write a section from `words[at]` on and return where it ends, or -1 if another chain is to take the table.

    The arguments are those of `rows.encode_rows`.
    """
    if is_flat(rows, columns):
        return -1
    stride, patches = quantize_codes(x, bits, rows, columns, step, inverse, limit, work)
    if patches > most_patches(rows * columns):
        return -1
    width = 1 if stride > 0 else 2
    stride = abs(stride)
    distinct = match_codes(rows, stride * width // 8, work)
    vector_lz.resolve(work.references, rows, distinct)
    numbered = at + HEADER + (bitpack.blocks(rows) + 3) // 4
    if numbered > words.size:
        return -1
    words[numbered - 1] = 0
    widths = words[at + HEADER : numbered].view(np.uint8)
    used = bitpack.pack_u32(work.references, rows, words[numbered:], widths)
    if used < 0:
        return -1
    words[at], words[at + 1] = distinct, patches
    words[at + 2], words[at + 3] = numbered + used - at - HEADER, width
    end = numbered + used
    if width == 1:
        end = _pack_codes(work.codes.view(np.int8), stride, work.firsts, distinct, columns, words, end)
    else:
        end = _pack_codes(work.codes.view(np.int16), stride, work.firsts, distinct, columns, words, end)
    if end < 0 or end + 2 * patches > words.size:
        return -1
    words[end : end + patches] = work.patch_at[:patches]
    words[end + patches : end + 2 * patches] = work.patch_bits[:patches]
    return end + 2 * patches


@inner
def _pack_codes(codes, stride, firsts, distinct, columns, words, at):
    """Pack the codes of the distinct rows in blocks; returns where the next word begins, or -1 if `words` is full."""
    n = distinct * columns
    start = at
    at += (bitpack.blocks(n) + 3) // 4
    if at > words.size:
        return -1
    words[at - 1] = 0
    widths = words[start:at].view(np.uint8)
    block = np.empty(bitpack.BLOCK + columns, np.uint32)
    filled, row, done = np.uintp(0), np.uintp(0), 0
    for b in range(bitpack.blocks(n)):
        count = np.uintp(min(bitpack.BLOCK, n - done))
        while filled < count:
            source = np.uintp(firsts[row]) * np.uintp(stride)
            for c in range(np.uintp(columns)):
                code = np.int32(codes[source + c])
                block[filled + c] = np.uint32(np.int32(code << np.int32(1)) ^ np.int32(code >> np.int32(31)))
            filled += np.uintp(columns)
            row += np.uintp(1)
        seen = np.uint32(0)
        for i in range(count):
            seen = np.uint32(seen | block[i])
        width = bitpack.bits_of(seen)
        after = np.uintp(at) + bitpack.block_words(count, width)
        if after > np.uintp(words.size):
            return -1
        widths[b] = width
        bitpack.pack_block(block, np.uintp(0), count, width, words, np.uintp(at))
        at = np.int64(after)
        done += bitpack.BLOCK
        filled -= count
        for i in range(filled):  # what the block's last row has for the next block
            block[i] = block[count + i]
    return at


@inner
def decode_dedup(words, at, end, rows, columns, step, work, out):
    """Decode the section `words[at:end]` into float32 [rows * columns]; returns 0 or the field that is wrong.

    See `rows.decode_rows`.
    """
    if is_flat(rows, columns) or at + HEADER > end:
        return COUNTS
    distinct, patches, width = np.int64(words[at]), np.int64(words[at + 1]), np.int64(words[at + 3])
    middle, stop = at + HEADER + np.int64(words[at + 2]), end - 2 * patches
    if distinct < 1 or distinct > rows or patches > rows * columns or width < 1 or width > 2 or middle > stop:
        return COUNTS
    numbered = at + HEADER + (bitpack.blocks(rows) + 3) // 4
    if numbered > middle:
        return REFERENCES
    widths = words[at + HEADER : numbered].view(np.uint8)[: bitpack.blocks(rows)]
    if bitpack.packed_words(widths, rows) != middle - numbered:
        return REFERENCES
    bitpack.unpack_u32(words[numbered:middle], widths, rows, work.references)
    largest = np.uint32(0)
    for row in range(np.uintp(rows)):
        largest = max(largest, work.references[row])
    if np.int64(largest) >= distinct:
        return REFERENCES
    if width == 1:
        narrow = work.distinct.view(np.int8)
        if not _unpack_codes(words, middle, stop, distinct * columns, narrow):
            return SYMBOLS
        expand(narrow, columns, work.references, True, rows, columns, step, out)
    else:
        wide = work.distinct.view(np.int16)
        if not _unpack_codes(words, middle, stop, distinct * columns, wide):
            return SYMBOLS
        expand(wide, columns, work.references, True, rows, columns, step, out)
    return 0


@inner
def _unpack_codes(words, at, end, n, codes):
    start = at
    at += (bitpack.blocks(n) + 3) // 4
    if at > end:
        return False
    widths = words[start:at].view(np.uint8)[: bitpack.blocks(n)]
    if bitpack.packed_words(widths, n) != end - at:
        return False
    block = np.empty(bitpack.BLOCK, np.uint32)
    for b in range(widths.size):
        first = np.uintp(b * bitpack.BLOCK)
        count, width = np.uintp(min(bitpack.BLOCK, n - b * bitpack.BLOCK)), np.uintp(widths[b])
        bitpack.unpack_block(words, np.uintp(at), width, block, np.uintp(0), count)
        at += np.int64(bitpack.block_words(count, width))
        for i in range(count):
            folded = block[i]
            codes[first + i] = np.int32((folded >> np.uint32(1)) ^ (np.uint32(0) - (folded & np.uint32(1))))
    return True
