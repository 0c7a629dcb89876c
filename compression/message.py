"""All sections of a message in one compiled call: for small tables, a call from Python costs as much as the work.

A chain has a number in `wire.CHAINS` and two compiled functions: one encodes a section from a word on and returns where
it ends, or -1 where a simpler chain is to take it; the other decodes the words of a section and returns 0 or the number
of the field that is wrong. Neither leaves its arrays, whatever is in them. Compiled functions cannot be called out of a
table without giving up their cache and inlining, so they are chosen here, by their numbers.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from compression import bitpack, rows
from compression.bits import pointer
from compression.dedup import decode_dedup, encode_dedup
from compression.kernel import inner, kernel
from compression.shapes import most_patches
from compression.wire import BITPACK, DEDUP, HUFFMAN, RANS, RAW

VALUES, BITS, BYTES, SIZE, ROWS, COLUMNS, CHAIN, STOP = range(8)
"""Columns of a plan for encoding, int64: addresses of the float32 values, of what a patch sends (uint32) and of the raw
bytes, their number, the shape, the chain to try and then the one taken, and, out, the word where the section ends."""
TARGET, START, END, ERROR = 0, 1, 2, 3
"""Columns of a plan for decoding besides SIZE, ROWS, COLUMNS and CHAIN: the address of the output, the words of the
section, and, out, 0 or what is wrong."""
WIDTH = 8
SLACK = 4096
"""Words behind the largest payload that encoders may write to."""

PACKED = 11
ERRORS = {**rows.FIELDS, PACKED: "packed words"}
"""What `decode_sections` can find wrong."""


@kernel
def encode_sections(plan, grids, work, words, at):
    """Encode the sections of a plan one after the other and return where the last one ends.

    Args:
        plan: int64 [sections, WIDTH]; grids: float32 [sections, 3], see `quantize.grid`.
        words: uint32, with room for all sections raw, and SLACK.
    """
    for s in range(plan.shape[0]):
        size, n = plan[s, SIZE], plan[s, ROWS] * plan[s, COLUMNS]
        x = carray(pointer(plan[s, VALUES]), n, np.float32)
        bits = carray(pointer(plan[s, BITS]), n, np.uint32)
        raw = (size + 3) // 4
        chain = plan[s, CHAIN]
        end = np.int64(-1)
        if chain in (HUFFMAN, RANS):
            step, inverse, limit = grids[s, 0], grids[s, 1], grids[s, 2]
            end = rows.encode_rows(
                x, bits, plan[s, ROWS], plan[s, COLUMNS], step, inverse, limit, chain, work, words, at
            )
            if end < 0 or end - at >= raw:
                chain = BITPACK
        if chain == DEDUP:
            step, inverse, limit = grids[s, 0], grids[s, 1], grids[s, 2]
            end = encode_dedup(x, bits, plan[s, ROWS], plan[s, COLUMNS], step, inverse, limit, work, words, at)
            if end < 0 or end - at >= raw:
                chain = BITPACK
        if chain == BITPACK:
            end = _encode_packed(x, bits, grids[s], work, words, at)
        if end < 0 or end - at >= raw:
            chain, end = RAW, at + raw
            if raw:
                words[end - 1] = 0
            _copy(carray(pointer(plan[s, BYTES]), size, np.uint8), words[at:end].view(np.uint8), size)
        plan[s, CHAIN], plan[s, STOP] = chain, end
        at = end
    return at


@inner
def _copy(source, target, size):
    """Copy bytes, by words where both begin at one."""
    done = 0
    if (source.ctypes.data | target.ctypes.data) % 8 == 0:
        done = size // 8 * 8
        some, others = source[:done].view(np.uint64), target[:done].view(np.uint64)
        for i in range(np.uintp(some.size)):
            others[i] = some[i]
    for i in range(np.uintp(done), np.uintp(size)):
        target[i] = source[i]


@inner
def _encode_packed(x, bits, grid, work, words, at):
    """Section: words of the packed codes, patches, widths, packed codes, patches' indices, patches' bits."""
    start = at + 2 + (bitpack.blocks(x.size) + 3) // 4
    words[start - 1] = 0
    widths = words[at + 2 : start].view(np.uint8)
    step, inverse, limit = grid[0], grid[1], grid[2]
    last = bitpack.blocks(x.size)
    used, patches = bitpack.quantize_pack(
        x, inverse, step, limit, 0, last, words[start:], widths, work.patch_at, work.patch_bits
    )
    if used < 0 or patches > most_patches(x.size) or start + used + 2 * patches > words.size:
        return -1
    words[at], words[at + 1] = used, patches
    at = start + used
    words[at : at + patches] = work.patch_at[:patches]
    for i in range(patches):
        words[at + patches + i] = bits[work.patch_at[i]]
    return at + 2 * patches


@kernel
def decode_sections(plan, steps, work, words):
    """Decode the sections of a plan; returns the first one that is wrong, or -1.

    Args:
        plan: int64 [sections, WIDTH]; steps: float32 [sections]; words: uint32, the payload.
    """
    for s in range(plan.shape[0]):
        n, at, end = plan[s, ROWS] * plan[s, COLUMNS], plan[s, START], plan[s, END]
        if plan[s, CHAIN] == RAW:
            size = plan[s, SIZE]
            _copy(words[at:end].view(np.uint8), carray(pointer(plan[s, TARGET]), size, np.uint8), size)
            continue
        out = carray(pointer(plan[s, TARGET]), n, np.float32)
        if plan[s, CHAIN] == BITPACK:
            error = _decode_packed(words, at, end, steps[s], out)
        elif plan[s, CHAIN] == DEDUP:
            error = decode_dedup(words, at, end, plan[s, ROWS], plan[s, COLUMNS], steps[s], work, out)
        else:
            error = rows.decode_rows(
                words, at, end, plan[s, ROWS], plan[s, COLUMNS], steps[s], plan[s, CHAIN], work, out
            )
        if error:
            plan[s, ERROR] = error
            return s
        if not _patch(words, end, np.int64(words[at + 1]), out.view(np.uint32)):
            plan[s, ERROR] = rows.PATCHES
            return s
    return -1


@inner
def _decode_packed(words, at, end, step, out):
    start = at + 2 + (bitpack.blocks(out.size) + 3) // 4
    if start > end:
        return PACKED
    used, patches = np.int64(words[at]), np.int64(words[at + 1])
    if patches > out.size or start + used + 2 * patches != end:
        return PACKED
    widths = words[at + 2 : start].view(np.uint8)[: bitpack.blocks(out.size)]
    packed = words[start : start + used]
    if bitpack.packed_words(widths, out.size) != used:
        return PACKED
    bitpack.unpack_dequantize(packed, widths, 0, widths.size, 0, step, out)
    return 0


@inner
def _patch(words, end, patches, out):
    """Put in what no code holds; False if an index is wrong."""
    for i in range(patches):
        at = words[end - 2 * patches + i]
        if at >= out.size:
            return False
        out[at] = words[end - patches + i]
    return True
